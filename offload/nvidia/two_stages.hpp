// Streamed blocks in two stages of team memory, the next one arriving by cp.async while the crew works on this one, at
// the price of one barrier a block. Where memory has no place for that, what serves the scores alone has one place and
// arrives while the sums are computed, what serves the sums alone arrives while the scores are, and there are two
// barriers a block.
#pragma once

#include "nvidia/warp_tile.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// Tile: WarpTile, or what is made of it.
template <class Tile>
class TwoStages : public Tile {
public:
    using Tile::block_bytes, Tile::columns, Tile::depth, Tile::depth_v, Tile::fragments, Tile::in_turns, Tile::threads;
    using typename Tile::Block, typename Tile::ColumnStatsBlock, typename Tile::Scores, typename Tile::Stats,
        typename Tile::StreamBlock;
    using Accumulator = typename Tile::WarpAccumulator;
    using Stage = int;

    struct Stream {
        std::uint32_t address;
        int stage_bytes; ///< a constant once all is inlined
        FLASHOMP_INLINE StreamBlock operator[](Stage stage) const { return {address + stage * stage_bytes}; }
    };
    struct ColumnStats {
        std::uint32_t address;
        FLASHOMP_INLINE ColumnStatsBlock operator[](Stage stage) const { return {address + stage * 4 * columns}; }
    };

    using Tile::Tile;

    FLASHOMP_INLINE Stream stream(const Tensor&, int, StreamUse use)
    {
        const int stages = in_turns != 0 && use != StreamUse::both ? 1 : 2;
        return {this->take(stages * block_bytes), (stages - 1) * block_bytes};
    }
    FLASHOMP_INLINE Scores scores(ScoreUse = ScoreUse::values) { return {}; }
    FLASHOMP_INLINE Accumulator accumulator(int) { return {}; }
    FLASHOMP_INLINE ColumnStats column_stats() { return {this->take(2 * 4 * columns) + this->resident_memory_bytes()}; }

    FLASHOMP_INLINE void load(StreamBlock block, const Rows& rows)
    {
        copy_in<Block, threads>(block.address, rows, this->thread());
    }
    FLASHOMP_INLINE void load(StreamBlock block, const PagedRows& rows)
    {
        copy_in<Block, threads>(block.address, rows, this->thread());
    }
    FLASHOMP_INLINE void load(ColumnStatsBlock block, const float* source, int count)
    {
        this->copy_stats(block, source, count);
    }

    template <class LoadBlock, class Score, class Attend>
    FLASHOMP_INLINE void for_blocks(Range range, int step, const LoadBlock& load_block, const Score& score,
                                    const Attend& attend)
    {
        if (range.begin >= range.end) {
            return;
        }
        int stage = 0;
        start<true, in_turns == 0>(load_block, range.begin, 0);
        for (int j0 = range.begin; j0 < range.end; j0 += step) {
            if constexpr (Tile::refetch != 0) {
                ptx::refetch();
            }
            wait_for_block(); // and nobody reads the other stage any more
            if constexpr (in_turns != 0) {
                start<false, true>(load_block, j0, stage);
            } else if (j0 + step < range.end) {
                start<true, true>(load_block, j0 + step, stage ^ 1);
            }
            score(j0, stage);
            if constexpr (in_turns != 0) {
                wait_for_block();
                if (j0 + step < range.end) {
                    start<true, false>(load_block, j0 + step, stage ^ 1);
                }
            }
            attend(j0, stage);
            stage ^= 1;
        }
        ptx::barrier<threads>(); // whatever comes next may overwrite the stages
    }

    template <class... S>
    FLASHOMP_INLINE void finish(const S&...)
    {
    }

protected:
    static FLASHOMP_INLINE void clear(Scores& scores)
    {
        FLASHOMP_UNROLL(8)
        for (int m = 0; m < fragments; ++m) {
            FLASHOMP_UNROLL(64)
            for (int n = 0; n < columns / 8; ++n) {
                FLASHOMP_UNROLL(4)
                for (int e = 0; e < 4; ++e) {
                    scores.s[m][n][e] = 0.0F;
                }
            }
        }
    }

    static FLASHOMP_INLINE void scale(Accumulator& a, const Stats& factor)
    {
        FLASHOMP_UNROLL(8)
        for (int m = 0; m < fragments; ++m) {
            FLASHOMP_UNROLL(64)
            for (int n = 0; n < depth_v / 8; ++n) {
                FLASHOMP_UNROLL(4)
                for (int e = 0; e < 4; ++e) {
                    a.c[m][n][e] *= factor.v[2 * m + e / 2];
                }
            }
        }
    }

private:
    template <bool scores, bool sums, class LoadBlock>
    static FLASHOMP_INLINE void start(const LoadBlock& load_block, int j0, Stage stage)
    {
        if constexpr (scores) {
            load_block(j0, stage, Load::for_scores);
        }
        if constexpr (sums) {
            load_block(j0, stage, Load::for_sums);
        }
        ptx::copy_commit();
    }

    /// Until what was asked for is there for the whole crew.
    static FLASHOMP_INLINE void wait_for_block()
    {
        ptx::copy_wait<0>();
        ptx::barrier<threads>();
    }
};

} // namespace flashomp::offload

#pragma omp end declare target
