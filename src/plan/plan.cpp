#include "plan.hpp"

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

/// Host blocks: 64 resident rows keep the score tile, the accumulator and the resident block near L1; the stream
/// block shrinks with the depth so that all pieces of a crew stay inside half a typical 1 MiB L2.
Launch host_pass(Pass pass, const Problem& problem, const Hardware& hardware)
{
    const bool keys = pass == Pass::backward_key;
    const std::int64_t resident = std::max<std::int64_t>(1, keys ? problem.seqlen_k : problem.seqlen_q);
    const std::int64_t stream = std::max<std::int64_t>(1, keys ? problem.seqlen_q : problem.seqlen_k);
    const auto d = static_cast<int>(problem.head_dim);
    const auto dv = static_cast<int>(problem.head_dim_v);
    const int lanes = hardware.isa->lanes;
    const Blocks blocks =
        chosen(problem.choice.tiling,
               {static_cast<int>(std::min<std::int64_t>(64, round_up(resident, lanes))),
                static_cast<int>(std::min<std::int64_t>(std::max(d, dv) <= 128 ? 128 : 64, round_up(stream, 4)))},
               lanes, 1);
    Launch launch;
    launch.pass = pass;
    launch.resident_rows = blocks.resident;
    launch.stream_rows = blocks.stream;
    launch.crews = hardware.threads;
    launch.crew_floats = hardware.isa->floats(pass, blocks.resident, blocks.stream, d, dv);
    return launch;
}

/// Plain blocks: the fastest on an H200 whose pieces fit the team-local memory of a GPU, fastest first (measured at
/// head_dim 64, docs/offload.md).
Launch plain_pass(Pass pass, const Problem& problem, const Hardware& hardware)
{
    static constexpr Blocks candidates[] = {{64, 16}, {48, 16}, {32, 16}, {16, 16}, {16, 8}, {8, 8}, {8, 4}, {4, 4}};
    const Tiling& tiling = problem.choice.tiling;
    const auto d = static_cast<int>(problem.head_dim);
    const auto dv = static_cast<int>(problem.head_dim_v);
    const auto floats = [&](const Blocks& b) { return offload::plain_floats(pass, b.resident, b.stream, d, dv); };
    const auto fits = [&](const Blocks& b) { return floats(b) <= offload::team_memory_floats(); };
    const Blocks blocks = chosen(tiling, *std::find_if(std::begin(candidates), std::end(candidates) - 1, fits), 4, 4);
    Launch launch;
    launch.pass = pass;
    launch.resident_rows = blocks.resident;
    launch.stream_rows = blocks.stream;
    launch.crew_floats = floats(blocks);
    launch.needs_memory = !hardware.is_device || tiling.global_memory;
    if (!launch.needs_memory && !fits(blocks)) {
        throw Error(fmt::format("tiling was {} resident and {} stream rows, which need {} bytes of shared memory at "
                                "this head_dim; at most {} are there.",
                                blocks.resident, blocks.stream, 4 * launch.crew_floats,
                                4 * offload::team_memory_floats()));
    }
    if (hardware.is_device) {
        // Two warps a team were fastest. libgomp keeps the stacks of at most 1024 warps between launches; with more,
        // every launch allocates them anew.
        launch.device = hardware.device;
        launch.crew_threads = tiling.team_threads > 0 ? tiling.team_threads : 2;
        launch.crews = tiling.teams > 0 ? tiling.teams : 1024 / launch.crew_threads;
    } else {
        launch.crew_threads = hardware.threads;
        launch.crews = 1;
    }
    return launch;
}

} // namespace

Plan plan(const Problem& problem, const Hardware& hardware)
{
    Plan plan;
    plan.machine = problem.choice.machine;
    if (plan.machine == Machine::automatic) {
        plan.machine = hardware.is_device ? Machine::plain : Machine::host;
    }
    if (plan.machine == Machine::host && hardware.is_device) {
        throw Error("machine was host, but the call runs on a GPU; allowed there are: automatic, plain.");
    }
    plan.machine_name = plan.machine == Machine::host ? fmt::format("host-{}", hardware.isa->name) : "plain";

    const std::vector<Pass> passes = problem.is_backward ? std::vector<Pass>{Pass::backward_query, Pass::backward_key}
                                                         : std::vector<Pass>{Pass::forward};
    for (const Pass pass : passes) {
        const Launch launch =
            plan.machine == Machine::host ? host_pass(pass, problem, hardware) : plain_pass(pass, problem, hardware);
        plan.passes.push_back(launch);
        if (launch.needs_memory) {
            plan.crew_memory_bytes = std::max(plan.crew_memory_bytes, 4 * launch.crews * launch.crew_floats);
        }
    }
    plan.lse_bytes = 4 * problem.lse.elements();
    plan.row_bytes = problem.is_backward ? 2 * plan.lse_bytes : 0;
    return plan;
}

} // namespace flashomp
