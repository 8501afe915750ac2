// The Hopper tile machine, for bfloat16 and float16 on GPUs of compute capability 9.0: products of a warpgroup, whose
// right operands wgmma reads from team memory by itself, and blocks that the copy engine brings.
//
// Both work on their own while the warps go on, and the warps' own work, the softmax, is long. So, where team memory
// has room for one more block (Config::defers), what a block adds to the accumulators waits until the next block's
// scores are asked for, and is then computed behind them, while the warps are at those scores (FlashAttention-3,
// section 3.2).
#pragma once

#include "tile/bulk_copy.hpp"
#include "tile/tensor_tile.hpp"
#include "tile/wgmma.hpp"

#include <utility>

#pragma omp declare target

namespace flashomp::offload {

/// Config: as for TensorTile; defers, lead and sums_lead (TensorShape); accumulators: how many the algorithm has;
/// copies_stats: whether it has column statistics; one_loop: whether registers are too few for two.
template <class Config>
class HopperMachine : public TensorTile<Config> {
    using Tile = TensorTile<Config>;
    using Tile::block_bytes, Tile::columns, Tile::depth, Tile::fragments, Tile::threads;

public:
    using typename Tile::Block, typename Tile::ColumnStatsBlock, typename Tile::Math, typename Tile::Resident,
        typename Tile::Scores, typename Tile::Stats, typename Tile::StreamBlock, typename Tile::WarpAccumulator;
    enum : int {
        defers = Config::defers,
        accumulators = Config::accumulators,
        lead = Config::lead,
        sums_lead = Config::sums_lead,
        score_places = Config::lead + 1,
        both_places = Config::lead + 1 + Config::defers, ///< deferred sums are read until after the next scores
        sum_places = Config::sums_lead + 1,
        barriers = both_places + sum_places,
        asking_warps = Config::depth == 64 ? 1 : 2 + Config::copies_stats, ///< as many as were fastest
        bytes = 2 * Config::stream_rows * Config::depth *
                (Config::accumulators == 2 ? 2 * both_places
                                           : score_places + (Config::sums_lead > 0 ? sum_places : both_places)),
    };
    static_assert(bytes + (Config::accumulators == 2 ? 3 * 4 * columns * both_places : 0) + 8 * barriers +
                      drawn_bytes <=
                  team_memory_bytes);

    /// Where the blocks of a stage lie.
    struct Stage {
        int scores = 0, sums = 0, both = 0; ///< of a ring of places for each use
    };
    struct Stream {
        std::uint32_t address;
        StreamUse use; ///< a constant once all is inlined
        FLASHOMP_INLINE StreamBlock operator[](Stage stage) const
        {
            const int place =
                use == StreamUse::scores ? stage.scores : (use == StreamUse::sums ? stage.sums : stage.both);
            return {address + place * block_bytes};
        }
    };
    struct ColumnStats {
        std::uint32_t address;
        FLASHOMP_INLINE ColumnStatsBlock operator[](Stage stage) const { return {address + stage.both * 4 * columns}; }
    };
    struct Accumulator {
        int index; ///< a constant once all is inlined
    };

    FLASHOMP_INLINE explicit HopperMachine(const void* team_memory) : Tile(team_memory)
    {
        barriers_ = this->memory_ + team_memory_bytes - drawn_bytes - 8 * barriers;
#pragma GCC unroll 8
        for (int i = 0; i < barriers; ++i) {
            ptx::barrier_init(barriers_ + 8 * i, this->thread());
        }
    }

