// The arguments of a C++ call as a C program would give them.
#pragma once

#include "option_list.hpp"

#include "flashomp/attention.hpp"
#include "flashomp/flashomp.h"

#include <array>
#include <deque>
#include <utility>

namespace flashomp::testing {

inline flashomp_dtype c_dtype(DType dtype)
{
    switch (dtype) {
    case DType::float8_e4m3:
        return {FLASHOMP_FLOAT8_E4M3FN, 8, 1};
    case DType::float16:
        return {FLASHOMP_FLOAT, 16, 1};
    case DType::bfloat16:
        return {FLASHOMP_BFLOAT, 16, 1};
    case DType::float32:
        return {FLASHOMP_FLOAT, 32, 1};
    case DType::float64:
        return {FLASHOMP_FLOAT, 64, 1};
    case DType::int8:
        return {FLASHOMP_INT, 8, 1};
    case DType::int32:
        return {FLASHOMP_INT, 32, 1};
    case DType::int64:
        return {FLASHOMP_INT, 64, 1};
    case DType::bits:
        return {FLASHOMP_BOOL, 1, 1};
    case DType::boolean:
        break;
    }
    return {FLASHOMP_BOOL, 8, 1};
}

inline flashomp_positions c_positions(const Positions& positions)
{
    const auto& [one, two] = positions.stretches;
    return {positions.whole, {one.first, two.first}, {one.count, two.count}};
}

/// A view and the extents that its C form points to.
class CTensor {
public:
    explicit CTensor(const ConstTensorView& view) : shape_(view.shape), strides_(view.strides)
    {
        tensor_.data = const_cast<void*>(view.data);
        tensor_.device.device_type = view.memory == Memory::host ? FLASHOMP_CPU : FLASHOMP_CUDA;
        tensor_.ndim = view.rank;
        tensor_.dtype = c_dtype(view.dtype);
        tensor_.shape = shape_.data();
        tensor_.strides = strides_.data();
    }
    CTensor(const CTensor&) = delete;
    CTensor& operator=(const CTensor&) = delete;

    [[nodiscard]] flashomp_tensor& get() { return tensor_; }

private:
    std::array<std::int64_t, 4> shape_, strides_;
    flashomp_tensor tensor_{};
};

/// Each tensor option's member in both languages.
inline constexpr std::array<std::pair<ConstTensorView Options::*, const flashomp_tensor * flashomp_options::*>, 16>
    c_tensor_options{{{&Options::alibi_slopes, &flashomp_options::alibi_slopes},
                      {&Options::bias, &flashomp_options::bias},
                      {&Options::key_padding_mask, &flashomp_options::key_padding_mask},
                      {&Options::mask, &flashomp_options::mask},
                      {&Options::cu_seqlens_q, &flashomp_options::cu_seqlens_q},
                      {&Options::cu_seqlens_k, &flashomp_options::cu_seqlens_k},
                      {&Options::sink, &flashomp_options::sink},
                      {&Options::q_scale, &flashomp_options::q_scale},
                      {&Options::k_scale, &flashomp_options::k_scale},
                      {&Options::v_scale, &flashomp_options::v_scale},
                      {&Options::cache_seqlens, &flashomp_options::cache_seqlens},
                      {&Options::cache_batch_index, &flashomp_options::cache_batch_index},
                      {&Options::block_table, &flashomp_options::block_table},
                      {&Options::kv_indptr, &flashomp_options::kv_indptr},
                      {&Options::kv_indices, &flashomp_options::kv_indices},
                      {&Options::kv_last_page_len, &flashomp_options::kv_last_page_len}}};
static_assert(c_tensor_options.size() == tensor_options.size(), "an option is missing in flashomp_options, or here");

/// Structs of a C call. Tests change members before they call.
class CCall {
public:
    CCall(const ForwardArgs& args, const Options& given) : CCall(given)
    {
        flashomp_forward_args_init(&forward, sizeof forward);
        forward.q = tensor(args.q);
        forward.k = tensor(args.k);
        forward.v = tensor(args.v);
        forward.o = tensor(args.o);
        forward.lse = tensor(args.lse);
    }
    CCall(const BackwardArgs& args, const Options& given) : CCall(given)
    {
        flashomp_backward_args_init(&backward, sizeof backward);
        backward.q = tensor(args.q);
        backward.k = tensor(args.k);
        backward.v = tensor(args.v);
        backward.o = tensor(args.o);
        backward.lse = tensor(args.lse);
        backward.dout = tensor(args.dout);
        backward.dq = tensor(args.dq);
        backward.dk = tensor(args.dk);
        backward.dv = tensor(args.dv);
        backward.dbias = tensor(args.dbias);
        backward.dsink = tensor(args.dsink);
    }
    explicit CCall(const Options& given)
    {
        flashomp_options_init(&options, sizeof options);
        options.has_scale = given.scale ? 1 : 0;
        options.scale = given.scale.value_or(-7.0);
        options.causal = static_cast<std::int32_t>(given.causal);
        options.window_left = given.window.left;
        options.window_right = given.window.right;
        options.softcap = given.softcap;
        for (const auto& [member, c_member] : c_tensor_options) {
            options.*c_member = tensor(given.*member);
        }
        if (given.block_mask) {
            const BlockMaskShape& s = given.block_mask.shape();
            const BlockRows& rows = given.block_mask.by_query();
            const auto size = [](const auto& values) { return static_cast<std::int64_t>(values.size()); };
            static_cast<void>(flashomp_block_mask_from_blocks(
                s.batch, s.heads_q, s.seqlen_q, s.seqlen_k, s.block_q, s.block_k, rows.starts.data(), size(rows.starts),
                rows.blocks.data(), rows.bits.data(), size(rows.blocks), given.block_mask.bits().data(),
                size(given.block_mask.bits()), &block_mask_));
            options.block_mask = block_mask_;
        }
        options.positions_q = c_positions(given.positions_q);
        options.positions_k = c_positions(given.positions_k);
        options.first_sequence = given.first_sequence;
        options.first_head = given.first_head;
        options.dropout_probability = given.dropout.probability;
        options.dropout_seed = given.dropout.seed;
        options.dropout_offset = given.dropout.offset;
        options.backend = static_cast<std::int32_t>(given.backend);
        options.machine = static_cast<std::int32_t>(given.machine);
        options.device_choice = static_cast<std::int32_t>(given.device.kind);
        options.device_index = given.device.index;
        options.threads = given.threads;
        options.tile_resident_rows = given.tiling.resident_rows;
        options.tile_stream_rows = given.tiling.stream_rows;
        options.tile_teams = given.tiling.teams;
        options.tile_team_threads = given.tiling.team_threads;
        options.tile_global_memory = given.tiling.global_memory ? 1 : 0;
    }
    ~CCall() { flashomp_block_mask_free(block_mask_); }
    CCall(const CCall&) = delete;
    CCall& operator=(const CCall&) = delete;

    /// Null for a tensor that is not given.
    flashomp_tensor* tensor(const ConstTensorView& view) { return view ? &tensors_.emplace_back(view).get() : nullptr; }

    flashomp_options options;
    flashomp_forward_args forward;
    flashomp_backward_args backward;

private:
    flashomp_block_mask* block_mask_ = nullptr;
    std::deque<CTensor> tensors_; ///< stay where they are
};

} // namespace flashomp::testing
