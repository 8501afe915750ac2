// The places in team memory that Hopper's copy engine fills with streamed blocks, in rings: blocks for the scores have
// one ring, blocks for the sums another, and blocks for both a third. Every place has a barrier that counts the bytes
// that come.
//
// The engine does not know where a sequence ends that others follow, or where a row of statistics ends. There, and
// where a tensor has no map, the warps copy the blocks.
#pragma once

#include "algorithm/machine.hpp"
#include "nvidia/bulk_copy.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// Who brings the blocks. A decision in every block costs time, a loop for each costs registers.
enum class Bringer { warps, engine, decided_each_time };

/// Config: HopperMachine's. block_bytes: of a streamed block.
template <class Config, int block_bytes>
class BlockRings {
public:
    enum : int {
        columns = Config::stream_rows,
        lead = Config::lead,
        sums_lead = Config::sums_lead,
        score_places = Config::lead + 1,
        both_places = Config::lead + 1 + Config::defers, ///< deferred sums are read until after the next scores
        sum_places = Config::sums_lead + 1,
        barriers = both_places + sum_places,
        /// at a barrier: one for each block that comes, one for statistics
        arrivals = (Config::sums_lead > 0 || Config::teams == 2 ? 1 : 2) + (Config::copies_stats != 0 ? 1 : 0),
        asking_warps = Config::depth == 64 ? 1 : 2 + Config::copies_stats, ///< as many as were fastest
        score_warps = Config::sums_lead > 0 ? 1 : asking_warps,            ///< of these, the first
        sum_warp = asking_warps - 1,
        all_places = Config::teams == 2          ? both_places // each team has one stream
                     : Config::accumulators == 2 ? 2 * both_places
                                                 : score_places + (Config::sums_lead > 0 ? sum_places : both_places),
        barriers_bytes = 8 * barriers,
        bytes =
            block_bytes * all_places + (Config::copies_stats != 0 ? 3 * 4 * columns * both_places : 0) + barriers_bytes,
    };

    /// Where the blocks of a stage lie.
    struct Stage {
        int scores = 0, sums = 0, both = 0; ///< of a ring of places for each use

        FLASHOMP_INLINE int place(StreamUse use) const
        {
            return use == StreamUse::scores ? scores : (use == StreamUse::sums ? sums : both);
        }
        FLASHOMP_INLINE void advance()
        {
            scores = scores + 1 == score_places ? 0 : scores + 1;
            sums = sums + 1 == sum_places ? 0 : sums + 1;
            both = both + 1 == both_places ? 0 : both + 1;
        }
    };

    /// The barriers lie at the end of memory, which is `end`.
    FLASHOMP_INLINE BlockRings(std::uint32_t end, unsigned thread) : barriers_(end - barriers_bytes)
    {
#pragma GCC unroll 8
        for (int i = 0; i < barriers; ++i) {
            ptx::barrier_init(barriers_ + 8 * i, arrivals, thread);
        }
    }

    /// Where the barriers start.
    FLASHOMP_INLINE std::uint32_t begin() const
    {
        return barriers_;
    }

    static FLASHOMP_INLINE int places(StreamUse use)
    {
        return use == StreamUse::scores ? score_places : (use == StreamUse::sums ? sum_places : both_places);
    }

    /// Before for_blocks(), for every tensor that streams.
    FLASHOMP_INLINE void add(const Tensor& tensor)
    {
        has_maps_ = has_maps_ && tensor.map != nullptr;
        is_packed_ = tensor.is_packed;
    }

    /// Decides who brings the blocks of this range.
    FLASHOMP_INLINE void begin(Range range, int step)
    {
        const bool is_whole = !(is_packed_ || Config::copies_stats != 0) || (range.end - range.begin) % step == 0;
        has_engine_ = has_maps_ && is_whole;
    }

    template <Bringer bringer>
    FLASHOMP_INLINE bool has_engine() const
    {
        return bringer == Bringer::engine || (bringer == Bringer::decided_each_time && has_engine_);
    }
    FLASHOMP_INLINE bool has_engine() const
    {
        return has_engine_;
    }

