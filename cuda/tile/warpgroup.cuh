// What the warps of a warpgroup do with products in their registers (wgmma.cuh says how these lie there).
#pragma once

#include "algorithm/finite_check.hpp"
#include "algorithm/mask.hpp"
#include "nvidia/warp_products.hpp"
#include "tile/bulk_copy.cuh"

namespace flashomp::cuda {

/// Where a thread is in its warpgroup.
struct Lane {
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;

    /// The first of its two rows of 64; the other is 8 below.
    __device__ __forceinline__ int row() const { return static_cast<int>(warp * 16 + lane / 4); }

    /// The first of its two neighbouring columns of each eight.
    __device__ __forceinline__ int column() const { return static_cast<int>(lane % 4 * 2); }

    /// Lanes that tell a barrier what their warp has done. One speaks for all, behind a __syncwarp().
    /// compute-sanitizer's racecheck takes only the speaker's own accesses for ordered, so in a build for it each
    /// speaks for itself.
#ifdef FLASHOMP_CUDA_RACECHECK
    static constexpr unsigned speakers = 32;
#else
    static constexpr unsigned speakers = 1;
#endif

    __device__ __forceinline__ void release(Barrier& barrier) const
    {
        if (lane < speakers) {
            barrier.arrive();
        }
    }
};

/// The sequence's key padding mask, or null.
__device__ __forceinline__ const std::uint8_t* padding_of(const offload::Params& p, int batch)
{
    return p.key_padding_mask == nullptr ? nullptr : p.key_padding_mask + batch * p.key_padding_batch_stride;
}

/// The columns of a product that each of a lane's two rows sees: `count` of them from `first` on.
struct VisibleColumns {
    int first[2];
    unsigned count[2];

    /// Rows are queries, of which the lane has i and i + 8; columns are keys.
    __device__ __forceinline__ void set_keys(const offload::Band& band, int i)
    {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            set(half, i + 8 * half + band.low, min(band.k_len, i + 8 * half + band.high + 1));
        }
    }

    /// Rows are keys, of which the lane has j and j + 8; columns are queries. None sees a key that is padding.
    __device__ __forceinline__ void set_queries(const offload::Band& band, int j, const std::uint8_t* padding)
    {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int key = j + 8 * half;
            set(half, key - band.high, min(band.q_len, key - band.low + 1));
            const bool is_there = key < band.k_len && (padding == nullptr || padding[key] != 0);
            count[half] = is_there ? count[half] : 0U;
        }
    }

    /// -inf where a row does not see a column; `column` is the lane's first one.
    template <int n>
    __device__ __forceinline__ void hide(float (&s)[n], int column) const
    {
        const int from[2] = {column - first[0], column - first[1]};
#pragma unroll
        for (int i = 0; i < n; ++i) {
            const int half = i / 2 % 2;
            s[i] = static_cast<unsigned>(from[half] + i / 4 * 8 + i % 2) < count[half] ? s[i] : -offload::infinity;
        }
    }

private:
    __device__ __forceinline__ void set(int half, int begin, int end)
    {
        first[half] = max(0, begin);
        count[half] = static_cast<unsigned>(max(0, end - first[half]));
    }
};

/// -inf where a column is a key that is padding.
template <int n>
__device__ __forceinline__ void hide_padding(float (&s)[n], int column, int k_len, const std::uint8_t* padding)
{
#pragma unroll
    for (int i = 0; i < n; ++i) {
        const int key = column + i / 4 * 8 + i % 2;
        s[i] = key < k_len && padding[key] == 0 ? -offload::infinity : s[i];
    }
}

/// For the arithmetic of rows that the tile machines share (algorithm/row_statistics.hpp).
struct ApproximateExp2 {
    static __device__ __forceinline__ float exp2(float x) { return offload::ptx::exp2_approx(x); }
};

