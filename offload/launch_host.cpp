// The passes on host threads. Compiled once for every instruction set, with FLASHOMP_ISA naming it and
// FLASHOMP_LANES, FLASHOMP_REGISTER_ROWS and FLASHOMP_REGISTER_VECTORS describing its registers.
#include "pass.hpp"
#include "tile/host.hpp"

#include <omp.h>

namespace flashomp::offload::FLASHOMP_ISA {

// Its own type, so that no two instruction sets share an instantiation the linker could merge.
struct Isa {
    static constexpr int lanes = FLASHOMP_LANES;
    static constexpr int register_rows = FLASHOMP_REGISTER_ROWS;
    static constexpr int register_vectors = FLASHOMP_REGISTER_VECTORS;
};
using Machine = HostMachine<Isa>;
static_assert(SummingMachine<Machine>);

template <Pass pass, bool modified>
static void run_pass(const Params& params, const Launch& launch)
{
    const Work work(params, launch);
#pragma omp parallel num_threads(launch.crews)
    {
        const int crew = omp_get_thread_num();
        const Machine tile(launch.crew_memory + crew * launch.crew_floats, launch.resident_rows, launch.stream_rows);
#pragma omp for schedule(dynamic, 1)
        for (std::int64_t i = 0; i < work.items; ++i) {
            run_item<pass, modified>(tile, params, work, i);
        }
    }
}

Ran run(const Params& params, const Launch& launch)
{
    for_pass(launch.pass, has_modifications(params),
             [&]<Pass pass, bool modified>() { run_pass<pass, modified>(params, launch); });
    return {};
}

std::int64_t floats(Pass pass, int resident_rows, int stream_rows, int head_dim, int head_dim_v)
{
    return crew_floats<Machine>(pass, resident_rows, stream_rows, head_dim, head_dim_v);
}

} // namespace flashomp::offload::FLASHOMP_ISA
