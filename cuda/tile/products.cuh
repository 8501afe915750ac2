// Products of a warpgroup's 64 rows with a block in shared memory, both laid out in panels as the copy engine lays them
// (bulk_copy.cuh). They are issued here; wait_products() waits for them.
#pragma once

#include "tile/bulk_copy.cuh"
#include "tile/wgmma.cuh"

namespace flashomp::cuda {

/// s = left·rightᵀ: rows `first` to `first` + 63 of a block of left_rows rows, times as many of another as s has
/// columns.
template <class Math, int left_rows, int depth, int n>
__device__ __forceinline__ void issue_scores(float (&s)[n], const unsigned char* left, int first,
                                             const unsigned char* right)
{
    constexpr int right_rows = 2 * n;
    const std::uint64_t rows = matrix_descriptor(shared_address(left) + first * 128, 0);
    const std::uint64_t columns = matrix_descriptor(shared_address(right), 0);
#pragma unroll
    for (int step = 0; step < depth * static_cast<int>(sizeof(typename Math::Stored)) / 32; ++step) {
        const int in_panel = step % 4 * 32;
        multiply_add<Math, right_rows, false, false>(s, rows + (step / 4 * left_rows * 128 + in_panel) / 16,
                                                     columns + (step / 4 * right_rows * 128 + in_panel) / 16,
                                                     step > 0 ? 1 : 0);
    }
}

/// sum += left·right: left, rounded to 16 bits, in registers (round()), right a block of as many rows of 16-bit numbers
/// as left has columns, read transposed.
template <class Math, int n, int steps>
__device__ __forceinline__ void issue_sums(float (&sum)[n], const std::uint32_t (&left)[steps][4],
                                           const unsigned char* right)
{
    const std::uint64_t rows = matrix_descriptor(shared_address(right), 16 * steps * 128);
#pragma unroll
    for (int step = 0; step < steps; ++step) {
        multiply_add<Math, 2 * n, true>(sum, left[step], rows + step * 2048 / 16, 1);
    }
}

} // namespace flashomp::cuda