/// Four registers of a lane from s on, two rows of two columns: p = 2^(s·factor - lse), with the columns' LSE.
__device__ __forceinline__ void exponentials(float* s, float factor, float2 lse)
{
    s[0] = offload::ptx::exp2_approx(__builtin_fmaf(s[0], factor, -lse.x));
    s[1] = offload::ptx::exp2_approx(__builtin_fmaf(s[1], factor, -lse.y));
    s[2] = offload::ptx::exp2_approx(__builtin_fmaf(s[2], factor, -lse.x));
    s[3] = offload::ptx::exp2_approx(__builtin_fmaf(s[3], factor, -lse.y));
}

/// The same four: ds = p∘(dp - D), in dp's place.
__device__ __forceinline__ void score_gradients(float* dp, float4 p, float2 delta)
{
    dp[0] = p.x * (dp[0] - delta.x);
    dp[1] = p.y * (dp[1] - delta.y);
    dp[2] = p.z * (dp[2] - delta.x);
    dp[3] = p.w * (dp[3] - delta.y);
}

/// As left operands of the next product, 32 bytes of columns each.
template <class Math, int n, int steps>
__device__ __forceinline__ void round(const float (&s)[n], std::uint32_t (&p)[steps][4])
{
#pragma unroll
    for (int step = 0; step < steps; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if constexpr (sizeof(typename Math::Stored) == 1) { // keys in the order of key_at()
                const float* const x = s + 16 * step + i / 2 * 8 + i % 2 * 2;
                p[step][i] = Math::pack(x[0], x[1], x[4], x[5]);
            } else {
                p[step][i] = Math::pack(s[8 * step + 2 * i], s[8 * step + 2 * i + 1]);
            }
        }
    }
}

/// The sum over the four lanes that share a row.
__device__ __forceinline__ float row_sum(float x)
{
    x += offload::ptx::shuffle_xor<1>(x);
    return x + offload::ptx::shuffle_xor<2>(x);
}

/// A warp's 16 rows to memory, rounded to 16 bits and times `by` for each of a lane's two, in whole 16-byte chunks: by
/// way of shared memory, from `rows` on, which are the warp's in a block of `block_rows` rows in panels. At most
/// `count` rows of `width` columns.
template <class Math, int block_rows, int n>
__device__ __forceinline__ void store_rows(const float (&sum)[n], float by, float by_below, std::uint32_t rows,
                                           std::uint16_t* target, std::int64_t stride, int count, int width,
                                           unsigned* nonfinite)
{
    constexpr unsigned chunks = n / 4; // of a row
    offload::FiniteCheck check;
    const float zero = offload::FiniteCheck::of_factor(by), zero_below = offload::FiniteCheck::of_factor(by_below);
    const unsigned lane = threadIdx.x % 32;
    const unsigned own = lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
    for (int step = 0; step < n / 8; ++step) {
        const float* const x = sum + 8 * step;
        const std::uint32_t rounded[4] = {
            Math::pack(x[0] * by, x[1] * by), Math::pack(x[2] * by_below, x[3] * by_below),
            Math::pack(x[4] * by, x[5] * by), Math::pack(x[6] * by_below, x[7] * by_below)};
        store_matrices(rows + chunk_offset<block_rows>(own, 2 * step + lane / 16), rounded);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            check.see(x[i], i / 2 % 2 == 0 ? zero : zero_below);
        }
    }
    check.report(nonfinite); // rows past the end count too, which may cost a needless second run
    __syncwarp();
#pragma unroll
    for (int i = 0; i < static_cast<int>(chunks) / 2; ++i) {
        const unsigned r = (i * 32 + lane) / chunks;
        const unsigned chunk = (i * 32 + lane) % chunks;
        if (static_cast<int>(r) < count && static_cast<int>(8 * chunk) < width) {
            *reinterpret_cast<uint4*>(target + r * stride + 8 * chunk) =
                load_shared_16(rows + chunk_offset<block_rows>(r, chunk));
        }
    }
}

/// Zeros instead.
__device__ __forceinline__ void store_zeros(std::uint16_t* target, std::int64_t stride, int count, int width)
{
    for (int r = 0; r < min(count, 16); ++r) {
        for (int x = static_cast<int>(threadIdx.x % 32) * 8; x < width; x += 256) {
            *reinterpret_cast<uint4*>(target + r * stride + x) = uint4{};
        }
    }
}

} // namespace flashomp::cuda
