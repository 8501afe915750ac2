#include "plan.hpp"

#include "groups.hpp"

#include "cuda/tensor_shapes.hpp"
#include "mask.hpp"
#include "tensor_shapes.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <iterator>

namespace flashomp {

namespace {

using offload::Launch;
using offload::Pass;

int round_up(std::int64_t value, int multiple)
{
    return static_cast<int>((value + multiple - 1) / multiple * multiple);
}

struct Blocks {
    int resident, stream;
};

/// The caller's block sizes where given.
Blocks chosen(const Tiling& tiling, const Blocks& automatic, int resident_multiple, int stream_multiple)
{
    const Blocks blocks{tiling.resident_rows > 0 ? tiling.resident_rows : automatic.resident,
                        tiling.stream_rows > 0 ? tiling.stream_rows : automatic.stream};
    if (blocks.resident % resident_multiple != 0 || blocks.stream % stream_multiple != 0) {
        throw Error(fmt::format("tiling was {} resident and {} stream rows; they must be multiples of {} and {}.",
                                blocks.resident, blocks.stream, resident_multiple, stream_multiple));
    }
    return blocks;
}

/// Teams of a launch. libgomp keeps the stacks of at most 1024 warps between launches; with more, every launch
/// allocates them anew.
int teams_of(const Tiling& tiling, int team_threads)
{
    constexpr int most = 1024; // pieces of offload/team_arena.cpp
    if (tiling.teams > most) {
        throw Error(fmt::format("tiling.teams was {}; allowed are 1 to {}.", tiling.teams, most));
    }
    return tiling.teams > 0 ? tiling.teams : most / team_threads;
}

/// Rows of `heads` heads in blocks of at most `most`, or half, or a quarter, so that `threads` end soonest. Each block
/// streams, and packs, all that it meets: that takes as long as the products of some rows.
int rows_for_threads(std::int64_t rows, std::int64_t heads, int most, int fewest, int threads)
{
    constexpr std::int64_t packing = 48; // rows: 28 to 64 were measured on AMX, at head_dim 64 and 128
    const auto time = [&](int each) {
        const std::int64_t items = (rows + each - 1) / each * heads;
        return (items + threads - 1) / threads * (each + packing);
    };
    int best = most;
    for (int each = most / 2; each >= fewest; each /= 2) {
        best = time(each) < time(best) ? each : best;
    }
    return best;
}

/// Host blocks: as many resident rows as the machine likes, since each block streams, and packs, all that it meets; but
/// no more than make 16 blocks of work, nor than keep a crew's pieces in three quarters of a core's own cache. The
/// number of threads counts only where the number of resident rows does not change the bits: where every row begins
/// with key 0.
Blocks host_blocks(const offload::HostIsa& isa, Pass pass, const Problem& problem, const Hardware& hardware)
{
    constexpr std::int64_t fewest_items = 16, typical_cache_bytes = std::int64_t{1} << 20;
    constexpr int fewest_rows = 64;
    const std::int64_t cache_bytes = hardware.core_cache_bytes;
    const bool keys = pass == Pass::backward_key;
    const std::int64_t rows = std::max<std::int64_t>(1, keys ? problem.seqlen_k : problem.seqlen_q);
    const std::int64_t columns = std::max<std::int64_t>(1, keys ? problem.seqlen_q : problem.seqlen_k);
    const std::int64_t heads = problem.batch * (keys ? problem.heads_kv : problem.heads_q);
    if (pass == Pass::forward && rows <= isa.lanes / 2) { // not rounded up: for the machine of few rows
        return {static_cast<int>(rows), 128};
    }
    const auto fits = [&](const Blocks& b) {
        const std::int64_t floats =
            isa.floats(kernel_element(problem.dtype), pass, b.resident, b.stream, static_cast<int>(problem.head_dim),
                       static_cast<int>(problem.head_dim_v));
        return 4 * floats <= (cache_bytes > 0 ? cache_bytes : typical_cache_bytes) / 4 * 3;
    };
    Blocks blocks{isa.most_rows, 128};
    const bool by_threads = pass == Pass::forward && problem.window.left < 0;
    while (!by_threads && blocks.resident > fewest_rows &&
           (rows + blocks.resident - 1) / blocks.resident * heads < fewest_items) {
        blocks.resident /= 2;
    }
    while (!fits(blocks) && (blocks.resident > fewest_rows || blocks.stream > 64)) {
        blocks.stream > 64 ? blocks.stream -= 32 : blocks.resident /= 2;
    }
    if (by_threads) { // last: the stream rows, which do change the bits, are those of any number of threads
        blocks.resident = rows_for_threads(rows, heads, blocks.resident, fewest_rows, hardware.threads);
    }
    return {static_cast<int>(std::min<std::int64_t>(blocks.resident, round_up(rows, isa.lanes))),
            static_cast<int>(std::min<std::int64_t>(blocks.stream, round_up(columns, 4)))};
}

Launch host_pass(Pass pass, const Problem& problem, const Hardware& hardware, const offload::HostIsa& isa)
{
    const Tiling& tiling = problem.choice.tiling;
    const Blocks blocks =
        chosen(tiling, host_blocks(isa, pass, problem, hardware), tiling.resident_rows > 0 ? isa.lanes : 1, 1);
    Launch launch;
    launch.pass = pass;
    launch.resident_rows = blocks.resident;
    launch.stream_rows = blocks.stream;
    launch.crews = hardware.threads;
    launch.crew_floats = isa.floats(kernel_element(problem.dtype), pass, blocks.resident, blocks.stream,
                                    static_cast<int>(problem.head_dim), static_cast<int>(problem.head_dim_v));
    return launch;
}

/// Shared memory of a CUDA block: what compute capability 8.6 has, the least of those that run this build.
constexpr std::int64_t cuda_block_floats = (std::int64_t{99} << 10) / 4;
constexpr int cuda_plain_warps = 4; ///< most of a block on the plain machine

static_assert([] {
    for (const Pass pass : {Pass::forward, Pass::backward_query, Pass::backward_key}) {
        for (const int depth : {64, 128, 256}) {
            for (const offload::Operands operands : {offload::Operands::bits16, offload::Operands::tf32}) {
                if (cuda::tensor_shared_bytes(operands, pass, depth, false) > 4 * cuda_block_floats ||
                    cuda::tensor_shared_bytes(operands, pass, depth, true) > 4 * cuda_block_floats) {
                    return false;
                }
            }
        }
    }
    return true;
}());

/// Plain blocks whose pieces fit the team-local memory of a GPU: the fastest on an H200, fastest first (OpenMP,
/// measured at head_dim 64, docs/offload.md). A CUDA block has more memory, and 64 x 32 scores are work for all its
/// threads.
Launch plain_pass(Pass pass, const Problem& problem, const Hardware& hardware)
{
    static constexpr Blocks all[] = {{64, 32}, {64, 16}, {48, 16}, {32, 16}, {16, 16}, {16, 8}, {8, 8}, {8, 4}, {4, 4}};
    const bool is_cuda = hardware.backend == Backend::cuda;
    const Blocks* const candidates = is_cuda ? std::begin(all) : std::begin(all) + 1;
    const std::int64_t most_floats = is_cuda ? cuda_block_floats : offload::team_memory_floats();
    const Tiling& tiling = problem.choice.tiling;
    const auto d = static_cast<int>(problem.head_dim);
    const auto dv = static_cast<int>(problem.head_dim_v);
    const auto floats = [&](const Blocks& b) { return offload::plain_floats(pass, b.resident, b.stream, d, dv); };
    const auto fits = [&](const Blocks& b) { return floats(b) <= most_floats; };
    Blocks automatic = *std::find_if(candidates, std::end(all) - 1, fits);
    const std::int64_t resident = pass == Pass::backward_key ? problem.seqlen_k : problem.seqlen_q;
    if (resident < automatic.resident) { // few queries: no rows in vain, and longer steps along the keys
        automatic.resident = round_up(std::max<std::int64_t>(resident, 1), 4);
        while (automatic.stream < 64 && fits({automatic.resident, 2 * automatic.stream})) {
            automatic.stream *= 2;
        }
    }
    const Blocks blocks = chosen(tiling, automatic, 4, 4);
    Launch launch;
    launch.pass = pass;
    launch.resident_rows = blocks.resident;
    launch.stream_rows = blocks.stream;
    launch.crew_floats = floats(blocks);
    launch.needs_memory = !hardware.is_device || (tiling.global_memory && !is_cuda);
    if (!launch.needs_memory && !fits(blocks)) {
        throw Error(fmt::format("tiling was {} resident and {} stream rows, which need {} bytes of shared memory at "
                                "this head_dim; at most {} are there.",
                                blocks.resident, blocks.stream, 4 * launch.crew_floats, 4 * most_floats));
    }
    if (is_cuda) {
        if (tiling.team_threads > cuda_plain_warps) {
            throw Error(fmt::format("tiling.team_threads was {}; allowed on the cuda backend are 1 to {}.",
                                    tiling.team_threads, cuda_plain_warps));
        }
        launch.device = hardware.device;
        launch.crew_threads = tiling.team_threads > 0 ? tiling.team_threads : cuda_plain_warps;
    } else if (hardware.is_device) {
        // Two warps a team were fastest.
        launch.device = hardware.device;
        launch.crew_threads = tiling.team_threads > 0 ? tiling.team_threads : 2;
        launch.crews = teams_of(tiling, launch.crew_threads);
    } else {
        launch.crew_threads = hardware.threads;
        launch.crews = 1;
    }
    return launch;
}

const char* name_of(Machine machine)
{
    switch (machine) {
    case Machine::hopper:
        return "hopper";
    case Machine::tensor:
        return "tensor";
    case Machine::plain:
        return "plain";
    case Machine::host:
        return "host";
    case Machine::automatic:
        break;
    }
    return "automatic";
}

offload::TensorShape shape_of(Machine machine, Pass pass, const Problem& problem, const Hardware& hardware)
{
    const auto shape = hardware.backend == Backend::cuda ? cuda::kernel_shape
                       : machine == Machine::hopper      ? offload::hopper_shape
                                                         : offload::tensor_shape;
    return shape(operands_of(kernel_element(problem.dtype)), pass, problem.kernel_depth(), problem.is_modified());
}

/// Why the tensor or Hopper machine cannot run a pass; empty where it can.
std::string obstacle_to(Machine machine, Pass pass, const Problem& problem, const Hardware& hardware)
{
    const Tiling& tiling = problem.choice.tiling;
    const bool is_openmp = hardware.backend == Backend::openmp;
    if (!hardware.is_device ||
        (is_openmp && !offload::has_tensor_machine(kernel_element(problem.dtype), problem.kernel_depth()))) {
        return "the call runs on a GPU";
    }
    if (machine == Machine::hopper && !hardware.has_hopper) {
        return "the GPU has compute capability 9.0 and the build its kernels";
    }
    if (tiling.resident_rows > 0 || tiling.stream_rows > 0 || tiling.team_threads > 0 || tiling.global_memory) {
        return "tiling leaves the block sizes, team_threads and global_memory alone";
    }
    if (shape_of(machine, pass, problem, hardware).fragments == 0) {
        return "there is a kernel for the head dim and options";
    }
    return {};
}

bool sums_apart(Pass pass, const Problem& problem, const Hardware& hardware)
{
    if (hardware.backend == Backend::cuda) {
        return cuda::sums_apart(pass, problem.kernel_depth());
    }
    return offload::sums_apart(operands_of(kernel_element(problem.dtype)), pass, problem.kernel_depth(),
                               problem.is_modified());
}

/// Heads that share out the crews by turns: under a causal mask as many as have what streams in the L2 cache.
int heads_together(Pass pass, const Problem& problem)
{
    constexpr std::int64_t cache_bytes = std::int64_t{32} << 20; // of an H200's 50 MB
    if (problem.causal == Causal::none || !problem.starts_q.empty()) {
        return 1;
    }
    const bool keys = pass == Pass::backward_key;
    const std::int64_t group = problem.heads_q / problem.heads_kv;
    const std::int64_t streamed = static_cast<std::int64_t>(size_of(problem.dtype)) *
                                  (problem.head_dim + problem.head_dim_v) *
                                  (keys ? problem.seqlen_q * group : problem.seqlen_k);
    const std::int64_t heads = cache_bytes / std::max<std::int64_t>(1, streamed) * (keys ? 1 : group);
    return static_cast<int>(std::clamp<std::int64_t>(heads, 1, problem.batch * problem.heads_q));
}

Launch tensor_pass(Machine machine, Pass pass, const Problem& problem, const Hardware& hardware)
{
    Launch launch;
    launch.pass = pass;
    launch.depth = problem.kernel_depth();
    const offload::TensorShape shape = shape_of(machine, pass, problem, hardware);
    launch.resident_rows = shape.resident_rows();
    launch.stream_rows = shape.stream_rows;
    launch.needs_memory = false;
    launch.device = hardware.device;
    launch.crew_threads = shape.warps;
    if (hardware.backend == Backend::openmp) {
        launch.crews = teams_of(problem.choice.tiling, launch.crew_threads);
    }
    launch.heads_together = heads_together(pass, problem);
    return launch;
}

/// The machine of one pass.
Machine machine_of(Pass pass, const Problem& problem, const Hardware& hardware)
{
    Machine wanted = problem.choice.machine;
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
    if (pass == Pass::backward_query && problem.bias && problem.dtype == DType::float32) {
        // The pass of dbias, which only the plain machine has, takes LSE with what this one adds to it, so that
        // probabilities sum to 1: those of the same arithmetic. Where dbias is not asked for, dq is to be the same.
        return Machine::plain;
    }
    const bool is_option_pass = pass == Pass::backward_bias || pass == Pass::backward_sink;
    if (wanted != Machine::automatic) {
        const std::string obstacle = obstacle_to(wanted, pass, problem, hardware);
        if (!obstacle.empty() && !is_option_pass) {
            throw Error(fmt::format("machine was {}, which is allowed only where {}.", name_of(wanted), obstacle));
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

Launch launch_of(Machine machine, Pass pass, const Problem& problem, const Hardware& hardware)
{
    switch (machine) {
    case Machine::hopper:
    case Machine::tensor:
        return tensor_pass(machine, pass, problem, hardware);
    case Machine::plain:
        return plain_pass(pass, problem, hardware);
    case Machine::host:
    case Machine::automatic:
        break;
    }
    return host_pass(pass, problem, hardware, offload::isa_for(*hardware.isa, kernel_element(problem.dtype)));
}

/// Rows that lse has in all: one statistic each.
std::int64_t statistic_rows(const Problem& problem)
{
    return problem.lse.elements();
}

/// The blocks of packed sequences that exist, costliest first, so that sequences whose lengths differ by orders of
/// magnitude still end together.
std::vector<offload::Unit> packed_units(const Problem& problem, const Launch& launch)
{
    const bool keys = launch.pass == Pass::backward_key;
    offload::Params p;
    p.causal = static_cast<offload::Alignment>(problem.causal);
    p.window_left = problem.window.left;
    p.window_right = problem.window.right;
    std::vector<std::pair<std::int64_t, offload::Unit>> costs;
    for (std::size_t b = 0; b + 1 < problem.starts_q.size(); ++b) {
        const offload::Sequence seq{0, 0, problem.starts_q[b + 1] - problem.starts_q[b],
                                    problem.starts_k[b + 1] - problem.starts_k[b]};
        const offload::Band band = offload::band_of(p, seq);
        const int length = keys ? seq.k_len : seq.q_len;
        for (int first = 0; first < length; first += launch.resident_rows) {
            const int last = std::min(length, first + launch.resident_rows);
            const offload::Range range = keys ? band.queries(first, last) : band.keys(first, last);
            costs.push_back({range.end - range.begin, {static_cast<int>(b), first / launch.resident_rows}});
        }
    }
    std::stable_sort(costs.begin(), costs.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    std::vector<offload::Unit> units;
    units.reserve(costs.size());
    for (const auto& [cost, unit] : costs) {
        units.push_back(unit);
    }
    return units;
}

/// Parts to cut the keys into when there are fewer units of work than crews: few queries against long keys. A function
/// of the problem and the kind of hardware alone, so that the number of host threads does not change the bits.
int split_count(const Problem& problem, const PassPlan& pass, const Hardware& hardware)
{
    constexpr std::int64_t fewest_keys = 1024; // of a part
    constexpr std::int64_t most_queries = 64;  // more would make the partial results more than a few rows of memory
    if (problem.seqlen_q > most_queries || problem.dtype == DType::float8_e4m3) {
        return 1;
    }
    const std::int64_t wanted = hardware.is_device ? 512 : 64;
    const std::int64_t blocks =
        problem.starts_q.empty()
            ? problem.batch * ((problem.seqlen_q + pass.launch.resident_rows - 1) / pass.launch.resident_rows)
            : static_cast<std::int64_t>(pass.units.size());
    const std::int64_t items = std::max<std::int64_t>(1, blocks * problem.heads_q);
    return static_cast<int>(std::clamp<std::int64_t>(std::min(wanted / items, problem.seqlen_k / fewest_keys), 1, 512));
}

/// Items of work are counted in 32 bits (Work::item()).
void refuse_more_items_than_countable(const Problem& problem, const PassPlan& pass)
{
    constexpr std::int64_t most = 2'000'000'000;
    const bool keys = pass.launch.pass == Pass::backward_key;
    const std::int64_t rows = keys ? problem.seqlen_k : problem.seqlen_q;
    const std::int64_t heads = keys ? problem.heads_kv : problem.heads_q;
    const std::int64_t blocks = problem.starts_q.empty()
                                    ? (rows + pass.launch.resident_rows - 1) / pass.launch.resident_rows * problem.batch
                                    : static_cast<std::int64_t>(pass.units.size());
    if (blocks * heads > most) {
        throw Error(fmt::format("{} had {} blocks of rows in all sequences and heads; at most {} are allowed.",
                                keys ? "k" : "q", blocks * heads, most));
    }
}

std::vector<Pass> passes_of(const Problem& problem)
{
    if (!problem.is_backward) {
        return {Pass::forward};
    }
    std::vector<Pass> passes{Pass::backward_query, Pass::backward_key};
    if (problem.dbias && problem.dbias.elements() > 0) {
        passes.push_back(Pass::backward_bias);
    }
    if (problem.dsink) {
        passes.push_back(Pass::backward_sink);
    }
    return passes;
}

/// Whether plan(), and what it leaves to dispatch, would take the machine and tiling.
bool can_plan(const Problem& problem, const Hardware& hardware)
{
    if (hardware.backend == Backend::cuda && problem.choice.machine == Machine::hopper) {
        return false; // automatic where there is a kernel, an error where there is none
    }
    try {
        for (const Pass pass : passes_of(problem)) {
            static_cast<void>(launch_of(machine_of(pass, problem, hardware), pass, problem, hardware));
        }
    } catch (const Error&) {
        return false;
    }
    return true;
}

/// Adds a machine to the names of a plan, once.
void add_name(std::string& names, const PassPlan& pass)
{
    const std::string name =
        pass.machine == Machine::host ? fmt::format("host-{}", pass.isa->name) : std::string(name_of(pass.machine));
    if (names.find(name) == std::string::npos) {
        names += (names.empty() ? "" : "+") + name;
    }
}

} // namespace

void name_machines(Plan& plan)
{
    plan.machine_name.clear();
    for (const PassPlan& pass : plan.passes) {
        add_name(plan.machine_name, pass);
    }
}

offload::Element kernel_element(DType dtype)
{
    switch (dtype) {
    case DType::float8_e4m3: // what o is: the kernel of 8-bit inputs takes no others
    case DType::bfloat16:
        return offload::Element::bfloat16;
    case DType::float16:
        return offload::Element::float16;
    default:
        return offload::Element::float32;
    }
}

Problem as_computed(const Problem& problem, const Hardware& hardware)
{
    Problem computed = hardware.is_device ? problem : with_groups_as_rows(problem);
    if (problem.choice.machine != Machine::automatic || problem.choice.tiling != Tiling{}) {
        return computed;
    }
    const tuning::Entry* const found = hardware.tuned.find(tuning::class_of(problem, hardware.backend));
    if (found != nullptr && found->choice != tuning::Choice{}) {
        computed.choice.machine = found->choice.machine;
        computed.choice.tiling = found->choice.tiling;
        computed.is_tuned = can_plan(computed, hardware);
        if (!computed.is_tuned) {
            computed.choice = problem.choice;
        }
    }
    return computed;
}

Plan plan(const Problem& problem, const Hardware& hardware)
{
    Plan plan;
    for (const Pass pass : passes_of(problem)) {
        PassPlan planned;
        planned.machine = machine_of(pass, problem, hardware);
        planned.isa = &offload::isa_for(*hardware.isa, kernel_element(problem.dtype));
        planned.launch = launch_of(planned.machine, pass, problem, hardware);
        planned.sums_apart = planned.machine == Machine::tensor && sums_apart(pass, problem, hardware);
        if (!problem.starts_q.empty()) {
            planned.units = packed_units(problem, planned.launch);
            planned.launch.unit_count = static_cast<int>(planned.units.size());
        }
        refuse_more_items_than_countable(problem, planned);
        if (planned.launch.needs_memory) {
            plan.crew_memory_bytes =
                std::max(plan.crew_memory_bytes, 4 * planned.launch.crews * planned.launch.crew_floats);
        }
        plan.passes.push_back(std::move(planned));
    }
    name_machines(plan);
    plan.lse_bytes = 4 * statistic_rows(problem);
    plan.row_bytes = problem.is_backward ? 2 * plan.lse_bytes : 0;
    if (!problem.is_backward) {
        plan.splits = split_count(problem, plan.passes.front(), hardware);
        plan.partial_bytes = plan.splits > 1 ? 4 * plan.splits * statistic_rows(problem) * (problem.head_dim_v + 1) : 0;
    }
    return plan;
}

} // namespace flashomp
