#include "machines.hpp"

#include "masks.hpp"
#include "registry.hpp"

#include "algorithm/rounded_delta.hpp"
#include "cuda/block_shapes.hpp"
#include "option_list.hpp"

#include <algorithm>

namespace flashomp {

using offload::Pass;

offload::TensorShape shape_of(Machine machine, Pass pass, const Problem& problem, const Hardware& hardware)
{
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

bool has_results_like_q(const Problem& problem)
{
    const DType dtype = output_type_of(problem.dtype);
    const auto is_alike = [dtype](const TensorView& view) { return !view || view.dtype == dtype; };
    return is_alike(problem.o) &&
           (!problem.is_backward || (is_alike(problem.dq) && is_alike(problem.dk) && is_alike(problem.dv)));
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

namespace {

/// Of GPUs. Two passes have calls that see a part of a row's keys, modified scores, and sequences whose blocks a team
/// copies itself. A crew has a multiprocessor to itself, and waits for the key block before its own: few key blocks
/// leave multiprocessors idle, few queries crews.
bool has_one_pass_on_hopper(const Problem& problem, const Hardware& hardware)
{
    constexpr std::int64_t fewest_queries = 512;
    const offload::Band band = band_of(problem, static_cast<int>(problem.seqlen_q), static_cast<int>(problem.seqlen_k));
    if (!problem.is_backward || hardware.backend != Backend::openmp || !hardware.is_device || problem.keys_are_part() ||
        modifies_scores(problem.options) || !problem.starts_q.empty() || !has_results_like_q(problem) ||
        problem.seqlen_q < fewest_queries || !offload::may_keep_delta(band, static_cast<bool>(problem.dsink))) {
        return false;
    }
    const offload::TensorShape shape = shape_of(Machine::hopper, Pass::backward_once, problem, hardware);
    if (shape.fragments == 0 || kernel_for(Pass::backward_key, problem, hardware).machine != Machine::hopper) {
        return false;
    }
    const std::int64_t key_blocks = (problem.seqlen_k + shape.resident_rows() - 1) / shape.resident_rows();
    return problem.batch * problem.heads_kv * key_blocks >= hardware.gpu.multiprocessors;
}

} // namespace

bool takes_one_pass(const Problem& problem, const Hardware& hardware)
{
    if (has_one_pass_on_hopper(problem, hardware)) {
        return true;
    }
    return may_take_one_pass(problem) && kernel_for(Pass::backward_key, problem, hardware).machine == Machine::host &&
           host_isa_of(problem, hardware).has_one_pass;
}

} // namespace flashomp