    FLASHOMP_INLINE Stream stream(const Tensor& tensor, int, StreamUse use)
    {
        has_maps_ = has_maps_ && tensor.map != nullptr;
        is_packed_ = tensor.is_packed;
        const int places =
            use == StreamUse::scores ? score_places : (use == StreamUse::sums ? sum_places : both_places);
        return {this->take(places * block_bytes), use};
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
    FLASHOMP_INLINE ColumnStats column_stats()
    {
        return {this->take(both_places * 4 * columns)};
    }

    FLASHOMP_INLINE void load(Resident& block, const Rows& rows)
    {
        this->load_resident(block, rows);
#pragma GCC unroll 8
        for (int m = 0; m < fragments; ++m) {
#pragma GCC unroll 64
            for (int k = 0; k < depth / 16; ++k) {
                ptx::keep(block.a[m][k], this->memory_);
            }
        }
    }

    FLASHOMP_INLINE void load(StreamBlock block, const Rows& rows)
    {
        if (by_engine_) {
            if (is_warp(asking_)) { // which takes it 100 to 200 cycles
                ptx::copy_box(block.address, rows.map, static_cast<int>(rows.row), rows.head, rows.batch, barrier_);
            }
            asking_ = asking_warps > 1 ? 1 : 0;
            expected_ += block_bytes;
        } else {
            copy_in<Block, threads>(block.address, rows, this->thread());
        }
    }
    FLASHOMP_INLINE void load(ColumnStatsBlock block, const float* source, int count)
    {
        if (by_engine_) {
            if (is_warp(asking_warps - 1)) {
                ptx::copy_bulk(block.address, source, 4 * columns, barrier_);
            }
            expected_ += 4 * columns;
        } else {
            this->copy_stats(block, source, count);
        }
    }

    template <class LoadBlock, class Score, class Attend>
    FLASHOMP_INLINE void for_blocks(Range range, int step, const LoadBlock& load_block, const Score& score,
                                    const Attend& attend)
    {
        if (range.begin >= range.end) {
            return;
        }
        ptx::publish_shared();
        ptx::barrier<threads>(); // the blocks' places are free, and the barriers are there
        // The engine does not know where a sequence ends that others follow, or where a row of statistics does.
        const bool is_whole = !(is_packed_ || Config::copies_stats != 0) || (range.end - range.begin) % step == 0;
        has_engine_ = has_maps_ && is_whole;
        if constexpr (Config::one_loop != 0) {
            run_blocks<Bringer::decided_each_time>(range, step, load_block, score, attend);
        } else if (has_engine_) {
            run_blocks<Bringer::engine>(range, step, load_block, score, attend);
        } else {
            run_blocks<Bringer::warps>(range, step, load_block, score, attend);
        }
        ptx::wait_products<0>();
        ptx::barrier<threads>(); // whatever comes next may overwrite the stages
    }

    FLASHOMP_INLINE void multiply(Scores& s, const Resident& block, StreamBlock stream)
    {
        ptx::fence_products();
        issue_scores(s, block, stream, std::make_integer_sequence<int, depth / 16>());
        commit_scores();
    }

    FLASHOMP_INLINE void multiply(Scores& s, const Resident& block, StreamBlock stream, Scores& s2,
                                  const Resident& block2, StreamBlock stream2)
    {
        ptx::fence_products();
        issue_scores(s, block, stream, std::make_integer_sequence<int, depth / 16>());
        issue_scores(s2, block2, stream2, std::make_integer_sequence<int, depth / 16>());
        commit_scores();
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

private:
    /// What an accumulator gets: left·right.
    struct Sum {
        std::uint32_t right;
        ptx::Four left[fragments][columns / 16];
    };

    FLASHOMP_INLINE void add(const Accumulator& a, const Scores& s, StreamBlock stream)
    {
        Sum& sum = pending_[a.index];
        sum.right = ptx::matrix_descriptor(stream.address, columns * 128);
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

    static constexpr auto all_of_depth()
    {
        return std::make_integer_sequence<int, depth / 2>();
    }

    /// Who brings the blocks. Deciding it in every block costs time, a second loop costs registers.
    enum class Bringer { warps, engine, decided_each_time };

    template <Bringer bringer, class LoadBlock, class Score, class Attend>
    FLASHOMP_INLINE void run_blocks(Range range, int step, const LoadBlock& load_block, const Score& score,
                                    const Attend& attend)
    {
        Stage here, ahead, sums_ahead;
        int next = range.begin, next_sums = range.begin; // to be loaded
        const auto load_scores = [&]() FLASHOMP_LAMBDA {
            if (next < range.end) {
                start<bringer>(load_block, next, ahead, Load::for_scores, ahead.both);
                next += step;
                advance(ahead);
            }
        };
        const auto load_sums = [&]() FLASHOMP_LAMBDA {
            if (sums_lead > 0 && next_sums < range.end) {
                start<bringer>(load_block, next_sums, sums_ahead, Load::for_sums, both_places + sums_ahead.sums);
                next_sums += step;
                advance(sums_ahead);
            }
        };
        // Loads follow the products, in whose time the warp that asks for them does so; but a block takes more than
        // 1000 cycles to come, so some are always on their way.
        const bool loads = bringer != Bringer::engine || this->thread() < 32 * asking_warps;
        if (loads) {
#pragma GCC unroll 1
            for (int i = 0; i < lead + defers; ++i) {
                load_scores();
            }
#pragma GCC unroll 1
            for (int i = 0; i < sums_lead; ++i) {
                load_sums();
            }
        }
        if constexpr (defers != 0) {
            arrive<bringer>(here.both, false);
            ptx::barrier<threads>();
            has_pending_ = false;
            score(range.begin, here);
            for (int j0 = range.begin;; j0 += step) {
                const bool is_last = j0 + step >= range.end;
                Stage following = here;
                advance(following);
                const bool is_there = !is_last && asks(following.both);
                attend(j0, here);
                pending_sums_ = both_places + here.sums;
                if (is_last) {
                    break;
                }
                here = following;
                arrive<bringer>(here.both, is_there);
                ptx::barrier<threads>(); // all have the scores of the last block and the sums of the one before
                has_pending_ = true;
                score(j0 + step, here);
                if (loads) {
                    load_scores();
                    load_sums();
                }
            }
            if constexpr (sums_lead > 0) {
                arrive<bringer>(pending_sums_, false);
                ptx::barrier<threads>(); // for what others copied
            }
            ptx::fence_products();
            issue_pending(std::make_integer_sequence<int, accumulators>());
            ptx::commit_products();
        } else {
            for (int j0 = range.begin; j0 < range.end; j0 += step) {
                if constexpr (Config::refetch != 0) {
                    ptx::refetch();
                }
                arrive<bringer>(here.both, false);
                ptx::wait_products<0>();
                ptx::barrier<threads>(); // nobody reads the last block any more
                score(j0, here);
                if (loads) {
                    load_scores();
                }
                attend(j0, here);
                advance(here);
            }
        }
    }

    static FLASHOMP_INLINE void advance(Stage& stage)
    {
        stage.scores = stage.scores + 1 == score_places ? 0 : stage.scores + 1;
        stage.sums = stage.sums + 1 == sum_places ? 0 : stage.sums + 1;
        stage.both = stage.both + 1 == both_places ? 0 : stage.both + 1;
    }

    /// The last block's sums have been done, and the registers of their left operands are free.
    static FLASHOMP_INLINE void finish_sums()
    {
        ptx::wait_products<0>();
    }

    template <Bringer bringer, class LoadBlock>
    FLASHOMP_INLINE void start(const LoadBlock& load_block, int j0, Stage stage, Load what, int barrier)
    {
        barrier_ = barriers_ + 8 * barrier;
        expected_ = 0;
        asking_ = what == Load::for_sums && asking_warps > 1 ? 1 : 0;
        if (bringer == Bringer::engine || (bringer == Bringer::decided_each_time && has_engine_)) {
            by_engine_ = true;
            load_block(j0, stage, what);
            if (is_warp(asking_)) {
                ptx::barrier_expect(barrier_, expected_);
            }
        } else {
            by_engine_ = false;
            load_block(j0, stage, what);
            ptx::copy_commit();
        }
    }

    /// Among the warps that ask.
    FLASHOMP_INLINE bool is_warp(int number) const
    {
        return asking_warps == 1 || this->thread() / 32 == static_cast<unsigned>(number);
    }

    /// Whether the engine's copies have arrived; the answer takes its time, too.
    FLASHOMP_INLINE bool asks(int barrier) const
    {
        return ptx::barrier_test(barriers_ + 8 * barrier, phases_ >> barrier & 1U);
    }

    /// Waits until this thread's copies, or the engine's, have arrived.
    template <Bringer bringer>
    FLASHOMP_INLINE void arrive(int barrier, bool is_there)
    {
        if (bringer == Bringer::engine || (bringer == Bringer::decided_each_time && has_engine_)) {
            if (!is_there) {
                ptx::barrier_wait(barriers_ + 8 * barrier, phases_ >> barrier & 1U);
            }
            phases_ ^= 1U << barrier;
        } else {
            ptx::copy_wait<0>();
            ptx::publish_shared();
        }
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
    template <int n, bool adds, bool transposed>
    static FLASHOMP_INLINE void multiply_step(int group, const ptx::Four& first, const ptx::Four& last,
                                              std::uint32_t right)
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
        const std::uint32_t right = ptx::matrix_descriptor(stream.address, 0);
        (multiply_step<columns, (step > 0), false>(s.group, this->left(block, 0, step),
                                                   this->left(block, fragments - 1, step),
                                                   right + (Block::panel(2 * step) + step % 4 * 32) / 16),
         ...);
    }

    /// A group of the scores, and behind it one of what is pending, if there is anything.
    FLASHOMP_INLINE void commit_scores()
    {
        ptx::commit_products();
        if constexpr (defers != 0) {
            if (has_pending_) {
                if constexpr (sums_lead > 0) {
                    if (has_engine_) { // the warps' copies have arrived with those for scores
                        arrive<Bringer::engine>(pending_sums_, false);
                    }
                    ptx::fence_products();
                }
                issue_pending(std::make_integer_sequence<int, accumulators>());
            }
            ptx::commit_products();
        }
    }

    template <int... index>
    FLASHOMP_INLINE void issue_pending(std::integer_sequence<int, index...>)
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

    std::uint32_t barriers_;                   ///< one for each place of what is on its way: for scores, then for sums
    unsigned phases_ = 0;                      ///< bit i: parity of the next phase of barrier i
    std::uint32_t barrier_ = 0;                ///< of what is being loaded
    unsigned expected_ = 0;                    ///< bytes of it from the copy engine
    bool has_maps_ = true, is_packed_ = false; ///< all that streams
    bool has_engine_ = false;                  ///< brings all blocks of this range
    bool by_engine_ = false;                   ///< a constant once all is inlined
    int asking_ = 0;                           ///< warp that asks for the next block, likewise
    int used_scores_ = 0, used_accumulators_ = 0;
    Sum pending_[accumulators];
    bool has_pending_ = false; ///< a constant once all is inlined
    int pending_sums_ = 0;     ///< barrier of the block that is pending
};

} // namespace flashomp::offload

#pragma omp end declare target
