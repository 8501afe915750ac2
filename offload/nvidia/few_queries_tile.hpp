// The products of few queries (few_queries.hpp): a warp's tile, whose rows are 16 keys and whose columns are all
// queries. In registers it has the layout of mma.m16n8k16 (warp_tile.hpp).
#pragma once

#include "algorithm/math.hpp"
#include "algorithm/score_gradient.hpp"
#include "launch/few_queries_shapes.hpp"
#include "nvidia/panels.hpp"
#include "nvidia/warp_products.hpp"

#pragma omp declare target

namespace flashomp::offload {

namespace ptx {

/// st.shared.b32 of a float.
FLASHOMP_INLINE void store_shared(std::uint32_t shared, float value)
{
    if (is_nvptx()) {
        asm volatile("{ .reg .b32 v; mov.b32 v, %1; st.shared.b32 [%0], v; }" ::"r"(shared), FLASHOMP_ASM_FLOAT(value));
    }
}

} // namespace ptx

/// M: ptx::BFloat16Math or Float16Math; shape: launch/few_queries_shapes.hpp.
template <class M, int shape_depth, int shape_tiles, int shape_warps>
struct FewQueriesConfig {
    using Math = M;
    enum : int { // not static members: g++ calls classes with those not mappable
        depth = shape_depth,
        tiles = shape_tiles,
        pairs = (shape_tiles + 1) / 2, ///< of tiles: what one product sums over
        rows = 16 * pairs,             ///< of queries in team memory; zeros beyond those there are
        warps = shape_warps,
        threads = 32 * warps,
        stages = 2,
        keys = 16 ///< of a warp at one time
    };
    using Keys = Panels<keys, depth>;
    using Queries = Panels<rows, depth>;
    enum : int {
        stage_bytes = 2 * int{Keys::bytes},
        warp_bytes = stages * stage_bytes,
        queries_at = warps * warp_bytes,
        statistics_at = queries_at + 2 * int{Queries::bytes}, ///< LSE and D of each row
        place_at = statistics_at + 2 * 4 * rows,              ///< of is_last()
        memory_bytes = place_at + 16,
        sum_floats = 8 * tiles * depth,
    };
    static_assert(4 * sum_floats <= warp_bytes); // where a warp leaves dQ
    static_assert(memory_bytes == FewQueriesShape{shape_depth, shape_tiles, shape_warps}.memory_bytes());
    static_assert(sum_floats == FewQueriesShape{shape_depth, shape_tiles, shape_warps}.sum_floats());
};

/// Keys, values and queries are given by the shared memory they are in (Config::Keys, Config::Queries).
template <class Config>
class FewQueriesTile {
    using Math = typename Config::Math;
    using Keys = typename Config::Keys;
    using Queries = typename Config::Queries;
    enum : int { tiles = Config::tiles, pairs = Config::pairs, depth = Config::depth, steps = Config::depth / 16 };

public:
    /// A lane's part of dot products, or of what is made of them: of 8 queries each.
    struct Scores {
        float s[tiles][4];
    };

    /// P or dS, rounded, as left operands of products over queries: [8 queries][row, row + 8].
    struct Rounded {
        std::uint32_t x[2 * pairs][2];

        FLASHOMP_INLINE ptx::Four left(int pair) const
        {
            return {{x[2 * pair][0], x[2 * pair][1], x[2 * pair + 1][0], x[2 * pair + 1][1]}};
        }
    };

    /// statistics: LSE and D of each query.
    FLASHOMP_INLINE void begin(std::uint32_t statistics)
    {
        FLASHOMP_UNROLL(4)
        for (int t = 0; t < tiles; ++t) {
            FLASHOMP_UNROLL(2)
            for (int c = 0; c < 2; ++c) {
                const ptx::FloatPair pair =
                    ptx::load_shared_pair(statistics + 8 * static_cast<unsigned>(column(t) + c));
                lse_[t][c] = pair.x;
                delta_[t][c] = pair.y;
            }
            FLASHOMP_UNROLL(16)
            for (int m = 0; m < steps; ++m) {
                FLASHOMP_UNROLL(4)
                for (int e = 0; e < 4; ++e) {
                    dq_[t][m][e] = 0.0F;
                }
            }
        }
    }

