// Whether the rows that a block of work has written are finite: asked by host machines after each block, whose results
// are then still in a cache (nonfinite.hpp says why).
#pragma once

#include "launch/pass.hpp"

namespace flashomp::offload {

// Always inlined: builds for different instruction sets must not share a copy.

template <class T, class Bits>
FLASHOMP_INLINE bool all_finite(const Rows& rows, Bits exponent)
{
    const T* const data = static_cast<const T*>(rows.data) + rows.offset;
    Bits largest = 0;
    for (int r = 0; r < rows.count; ++r) {
        const T* const row = data + r * rows.stride;
#pragma omp simd reduction(max : largest)
        for (int x = 0; x < rows.depth; ++x) {
            const auto bits = static_cast<Bits>(__builtin_bit_cast(Bits, row[x]) & exponent);
            largest = bits > largest ? bits : largest;
        }
    }
    return largest != exponent; // infinities and NaNs alone have all bits of the exponent
}

FLASHOMP_INLINE bool all_finite(const Rows& rows)
{
    if (rows.count == 0) {
        return true; // and need not have memory
    }
    switch (rows.element) {
    case Element::float32:
        return all_finite<float, std::uint32_t>(rows, 0x7F800000U);
    case Element::bfloat16:
        return all_finite<BFloat16, std::uint16_t>(rows, 0x7F80U);
    case Element::float16:
        return all_finite<Float16, std::uint16_t>(rows, 0x7C00U);
    }
    return true;
}

/// Whether a pass has blocks whose results are looked at. Those of options' gradients need not be: what they sum is not
/// finite only where dQ is not.
constexpr bool has_blocks(Pass pass)
{
    return pass != Pass::backward_bias && pass != Pass::backward_sink && pass != Pass::backward_start;
}

/// Of what a block has written. Parts of split keys are looked at when they are merged, dQ of backward_once after all
/// blocks.
template <Pass pass>
FLASHOMP_INLINE bool has_finite_results(const Params& p, const Launch& launch, const WorkItem& work)
{
    const Sequence seq = sequence(p, work.batch);
    const int first = work.block * launch.resident_rows;
    const auto results = [&](const Tensor& tensor, std::int64_t start, int length, int depth) {
        const int left = length - first;
        const int count = left < launch.resident_rows ? left : launch.resident_rows;
        return count <= 0 || all_finite(written_rows(p, tensor, work.batch, work.head, start + first, count, depth));
    };
    if constexpr (pass == Pass::forward) {
        return p.splits > 1 || results(p.o, seq.q_start, seq.q_len, p.head_dim_v);
    } else if constexpr (pass == Pass::backward_query) {
        return results(p.dq, seq.q_start, seq.q_len, p.head_dim);
    } else {
        static_assert(pass == Pass::backward_key || pass == Pass::backward_once);
        return results(p.dk, seq.k_start, seq.k_len, p.head_dim) && results(p.dv, seq.k_start, seq.k_len, p.head_dim_v);
    }
}

/// Of all rows of o, or of dQ, of one query head of one sequence.
FLASHOMP_INLINE bool has_finite_rows(const Params& p, const Tensor& tensor, int batch, int head, int depth)
{
    const Sequence seq = sequence(p, batch);
    return all_finite(written_rows(p, tensor, batch, head, seq.q_start, seq.q_len, depth));
}

} // namespace flashomp::offload
