#include "kernel_params.hpp"

#include <cmath>
#include <limits>

namespace flashomp {

namespace {

offload::Element element_of(DType dtype)
{
    switch (dtype) {
    case DType::bfloat16:
        return offload::Element::bfloat16;
    case DType::float16:
        return offload::Element::float16;
    default:
        return offload::Element::float32;
    }
}

/// [batch, row, head, depth], or packed [row, head, depth].
template <class View>
offload::Tensor tensor(const View& view)
{
    const std::size_t first = view.rank == 4 ? 1 : 0;
    // Kernels write only what Problem holds as an output; inputs share the struct, hence the cast.
    return {const_cast<void*>(static_cast<const void*>(view.data)), view.rank == 4 ? view.strides[0] : 0,
            view.strides[first], view.strides[first + 1]};
}

/// [batch, head, row], or packed [head, row].
offload::RowTensor row_tensor(const TensorView& view)
{
    return {static_cast<float*>(view.data), view.rank == 3 ? view.strides[0] : 0, view.strides[view.rank == 3 ? 1 : 0]};
}

offload::BiasTensor bias_tensor(const ConstTensorView& view)
{
    const auto stride = [&](std::size_t axis) { return view.shape[axis] == 1 ? 0 : view.strides[axis]; };
    return {view.data, stride(0), stride(1), stride(2), stride(3), element_of(view.dtype)};
}

} // namespace

offload::Params kernel_params(const Problem& problem, Staging& staging, float* rows)
{
    offload::Params p;
    p.batch = static_cast<int>(problem.batch);
    p.heads_q = static_cast<int>(problem.heads_q);
    p.heads_kv = static_cast<int>(problem.heads_kv);
    p.seqlen_q = static_cast<int>(problem.seqlen_q);
    p.seqlen_k = static_cast<int>(problem.seqlen_k);
    p.head_dim = static_cast<int>(problem.head_dim);
    p.head_dim_v = static_cast<int>(problem.head_dim_v);
    p.element = element_of(problem.dtype);
    p.scale = static_cast<float>(problem.scale);
    switch (problem.causal) {
    case Causal::none:
        p.causal = offload::Alignment::none;
        break;
    case Causal::top_left:
        p.causal = offload::Alignment::top_left;
        break;
    case Causal::bottom_right:
        p.causal = offload::Alignment::bottom_right;
        break;
    }
    p.window_left = problem.window.left;
    p.window_right = problem.window.right;

    p.q = tensor(staging.input(problem.q));
    p.k = tensor(staging.input(problem.k));
    p.v = tensor(staging.input(problem.v));
    if (problem.is_backward) {
        p.o = tensor(staging.input(problem.o));
        p.dout = tensor(staging.input(problem.dout));
        const ConstTensorView lse = staging.input(problem.lse);
        TensorView as_rows = problem.lse;
        as_rows.data = const_cast<void*>(lse.data); // read only in the backward pass
        as_rows.strides = lse.strides;
        p.lse = row_tensor(as_rows);
        p.dq = tensor(staging.output(problem.dq));
        p.dk = tensor(staging.output(problem.dk));
        p.dv = tensor(staging.output(problem.dv));
        const std::int64_t heads = problem.lse.rank == 3 ? problem.heads_q : 0;
        const std::int64_t length = problem.lse.shape[problem.lse.rank == 3 ? 2 : 1];
        p.delta = {rows, heads * length, length};
        p.residual = {rows + problem.lse.elements(), heads * length, length};
    } else {
        p.o = tensor(staging.output(problem.o));
        p.lse = row_tensor(staging.output(problem.lse));
    }

    p.softcap = static_cast<float>(problem.softcap);
    if (problem.alibi_slopes) {
        const ConstTensorView slopes = staging.input(problem.alibi_slopes);
        p.alibi_slopes = static_cast<const float*>(slopes.data);
        p.alibi_batch_stride = slopes.rank == 2 ? slopes.strides[0] : 0;
    }
    if (problem.bias) {
        p.bias = bias_tensor(staging.input(problem.bias));
    }
    if (problem.key_padding_mask) {
        const ConstTensorView mask = staging.input(problem.key_padding_mask);
        p.key_padding_mask = static_cast<const std::uint8_t*>(mask.data);
        p.key_padding_batch_stride = mask.strides[0];
    }
    if (problem.sink) {
        p.sink = static_cast<const float*>(staging.input(problem.sink).data);
    }
    if (problem.cu_seqlens_q) {
        p.cu_seqlens_q = static_cast<const std::int32_t*>(staging.input(problem.cu_seqlens_q).data);
        p.cu_seqlens_k = static_cast<const std::int32_t*>(staging.input(problem.cu_seqlens_k).data);
    }
    return p;
}

} // namespace flashomp
