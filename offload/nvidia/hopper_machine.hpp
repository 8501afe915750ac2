// The Hopper tile machine, for bfloat16 and float16 on GPUs of compute capability 9.0: a warpgroup's products, and
// blocks that the copy engine brings to rings of places in team memory.
//
// Both work on their own while the warps go on, and the warps' own work, the softmax, is long. So, where team memory
// has room for one more block (Config::defers), what a block adds to the accumulators waits until the next block's
// scores are asked for, and is then computed behind them, while the warps are at those scores (FlashAttention-3,
// section 3.2).
#pragma once

#include "nvidia/block_rings.hpp"
#include "nvidia/warpgroup_tile.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// Config: as for WarpgroupTile; teams, lead and sums_lead (TensorShape); copies_stats: whether the algorithm has
/// column statistics; one_loop: whether registers are too few for two.
template <class Config>
class HopperMachine : public WarpgroupTile<Config> {
    using Tile = WarpgroupTile<Config>;
    using Rings = BlockRings<Config, int{Tile::block_bytes}>;

public:
    using Tile::block_bytes, Tile::columns, Tile::load, Tile::threads;
    using typename Tile::Block, typename Tile::ColumnStatsBlock, typename Tile::Scores, typename Tile::StreamBlock;
    using Stage = typename Rings::Stage;
    enum : int {
        lead = Config::lead,
        sums_lead = Config::sums_lead,
        defers = Config::defers,
        /// Sums' places are too few to ask for a block as late as after the next products.
        sums_early = Config::sums_lead == 1,
        bytes = int{Rings::bytes} + (Config::panel_in_memory != 0 ? int{Tile::Panel::bytes} : 0) + drawn_bytes,
    };
    static_assert(int{bytes} <= team_memory_bytes);

    struct Stream {
        std::uint32_t address;
        StreamUse use; ///< a constant once all is inlined
        FLASHOMP_INLINE StreamBlock operator[](Stage stage) const
        {
            return {address + stage.place(use) * block_bytes};
        }
    };
    struct ColumnStats {
        std::uint32_t address;
        FLASHOMP_INLINE ColumnStatsBlock operator[](Stage stage) const { return {address + stage.both * 4 * columns}; }
    };

    FLASHOMP_INLINE explicit HopperMachine(const void* team_memory)
        : Tile(team_memory), rings_(this->memory_ + team_memory_bytes - drawn_bytes, this->thread())
    {
    }

    FLASHOMP_INLINE Stream stream(const Tensor& tensor, int, StreamUse use)
    {
        rings_.add(tensor);
        return {this->take(Rings::places(use) * block_bytes), use};
    }
    FLASHOMP_INLINE ColumnStats column_stats()
    {
        return {this->take(Rings::both_places * 4 * columns)};
    }

    FLASHOMP_INLINE void load(StreamBlock block, const Rows& rows)
    {
        if (!rings_.ask(this->thread(), block.address, rows)) {
            copy_in<Block, threads>(block.address, rows, this->thread());
        }
    }
    FLASHOMP_INLINE void load(ColumnStatsBlock block, const float* source, int count)
    {
        if (!rings_.ask_stats(this->thread(), block.address, source)) {
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
        rings_.begin(range, step);
        if constexpr (Config::one_loop != 0) {
            run_blocks<Bringer::decided_each_time>(range, step, load_block, score, attend);
        } else if (rings_.has_engine()) {
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
                    if (rings_.has_engine()) { // the warps' copies have arrived with those for scores
                        rings_.template arrive<Bringer::engine>(pending_sums_);
                    }
                    ptx::fence_products();
                }
                this->issue_pending();
            }
            ptx::commit_products();
        }
    }

protected:
    /// Team memory from here on is the rings' barriers' and what lies behind them.
    FLASHOMP_INLINE std::uint32_t end_of_blocks() const { return rings_.begin(); }

private:
    template <Bringer bringer, class LoadBlock, class Score, class Attend>
    FLASHOMP_INLINE void run_blocks(Range range, int step, const LoadBlock& load_block, const Score& score,
                                    const Attend& attend)
    {
        Stage here, ahead, sums_ahead;
        int next = range.begin, next_sums = range.begin; // to be loaded
        constexpr bool early = bringer == Bringer::engine && sums_early != 0;
        const bool loads_scores = rings_.loads_scores(bringer, this->thread());
        const bool loads_sums = rings_.loads_sums(bringer, this->thread());
        // What all warps can do stands before the branch, where nobody waits for it.
        const auto load_scores = [&]() FLASHOMP_LAMBDA {
            if constexpr (defers == 0) { // or ptxas finds too few registers
                if (loads_scores && next < range.end) {
                    rings_.template start<bringer>(this->thread(), load_block, next, ahead, Load::for_scores);
                    next += step;
                    ahead.advance();
                }
                return;
            }
            const int row = next;
            const Stage stage = ahead;
            next += step;
            ahead.advance();
            if (loads_scores && row < range.end) {
                rings_.template start<bringer>(this->thread(), load_block, row, stage, Load::for_scores);
            }
        };
        const auto load_sums = [&]() FLASHOMP_LAMBDA {
            const int row = next_sums;
            const Stage stage = sums_ahead;
            next_sums += step;
            sums_ahead.advance();
            if (loads_sums && row < range.end) {
                rings_.template start<bringer>(this->thread(), load_block, row, stage, Load::for_sums);
            }
        };
        // Loads follow the products, in whose time the warp that asks for them does so; but a block takes more than
        // 1000 cycles to come, so some are always on their way.
#pragma GCC unroll 1
        for (int i = 0; i < lead + defers; ++i) {
            load_scores();
        }
#pragma GCC unroll 1
        for (int i = 0; i < (early ? int{Rings::sum_places} : int{sums_lead}); ++i) {
            load_sums();
        }
        if constexpr (defers != 0) {
            rings_.template arrive<bringer>(Rings::score_barrier(here));
            ptx::barrier<threads>();
            has_pending_ = false;
            score(range.begin, here);
            for (int j0 = range.begin;; j0 += step) {
                const bool is_last = j0 + step >= range.end;
                attend(j0, here);
                pending_sums_ = Rings::sum_barrier(here);
                if (is_last) {
                    break;
                }
                if constexpr (early) {
                    ptx::await_others<threads>(loads_sums);
                    if (j0 > range.begin) {
                        load_sums();
                    }
                }
                here.advance();
                rings_.template arrive<bringer>(Rings::score_barrier(here));
                ptx::barrier<threads>(); // all have the scores of the last block and the sums of the one before
                has_pending_ = true;
                score(j0 + step, here);
                load_scores();
                if constexpr (sums_lead > 0 && !early) {
                    load_sums();
                }
            }
            if constexpr (sums_lead > 0) {
                rings_.template arrive<bringer>(pending_sums_);
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
                rings_.template arrive<bringer>(Rings::score_barrier(here));
                if (!rings_.template has_engine<bringer>()) {
                    ptx::barrier<threads>(); // what others copied
                }
                score(j0, here);
                ptx::wait_products<1>(); // the sums of the last block, which these scores did not wait for
                ptx::barrier<threads>(); // nobody reads it any more
                load_scores();
                attend(j0, here);
                here.advance();
            }
        }
    }

    Rings rings_;
    bool has_pending_ = false; ///< a constant once all is inlined
    int pending_sums_ = 0;     ///< barrier of the block that is pending
};

} // namespace flashomp::offload

#pragma omp end declare target
