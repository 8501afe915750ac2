// The Hopper tile machine, for bfloat16 and float16 on GPUs of compute capability 9.0: a warpgroup's products
// (warpgroup_products.hpp), and blocks that the copy engine brings to rings of places in team memory (block_rings.hpp).
//
// Both work on their own while the warps go on, and the warps' own work, the softmax, is long. So, where team memory
// has room for one more block (Config::defers), what a block adds to the accumulators waits until the next block's
// scores are asked for, and is then computed behind them, while the warps are at those scores (FlashAttention-3,
// section 3.2).
#pragma once

#include "nvidia/block_rings.hpp"
#include "nvidia/warpgroup_products.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// Config: as for TensorTile; teams, lead, sums_lead and defers (TensorShape); accumulators: how many the algorithm
/// has; residents: how many resident blocks; panels_in_memory: how many panels of 64 columns of the resident blocks,
/// counted from the last block's end, are read from team memory every time, for want of registers; copies_stats:
/// whether the algorithm has column statistics; one_loop: whether registers are too few for two; refetch: whether they
/// are too few for what a block does not change (ptx::refetch()).
template <class Config>
class HopperMachine : public TensorTile<Config> {
protected:
    using Tile = TensorTile<Config>;
    using Products = WarpgroupProducts<Config>;
    using Rings = BlockRings<Config, int{Tile::block_bytes}>;
    using Panel = Panels<Tile::rows_in_crew, 64>;

public:
    using Tile::block_bytes, Tile::columns, Tile::depth, Tile::fragments, Tile::threads;
    using typename Tile::Block, typename Tile::ColumnStatsBlock, typename Tile::Scores, typename Tile::Stats,
        typename Tile::StreamBlock;
    using Accumulator = typename Products::Accumulator;
    using Resident = typename Products::Resident;
    using Stage = typename Rings::Stage;
    enum : int {
        lead = Config::lead,
        sums_lead = Config::sums_lead,
        defers = Config::defers,
        /// for_blocks() loads the resident block when streamed ones are on their way: by the last place, to which none
        /// is
        loads_late = int{defers} != 0 && int{sums_lead} > 0 && int{Config::panels_in_memory} == 0 &&
                     int{Tile::resident_bytes} <= int{block_bytes},
        bytes = int{Rings::bytes} + int{Config::panels_in_memory} * int{Panel::bytes} + drawn_bytes,
    };
    static_assert(int{bytes} <= int{Config::team_bytes});

    struct Stream {
        std::uint32_t address;
        StreamUse use; ///< a constant once all is inlined
        FLASHOMP_INLINE StreamBlock operator[](Stage stage) const { return {address + stage.place(use) * block_bytes}; }
    };
    struct ColumnStats {
        std::uint32_t address;
        FLASHOMP_INLINE ColumnStatsBlock operator[](Stage stage) const { return {address + stage.both * 4 * columns}; }
    };

    FLASHOMP_INLINE explicit HopperMachine(const void* team_memory)
        : Tile(team_memory), rings_(this->memory_ + Config::team_bytes - drawn_bytes, this->thread())
    {
    }

    FLASHOMP_INLINE Stream stream(const Tensor& tensor, int, StreamUse use)
    {
        rings_.add(tensor);
        return {this->take(Rings::places(use) * block_bytes), use};
    }
    FLASHOMP_INLINE ColumnStats column_stats() { return {this->take(Rings::both_places * 4 * columns)}; }

    FLASHOMP_INLINE Resident resident(int depth_)
    {
        Resident block;
        static_cast<typename Tile::Resident&>(block) = Tile::resident(depth_);
        block.steps_in_registers = Tile::steps;
        if (const int panels = panels_of_resident(used_residents_); panels > 0) {
            block.steps_in_registers -= Products::panel_steps * panels;
            block.address = this->take(Panel::bytes * panels);
        }
        ++used_residents_;
        return block;
    }
    FLASHOMP_INLINE Scores scores(ScoreUse = ScoreUse::values) { return products_.scores(); }
    FLASHOMP_INLINE Accumulator accumulator(int) { return products_.accumulator(); }

    /// Panels in team memory are there in for_blocks(), which waits for them.
    FLASHOMP_INLINE void load(Resident& block, const Rows& rows)
    {
        if (block.steps_in_registers > 0) {
            constexpr int before_last = (Rings::all_places - 1) * block_bytes;
            this->load_resident(block, rows, this->memory_ + (loads_late != 0 ? before_last : 0));
#pragma GCC unroll 8
            for (int m = 0; m < fragments; ++m) {
#pragma GCC unroll 64
                for (int k = 0; k < block.steps_in_registers; ++k) {
                    ptx::keep(block.a[m][k], this->memory_);
                }
            }
        }
        if (block.steps_in_registers < Tile::steps) { // last: what is on its way to registers passes these places
            Rows panel = rows;
            const int first = block.steps_in_registers / Products::panel_steps;
            panel.offset += 64 * first;
            panel.depth -= 64 * first;
#pragma GCC unroll 1
            for (std::uint32_t at = block.address; panel.offset < rows.offset + depth; at += Panel::bytes) {
                copy_in<Panel, threads>(at, panel, this->thread());
                panel.offset += 64;
                panel.depth -= 64;
            }
            ptx::copy_commit();
        }
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
        for_blocks(
            range, step, []() FLASHOMP_LAMBDA {}, load_block, score, attend);
    }

