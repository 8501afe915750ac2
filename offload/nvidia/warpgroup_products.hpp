// Hopper's products: a warpgroup's, four warps together, whose right operands wgmma reads from team memory by itself.
// They go on while the warps do something else; what a block adds to the accumulators may be put off
// (Config::defers), until issue_pending().
#pragma once

#include "nvidia/tensor_tile.hpp"
#include "nvidia/wgmma.hpp"

#include <utility>

#pragma omp declare target

namespace flashomp::offload {

/// The registers of wgmma that hold score tiles and accumulators, and what is done with them. Config: HopperMachine's.
template <class Config>
class WarpgroupProducts {
    using Tile = TensorTile<Config>;
    using Block = typename Tile::Block;
    using Math = typename Tile::Math;

public:
    using Scores = typename Tile::Scores;
    using Stats = typename Tile::Stats;
    using StreamBlock = typename Tile::StreamBlock;
    enum : int {
        columns = Tile::columns,
        depth = Tile::depth,
        fragments = Tile::fragments,
        defers = Config::defers,
        accumulators = Config::accumulators,
        panel_steps = 4, ///< of a product along 64 columns
        panel_bytes = Panels<Tile::rows_in_crew, 64>::bytes,
    };
    struct Accumulator {
        int index; ///< a constant once all is inlined
    };
    struct Resident : Tile::Resident {
        int steps_in_registers; ///< of a product along the depth; a constant once all is inlined
    };

    FLASHOMP_INLINE Scores scores()
    {
        Scores s;
        s.group = (accumulators + used_scores_) * fragments;
        ++used_scores_;
        declare<columns / 2>(s.group);
        return s;
    }
    FLASHOMP_INLINE Accumulator accumulator()
    {
        const Accumulator a{used_accumulators_};
        ++used_accumulators_;
        declare<depth / 2>(a.index * fragments);
        clear(a.index * fragments, all_of_depth());
        if constexpr (fragments > 1) {
            clear(a.index * fragments + 1, all_of_depth());
        }
        return a;
    }

    /// Begins a score tile, between fence_products() and commit_products().
    FLASHOMP_INLINE void multiply(const Scores& s, const Resident& block, StreamBlock stream)
    {
        issue_scores(s, block, block.address, stream, std::make_integer_sequence<int, depth / 16>());
    }
    /// The same where the warpgroup's rows of the resident block, all in team memory, begin at `rows`.
    FLASHOMP_INLINE void multiply(const Scores& s, const Resident& block, std::uint32_t rows, StreamBlock stream)
    {
        issue_scores(s, block, rows, stream, std::make_integer_sequence<int, depth / 16>());
    }

    /// Fetches a score tile whose products are done.
    static FLASHOMP_INLINE void get(Scores& s)
    {
        constexpr auto all = std::make_integer_sequence<int, columns / 2>();
        s.is_rounded = false;
        get(s.group, &s.s[0][0][0], all);
        if constexpr (fragments > 1) {
            get(s.group + 1, &s.s[1][0][0], all);
        }
    }

    /// Fetches an accumulator.
    static FLASHOMP_INLINE void get(const Accumulator& a, typename Tile::WarpAccumulator& c)
    {
        get(a.index * fragments, &c.c[0][0][0], all_of_depth());
        if constexpr (fragments > 1) {
            get(a.index * fragments + 1, &c.c[1][0][0], all_of_depth());
        }
    }

    static FLASHOMP_INLINE void scale(const Accumulator& a, const Stats& factor)
    {
        scale(a.index * fragments, factor.v, all_of_depth());
        if constexpr (fragments > 1) {
            scale(a.index * fragments + 1, factor.v + 2, all_of_depth());
        }
    }

    /// a += s·stream, which begins now or is put off.
    FLASHOMP_INLINE void add(const Accumulator& a, const Scores& s, StreamBlock stream)
    {
        Sum& sum = pending_[a.index];
        sum.right = ptx::uniform(ptx::matrix_descriptor(in_team(stream.address), columns * 128));
#pragma GCC unroll 8
        for (int m = 0; m < fragments; ++m) {
#pragma GCC unroll 64
            for (int k = 0; k < columns / 16; ++k) {
                sum.left[m][k] = Tile::rounded(s, m, k);
            }
        }
        if constexpr (defers == 0) {
            ptx::fence_products();
            issue(a.index, std::make_integer_sequence<int, columns / 16>());
            ptx::commit_products(); // for_blocks waits
        }
    }

