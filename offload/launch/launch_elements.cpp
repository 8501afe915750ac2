// Elements of one tensor to another on host threads and as a target region.
#include "launch/launch_elements.hpp"
#include "launch/region.hpp"

#include <omp.h>

namespace flashomp::offload {

Ran elements(const ElementsParams& params, int threads)
{
    const std::int64_t units = elements_units(params);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (std::int64_t number = 0; number < units; ++number) {
        const ElementsUnit unit = elements_unit(params, number);
        for (int i = 0; i < unit.count; ++i) {
            elements_slot(params, unit, i);
        }
    }
    return {};
}

Ran run_elements(const ElementsParams* there, std::int64_t units, int device)
{
    constexpr int threads = 4, most = 256; // 1024 warps
    const int crews = units < most ? static_cast<int>(units) : most;
    FellBack fell_back;
    const FellBackFlag flag = fell_back.flag();
#pragma omp target teams device(device) num_teams(crews) thread_limit(threads) firstprivate(there, units, flag)
    {
        const int team = omp_get_team_num();
        const int teams = launched_teams();
#pragma omp parallel num_threads(threads)
        {
            if (is_where_sent(flag, true)) {
                for (std::int64_t number = team; number < units; number += teams) {
                    elements_one(*there, number);
                }
            }
            end_region();
        }
    }
    return {!fell_back};
}

} // namespace flashomp::offload
