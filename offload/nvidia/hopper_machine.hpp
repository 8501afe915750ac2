// The Hopper tile machine, for bfloat16 and float16 on GPUs of compute capability 9.0: a warpgroup's products, and
// blocks that the copy engine brings to rings of places in team memory.
//
// Both work on their own while the warps go on, and the warps' own work, the softmax, is long. So, where team memory
// has room for one more block (Config::defers), what a block adds to the accumulators waits until the next block's
// scores are asked for, and is then computed behind them, while the warps are at those scores (FlashAttention-3,
// section 3.2).
#pragma once

#include "nvidia/bulk_copy.hpp"
#include "nvidia/warpgroup_tile.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// Config: as for WarpgroupTile; teams, lead and sums_lead (TensorShape); copies_stats: whether the algorithm has
/// column statistics; one_loop: whether registers are too few for two.
template <class Config>
class HopperMachine : public WarpgroupTile<Config> {
    using Tile = WarpgroupTile<Config>;

public:
    using Tile::block_bytes, Tile::columns, Tile::load, Tile::threads;
    using typename Tile::Block, typename Tile::ColumnStatsBlock, typename Tile::Scores, typename Tile::StreamBlock;
    enum : int {
        lead = Config::lead,
        sums_lead = Config::sums_lead,
        defers = Config::defers,
        score_places = Config::lead + 1,
        both_places = Config::lead + 1 + Config::defers, ///< deferred sums are read until after the next scores
        sum_places = Config::sums_lead + 1,
        barriers = both_places + sum_places,
        /// at a barrier: one for each block that comes, one for statistics
        arrivals = (Config::sums_lead > 0 || Config::teams == 2 ? 1 : 2) + (Config::copies_stats != 0 ? 1 : 0),
        asking_warps = Config::depth == 64 ? 1 : 2 + Config::copies_stats, ///< as many as were fastest
        score_warps = Config::sums_lead > 0 ? 1 : asking_warps,            ///< of these, the first
        sum_warp = asking_warps - 1,
        /// Sums' places are too few to ask for a block as late as after the next products.
        sums_early = Config::sums_lead == 1,
        all_places = Config::teams == 2          ? both_places // each team has one stream
                     : Config::accumulators == 2 ? 2 * both_places
                                                 : score_places + (Config::sums_lead > 0 ? sum_places : both_places),
        bytes = int{block_bytes} * all_places + (Config::panel_in_memory != 0 ? int{Tile::Panel::bytes} : 0) +
                (Config::copies_stats != 0 ? 3 * 4 * columns * both_places : 0) + 8 * barriers + drawn_bytes,
    };
    static_assert(int{bytes} <= team_memory_bytes);

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