    /// Begins what has been put off.
    FLASHOMP_INLINE void issue_pending()
    {
        issue_each(std::make_integer_sequence<int, accumulators>());
    }

private:
    /// What an accumulator gets: left·right.
    struct Sum {
        std::uint32_t right;
        ptx::Four left[fragments][columns / 16];
    };

    static FLASHOMP_INLINE std::uint32_t in_team(std::uint32_t address)
    {
        return Config::teams == 1 ? address : ptx::without_rank(address);
    }

    static constexpr auto all_of_depth()
    {
        return std::make_integer_sequence<int, depth / 2>();
    }

    /// Groups of registers of wgmma, one for each fragment, first those of the accumulators.
    template <int registers>
    static FLASHOMP_INLINE void declare(int group)
    {
        ptx::declare_accumulators<registers>(group);
        if constexpr (fragments > 1) {
            ptx::declare_accumulators<registers>(group + 1);
        }
    }

    template <int... i>
    static FLASHOMP_INLINE void clear(int group, std::integer_sequence<int, i...>)
    {
        (ptx::clear_accumulator<i>(group), ...);
    }

    /// `by` are the factors of a fragment's two rows.
    template <int... i>
    static FLASHOMP_INLINE void scale(int group, const float* by, std::integer_sequence<int, i...>)
    {
        (ptx::scale_accumulator<i>(group, by[i / 2 % 2]), ...);
    }

    template <int... i>
    static FLASHOMP_INLINE void get(int group, float* d, std::integer_sequence<int, i...>)
    {
        ((d[i] = ptx::get_accumulator<i>(group)), ...);
    }

    /// A step of 16 along the inner dimension for each fragment, so that two share the descriptor of the right operand.
    template <int n, bool adds, bool transposed, class Left>
    static FLASHOMP_INLINE void multiply_step(int group, const Left& first, const Left& last, std::uint32_t right)
    {
        ptx::multiply_add<Math::is_bfloat16, n, adds, transposed>(group, first, right);
        if constexpr (fragments > 1) {
            ptx::multiply_add<Math::is_bfloat16, n, adds, transposed>(group + 1, last, right);
        }
    }

    template <int... step>
    FLASHOMP_INLINE void issue_scores(const Scores& s, const Resident& block, std::uint32_t rows, StreamBlock stream,
                                      std::integer_sequence<int, step...>)
    {
        const std::uint32_t right = ptx::uniform(ptx::matrix_descriptor(in_team(stream.address), 0));
        std::uint32_t left = 0;
        if (block.steps_in_registers < Tile::steps) {
            left = ptx::uniform(ptx::matrix_descriptor(in_team(rows), 0));
        }
        const int first = block.steps_in_registers / panel_steps; // panel in team memory
        (issue_score_step<step>(s, block,
                                left + (step / panel_steps - first) * (panel_bytes / 16) + step % panel_steps * 2,
                                right + (Block::panel(2 * step) + step % panel_steps * 32) / 16),
         ...);
    }

    template <int step>
    static FLASHOMP_INLINE void issue_score_step(const Scores& s, const Resident& block, std::uint32_t left,
                                                 std::uint32_t right)
    {
        if (step < block.steps_in_registers) {
            multiply_step<columns, (step > 0), false>(s.group, block.a[0][step], block.a[fragments - 1][step], right);
        } else if constexpr (fragments == 1) {
            multiply_step<columns, (step > 0), false>(s.group, left, left, right);
        }
    }

    template <int... index>
    FLASHOMP_INLINE void issue_each(std::integer_sequence<int, index...>)
    {
        (issue(index, std::make_integer_sequence<int, columns / 16>()), ...);
    }

    template <int... step>
    FLASHOMP_INLINE void issue(int index, std::integer_sequence<int, step...>)
    {
        const Sum& sum = pending_[index];
        (multiply_step<depth, true, true>(index * fragments, sum.left[0][step], sum.left[fragments - 1][step],
                                          sum.right + step * 2048 / 16),
         ...);
    }

    int used_scores_ = 0, used_accumulators_ = 0;
    Sum pending_[accumulators];
};

} // namespace flashomp::offload

#pragma omp end declare target
