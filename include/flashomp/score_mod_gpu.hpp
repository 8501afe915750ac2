// The GPU's part of a program's own score (score_mod.hpp), in a source file of its own, whose type is in a header:
//
//     #include "relative.hpp" // the type, within `#pragma omp declare target`
//     #include <flashomp/score_mod_gpu.hpp>
//     FLASHOMP_SCORE_MOD_GPU_CODE(Relative)
//
// The type's functions, and those that they call, are [[gnu::always_inline]]: where a loop over a warp's lanes calls a
// function that takes a reference, g++ 12 ends with an internal error (in make_decl_rtl).
//
// flashomp_score_mod(program GPU file.cpp) of CMake compiles the file for OpenMP target regions, apart from the host's
// passes: what is compiled for a CPU's vectors no GPU's compiler reads. docs/score_mod.md has the command without
// CMake.
#pragma once

#include "plain/own_machine.hpp"

namespace flashomp::offload {

template <class F>
ScoreRegions regions_of()
{
    return {run_own_region<OwnOn<PlainMachine, F>>, run_own_region<OwnOn<VisibleMachine, F>>};
}

} // namespace flashomp::offload

/// At namespace scope, once in a program for each type. The type needs external linkage: not one of an unnamed
/// namespace.
#define FLASHOMP_SCORE_MOD_GPU_CODE(...)                                                                               \
    template flashomp::offload::ScoreRegions flashomp::offload::regions_of<__VA_ARGS__>();
