// append() on host threads and as a target region.
#include "launch/launch_append.hpp"
#include "launch/region.hpp"

#include <omp.h>

namespace flashomp::offload {

namespace {

template <class T, class C>
void append_slots(const AppendParams& params, const AppendRow& row)
{
    for (int x = 0; x < row.slots; ++x) {
        append_slot_as<T, C>(params, row, x);
    }
}

template <class T>
void append_on_host(const AppendParams& params, int threads)
{
    const std::int64_t units = append_units(params);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (std::int64_t unit = 0; unit < units; ++unit) {
        const AppendRow row = append_row(params, unit);
        switch (row.element) {
        case CacheElement::as_q:
            append_slots<T, T>(params, row);
            break;
        case CacheElement::float8_e4m3:
            append_slots<T, Float8>(params, row);
            break;
        case CacheElement::int8:
            append_slots<T, Int8>(params, row);
            break;
        }
    }
}

} // namespace

Ran append(const AppendParams& params, int threads)
{
    switch (params.element) {
    case Element::float32:
        append_on_host<float>(params, threads);
        break;
    case Element::bfloat16:
        append_on_host<BFloat16>(params, threads);
        break;
    case Element::float16:
        append_on_host<Float16>(params, threads);
        break;
    }
    return {};
}

Ran run_append(const AppendParams* there, std::int64_t units, int device)
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
                for (std::int64_t unit = team; unit < units; unit += teams) {
                    append_one(*there, unit);
                }
            }
            end_region();
        }
    }
    return {!fell_back};
}

} // namespace flashomp::offload
