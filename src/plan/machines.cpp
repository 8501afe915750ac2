#include "machines.hpp"

#include "option_list.hpp"
#include "words.hpp"

#include "cuda/block_shapes.hpp"

#include "flashomp/error.hpp"

#include <algorithm>
#include <fmt/format.h>

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

/// Why the tensor or Hopper machine cannot run a pass; empty where it can.
std::string obstacle_to(Machine machine, Pass pass, const Problem& problem, const Hardware& hardware)
{
    const Tiling& tiling = problem.options.tiling;
    if (!hardware.is_device) {
        return "the call runs on a GPU";
    }
    if (machine == Machine::hopper && !hardware.has_hopper) {
        return "the GPU has compute capability 9.0 and the build its kernels";
    }
    // Blocks of 16 keys pay where the copy engine brings them, and its maps are of whole panels of 64 columns.
    const int depth = problem.kernel_depth();
    const bool is_whole = depth < 256 || (problem.head_dim % 64 == 0 && problem.head_dim_v % 64 == 0);
    if (machine == Machine::hopper && pass == Pass::forward && !is_whole) {
        return "both head dims are multiples of 64, or at most 128";
    }
    if (tiling.resident_rows > 0 || tiling.stream_rows > 0 || tiling.team_threads > 0 || tiling.global_memory) {
        return "tiling leaves the block sizes, team_threads and global_memory alone";
    }
    if (shape_of(machine, pass, problem, hardware).fragments == 0) {
        return "there is a kernel for the head dim and options";
    }
    // Last, since to ask is to open a library, which the driver compiles.
    if (hardware.backend == Backend::openmp &&
        !(machine == Machine::hopper ? offload::has_hopper_machine(depth)
                                     : offload::has_tensor_machine(kernel_element(problem.dtype), depth))) {
        return "the build has GPU code, with libflashomp_float32, libflashomp_wide and libflashomp_hopper_wide beside "
               "libflashomp";
    }
    return {};
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
    return may_take_one_pass(problem) && machine_of(Pass::backward_key, problem, hardware) == Machine::host &&
           host_isa_of(problem, hardware).has_one_pass;
}

Machine machine_of(Pass pass, const Problem& problem, const Hardware& hardware)
{
    Machine wanted = problem.options.machine;
    if (wanted == Machine::hopper && hardware.backend == Backend::cuda) {
        wanted = Machine::automatic; // what runs where dispatch finds no Hopper kernel for an option's pass
    }
    if (wanted == Machine::host && hardware.is_device) {
        throw Error(
            "machine was host, but the call runs on a GPU; allowed there are: automatic, plain, tensor, hopper.");
    }
    if (wanted == Machine::automatic && !hardware.is_device) {
        return Machine::host;
    }
    if (wanted == Machine::host || wanted == Machine::plain) {
        return wanted;
    }
    if (pass == Pass::backward_query && problem.options.bias && problem.dtype == DType::float32) {
        // The pass of dbias, which only the plain machine has, takes LSE with what this one adds to it, so that
        // probabilities sum to 1: those of the same arithmetic. Where dbias is not asked for, dq is to be the same.
        return Machine::plain;
    }
    const bool is_option_pass = pass == Pass::backward_bias || pass == Pass::backward_sink;
    if (wanted != Machine::automatic) {
        const std::string obstacle = obstacle_to(wanted, pass, problem, hardware);
        if (!obstacle.empty() && !is_option_pass) {
            throw Error(
                fmt::format("machine was {}, which is allowed only where {}.", tuning::word_of(wanted), obstacle));
        }
        return obstacle.empty() ? wanted : Machine::plain;
    }
    for (const Machine machine : {Machine::hopper, Machine::tensor}) {
        if (machine == Machine::hopper && hardware.backend == Backend::cuda) {
            continue; // whether it has a kernel is known when there are parameters: dispatch asks
        }
        if (obstacle_to(machine, pass, problem, hardware).empty()) {
            return machine;
        }
    }
    return Machine::plain;
}

} // namespace flashomp
