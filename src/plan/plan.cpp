#include "plan.hpp"

#include <algorithm>
#include <fmt/format.h>

namespace flashomp {

namespace {

using offload::Launch;
using offload::Pass;

int round_up(std::int64_t value, int multiple)
{
    return static_cast<int>((value + multiple - 1) / multiple * multiple);
}

/// Host blocks: 64 resident rows keep the score tile, the accumulator and the resident block near L1; the stream
/// block shrinks with the depth so that all pieces of a crew stay inside half a typical 1 MiB L2.
Launch host_pass(Pass pass, const Problem& problem, const Hardware& hardware)
{
    const bool keys = pass == Pass::backward_key;
    const std::int64_t resident = keys ? problem.seqlen_k : problem.seqlen_q;
    const std::int64_t stream = keys ? problem.seqlen_q : problem.seqlen_k;
    const std::int64_t depth = std::max(problem.head_dim, problem.head_dim_v);
    Launch launch;
    launch.pass = pass;
    launch.resident_rows = static_cast<int>(std::min<std::int64_t>(64, round_up(std::max<std::int64_t>(resident, 1), hardware.isa->lanes)));
    launch.stream_rows = static_cast<int>(std::min<std::int64_t>(depth <= 128 ? 128 : 64, round_up(std::max<std::int64_t>(stream, 1), 8)));
    launch.crews = hardware.threads;
    launch.crew_floats =
        hardware.isa->floats(pass, launch.resident_rows, launch.stream_rows, static_cast<int>(problem.head_dim),
                             static_cast<int>(problem.head_dim_v));
    return launch;
}

/// Plain blocks: the largest of a short list whose pieces fit the team-local memory of a GPU.
Launch plain_pass(Pass pass, const Problem& problem, const Hardware& hardware)
{
    struct Blocks {
        int resident, stream;
    };
    static constexpr Blocks candidates[] = {{64, 32}, {32, 32}, {32, 16}, {16, 16}, {16, 8}, {8, 8}, {8, 4}, {4, 4}};
    Launch launch;
    launch.pass = pass;
    for (const Blocks& blocks : candidates) {
        launch.resident_rows = blocks.resident;
        launch.stream_rows = blocks.stream;
        launch.crew_floats = offload::plain_floats(pass, blocks.resident, blocks.stream,
                                                   static_cast<int>(problem.head_dim),
                                                   static_cast<int>(problem.head_dim_v));
        if (launch.crew_floats <= offload::team_memory_floats()) {
            break;
        }
    }
    if (hardware.is_device) {
        // libgomp caches the stacks of at most 1024 warps between launches; more and every launch allocates them.
        launch.device = hardware.device;
        launch.crew_threads = 2;
        launch.crews = 512;
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
        if (!hardware.is_device) {
            plan.crew_memory_bytes = std::max(plan.crew_memory_bytes, launch.crews * launch.crew_floats * 4);
        }
    }
    plan.lse_bytes = 4 * problem.lse.elements();
    plan.delta_bytes = problem.is_backward ? plan.lse_bytes : 0;
    return plan;
}

} // namespace flashomp
