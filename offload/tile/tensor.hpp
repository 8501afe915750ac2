// The tensor-core tile machine, for bfloat16 and float16 on NVIDIA GPUs from sm_80: products of a warp, mma.sync with
// operands by ldmatrix. Streamed blocks pass through two stages of team memory, the next one arriving by cp.async while
// the crew works on this one, at the price of one barrier a block.
#pragma once

#include "tile/tensor_tile.hpp"

#pragma omp declare target

namespace flashomp::offload {

template <class Config>
class TensorMachine : public TensorTile<Config> {
    using Tile = TensorTile<Config>;
    using Tile::block_bytes, Tile::columns, Tile::depth, Tile::fragments, Tile::row_slots, Tile::threads;

public:
    using typename Tile::Block, typename Tile::ColumnStatsBlock, typename Tile::Math, typename Tile::Resident,
        typename Tile::Scores, typename Tile::Stats, typename Tile::StreamBlock;
    using Accumulator = typename Tile::WarpAccumulator;
    using Stage = int;

    struct Stream {
        std::uint32_t address;
        FLASHOMP_INLINE StreamBlock operator[](Stage stage) const { return {address + stage * block_bytes}; }
    };
    struct ColumnStats {
        std::uint32_t address;
        FLASHOMP_INLINE ColumnStatsBlock operator[](Stage stage) const { return {address + stage * 4 * columns}; }
    };

    FLASHOMP_INLINE explicit TensorMachine(const void* team_memory) : Tile(team_memory) {}

    FLASHOMP_INLINE Stream stream(const Tensor&, int, StreamUse) { return {this->take(2 * block_bytes)}; }
    FLASHOMP_INLINE Scores scores(ScoreUse = ScoreUse::values) { return {}; }
    FLASHOMP_INLINE Accumulator accumulator(int) { return {}; }
    FLASHOMP_INLINE ColumnStats column_stats() { return {this->take(2 * 4 * columns) + this->resident_memory_bytes()}; }

    FLASHOMP_INLINE void load(Resident& block, const Rows& rows) { this->load_resident(block, rows); }
    FLASHOMP_INLINE void load(StreamBlock block, const Rows& rows)
    {
        copy_in<columns, depth, threads>(block.address, rows, this->thread());
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
        start(load_block, range.begin, 0);
        for (int j0 = range.begin; j0 < range.end; j0 += step) {
            if constexpr (Config::refetch != 0) {
                ptx::refetch();
            }
            ptx::copy_wait<0>();
            ptx::barrier<threads>(); // this block is there for all, and nobody reads the other stage any more
            if (j0 + step < range.end) {
                start(load_block, j0 + step, stage ^ 1);
            }
            score(j0, stage);
            attend(j0, stage);
            stage ^= 1;
        }
        ptx::barrier<threads>(); // whatever comes next may overwrite the stages
    }

    FLASHOMP_INLINE void multiply(Scores& s, const Resident& block, StreamBlock stream)
    {
        s.is_rounded = false;
        const std::uint32_t base = stream.address + this->along_rows();
        FLASHOMP_UNROLL(8)
        for (int m = 0; m < fragments; ++m) {
            FLASHOMP_UNROLL(64)
            for (int n = 0; n < columns / 8; ++n) {
                FLASHOMP_UNROLL(4)
                for (int e = 0; e < 4; ++e) {
                    s.s[m][n][e] = 0.0F;
                }
            }
        }
        FLASHOMP_UNROLL(64)
        for (int k = 0; k < depth / 16; ++k) {
            ptx::Four left[fragments];
            FLASHOMP_UNROLL(8)
            for (int m = 0; m < fragments; ++m) {
                left[m] = this->left(block, m, k);
            }
            const std::uint32_t chunk = base + Block::pair_offset(2 * k, this->lane() / 8 % 2, this->lane());
            FLASHOMP_UNROLL(64)
            for (int n = 0; n < columns / 16; ++n) {
                const ptx::Four right = ptx::load_matrices(chunk + n * 16 * 128);
                FLASHOMP_UNROLL(8)
                for (int m = 0; m < fragments; ++m) {
                    Math::multiply_add(s.s[m][2 * n], left[m], right.x[0], right.x[1]);
                    Math::multiply_add(s.s[m][2 * n + 1], left[m], right.x[2], right.x[3]);
                }
            }
        }
    }

    FLASHOMP_INLINE void multiply(Scores& s, const Resident& block, StreamBlock stream, Scores& s2,
                                  const Resident& block2, StreamBlock stream2)
    {
        multiply(s, block, stream);
        multiply(s2, block2, stream2);
    }

    template <class... S>
    FLASHOMP_INLINE void finish(const S&...)
    {
    }

    FLASHOMP_INLINE void exp_sum(Scores& s, const Stats& base, float by, const Stats& sum)
    {
        this->exponentials(s, base, by, sum, []() FLASHOMP_LAMBDA {});
    }

    FLASHOMP_INLINE void accumulate(Accumulator& a, const Scores& s, StreamBlock stream)
    {
        const std::uint32_t base = stream.address + this->along_columns();
        FLASHOMP_UNROLL(64)
        for (int k = 0; k < columns / 16; ++k) {
            ptx::Four left[fragments];
            FLASHOMP_UNROLL(8)
            for (int m = 0; m < fragments; ++m) {
                left[m] = Tile::rounded(s, m, k);
            }
            FLASHOMP_UNROLL(64)
            for (int n = 0; n < depth / 16; ++n) {
                const ptx::Four right = ptx::load_matrices_transposed(
                    base + Block::pair_offset(2 * n, this->lane() / 16, this->lane()) + k * 16 * 128);
                FLASHOMP_UNROLL(8)
                for (int m = 0; m < fragments; ++m) {
                    Math::multiply_add(a.c[m][2 * n], left[m], right.x[0], right.x[1]);
                    Math::multiply_add(a.c[m][2 * n + 1], left[m], right.x[2], right.x[3]);
                }
            }
        }
    }

    FLASHOMP_INLINE void accumulate(Accumulator& a, const Scores& s, StreamBlock stream, bool scales,
                                    const Stats& factor)
    {
        if (scales) { // true for the whole warp; most blocks move no row's base
            FLASHOMP_UNROLL(8)
            for (int m = 0; m < fragments; ++m) {
                FLASHOMP_UNROLL(64)
                for (int n = 0; n < depth / 8; ++n) {
                    FLASHOMP_UNROLL(4)
                    for (int e = 0; e < 4; ++e) {
                        a.c[m][n][e] *= factor.v[2 * m + e / 2];
                    }
                }
            }
        }
        accumulate(a, s, stream);
    }

    template <class F>
    FLASHOMP_INLINE void store(const Accumulator& a, const Rows& rows, const F& f)
    {
        this->store_values(a, rows, f);
    }

private:
    template <class LoadBlock>
    static FLASHOMP_INLINE void start(const LoadBlock& load_block, int j0, Stage stage)
    {
        load_block(j0, stage, Load::for_scores);
        load_block(j0, stage, Load::for_sums);
        ptx::copy_commit();
    }
};

} // namespace flashomp::offload

#pragma omp end declare target