    FLASHOMP_INLINE explicit HopperMachine(const void* team_memory) : Tile(team_memory)
    {
        barriers_ = this->memory_ + team_memory_bytes - drawn_bytes - 8 * barriers;
#pragma GCC unroll 8
        for (int i = 0; i < barriers; ++i) {
            ptx::barrier_init(barriers_ + 8 * i, arrivals, this->thread());
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
    FLASHOMP_INLINE ColumnStats column_stats()
    {
        return {this->take(both_places * 4 * columns)};
    }

    FLASHOMP_INLINE void load(StreamBlock block, const Rows& rows)
    {
        if (by_engine_) {
            if (is_warp(asking_)) { // which takes it about 90 cycles
                ptx::copy_box(block.address, rows.map, static_cast<int>(rows.row), rows.head, rows.batch, block_bytes,
                              barrier_);
            }
            asking_ = asking_warps > 1 ? 1 : 0;
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

    /// And behind the scores what is pending, if there is anything.
    template <class... Operands>
    FLASHOMP_INLINE void multiply(Scores& s, Operands&&... operands)
    {
        Tile::multiply(s, operands...);
        if constexpr (defers != 0) {
            if (has_pending_) {
                if constexpr (sums_lead > 0) {
                    if (has_engine_) { // the warps' copies have arrived with those for scores
                        arrive<Bringer::engine>(pending_sums_);
                    }
                    ptx::fence_products();
                }
                this->issue_pending();
            }
            ptx::commit_products();
        }
    }

protected:
    /// mbarriers, at the end of memory: one for each place of what is on its way, for scores, then for sums.
    std::uint32_t barriers_;

private:
    /// Who brings the blocks. Deciding it in every block costs time, a second loop costs registers.
    enum class Bringer { warps, engine, decided_each_time };

    template <Bringer bringer, class LoadBlock, class Score, class Attend>
    FLASHOMP_INLINE void run_blocks(Range range, int step, const LoadBlock& load_block, const Score& score,
                                    const Attend& attend)
    {
        Stage here, ahead, sums_ahead;
        int next = range.begin, next_sums = range.begin; // to be loaded
        constexpr bool by_engine = bringer == Bringer::engine;
        constexpr bool early = by_engine && sums_early != 0;
        const bool loads_scores = !by_engine || this->thread() < 32 * score_warps;
        const bool loads_sums = !by_engine || this->thread() / 32 == sum_warp;
        // What all warps can do stands before the branch, where nobody waits for it.
        const auto load_scores = [&]() FLASHOMP_LAMBDA {
            if constexpr (defers == 0) { // or ptxas finds too few registers
                if (loads_scores && next < range.end) {
                    start<bringer>(load_block, next, ahead, Load::for_scores, ahead.both);
                    next += step;
                    advance(ahead);
                }
                return;
            }
            const int row = next;
            const Stage stage = ahead;
            next += step;
            advance(ahead);
            if (loads_scores && row < range.end) {
                start<bringer>(load_block, row, stage, Load::for_scores, stage.both);
            }
        };
        const auto load_sums = [&]() FLASHOMP_LAMBDA {
            const int row = next_sums;
            const Stage stage = sums_ahead;
            next_sums += step;
            advance(sums_ahead);
            if (loads_sums && row < range.end) {
                start<bringer>(load_block, row, stage, Load::for_sums, both_places + stage.sums);
            }
        };
        // Loads follow the products, in whose time the warp that asks for them does so; but a block takes more than
        // 1000 cycles to come, so some are always on their way.
#pragma GCC unroll 1
        for (int i = 0; i < lead + defers; ++i) {
            load_scores();
        }
#pragma GCC unroll 1
        for (int i = 0; i < (early ? sum_places : sums_lead); ++i) {
            load_sums();
        }
        if constexpr (defers != 0) {
            arrive<bringer>(here.both);
            ptx::barrier<threads>();
            has_pending_ = false;
            score(range.begin, here);
            for (int j0 = range.begin;; j0 += step) {
                const bool is_last = j0 + step >= range.end;
                attend(j0, here);
                pending_sums_ = both_places + here.sums;
                if (is_last) {
                    break;
                }
                if constexpr (early) {
                    ptx::await_others<threads>(loads_sums);
                    if (j0 > range.begin) {
                        load_sums();
                    }
                }
                advance(here);
                arrive<bringer>(here.both);
                ptx::barrier<threads>(); // all have the scores of the last block and the sums of the one before
                has_pending_ = true;
                score(j0 + step, here);
                load_scores();
                if constexpr (sums_lead > 0 && !early) {
                    load_sums();
                }
            }
            if constexpr (sums_lead > 0) {
                arrive<bringer>(pending_sums_);
                ptx::barrier<threads>(); // for what others copied
            }
            ptx::fence_products();
            this->issue_pending();
            ptx::commit_products();
        } else {
            for (int j0 = range.begin; j0 < range.end; j0 += step) {
                if constexpr (Config::refetch != 0) {
                    ptx::refetch();
                }
                arrive<bringer>(here.both);
                if (bringer == Bringer::warps || (bringer == Bringer::decided_each_time && !has_engine_)) {
                    ptx::barrier<threads>(); // what others copied
                }
                score(j0, here);
                ptx::wait_products<1>(); // the sums of the last block, which these scores did not wait for
                ptx::barrier<threads>(); // nobody reads it any more
                load_scores();
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

    template <Bringer bringer, class LoadBlock>
    FLASHOMP_INLINE void start(const LoadBlock& load_block, int j0, Stage stage, Load what, int barrier)
    {
        barrier_ = barriers_ + 8 * barrier;
        expected_ = 0;
        asking_ = what == Load::for_sums && asking_warps > 1 ? 1 : 0;
        if (bringer == Bringer::engine || (bringer == Bringer::decided_each_time && has_engine_)) {
            by_engine_ = true;
            load_block(j0, stage, what);
            if (expected_ > 0 && is_warp(asking_warps - 1)) {
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

    /// Waits until this thread's copies, or the engine's, have arrived.
    template <Bringer bringer>
    FLASHOMP_INLINE void arrive(int barrier)
    {
        if (bringer == Bringer::engine || (bringer == Bringer::decided_each_time && has_engine_)) {
            ptx::barrier_wait(barriers_ + 8 * barrier, phases_ >> barrier & 1U);
            phases_ ^= 1U << barrier;
        } else {
            ptx::copy_wait<0>();
            ptx::publish_shared();
        }
    }

    unsigned phases_ = 0;                      ///< bit i: parity of the next phase of barrier i
    std::uint32_t barrier_ = 0;                ///< of what is being loaded
    unsigned expected_ = 0;                    ///< bytes of it from the copy engine
    bool has_maps_ = true, is_packed_ = false; ///< all that streams
    bool has_engine_ = false;                  ///< brings all blocks of this range
    bool by_engine_ = false;                   ///< a constant once all is inlined
    int asking_ = 0;                           ///< warp that asks for the next block, likewise
    bool has_pending_ = false;                 ///< a constant once all is inlined
    int pending_sums_ = 0;                     ///< barrier of the block that is pending
};

} // namespace flashomp::offload

#pragma omp end declare target
