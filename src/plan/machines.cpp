#include "machines.hpp"

#include "registry.hpp"

#include "cuda/block_shapes.hpp"
#include "option_list.hpp"

#include <algorithm>

namespace flashomp {

using offload::Pass;

namespace {

offload::TensorShape few_rows_shape_of(Pass pass, const Problem& problem)
{
    return offload::few_rows_shape(operands_of(kernel_element(problem.dtype)), pass, problem.kernel_depth(),
                                   modifies_scores(problem.options));
}

} // namespace

bool has_few_rows(Pass pass, const Problem& problem)
{
    const offload::TensorShape shape = few_rows_shape_of(pass, problem);
    return shape.fragments > 0 && problem.seqlen_q <= shape.resident_rows() && !has_pair_mask(problem.options);
}

offload::TensorShape shape_of(Machine machine, Pass pass, const Problem& problem, const Hardware& hardware)
{
    if (machine == Machine::tensor && has_few_rows(pass, problem)) {
        return few_rows_shape_of(pass, problem);
    }
    const auto shape = hardware.backend == Backend::cuda ? cuda::kernel_shape
                       : machine == Machine::hopper      ? offload::hopper_shape
                                                         : offload::tensor_shape;
    return shape(operands_of(kernel_element(problem.dtype)), pass, problem.kernel_depth(),
                 modifies_scores(problem.options));
}

namespace {

/// Whether one pass over the keys is exact enough: it corrects nothing that LSE has lost.
bool may_take_one_pass(const Problem& problem)
{
    return problem.is_backward && problem.dtype == DType::float32 && !problem.has_large_lse;
}

} // namespace

bool sums_apart(Pass pass, const Problem& problem, const Hardware& hardware)
{
    if (hardware.backend == Backend::cuda) {
        return cuda::sums_apart(pass, problem.kernel_depth());
    }
    return offload::sums_apart(operands_of(kernel_element(problem.dtype)), pass, problem.kernel_depth(),
                               modifies_scores(problem.options));
}

const offload::HostIsa& host_isa_of(const Problem& problem, const Hardware& hardware)
{
    if (problem.options.score_mod) {
        return problem.options.score_mod.kernels->host;
    }
    const offload::HostIsa* const best = &offload::isa_for(*hardware.isa, kernel_element(problem.dtype));
    if (hardware.is_isa_named || !may_take_one_pass(problem)) {
        return *best;
    }
    const offload::HostIsa* const end = offload::host_isas().data() + offload::host_isas().size();
    const offload::HostIsa* const found =
        std::find_if(best, end, [](const offload::HostIsa& isa) { return isa.has_one_pass; });
    return found == end ? *best : *found;
}

bool takes_one_pass(const Problem& problem, const Hardware& hardware)
{
    return may_take_one_pass(problem) && kernel_for(Pass::backward_key, problem, hardware).machine == Machine::host &&
           host_isa_of(problem, hardware).has_one_pass;
}

} // namespace flashomp