    /// s = keys · queriesᵀ
    FLASHOMP_INLINE void multiply(Scores& s, std::uint32_t keys, std::uint32_t queries)
    {
        forget_places();
        FLASHOMP_UNROLL(4)
        for (int t = 0; t < tiles; ++t) {
            FLASHOMP_UNROLL(4)
            for (int e = 0; e < 4; ++e) {
                s.s[t][e] = 0.0F;
            }
        }
        FLASHOMP_UNROLL(16)
        for (int k = 0; k < steps; ++k) {
            const ptx::Four left =
                ptx::load_matrices(keys + along_columns() + Keys::pair_offset(2 * k, lane_ / 16, lane_));
            FLASHOMP_UNROLL(2)
            for (int pair = 0; pair < pairs; ++pair) {
                const ptx::Four right =
                    ptx::load_matrices(queries + along_rows() + static_cast<unsigned>(pair) * 16 * 128 +
                                       Queries::pair_offset(2 * k, lane_ / 8 % 2, lane_));
                Math::multiply_add(s.s[2 * pair], left, right.x[0], right.x[1]);
                if (2 * pair + 1 < tiles) {
                    Math::multiply_add(s.s[2 * pair + 1], left, right.x[2], right.x[3]);
                }
            }
        }
    }

    /// P in the place of the dot products, and dS in that of dP (score_gradient.hpp). all_seen: by every query; else
    /// sees(query, key) says which, numbers in the tile.
    template <class Sees>
    FLASHOMP_INLINE void gradients(Scores& s, Scores& dp, float scale, bool all_seen, const Sees& sees)
    {
        const int row = static_cast<int>(lane_ / 4);
        FLASHOMP_UNROLL(4)
        for (int t = 0; t < tiles; ++t) {
            FLASHOMP_UNROLL(4)
            for (int e = 0; e < 4; ++e) {
                float difference = fused(scale, s.s[t][e], -lse_[t][e % 2]);
                bool is_seen = true;
                if (!all_seen) {
                    is_seen = sees(column(t) + e % 2, row + 8 * (e / 2));
                    difference = is_seen ? difference : -infinity;
                }
                const float probability = ptx::exp2_approx(difference * log2_e);
                s.s[t][e] = probability;
                dp.s[t][e] = is_seen ? probability * (dp.s[t][e] - delta_[t][e % 2]) : 0.0F;
            }
        }
    }

    static FLASHOMP_INLINE Rounded rounded(const Scores& s)
    {
        Rounded to = hidden();
        FLASHOMP_UNROLL(4)
        for (int t = 0; t < tiles; ++t) {
            to.x[t][0] = Math::pack(s.s[t][0], s.s[t][1]);
            to.x[t][1] = Math::pack(s.s[t][2], s.s[t][3]);
        }
        return to;
    }

    /// Of keys that no query sees.
    static FLASHOMP_INLINE Rounded hidden()
    {
        Rounded to;
        FLASHOMP_UNROLL(4)
        for (int t = 0; t < 2 * pairs; ++t) {
            to.x[t][0] = to.x[t][1] = 0;
        }
        return to;
    }

    /// dQᵀ += keysᵀ · dSᵀ
    FLASHOMP_INLINE void project(const Rounded& ds, std::uint32_t keys)
    {
        forget_places();
        std::uint32_t right[tiles][2];
        FLASHOMP_UNROLL(4)
        for (int t = 0; t < tiles; ++t) {
            right[t][0] = transposed(ds.x[t][0]);
            right[t][1] = transposed(ds.x[t][1]);
        }
        FLASHOMP_UNROLL(16)
        for (int m = 0; m < steps; ++m) {
            const ptx::Four left =
                ptx::load_matrices_transposed(keys + along_rows() + Keys::pair_offset(2 * m, lane_ / 8 % 2, lane_));
            FLASHOMP_UNROLL(4)
            for (int t = 0; t < tiles; ++t) {
                Math::multiply_add(dq_[t][m], left, right[t][0], right[t][1]);
            }
        }
    }

