#pragma once

#include "algorithm/merge.hpp"
#include "algorithm/params.hpp"
#include "plan.hpp"
#include "problem.hpp"
#include "staging.hpp"

namespace flashomp {

/// Views as the kernels see them: q, k, v, o and their gradients; LSE.
offload::Tensor kernel_tensor(const ConstTensorView& view);
offload::RowTensor kernel_rows(const ConstTensorView& view);

/// Scratch memory that one call's kernels share.
struct Scratch {
    float* rows = nullptr;    ///< backward: two floats for every LSE, D and the residual
    float* partial = nullptr; ///< forward with splits: their outputs, then their LSEs
};

/// The problem as the kernels see it, with host tensors staged.
offload::Params kernel_params(const Problem& problem, const Plan& plan, Staging& staging, const Scratch& scratch);

/// The merge that turns the partial results of a split forward pass into o and lse.
offload::MergeParams split_merge(const offload::Params& params, const Problem& problem);

} // namespace flashomp
