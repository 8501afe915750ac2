// The products of few queries (few_queries_forward.hpp, few_queries_backward.hpp): a warp's tile, whose rows are 16
// keys and whose columns are all queries. In registers it has the layout of mma.m16n8k16 (warp_tile.hpp).
#pragma once

#include "algorithm/mask.hpp"
#include "algorithm/math.hpp"
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

/// st.global.v2: two registers.
FLASHOMP_INLINE void store_global_64(void* global, std::uint32_t x, std::uint32_t y)
{
    if (is_nvptx()) {
        asm volatile(
            "{ .reg .u64 g; cvta.to.global.u64 g, %0; st.global.v2.b32 [g], {%1, %2}; }" ::FLASHOMP_ASM_ADDRESS(
                reinterpret_cast<unsigned long long>(global)),
            "r"(x), "r"(y));
    }
}

/// shfl.sync.idx of a float.
FLASHOMP_INLINE float shuffle(float x, unsigned from)
{
    return float_of(shuffle(bits_of(x), from));
}

} // namespace ptx

/// Keys, values and queries are given by the shared memory they are in (Config::Keys, Config::Queries).
template <class Config>
class FewQueriesTile {
protected:
    using Math = typename Config::Math;
    using Keys = typename Config::Keys;
    using Queries = typename Config::Queries;
    enum : int { tiles = Config::tiles, pairs = Config::pairs, depth = Config::depth, steps = Config::depth / 16 };

public:
    /// A lane's part of dot products, or of what is made of them: of 8 queries each.
    struct Scores {
        float s[tiles][4];
    };

    /// P or dS, rounded, of which left operands of products over queries are made: [8 queries][row, row + 8].
    struct Rounded {
        std::uint32_t x[2 * pairs][2];

        FLASHOMP_INLINE ptx::Four left(int pair) const
        {
            return {{x[2 * pair][0], x[2 * pair][1], x[2 * pair + 1][0], x[2 * pair + 1][1]}};
        }
    };

    FLASHOMP_INLINE void clear()
    {
        FLASHOMP_UNROLL(4)
        for (int t = 0; t < tiles; ++t) {
            FLASHOMP_UNROLL(16)
            for (int m = 0; m < steps; ++m) {
                FLASHOMP_UNROLL(4)
                for (int e = 0; e < 4; ++e) {
                    sums_[t][m][e] = 0.0F;
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

    /// -inf where a query does not see a key: query r sees those of keys_of(r) that is_kept(j) keeps, numbers in the
    /// tile.
    template <class KeysOf, class IsKept>
    FLASHOMP_INLINE void hide(Scores& s, const KeysOf& keys_of, const IsKept& is_kept) const
    {
        const int first = static_cast<int>(lane_ / 4), second = first + 8;
        const bool is_first_kept = is_kept(first), is_second_kept = is_kept(second);
        FLASHOMP_UNROLL(4)
        for (int t = 0; t < tiles; ++t) {
            FLASHOMP_UNROLL(2)
            for (int c = 0; c < 2; ++c) {
                const Range seen = keys_of(column(t) + c);
                const bool sees_first = is_first_kept & (first >= seen.begin) & (first < seen.end);
                const bool sees_second = is_second_kept & (second >= seen.begin) & (second < seen.end);
                s.s[t][c] = sees_first ? s.s[t][c] : -infinity;
                s.s[t][c + 2] = sees_second ? s.s[t][c + 2] : -infinity;
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

    /// The sums += rowsᵀ · weightsᵀ: oᵀ of values and P, dQᵀ of keys and dS.
    FLASHOMP_INLINE void project(const Rounded& weights, std::uint32_t rows)
    {
        forget_places();
        std::uint32_t right[tiles][2];
        FLASHOMP_UNROLL(4)
        for (int t = 0; t < tiles; ++t) {
            right[t][0] = transposed(weights.x[t][0]);
            right[t][1] = transposed(weights.x[t][1]);
        }
        FLASHOMP_UNROLL(16)
        for (int m = 0; m < steps; ++m) {
            const ptx::Four left =
                ptx::load_matrices_transposed(rows + along_rows() + Keys::pair_offset(2 * m, lane_ / 8 % 2, lane_));
            FLASHOMP_UNROLL(4)
            for (int t = 0; t < tiles; ++t) {
                Math::multiply_add(sums_[t][m], left, right[t][0], right[t][1]);
            }
        }
    }

    /// Where leave() puts four neighbouring sums of a query from number x on, a multiple of 4: in floats. Columns are
    /// permuted by the query, so that the lanes of a warp write to different banks.
    static FLASHOMP_INLINE int place_of(int query, int x) { return query * depth + (x ^ (query / 2 % 4 * 8)); }

    /// The sums to shared memory, as rows of float32 of each query.
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
                    ptx::store_shared(to + 4 * static_cast<unsigned>(place_of(column(t) + e % 2, x)), sums_[t][m][e]);
                }
            }
        }
    }

protected:
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
    float sums_[tiles][steps][4];
};

} // namespace flashomp::offload

#pragma omp end declare target
