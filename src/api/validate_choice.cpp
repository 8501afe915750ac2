#include "validate_choice.hpp"

#include "flashomp/error.hpp"

#include <fmt/format.h>
#include <tuple>

namespace flashomp {

namespace {

/// Refuses what is no enumerator: all are numbered from 0 to `last`.
template <class Enum>
void check_enumerator(const char* name, Enum value, Enum last, const char* allowed)
{
    if (value > last) {
        throw Error(fmt::format("{} was {}; allowed are: {}.", name, static_cast<int>(value), allowed));
    }
}

void check_tiling(const Tiling& tiling)
{
    // As in tuning tables. A GPU's block has at most 1024 threads, 32 of each warp.
    constexpr int most_rows_of_a_block = 1024, most_teams = 1024, most_warps = 32;
    for (const auto& [name, given, most] :
         {std::tuple{"resident_rows", tiling.resident_rows, most_rows_of_a_block},
          std::tuple{"stream_rows", tiling.stream_rows, most_rows_of_a_block},
          std::tuple{"teams", tiling.teams, most_teams}, std::tuple{"team_threads", tiling.team_threads, most_warps}}) {
        if (given < 0 || given > most) {
            throw Error(fmt::format("tiling.{} was {}; allowed are 0 (automatic) to {}.", name, given, most));
        }
    }
}

} // namespace

void check_choice(const Options& options)
{
    check_enumerator("backend", options.backend, Backend::cuda, "automatic, openmp, reference, cuda");
    check_enumerator("machine", options.machine, Machine::hopper, "automatic, host, plain, tensor, hopper");
    check_enumerator("device.kind", options.device.kind, Device::Kind::gpu, "automatic, host, gpu");
    check_enumerator("causal", options.causal, Causal::bottom_right, "none, top_left, bottom_right");
    if (options.threads < 0) {
        throw Error(fmt::format("threads was {}; it must be 0 (OMP_NUM_THREADS) or more.", options.threads));
    }
    check_tiling(options.tiling);
}

} // namespace flashomp
