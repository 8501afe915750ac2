// The tensor-core tile machine, for bfloat16 and float16 on NVIDIA GPUs from sm_80: products of a warp, mma.sync with
// operands by ldmatrix, of blocks that stream through two stages.
#pragma once

#include "nvidia/tensor_tile.hpp"
#include "nvidia/two_stages.hpp"

#pragma omp declare target

namespace flashomp::offload {

template <class Config>
class TensorMachine : public TwoStages<TensorTile<Config>> {
    using Machine = TwoStages<TensorTile<Config>>;
    using Tile = TensorTile<Config>;
    using Tile::columns, Tile::depth, Tile::depth_v, Tile::fragments;

public:
    using Machine::load;
    using typename Machine::Accumulator, typename Tile::Block, typename Tile::Math, typename Tile::Resident,
        typename Tile::Scores, typename Tile::Stats, typename Tile::StreamBlock, typename Tile::ValueBlock;

    FLASHOMP_INLINE explicit TensorMachine(const void* team_memory) : Machine(team_memory) {}

    FLASHOMP_INLINE void load(Resident& block, const Rows& rows) { this->load_resident(block, rows); }

    FLASHOMP_INLINE void multiply(Scores& s, const Resident& block, StreamBlock stream)
    {
        s.is_rounded = false;
        const std::uint32_t base = stream.address + this->along_rows();
        Machine::clear(s);
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
            for (int n = 0; n < depth_v / 16; ++n) {
                const ptx::Four right = ptx::load_matrices_transposed(
                    base + ValueBlock::pair_offset(2 * n, this->lane() / 16, this->lane()) + k * 16 * 128);
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
            Machine::scale(a, factor);
        }
        accumulate(a, s, stream);
    }

    template <class F>
    FLASHOMP_INLINE void store(const Accumulator& a, const Rows& rows, const F& f)
    {
        this->store_values(a, rows, f);
    }
};

} // namespace flashomp::offload

#pragma omp end declare target