    /// The warps that ask the engine for blocks. Without the engine all warps bring all.
    template <Bringer bringer>
    static FLASHOMP_INLINE bool loads_scores(unsigned thread)
    {
        if constexpr (bringer != Bringer::engine) {
            return true;
        }
        return thread < 32 * score_warps;
    }
    template <Bringer bringer>
    static FLASHOMP_INLINE bool loads_sums(unsigned thread)
    {
        if constexpr (bringer != Bringer::engine) {
            return true;
        }
        return thread / 32 == sum_warp;
    }

    /// The number of a block's barrier.
    static FLASHOMP_INLINE int score_barrier(const Stage& stage)
    {
        return stage.both;
    }
    static FLASHOMP_INLINE int sum_barrier(const Stage& stage)
    {
        return both_places + stage.sums;
    }

    /// Calls load_block(), which calls ask() and ask_stats() for what a stage has.
    template <Bringer bringer, class LoadBlock>
    FLASHOMP_INLINE void start(unsigned thread, const LoadBlock& load_block, int j0, Stage stage, Load what)
    {
        barrier_ = barriers_ + 8 * (what == Load::for_scores ? score_barrier(stage) : sum_barrier(stage));
        expected_ = 0;
        asking_ = what == Load::for_sums && asking_warps > 1 ? 1 : 0;
        if (has_engine<bringer>()) {
            by_engine_ = true;
            load_block(j0, stage, what);
            if (expected_ > 0 && is_warp(asking_warps - 1, thread)) {
                ptx::barrier_expect(barrier_, expected_);
            }
        } else {
            by_engine_ = false;
            load_block(j0, stage, what);
            ptx::copy_commit();
        }
    }

    /// Asks the engine for a block. False: the warps are to copy the block.
    FLASHOMP_INLINE bool ask(unsigned thread, std::uint32_t block, const Rows& rows)
    {
        if (by_engine_) {
            if (is_warp(asking_, thread)) { // which takes it about 90 cycles
                ptx::copy_box(block, rows.map, static_cast<int>(rows.row), rows.head, rows.batch, block_bytes,
                              barrier_);
            }
            asking_ = asking_warps > 1 ? 1 : 0;
        }
        return by_engine_;
    }
    FLASHOMP_INLINE bool ask_stats(unsigned thread, std::uint32_t block, const float* source)
    {
        if (by_engine_) {
            if (is_warp(asking_warps - 1, thread)) {
                ptx::copy_bulk(block, source, 4 * columns, barrier_);
            }
            expected_ += 4 * columns;
        }
        return by_engine_;
    }

    /// Waits until this thread's copies, or the engine's, have arrived.
    template <Bringer bringer>
    FLASHOMP_INLINE void arrive(int barrier)
    {
        if (has_engine<bringer>()) {
            ptx::barrier_wait(barriers_ + 8 * barrier, phases_ >> barrier & 1U);
            phases_ ^= 1U << barrier;
        } else {
            ptx::copy_wait<0>();
            ptx::publish_shared();
        }
    }

private:
    /// Among the warps that ask.
    static FLASHOMP_INLINE bool is_warp(int number, unsigned thread)
    {
        return asking_warps == 1 || thread / 32 == static_cast<unsigned>(number);
    }

    std::uint32_t barriers_;    ///< mbarriers: one for each place of what is on its way, for scores, then for sums
    unsigned phases_ = 0;       ///< bit i: parity of the next phase of barrier i
    std::uint32_t barrier_ = 0; ///< of what is being loaded
    unsigned expected_ = 0;     ///< bytes of statistics among it
    bool has_maps_ = true, is_packed_ = false; ///< all that streams
    bool has_engine_ = false;                  ///< brings all blocks of this range
    bool by_engine_ = false;                   ///< a constant once all is inlined
    int asking_ = 0;                           ///< warp that asks for the next block, likewise
};

} // namespace flashomp::offload

#pragma omp end declare target
