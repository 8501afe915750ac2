#include "kernel_params.hpp"

#include "masks.hpp"
#include "row_major.hpp"

#include "option_list.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

namespace flashomp {

// Inputs and outputs share the kernels' structs, hence the casts; kernels write only what Problem holds as an output.

offload::Tensor kernel_tensor(const ConstTensorView& view)
{
    const std::size_t first = view.rank == 4 ? 1 : 0; // packed: [row, head, depth]
    return {const_cast<void*>(view.data),
            view.rank == 4 ? view.strides[0] : 0,
            view.strides[first],
            view.strides[first + 1],
            view.rank == 3,
            view.shape[first]};
}

offload::RowTensor kernel_rows(const ConstTensorView& view)
{
    const bool packed = view.rank == 2; // [head, row]
    return {static_cast<float*>(const_cast<void*>(view.data)), packed ? 0 : view.strides[0],
            view.strides[packed ? 0 : 1]};
}

namespace {

offload::BiasTensor bias_tensor(const ConstTensorView& view)
{
    const auto stride = [&](std::size_t axis) { return view.shape[axis] == 1 ? 0 : view.strides[axis]; };
    return {const_cast<void*>(view.data), stride(0), stride(1), stride(2), stride(3), kernel_element(view.dtype)};
}

const std::int32_t* int32s(const ConstTensorView& view)
{
    return static_cast<const std::int32_t*>(view.data);
}

int shift_of(std::int64_t size)
{
    int shift = 0;
    while (std::int64_t{1} << shift < size) {
        ++shift;
    }
    return std::int64_t{1} << shift == size ? shift : -1;
}

void set_mask(offload::PairMask& m, const Problem& problem, Tensors& tensors, const Boundaries& boundaries)
{
    if (problem.options.mask) {
        const ConstTensorView view = tensors.input(problem.options.mask);
        const auto stride = [&](std::size_t axis) { return view.shape.at(axis) == 1 ? 0 : view.strides.at(axis); };
        m.dense = static_cast<const std::uint8_t*>(view.data);
        m.dense_batch = stride(0);
        m.dense_head = stride(1);
        m.dense_query = stride(2);
        m.dense_key = stride(3);
        m.is_bits = view.dtype == DType::bits;
    }
    if (problem.options.block_mask) {
        const BlockMaskShape& shape = problem.options.block_mask.shape();
        const std::int64_t blocks = shape.blocks_q() * shape.blocks_k();
        m.blocks = boundaries.mask_blocks;
        m.blocks_head = shape.heads_q == 1 ? 0 : blocks;
        m.blocks_batch = shape.batch == 1 ? 0 : shape.heads_q * blocks;
        m.blocks_k = static_cast<int>(shape.blocks_k());
        m.block_q = static_cast<int>(shape.block_q);
        m.block_k = static_cast<int>(shape.block_k);
        m.shift_q = shift_of(shape.block_q);
        m.shift_k = shift_of(shape.block_k);
        m.block_bits = boundaries.mask_bits;
        m.bit_bytes = static_cast<int>((shape.block_k + 7) / 8);
    }
}

/// Scratch memory from its element `index` on, where there is any.
float* part_of(float* scratch, std::int64_t index)
{
    return scratch == nullptr ? nullptr : scratch + index;
}

/// Statistics in scratch memory, laid out like a contiguous LSE.
offload::RowTensor contiguous_rows(const Problem& problem, float* data)
{
    if (problem.lse.rank == 2) {
        return {data, 0, problem.lse.shape[1]};
    }
    return {data, problem.heads_q * problem.lse.shape[2], problem.lse.shape[2]};
}

} // namespace

offload::CacheTables cache_tables(const Problem& problem, Tensors& tensors, const Boundaries& boundaries)
{
    const Options& options = problem.options;
    offload::CacheTables cache;
    cache.lengths = boundaries.lengths;
    cache.newest = static_cast<int>(problem.newest_keys);
    if (problem.is_quantised()) {
        cache.element =
            problem.k.dtype == DType::int8 ? offload::CacheElement::int8 : offload::CacheElement::float8_e4m3;
        const auto take = [&](const ConstTensorView& scale, const float*& data, std::int64_t& stride) {
            if (scale) {
                const ConstTensorView there = tensors.input(scale);
                data = static_cast<const float*>(there.data);
                stride = there.rank == 2 ? there.strides[0] : 0;
            }
        };
        take(options.k_scale, cache.k_scale, cache.k_scale_stride);
        take(options.v_scale, cache.v_scale, cache.v_scale_stride);
    }
    if (!has_pages(options)) {
        return cache;
    }
    cache.page_rows = static_cast<int>(problem.k.shape[1]); // Nk where an index chooses contiguous caches
    if (options.kv_indices) {
        cache.starts = int32s(tensors.input(options.kv_indptr));
        cache.pages = int32s(tensors.input(options.kv_indices));
        return cache;
    }
    const ConstTensorView table = tensors.input(options.block_table ? options.block_table : options.cache_batch_index);
    cache.pages = int32s(table);
    cache.stride = table.strides[0];
    return cache;
}

offload::Params kernel_params(const Problem& problem, const Plan& plan, Tensors& tensors, const Scratch& scratch,
                              const Boundaries& boundaries)
{
    const Options& options = problem.options;
    offload::Params p;
    p.batch = static_cast<int>(problem.batch);
    p.heads_q = static_cast<int>(problem.heads_q);
    p.heads_kv = static_cast<int>(problem.heads_kv);
    p.seqlen_q = static_cast<int>(problem.seqlen_q);
    p.seqlen_k = static_cast<int>(problem.seqlen_k);
    p.head_dim = static_cast<int>(problem.head_dim);
    p.head_dim_v = static_cast<int>(problem.head_dim_v);
    p.element = kernel_element(problem.dtype);
    p.scale = static_cast<float>(problem.scale());
    switch (options.causal) {
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
    p.window_left = options.window.left;
    p.window_right = options.window.right;

    set_positions(p, problem);

    const auto written = [](const ConstTensorView& view) { // o, dq, dk or dv
        offload::Tensor tensor = kernel_tensor(view);
        tensor.element = kernel_element(view.dtype);
        return tensor;
    };
    p.q = kernel_tensor(tensors.input(problem.q));
    p.k = kernel_tensor(tensors.input(problem.k));
    p.v = kernel_tensor(tensors.input(problem.v));
    if (problem.is_backward) {
        p.o = written(tensors.input(problem.o));
        p.dout = kernel_tensor(tensors.input(problem.dout));
        p.lse = kernel_rows(tensors.input(problem.lse));
        p.dq = written(tensors.output(problem.dq));
        p.dk = written(tensors.output(problem.dk));
        p.dv = written(tensors.output(problem.dv));
        p.delta = contiguous_rows(problem, scratch.rows);
        p.residual = contiguous_rows(problem, part_of(scratch.rows, problem.lse.elements()));
        if (plan.head_splits > 1) {
            const bool packed = problem.k.rank == 3;
            p.head_splits = plan.head_splits;
            p.key_rows.head = problem.k.shape[packed ? 0 : 1];
            p.key_rows.batch = packed ? 0 : problem.heads_kv * p.key_rows.head;
            p.partial_keys = packed ? problem.heads_kv * p.key_rows.head : problem.batch * p.key_rows.batch;
            p.partial_dk = scratch.partial;
            p.partial_dv = part_of(scratch.partial, p.head_splits * p.partial_keys * p.head_dim);
        }
        if (problem.dbias) {
            p.dbias = bias_tensor(tensors.output(problem.dbias));
        }
        if (problem.dsink) {
            p.dsink = static_cast<float*>(tensors.output(problem.dsink).data);
        }
    } else {
        p.o = written(tensors.output(problem.o));
        p.lse = kernel_rows(tensors.output(problem.lse));
        p.splits = plan.splits;
        p.partial_o = scratch.partial;
        p.partial_stride = problem.lse.elements();
        p.partial_lse =
            contiguous_rows(problem, part_of(scratch.partial, plan.splits * p.partial_stride * p.head_dim_v));
    }

    p.is_modified = modifies_scores(options);
    std::copy(options.score_mod.object.begin(), options.score_mod.object.end(), std::begin(p.score_mod));
    p.softcap = options.softcap < no_softcap ? static_cast<float>(options.softcap) : 0.0F;
    if (options.alibi_slopes) {
        const ConstTensorView slopes = tensors.input(options.alibi_slopes);
        p.alibi_slopes = static_cast<const float*>(slopes.data);
        p.alibi_batch_stride = slopes.rank == 2 ? slopes.strides[0] : 0;
    }
    if (options.bias) {
        p.bias = bias_tensor(tensors.input(options.bias));
    }
    if (options.key_padding_mask) {
        const ConstTensorView mask = tensors.input(options.key_padding_mask);
        p.key_padding_mask = static_cast<const std::uint8_t*>(mask.data);
        p.key_padding_batch_stride = mask.strides[0];
    }
    set_mask(p.mask, problem, tensors, boundaries);
    if (options.sink) {
        p.sink.data = static_cast<const float*>(tensors.input(options.sink).data);
        if (problem.rows_are_heads) {
            p.sink.head = p.seqlen_q;
            p.sink.row = 1;
        }
    }
    p.cu_seqlens_q = boundaries.q;
    p.cu_seqlens_k = boundaries.k;
    p.cache = cache_tables(problem, tensors, boundaries);
    p.dropout_key = dropout_key(options.dropout.seed, options.dropout.offset);
    p.dropout_threshold = dropout_threshold(options.dropout.probability);
    p.dropout_scale = static_cast<float>(1.0 / (1.0 - options.dropout.probability));
    p.first_sequence = static_cast<int>(options.first_sequence);
    p.first_head = static_cast<int>(options.first_head);
    return p;
}

namespace {

/// Host tensors of a call on a GPU as their copies there will be: without gaps, and aligned as all allocations are.
class AsCopied final : public Tensors {
public:
    explicit AsCopied(bool is_device) : is_device_(is_device) {}

    ConstTensorView input(const ConstTensorView& view) override { return copied(view); }
    TensorView output(const TensorView& view) override { return copied(view); }

private:
    template <class View>
    View copied(const View& view)
    {
        const bool is_copied = is_device_ && view && view.memory == Memory::host;
        return is_copied ? View(row_major(&somewhere_, view, Memory::device)) : view;
    }

    alignas(256) char somewhere_ = 0;
    bool is_device_;
};

} // namespace

offload::Params described_params(const Problem& problem, const Hardware& hardware)
{
    AsCopied tensors(hardware.is_device);
    Boundaries boundaries{problem.starts_q.data(), problem.starts_k.data()};
    if (problem.options.block_mask) {
        boundaries.mask_blocks = problem.options.block_mask.table().data();
        boundaries.mask_bits = problem.options.block_mask.bits().data();
    }
    return kernel_params(problem, {}, tensors, {}, boundaries);
}

offload::MergeParams split_merge(const offload::Params& params, const Problem& problem)
{
    const bool packed = problem.lse.rank == 2;
    offload::MergeParams merge;
    merge.parts = params.splits;
    merge.batch = packed ? 1 : params.batch;
    merge.heads = params.heads_q;
    merge.length = static_cast<int>(problem.lse.shape[packed ? 1 : 2]);
    merge.depth = params.head_dim_v;
    merge.part[0].lse = params.partial_lse;
    merge.part[0].o = {params.partial_o, params.partial_lse.batch * merge.depth, merge.depth,
                       params.partial_lse.head * merge.depth};
    merge.stride_lse = params.partial_stride;
    merge.stride_o = params.partial_stride * merge.depth;
    merge.o = params.o;
    merge.lse = params.lse;
    merge.element = params.o.element;
    merge.nonfinite = params.nonfinite;
    return merge;
}

} // namespace flashomp
