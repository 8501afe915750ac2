// float8_e4m3 as the forward pass on Hopper uses it.
#pragma once

#include "algorithm/key_source.hpp"
#include "nvidia/warp_products.hpp"

namespace flashomp::cuda {

/// A factor for each head, or for each head of each sequence: what an element of q, k or v is to be multiplied with.
struct HeadScale {
    const float* data = nullptr; ///< null: 1
    std::int64_t batch = 0;      ///< from one sequence to the next

    __device__ __forceinline__ float of(int sequence, int head) const
    {
        return data == nullptr ? 1.0F : data[sequence * batch + head];
    }
};

/// Operands of 16 bits have no scales of their own.
struct NoScales {
    __device__ __forceinline__ float scores(int, int, int) const { return 1.0F; }
    __device__ __forceinline__ float sums(int, int) const { return 1.0F; }
};

struct HeadScales {
    HeadScale q, k, v;

    /// Of q·k, and of what is summed of v.
    __device__ __forceinline__ float scores(int sequence, int head, int head_kv) const
    {
        return q.of(sequence, head) * k.of(sequence, head_kv);
    }
    __device__ __forceinline__ float sums(int sequence, int head_kv) const { return v.of(sequence, head_kv); }
};

/// What the forward pass is to know of its operands.
template <class Math>
struct ForwardOperands {
    using Scales = NoScales;
    using Output = Math;
    // As powers of 2: how far probabilities may pass 1 before the base of the softmax moves, and a factor of all of
    // them. Up to 2^8 a probability is as exact in 16 bits as it is up to 1.
    static constexpr float lag = 8.0F, raised = 0.0F;
};

struct Float8Math {
    using Stored = std::uint8_t;

    /// cvt.rn.satfinite.e4m3x2.f32: four floats to one register, the first in the lowest byte.
    static __device__ __forceinline__ std::uint32_t pack(float a, float b, float c, float d)
    {
        std::uint32_t all;
        asm("{ .reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, %2, %1; cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;"
            " mov.b32 %0, {low, high}; }"
            : "=r"(all)
            : "f"(a), "f"(b), "f"(c), "f"(d));
        return all;
    }
};

/// e4m3 ends at 448 and is at its full precision down to 2^-6, so probabilities are summed as 2^4 times themselves.
template <>
struct ForwardOperands<Float8Math> {
    using Scales = HeadScales;
    using Output = offload::ptx::BFloat16Math;
    static constexpr float lag = 4.0F, raised = 4.0F;
};

/// Keys of a block of transposed values.
inline constexpr int transposed_keys = 128;

/// The key, of 32, whose value lies at place x of a transposed row. A product takes its left operand with four
/// neighbouring keys a lane, 4t to 4t + 3 and 16 more from there; of scores a lane has keys 2t and 2t + 1 of each
/// eight.
__host__ __device__ constexpr int key_at(int x)
{
    const int half = x / 16, lane = x % 16 / 4, element = x % 4;
    return 8 * (2 * half + element / 2) + 2 * lane + element % 2;
}

/// Values as products of 8 bits want them, each row of `transposed` all keys of one column: [batch, head, depth_v,
/// blocks·128], in which each 32 keys are in the order of key_at() and keys past the end are zeros. A block of 128
/// threads transposes 128 keys of one head.
__global__ void __launch_bounds__(128)
    transpose_values_kernel(const __grid_constant__ offload::Params p, std::uint8_t* transposed, int blocks)
{
    constexpr int chunks = 128 / 16; // of up to 128 columns
    __shared__ uint4 rows[transposed_keys][chunks + 1];
    const int block = blockIdx.x % blocks, head = blockIdx.x / blocks % p.heads_kv,
              batch = blockIdx.x / blocks / p.heads_kv;
    const int first = block * transposed_keys;
    const offload::Rows values = offload::StridedKeys::values(p, offload::sequence(p, batch), batch, head, first,
                                                              min(p.seqlen_k - first, transposed_keys));
    const auto* const source = static_cast<const std::uint8_t*>(values.data) + values.offset;
    for (int i = static_cast<int>(threadIdx.x); i < 128 * chunks; i += 128) {
        const int key = i / chunks, chunk = i % chunks;
        rows[key][chunk] = key < values.count && 16 * chunk < p.head_dim_v
                               ? *reinterpret_cast<const uint4*>(source + key * values.stride + 16 * chunk)
                               : uint4{};
    }
    __syncthreads();
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(rows);
    for (int i = static_cast<int>(threadIdx.x); i < p.head_dim_v * chunks; i += 128) {
        const int column = i / chunks, chunk = i % chunks; // of 16 keys
        std::uint32_t four[4];
#pragma unroll
        for (int word = 0; word < 4; ++word) {
            four[word] = 0;
#pragma unroll
            for (int byte = 0; byte < 4; ++byte) {
                const int key = chunk / 2 * 32 + key_at(chunk % 2 * 16 + 4 * word + byte);
                four[word] |= std::uint32_t{bytes[key * 16 * (chunks + 1) + column]} << 8 * byte;
            }
        }
        const std::int64_t row = (std::int64_t{batch} * p.heads_kv + head) * p.head_dim_v + column;
        *reinterpret_cast<uint4*>(transposed + row * blocks * 128 + block * 128 + 16 * chunk) =
            make_uint4(four[0], four[1], four[2], four[3]);
    }
}

} // namespace flashomp::cuda
