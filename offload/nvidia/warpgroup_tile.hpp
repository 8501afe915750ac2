// Hopper's products: a warpgroup's, four warps together, whose right operands wgmma reads from team memory by itself.
// They go on while the warps do something else; what a block adds to the accumulators may be put off
// (Config::defers), until issue_pending().
#pragma once

#include "nvidia/tensor_tile.hpp"
#include "nvidia/wgmma.hpp"

#include <utility>

#pragma omp declare target

namespace flashomp::offload {

/// Config: as for TensorTile; defers (TensorShape); accumulators: how many the algorithm has; panel_in_memory: whether
/// the last 64 columns of the second resident block are read from team memory every time, for want of registers.
template <class Config>
class WarpgroupTile : public TensorTile<Config> {
    using Tile = TensorTile<Config>;

public:
    using Tile::columns, Tile::depth, Tile::fragments, Tile::threads;
    using typename Tile::Block, typename Tile::Math, typename Tile::Scores, typename Tile::Stats,
        typename Tile::StreamBlock, typename Tile::WarpAccumulator;
    enum : int {
        defers = Config::defers,
        accumulators = Config::accumulators,
        panel_in_memory = Config::panel_in_memory,
        panel_steps = 4, ///< of a product along 64 columns
    };
    using Panel = Panels<Tile::rows_in_crew, 64>;
    struct Accumulator {
        int index; ///< a constant once all is inlined
    };
    struct Resident : Tile::Resident {
        int steps_in_registers; ///< of a product along the depth; a constant once all is inlined
    };

    using Tile::Tile;

    FLASHOMP_INLINE Resident resident(int depth_)
    {
        Resident block;
        static_cast<typename Tile::Resident&>(block) = Tile::resident(depth_);
        block.steps_in_registers = Tile::steps;
        if (panel_in_memory != 0 && used_residents_ == 1) {
            block.steps_in_registers -= panel_steps;
            block.address = this->take(Panel::bytes);
        }
        ++used_residents_;
        return block;
    }
    FLASHOMP_INLINE Scores scores(ScoreUse = ScoreUse::values)
    {
        Scores s;
        s.group = (accumulators + used_scores_) * fragments;
        ++used_scores_;
        declare<columns / 2>(s.group);
        return s;
    }
    FLASHOMP_INLINE Accumulator accumulator(int)
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

    FLASHOMP_INLINE void load(Resident& block, const Rows& rows)
    {
        this->load_resident(block, rows);
#pragma GCC unroll 8
        for (int m = 0; m < fragments; ++m) {
#pragma GCC unroll 64
            for (int k = 0; k < block.steps_in_registers; ++k) {
                ptx::keep(block.a[m][k], this->memory_);
            }
        }
        if (block.steps_in_registers < Tile::steps) { // for_blocks publishes it
            Rows last = rows;
            last.offset += 64 * (depth / 64 - 1);
            last.depth -= 64 * (depth / 64 - 1);
            copy_in<Panel, threads>(block.address, last, this->thread());
            ptx::copy_commit();
            ptx::copy_wait<0>();
        }
    }

    FLASHOMP_INLINE void multiply(Scores& s, const Resident& block, StreamBlock stream)
    {
        ptx::fence_products();
        issue_scores(s, block, stream, std::make_integer_sequence<int, depth / 16>());
        ptx::commit_products();
    }

    FLASHOMP_INLINE void multiply(Scores& s, const Resident& block, StreamBlock stream, Scores& s2,
                                  const Resident& block2, StreamBlock stream2)
    {
        ptx::fence_products();
        issue_scores(s, block, stream, std::make_integer_sequence<int, depth / 16>());
        issue_scores(s2, block2, stream2, std::make_integer_sequence<int, depth / 16>());
        ptx::commit_products();
    }

    template <class... S>
    FLASHOMP_INLINE void finish(S&... s)
    {
        ptx::wait_products<defers>(); // what is added up behind the scores may go on
        (fetch(s), ...);
    }

    FLASHOMP_INLINE void exp_sum(Scores& s, const Stats& base, float by, const Stats& sum)
    {
        this->exponentials(s, base, by, sum, finish_sums);
    }

    FLASHOMP_INLINE void accumulate(Accumulator& a, const Scores& s, StreamBlock stream)
    {
        if constexpr (defers != 0) {
            finish_sums();
        }
        add(a, s, stream);
    }

    FLASHOMP_INLINE void accumulate(Accumulator& a, const Scores& s, StreamBlock stream, bool scales,
                                    const Stats& factor)
    {
        if (!s.is_rounded) {
            finish_sums();
        }
        if (scales) { // true for the whole warp; most blocks move no row's base
            scale(a.index * fragments, factor.v, all_of_depth());
            if constexpr (fragments > 1) {
                scale(a.index * fragments + 1, factor.v + 2, all_of_depth());
            }
        }
        add(a, s, stream);
    }

    template <class F>
    FLASHOMP_INLINE void store(const Accumulator& a, const Rows& rows, const F& f)
    {
        WarpAccumulator c;
        get(a.index * fragments, &c.c[0][0][0], all_of_depth());
        if constexpr (fragments > 1) {
            get(a.index * fragments + 1, &c.c[1][0][0], all_of_depth());
        }
        this->store_values(c, rows, f);
    }

protected:
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

    static FLASHOMP_INLINE std::uint32_t in_team(std::uint32_t address)
    {
        return Config::teams == 1 ? address : ptx::without_rank(address);
    }

    static constexpr auto all_of_depth()
    {
        return std::make_integer_sequence<int, depth / 2>();
    }

    /// The last block's sums have been done, and the registers of their left operands are free.
    static FLASHOMP_INLINE void finish_sums()
    {
        ptx::wait_products<0>();
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

    static FLASHOMP_INLINE void fetch(Scores& s)
    {
        constexpr auto all = std::make_integer_sequence<int, columns / 2>();
        s.is_rounded = false;
        get(s.group, &s.s[0][0][0], all);
        if constexpr (fragments > 1) {
            get(s.group + 1, &s.s[1][0][0], all);
        }
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
    FLASHOMP_INLINE void issue_scores(const Scores& s, const Resident& block, StreamBlock stream,
                                      std::integer_sequence<int, step...>)
    {
        const std::uint32_t right = ptx::uniform(ptx::matrix_descriptor(in_team(stream.address), 0));
        std::uint32_t left = 0;
        if (block.steps_in_registers < Tile::steps) {
            left = ptx::uniform(ptx::matrix_descriptor(block.address, 0));
        }
        (issue_score_step<step>(s, block, left + step % panel_steps * 32 / 16,
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

    int used_residents_ = 0, used_scores_ = 0, used_accumulators_ = 0;
    Sum pending_[accumulators];
};

} // namespace flashomp::offload

#pragma omp end declare target