    /// weights · queries · factor, rounded, to where keys or values were.
    FLASHOMP_INLINE void sum_keys(const Rounded& weights, std::uint32_t queries, std::uint32_t to, float factor)
    {
        forget_places();
        const std::uint32_t base = to + lane_ / 4 * 128 + 4 * (lane_ % 4);
        FLASHOMP_UNROLL(16)
        for (int n = 0; n < steps; ++n) {
            float sum[2][4] = {};
            FLASHOMP_UNROLL(2)
            for (int pair = 0; pair < pairs; ++pair) {
                const ptx::Four right =
                    ptx::load_matrices_transposed(queries + along_columns() + static_cast<unsigned>(pair) * 16 * 128 +
                                                  Queries::pair_offset(2 * n, lane_ / 16, lane_));
                const ptx::Four left = weights.left(pair);
                Math::multiply_add(sum[0], left, right.x[0], right.x[1]);
                Math::multiply_add(sum[1], left, right.x[2], right.x[3]);
            }
            FLASHOMP_UNROLL(2)
            for (int c = 0; c < 2; ++c) {
                const auto chunk = static_cast<unsigned>(2 * n + c);
                const std::uint32_t at = base + Keys::panel(chunk) + ((chunk % 8) ^ (lane_ / 4)) * 16;
                ptx::store_shared_32(at, Math::pack(sum[c][0] * factor, sum[c][1] * factor));
                ptx::store_shared_32(at + 8 * 128, Math::pack(sum[c][2] * factor, sum[c][3] * factor));
            }
        }
    }

    /// dQ to shared memory, as rows of float32.
    FLASHOMP_INLINE void leave(std::uint32_t to)
    {
        forget_places();
        FLASHOMP_UNROLL(4)
        for (int t = 0; t < tiles; ++t) {
            FLASHOMP_UNROLL(16)
            for (int m = 0; m < steps; ++m) {
                FLASHOMP_UNROLL(4)
                for (int e = 0; e < 4; ++e) {
                    const int x = 16 * m + static_cast<int>(lane_ / 4) + 8 * (e / 2);
                    ptx::store_shared(to + 4 * static_cast<unsigned>((column(t) + e % 2) * depth + x), dq_[t][m][e]);
                }
            }
        }
    }

private:
    /// What follows from the lane's number is computed anew from here on: g++ would keep dozens of places in registers.
    FLASHOMP_INLINE void forget_places() { lane_ = ptx::here(lane_); }

    /// Bytes to the row of a 16x16 piece that this lane names to ldmatrix: its four 8x8 matrices in the order down the
    /// rows first, or along the columns first.
    FLASHOMP_INLINE std::uint32_t along_columns() const { return (lane_ / 8 % 2 * 8 + lane_ % 8) * 128; }
    FLASHOMP_INLINE std::uint32_t along_rows() const { return (lane_ / 16 * 8 + lane_ % 8) * 128; }

    /// The first of this lane's two queries among 8.
    FLASHOMP_INLINE int column(int tile) const { return 8 * tile + static_cast<int>(lane_ % 4) * 2; }

    /// An 8x8 matrix of 16-bit elements, of which a lane has two of row lane / 4, transposed. PTX has an instruction
    /// for that since 7.8, and g++ 12 writes 7.0.
    FLASHOMP_INLINE std::uint32_t transposed(std::uint32_t pair) const
    {
        const unsigned from = lane_ % 4 * 8 + lane_ / 8; // of rows 2·(lane % 4) and the next, column lane / 4
        const std::uint32_t first = ptx::shuffle(pair, from), second = ptx::shuffle(pair, from + 4);
        return lane_ / 4 % 2 == 0 ? (first & 0xFFFFU) | second << 16 : first >> 16 | (second & 0xFFFF0000U);
    }

    unsigned lane_ = ptx::lane();
    float lse_[tiles][2], delta_[tiles][2];
    float dq_[tiles][steps][4];
};

} // namespace flashomp::offload

#pragma omp end declare target