    /// load_resident(), where the machine loads late, is called if there are blocks.
    template <class LoadResident, class LoadBlock, class Score, class Attend>
    FLASHOMP_INLINE void for_blocks(Range range, int step, const LoadResident& load_resident,
                                    const LoadBlock& load_block, const Score& score, const Attend& attend)
    {
        if (range.begin >= range.end) {
            ptx::copy_wait<0>();
            ptx::barrier<threads>(); // results leave by the places that others' panels were still coming to
            return;
        }
        ptx::publish_shared();
        ptx::barrier<threads>(); // the blocks' places are free, and the barriers are there
        rings_.begin(range, step);
        if constexpr (Config::one_loop != 0) {
            run_blocks<Bringer::decided_each_time>(range, step, load_resident, load_block, score, attend);
        } else if (rings_.has_engine()) {
            run_blocks<Bringer::engine>(range, step, load_resident, load_block, score, attend);
        } else {
            run_blocks<Bringer::warps>(range, step, load_resident, load_block, score, attend);
        }
        ptx::wait_products<0>();
        ptx::barrier<threads>(); // whatever comes next may overwrite the stages
    }

    FLASHOMP_INLINE void multiply(Scores& s, const Resident& block, StreamBlock stream)
    {
        ptx::fence_products();
        products_.multiply(s, block, stream);
        ptx::commit_products();
        begin_pending();
    }
    FLASHOMP_INLINE void multiply(Scores& s, const Resident& block, StreamBlock stream, Scores& s2,
                                  const Resident& block2, StreamBlock stream2)
    {
        ptx::fence_products();
        products_.multiply(s, block, stream);
        products_.multiply(s2, block2, stream2);
        ptx::commit_products();
        begin_pending();
    }

    template <class... S>
    FLASHOMP_INLINE void finish(S&... s)
    {
        ptx::wait_products<defers>(); // what is added up behind the scores may go on
        (Products::get(s), ...);
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
        products_.add(a, s, stream);
    }

    FLASHOMP_INLINE void accumulate(Accumulator& a, const Scores& s, StreamBlock stream, bool scales,
                                    const Stats& factor)
    {
        if (!s.is_rounded) {
            finish_sums();
        }
        if (scales) { // true for the whole warp; most blocks move no row's base
            Products::scale(a, factor);
        }
        products_.add(a, s, stream);
    }

    template <class F>
    FLASHOMP_INLINE void store(const Accumulator& a, const Rows& rows, const F& f)
    {
        typename Tile::WarpAccumulator c;
        Products::get(a, c);
        this->store_values(c, rows, f);
    }

    /// Where memory for blocks ends, and the rings' barriers begin.
    FLASHOMP_INLINE std::uint32_t end_of_blocks() const
    {
        return rings_.begin();
    }

protected:
    /// So many of its last panels are in team memory.
    static constexpr int panels_of_resident(int number)
    {
        constexpr int panels = depth / 64;
        const int left = int{Config::panels_in_memory} - panels * (int{Config::residents} - 1 - number);
        return left < 0 ? 0 : left < panels ? left : panels;
    }

    /// The last block's sums have been done, and the registers of their left operands are free.
    static FLASHOMP_INLINE void finish_sums()
    {
        ptx::wait_products<0>();
    }

    /// What is pending, if there is anything, behind the scores.
    FLASHOMP_INLINE void begin_pending()
    {
        if constexpr (defers != 0) {
            if (has_pending_) {
                if constexpr (sums_lead > 0) {
                    if (rings_.has_engine()) { // the warps' copies have arrived with those for scores
                        rings_.template arrive<Bringer::engine>(pending_sums_);
                    }
                    ptx::fence_products();
                }
                products_.issue_pending();
            }
            ptx::commit_products();
        }
    }

    template <Bringer bringer, class LoadResident, class LoadBlock, class Score, class Attend>
    FLASHOMP_INLINE void run_blocks(Range range, int step, const LoadResident& load_resident,
                                    const LoadBlock& load_block, const Score& score, const Attend& attend)
    {
        Stage here, ahead, sums_ahead;
        int next = range.begin, next_sums = range.begin; // to be loaded
        const bool loads_scores = Rings::template loads_scores<bringer>(this->thread());
        const bool loads_sums = Rings::template loads_sums<bringer>(this->thread());
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
        for (int i = 0; i < sums_lead; ++i) {
            load_sums();
        }
        if constexpr (loads_late != 0) {
            load_resident();
            ptx::publish_shared(); // the engine may have the place after the next barrier
        } else if constexpr (int{Config::panels_in_memory} > 0) {
            ptx::copy_wait<0>();
            ptx::publish_shared();
            ptx::barrier<threads>();
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
                here.advance();
                rings_.template arrive<bringer>(Rings::score_barrier(here));
                ptx::barrier<threads>(); // all have the scores of the last block and the sums of the one before
                has_pending_ = true;
                score(j0 + step, here);
                load_scores();
                if constexpr (sums_lead > 0) {
                    load_sums();
                }
            }
            if constexpr (sums_lead > 0) {
                rings_.template arrive<bringer>(pending_sums_);
                ptx::barrier<threads>(); // for what others copied
            }
            ptx::fence_products();
            products_.issue_pending();
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

    int used_residents_ = 0;
    Products products_;
    Rings rings_;

private:
    bool has_pending_ = false; ///< a constant once all is inlined
    int pending_sums_ = 0;     ///< barrier of the block that is pending
};

} // namespace flashomp::offload

#pragma omp end declare target
