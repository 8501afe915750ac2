// A problem as the kernels see it.
#pragma once

#include "algorithm/merge.hpp"
#include "algorithm/params.hpp"
#include "plan.hpp"
#include "problem.hpp"

namespace flashomp {

/// Views as the kernels see them: q, k, v, o and their gradients; LSE.
offload::Tensor kernel_tensor(const ConstTensorView& view);
offload::RowTensor kernel_rows(const ConstTensorView& view);

/// Scratch memory that one call's kernels share.
struct Scratch {
    float* rows = nullptr;    ///< backward: two floats for every LSE, D and the residual
    float* partial = nullptr; ///< forward with splits: their outputs, then their LSEs
};

/// Problem::starts_q and starts_k where kernels can read them, null unless sequences are packed; and the blocks of a
/// block mask.
struct Boundaries {
    const std::int32_t* q = nullptr;
    const std::int32_t* k = nullptr;
    const std::int32_t* lengths = nullptr;     ///< of a cache's sequences; null: each has Nk keys
    const std::int32_t* mask_blocks = nullptr; ///< BlockMask::table() and bits()
    const std::uint8_t* mask_bits = nullptr;
};

/// Where the kernels find the tensors of a call.
class Tensors {
public:
    Tensors() = default;
    virtual ~Tensors() = default;
    Tensors(const Tensors&) = delete;
    Tensors& operator=(const Tensors&) = delete;

    /// The tensor where kernels can read it.
    virtual ConstTensorView input(const ConstTensorView& view) = 0;
    /// The tensor where kernels can write it.
    virtual TensorView output(const TensorView& view) = 0;
};

/// Where the keys of a cache are, and what their elements are; nothing of a problem without one.
offload::CacheTables cache_tables(const Problem& problem, Tensors& tensors, const Boundaries& boundaries);

/// The problem as the kernels see it.
offload::Params kernel_params(const Problem& problem, const Plan& plan, Tensors& tensors, const Scratch& scratch,
                              const Boundaries& boundaries);

/// The same before there is a plan, for whoever asks kernels what they support: strides and alignments are those that
/// the tensors will have on the hardware. Nobody may read where the addresses point.
offload::Params described_params(const Problem& problem, const Hardware& hardware);

/// The merge that turns the partial results of a split forward pass into o and lse.
offload::MergeParams split_merge(const offload::Params& params, const Problem& problem);

} // namespace flashomp
