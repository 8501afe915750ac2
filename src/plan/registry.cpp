#include "registry.hpp"

#include "gpu_few_queries.hpp"
#include "kernel_params.hpp"
#include "launches.hpp"
#include "machines.hpp"
#include "option_list.hpp"
#include "splits.hpp"
#include "words.hpp"

#include "algorithm/pair_mask.hpp"

#include "cuda/bias_kernels.hpp"
#include "cuda/few_kernels.hpp"
#include "cuda/kernels.hpp"

#include "flashomp/error.hpp"

#include <fmt/format.h>

namespace flashomp {

namespace {

using offload::Launch;
using offload::Pass;

bool is_tiled(const Tiling& tiling)
{
    return tiling.resident_rows > 0 || tiling.stream_rows > 0 || tiling.team_threads > 0 || tiling.global_memory;
}

constexpr const char* unmasked = "there is no mask and no block_mask";
constexpr const char* in_one_stretch = "positions_q and positions_k are one stretch each";
constexpr const char* more_queries = "there are more queries";
constexpr const char* untiled = "tiling leaves the block sizes, team_threads and global_memory alone";

// --- plain and host

std::string nothing(Pass /*pass*/, const Problem& /*problem*/, const Hardware& /*hardware*/)
{
    return {};
}

std::string openmp_plain_obstacle(Pass /*pass*/, const Problem& problem, const Hardware& hardware)
{
    const bool is_masked = has_pair_mask(problem.options) || has_seam(problem.options);
    if (hardware.is_device && is_masked && !offload::has_masked_machine()) {
        return "libflashomp_masked, which runs calls with a mask or shards in two stretches, is beside libflashomp";
    }
    return offload::has_plain_machine(problem.kernel_depth())
               ? ""
               : fmt::format("both head dims are at most {}, or libflashomp_sliced is beside libflashomp",
                             offload::most_plain_depth);
}

offload::Ran run_plain_region(const offload::Call& here, offload::Call* there)
{
    const bool is_masked = offload::has_mask(here.params.mask) || offload::has_seam(here.params);
    return is_masked ? offload::run_masked(here, there) : offload::run_plain(here, there);
}

std::string not_a_gpu(Pass /*pass*/, const Problem& /*problem*/, const Hardware& hardware)
{
    return hardware.is_device ? "the call runs on the host" : "";
}

// --- tensor cores, from C++ that g++ and nvcc compile

/// Of both backends.
std::string gpu_obstacle(const Hardware& hardware)
{
    if (!hardware.is_device) {
        return "the call runs on a GPU";
    }
    return hardware.gpu.major > 0 && hardware.gpu.matrix_units == MatrixUnits::none
               ? "the GPU has compute capability 8.0 or more"
               : "";
}

/// The same: what a tensor machine has to find.
std::string tensor_obstacle(Machine machine, Pass pass, const Problem& problem, const Hardware& hardware)
{
    if (std::string obstacle = gpu_obstacle(hardware); !obstacle.empty()) {
        return obstacle;
    }
    if (is_tiled(problem.options.tiling)) {
        return untiled;
    }
    if (problem.is_backward && problem.o &&
        problem.o.dtype != problem.dtype) { // they read rows of o and dout as of one type
        return "o has q's dtype";
    }
    if (has_pair_mask(problem.options) && machine == Machine::hopper) {
        return unmasked;
    }
    if (has_pair_mask(problem.options) &&
        (modifies_scores(problem.options) || kernel_element(problem.dtype) == offload::Element::float32 ||
         problem.kernel_depth() > offload::most_masked_tensor_depth)) {
        return "a call with a mask or a block_mask has 16 bits, head dims up to 128, and no softcap, alibi_slopes, "
               "bias or "
               "dropout";
    }
    return shape_of(machine, pass, problem, hardware).fragments == 0 ? "there is a kernel for the head dim and options"
                                                                     : "";
}

std::string missing_library(bool is_there)
{
    return is_there ? ""
                    : "the build has GPU code, with libflashomp_float32, libflashomp_wide, libflashomp_latent, "
                      "libflashomp_masked_tensor and libflashomp_hopper_wide beside libflashomp";
}

std::string openmp_tensor_obstacle(Pass pass, const Problem& problem, const Hardware& hardware)
{
    std::string obstacle = tensor_obstacle(Machine::tensor, pass, problem, hardware);
    if (!obstacle.empty()) {
        return obstacle;
    }
    // Last, since to ask is to open a library, which the driver compiles.
    return missing_library(has_pair_mask(problem.options)
                               ? offload::has_masked_tensor_machine()
                               : offload::has_tensor_machine(kernel_element(problem.dtype), problem.kernel_depth()));
}

offload::Ran run_tensor_region(const offload::Call& here, offload::Call* there)
{
    return offload::has_mask(here.params.mask) ? offload::run_masked_tensor(here, there)
                                               : offload::run_tensor(here, there);
}

std::string openmp_hopper_obstacle(Pass pass, const Problem& problem, const Hardware& hardware)
{
    if (hardware.is_device && hardware.gpu.matrix_units != MatrixUnits::warpgroup) {
        return "the GPU has compute capability 9.0 and the build its kernels";
    }
    // Blocks of 16 keys pay where the copy engine brings them, and its maps are of whole panels of 64 columns.
    const int depth = problem.kernel_depth();
    const bool is_whole = depth < 256 || (problem.head_dim % 64 == 0 && problem.head_dim_v % 64 == 0);
    if (hardware.is_device && pass == Pass::forward && !is_whole) {
        return "both head dims are multiples of 64, or at most 128";
    }
    std::string obstacle = tensor_obstacle(Machine::hopper, pass, problem, hardware);
    return obstacle.empty() ? missing_library(offload::has_hopper_machine(depth)) : obstacle;
}

/// The float32 sums of dQ, of whole query blocks.
std::int64_t openmp_hopper_bytes(Pass pass, const Problem& problem, const Hardware& hardware)
{
    if (pass != Pass::backward_once) {
        return 0;
    }
    const std::int64_t rows = shape_of(Machine::hopper, pass, problem, hardware).stream_rows;
    return 4 * problem.batch * problem.heads_q * ((problem.seqlen_q + rows - 1) / rows) * rows * problem.kernel_depth();
}

std::string cuda_tensor_obstacle(Pass pass, const Problem& problem, const Hardware& hardware)
{
    return tensor_obstacle(Machine::tensor, pass, problem, hardware);
}

template <Machine machine>
Launch tensor_launch(Pass pass, const Problem& problem, const Hardware& hardware)
{
    return tensor_launch_of(machine, pass, problem, hardware);
}

constexpr Kernel cuda_tensor{
    .name = "cuda tensor",
    .backend = Backend::cuda,
    .machine = Machine::tensor,
    .obstacle = cuda_tensor_obstacle,
    .launch = tensor_launch<Machine::tensor>,
    .reads_caches = true,
    .run_on_stream =
        [](const cuda::StreamCall& call) { return cuda::run_tensor(call.params, call.launch, call.stream); },
};

// --- few queries, from the same C++

/// Of both backends; obstacle_here: few_forward_obstacle() or few_backward_obstacle().
template <auto obstacle_here>
std::string few_obstacle(Pass pass, const Problem& problem, const Hardware& hardware)
{
    std::string obstacle = gpu_obstacle(hardware);
    return obstacle.empty() ? obstacle_here(pass, problem, hardware) : obstacle;
}

template <auto obstacle_here>
std::string openmp_few_obstacle(Pass pass, const Problem& problem, const Hardware& hardware)
{
    std::string obstacle = few_obstacle<obstacle_here>(pass, problem, hardware);
    if (!obstacle.empty()) {
        return obstacle;
    }
    return offload::has_few_queries() ? "" : "libflashomp_few is beside libflashomp";
}

// --- CUDA's kernels for Hopper, whose schedule is their own

/// Whether the tensor kernel would cut the keys into parts, which these kernels do not have.
bool would_cut_keys(const Problem& problem, const Hardware& hardware)
{
    if (problem.seqlen_q > most_queries_of_parts(problem)) {
        return false; // before the blocks of packed sequences are counted
    }
    PassPlan tensor;
    tensor.kernel = &cuda_tensor;
    tensor.launch = tensor_launch<Machine::tensor>(Pass::forward, problem, hardware);
    tensor.units = problem.starts_q.empty() ? std::vector<offload::Unit>{} : packed_units(problem, tensor.launch);
    return split_count(problem, tensor, hardware) > 1;
}

/// Whether the crews of the one-pass backward would mostly wait: a key block adds to rows of dQ after the key block
/// before it, and few query blocks leave it nothing to do until then. On an H200 the two passes of the tensor kernel
/// then took 0.4 to 0.7 of the time, and 1.6 and more with fewer keys or heads, which are all at work at one time
/// (docs/log/masks.md, "CUDA's parts").
bool waits_for_turns(Pass pass, const Problem& problem, const Hardware& hardware)
{
    constexpr std::int64_t most_queries = 128, fewest_keys = 4096, fewest_rows = std::int64_t{1} << 17;
    return problem.is_backward && problem.seqlen_q <= most_queries && problem.seqlen_k >= fewest_keys &&
           key_rows(problem) >= fewest_rows &&
           cuda::hopper_blocks(pass, described_params(problem, hardware)).is_one_pass;
}

/// What CUDA's kernels for Hopper have in common.
std::string cuda_sm_90_obstacle(const Problem& problem, const Hardware& hardware)
{
    if (hardware.gpu.matrix_units != MatrixUnits::warpgroup) {
        return "the GPU has compute capability 9.0";
    }
    if (!has_results_like_q(problem)) {
        return "results have q's dtype";
    }
    if (problem.is_backward && problem.keys_are_part()) { // their sums over rows repair LSE and D
        return "backward has all keys of the whole sequence";
    }
    if (is_tiled(problem.options.tiling)) {
        return untiled;
    }
    return has_pair_mask(problem.options) ? unmasked : "";
}

constexpr const char* has_no_kernel = "there is a kernel for the dtype, head dims, options, strides and alignment";

std::string cuda_hopper_obstacle(Pass pass, const Problem& problem, const Hardware& hardware)
{
    if (std::string obstacle = cuda_sm_90_obstacle(problem, hardware); !obstacle.empty()) {
        return obstacle;
    }
    if (!cuda::hopper_supports(pass, described_params(problem, hardware))) {
        return has_no_kernel;
    }
    // Nobody else is refused what only takes longer.
    const bool is_open = problem.options.machine == Machine::automatic;
    if (is_open && pass == Pass::forward && would_cut_keys(problem, hardware)) {
        return "there are more queries, or fewer keys";
    }
    return is_open && waits_for_turns(pass, problem, hardware) ? more_queries : "";
}

std::string cuda_bias_obstacle(Pass pass, const Problem& problem, const Hardware& hardware)
{
    std::string obstacle = cuda_sm_90_obstacle(problem, hardware);
    const bool is_there =
        pass == Pass::backward_bias && obstacle.empty() && cuda::bias_supports(described_params(problem, hardware));
    return is_there || !obstacle.empty() ? obstacle : has_no_kernel;
}

std::string cuda_float8_obstacle(Pass pass, const Problem& problem, const Hardware& hardware)
{
    const bool is_there = pass == Pass::forward && !has_pair_mask(problem.options) && !has_seam(problem.options) &&
                          hardware.gpu.matrix_units == MatrixUnits::warpgroup &&
                          cuda::float8_supports(described_params(problem, hardware));
    return is_there ? "" : "there is a kernel of 8 bits";
}

Launch own_launch(Pass pass, const Problem& problem, const Hardware& hardware, const cuda::HopperBlocks& blocks)
{
    Launch launch;
    launch.pass = blocks.is_one_pass ? Pass::backward_once : pass;
    launch.depth = blocks.is_one_pass ? blocks.depth : problem.kernel_depth(); // of the sums of dQ
    launch.resident_rows = blocks.resident_rows;
    launch.stream_rows = blocks.stream_rows;
    launch.crew_threads = blocks.warps;
    launch.needs_memory = false;
    launch.device = hardware.device;
    return launch;
}

constexpr Kernel cuda_float8{
    .name = "cuda hopper, float8_e4m3",
    .backend = Backend::cuda,
    .machine = Machine::hopper,
    .obstacle = cuda_float8_obstacle,
    .launch =
        [](Pass pass, const Problem& problem, const Hardware& hardware) {
            return own_launch(pass, problem, hardware, cuda::float8_blocks(described_params(problem, hardware)));
        },
    .workspace_bytes =
        [](Pass /*pass*/, const Problem& problem, const Hardware& hardware) {
            return cuda::float8_workspace_bytes(described_params(problem, hardware));
        },
    .takes_parts_of_keys = false,
    .reads_units = false,
    .run_on_stream = cuda::run_float8,
};

// --- the list

constexpr Kernel list[] = {
    {
        .name = "cuda, few queries",
        .backend = Backend::cuda,
        .machine = Machine::tensor,
        .obstacle = few_obstacle<few_forward_obstacle>,
        .launch = few_forward_launch,
        .merges_parts = true,
        .parts = few_forward_parts,
        .reads_caches = true,
        .run_on_stream = cuda::run_few,
    },
    {
        .name = "cuda, gradients of few queries",
        .backend = Backend::cuda,
        .machine = Machine::tensor,
        .obstacle = few_obstacle<few_backward_obstacle>,
        .launch = few_backward_launch,
        .workspace_bytes =
            [](Pass pass, const Problem& problem, const Hardware& hardware) {
                const std::int64_t sums = few_backward_bytes(pass, problem, hardware);
                return sums > 0 ? cuda::few_counter_bytes(problem.batch * problem.heads_kv) + sums : 0;
            },
        .takes_parts_of_keys = false,
        .reads_units = false,
        .run_on_stream = cuda::run_few,
    },
    {
        .name = "cuda hopper, dbias",
        .backend = Backend::cuda,
        .machine = Machine::hopper,
        .obstacle = cuda_bias_obstacle,
        .launch =
            [](Pass pass, const Problem& problem, const Hardware& hardware) {
                return own_launch(pass, problem, hardware, cuda::bias_blocks(described_params(problem, hardware)));
            },
        .takes_parts_of_keys = false,
        .reads_units = false,
        .run_on_stream = cuda::run_bias,
    },
    {
        .name = "cuda hopper",
        .backend = Backend::cuda,
        .machine = Machine::hopper,
        .obstacle = cuda_hopper_obstacle,
        .launch =
            [](Pass pass, const Problem& problem, const Hardware& hardware) {
                return own_launch(pass, problem, hardware,
                                  cuda::hopper_blocks(pass, described_params(problem, hardware)));
            },
        .workspace_bytes =
            [](Pass pass, const Problem& problem, const Hardware& hardware) {
                return cuda::hopper_workspace_bytes(pass, described_params(problem, hardware));
            },
        .takes_parts_of_keys = false,
        .reads_units = false,
        .run_on_stream = cuda::run_hopper,
    },
    cuda_tensor,
    {
        .name = "cuda plain",
        .backend = Backend::cuda,
        .machine = Machine::plain,
        .obstacle = nothing,
        .launch = plain_launch_of,
        .reads_caches = true,
        .run_on_stream =
            [](const cuda::StreamCall& call) { return cuda::run_plain(call.params, call.launch, call.stream); },
    },
    {
        .name = "openmp, few queries",
        .backend = Backend::openmp,
        .machine = Machine::tensor,
        .obstacle = openmp_few_obstacle<few_forward_obstacle>,
        .launch = few_forward_launch,
        .merges_parts = true,
        .parts = few_forward_parts,
        .reads_caches = true,
        .run_region = offload::run_few_queries,
    },
    {
        .name = "openmp, gradients of few queries",
        .backend = Backend::openmp,
        .machine = Machine::tensor,
        .obstacle = openmp_few_obstacle<few_backward_obstacle>,
        .launch = few_backward_launch,
        .workspace_bytes = few_backward_bytes,
        .takes_parts_of_keys = false,
        .reads_units = false,
        .run_region = offload::run_few_queries,
    },
    {
        .name = "openmp hopper",
        .backend = Backend::openmp,
        .machine = Machine::hopper,
        .obstacle = openmp_hopper_obstacle,
        .launch = tensor_launch<Machine::hopper>,
        .workspace_bytes = openmp_hopper_bytes,
        .merges_parts = true,
        .run_region = offload::run_hopper,
    },
    {
        .name = "openmp tensor",
        .backend = Backend::openmp,
        .machine = Machine::tensor,
        .obstacle = openmp_tensor_obstacle,
        .launch = tensor_launch<Machine::tensor>,
        .merges_parts = true,
        .reads_caches = true,
        .run_region = run_tensor_region,
    },
    {
        .name = "host",
        .backend = Backend::openmp,
        .machine = Machine::host,
        .obstacle = not_a_gpu,
        .launch = host_launch_of,
        .has_own_scores = true,
        .reads_caches = true,
    },
    {
        // The directives of the GPU; on the host slow, and so only where it is named.
        .name = "openmp plain",
        .backend = Backend::openmp,
        .machine = Machine::plain,
        .obstacle = openmp_plain_obstacle,
        .launch = plain_launch_of,
        .has_own_scores = true,
        .reads_caches = true,
        .run_region = run_plain_region,
    },
};

/// The machine to look for on a GPU: of passes that a named one may lack, the plain machine has all. That of a tuning
/// table is none that the caller named.
Machine wanted_on_gpu(Pass pass, const Problem& problem)
{
    const Machine named = problem.options.machine;
    const bool is_float32 = problem.dtype == DType::float32;
    const bool is_open =
        named == Machine::automatic || named == Machine::hopper || (named == Machine::tensor && problem.is_tuned);
    if (pass == Pass::backward_bias && !is_float32 && is_open) {
        return Machine::automatic; // CUDA's Hopper kernel, or else plain
    }
    // The passes of dbias, dK and dV take LSE with what that of dQ adds to it, so that probabilities sum to 1: those of
    // the same arithmetic, which large logits show. Where dbias is not asked for, the others are to be the same.
    const bool is_float32_with_bias = problem.options.bias && is_float32;
    const bool is_of_pairs = pass == Pass::backward_query || pass == Pass::backward_key;
    const bool is_for_plain =
        pass == Pass::backward_bias || pass == Pass::backward_sink || (is_of_pairs && is_float32_with_bias);
    return is_for_plain ? Machine::plain : named;
}

} // namespace

std::span<const Kernel> kernels()
{
    return list;
}

namespace {

/// Of a call with a program's own score.
std::string own_score_obstacle(const Kernel& kernel, const Problem& problem)
{
    if (!kernel.has_own_scores) {
        return "there is no score_mod";
    }
    if (kernel.machine == Machine::plain && !problem.options.score_mod.kernels->has_gpu_code) {
        return "score_mod is compiled with GPU code (flashomp_score_mod() in CMake)";
    }
    if (kernel.machine == Machine::plain && has_pair_mask(problem.options)) {
        return "a call with score_mod has no mask and no block_mask";
    }
    if (kernel.machine == Machine::plain && has_seam(problem.options)) {
        return in_one_stretch;
    }
    if (kernel.machine == Machine::plain && problem.kernel_depth() > offload::most_plain_depth) {
        return "the head dims of a call with score_mod are at most 256";
    }
    return {};
}

} // namespace

std::string obstacle_of(const Kernel& kernel, Pass pass, const Problem& problem, const Hardware& hardware)
{
    if (problem.options.score_mod) {
        std::string obstacle = own_score_obstacle(kernel, problem);
        if (!obstacle.empty()) {
            return obstacle;
        }
    }
    // Hopper's copy engine brings whole blocks: rows beyond a sequence's keys, too, which nobody may read.
    if (is_cache(problem) && !kernel.reads_caches) {
        return "k and v are no key/value cache";
    }
    if (problem.is_quantised() && kernel.machine != Machine::host && kernel.machine != Machine::plain) {
        return "k and v have q's dtype";
    }
    const bool has_every_option = kernel.machine == Machine::host || kernel.machine == Machine::plain;
    if (has_seam(problem.options) && !has_every_option) {
        return in_one_stretch;
    }
    if (has_seam(problem.options) && kernel.machine != Machine::host &&
        problem.kernel_depth() > offload::most_plain_depth) {
        return "the head dims of a shard in two stretches are at most 256";
    }
    if (has_pair_mask(problem.options) && kernel.machine != Machine::host) {
        if (problem.kernel_depth() > offload::most_plain_depth) {
            return "the head dims of a call with a mask or a block_mask are at most 256";
        }
    }
    return kernel.obstacle(pass, problem, hardware);
}

const Kernel& kernel_for(Pass pass, const Problem& problem, const Hardware& hardware)
{
    Machine wanted = problem.options.machine;
    if (problem.dtype == DType::float8_e4m3) {
        if (hardware.is_device && hardware.backend == Backend::cuda &&
            cuda_float8.obstacle(pass, problem, hardware).empty()) {
            return cuda_float8;
        }
        throw Error(
            "q is float8_e4m3, which is allowed on backend reference, and on backend cuda with a GPU of compute "
            "capability 9.0, head dims up to 128 that are multiples of 16, and no softcap, alibi_slopes, bias, "
            "dropout, mask, block_mask, packed sequences or positions in two stretches.");
    }
    if (wanted == Machine::host && hardware.is_device) {
        throw Error(
            "machine was host, but the call runs on a GPU; allowed there are: automatic, plain, tensor, hopper.");
    }
    if (hardware.is_device) {
        wanted = wanted_on_gpu(pass, problem);
    }
    std::string obstacle;
    for (const Kernel& kernel : kernels()) {
        const bool is_asked = wanted == Machine::automatic || wanted == kernel.machine;
        if (kernel.backend != hardware.backend || !is_asked) {
            continue;
        }
        obstacle = obstacle_of(kernel, pass, problem, hardware);
        if (obstacle.empty()) {
            return kernel;
        }
    }
    if (wanted != Machine::automatic) { // of several kernels the obstacle of the last, which has the most options
        throw Error(fmt::format("machine was {}, which is allowed only where {}.", tuning::word_of(wanted), obstacle));
    }
    // The plain machine and the host's run every other call: the last obstacle is that of the plain one.
    throw Error(fmt::format("no kernel runs the call on the GPU, which is allowed only where {}.", obstacle));
}

} // namespace flashomp
