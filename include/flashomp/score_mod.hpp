// Attention with a score and a mask of one's own: the passes of the library, compiled once more with a program's
// functions inside. No compiler is needed at run time (docs/score_mod.md).
//
//     struct Relative {
//         float strength;
//         float score(float s, const flashomp::ScorePair& at) const { return s + strength * (at.key - at.query); }
//         float slope(float, const flashomp::ScorePair&) const { return 1.0F; }
//     };
//     options.score_mod = flashomp::score_mod(Relative{0.5F});
//
// g++ -std=c++20 -O3 -march=native -fopenmp $(pkg-config --cflags flashomp) program.cpp -lflashomp
#pragma once

#include "flashomp/attention.hpp"
#include "flashomp/version.hpp"

#include "host/own_isa.hpp"
#include "host/repair.hpp"
#include "launch/launch.hpp"

#include <concepts>
#include <cstring>
#include <type_traits>

namespace flashomp {

/// A type whose objects score_mod() takes. It has score() and slope(), or keeps(), or all three:
///
/// - `float score(float s, const ScorePair& at) const`: what becomes of s = scale·q·k of one pair, before softcap,
/// ALiBi
///   and bias. Finite for finite s.
/// - `float slope(float s, const ScorePair& at) const`: its derivative by s, at the same s. backward() needs it.
/// - `bool keeps(const ScorePair& at) const`: false hides the pair, as causal, window and padding do.
///
/// They are called for any pair in any order, from many threads, more than once. Objects are copied as bytes, to a GPU,
/// too: tensors that they read are pointers, to memory that the place of the call can read. Those get no gradient.
/// Where score and slope are templates of s's type, the reference calls them with double.
template <class F>
concept OwnScore = std::is_trivially_copyable_v<F> && sizeof(F) <= sizeof(ScoreMod::object) &&
                   alignof(F) <= alignof(ScoreMod) && (offload::ModifiesScores<F> || offload::HidesPairs<F>);

namespace offload {

template <class F>
F object_of(const unsigned char* bytes)
{
    struct Bytes {
        unsigned char of[sizeof(F)]; // NOLINT(modernize-avoid-c-arrays)
    } copy;
    std::memcpy(&copy, bytes, sizeof copy);
    return __builtin_bit_cast(F, copy);
}

/// The functions as the reference calls them.
template <class F>
ScoreFunctions functions_of()
{
    ScoreFunctions functions;
    if constexpr (ModifiesScores<F>) {
        functions.score = [](const unsigned char* object, double s, const ScorePair& at) -> double {
            if constexpr (requires(const F& f) {
                              {
                                  f.score(s, at)
                                  } -> std::same_as<double>;
                          }) {
                return object_of<F>(object).score(s, at);
            } else {
                return static_cast<double>(object_of<F>(object).score(static_cast<float>(s), at));
            }
        };
        functions.slope = [](const unsigned char* object, double s, const ScorePair& at) -> double {
            if constexpr (requires(const F& f) {
                              {
                                  f.slope(s, at)
                                  } -> std::same_as<double>;
                          }) {
                return object_of<F>(object).slope(s, at);
            } else {
                return static_cast<double>(object_of<F>(object).slope(static_cast<float>(s), at));
            }
        };
    }
    if constexpr (HidesPairs<F>) {
        functions.keeps = [](const unsigned char* object, const ScorePair& at) -> bool {
            return object_of<F>(object).keeps(at);
        };
    }
    return functions;
}

template <class F>
ScoreKernels kernels_of()
{
    ScoreKernels kernels;
    kernels.version = FLASHOMP_VERSION;
    kernels.params_bytes = sizeof(Params);
    kernels.launch_bytes = sizeof(Launch);
    kernels.host = own_host<F>();
    kernels.repair_forward = Repair<F>::forward;
    kernels.repair_backward = Repair<F>::backward;
#if FLASHOMP_SCORE_MOD_GPU
    kernels.has_gpu_code = true;
    const ScoreRegions regions = regions_of<F>();
    kernels.run_plain = regions.run_plain;
    kernels.run_visible = regions.run_visible;
#endif
    return kernels;
}

} // namespace offload

/// Options::score_mod of an object, which is copied. Every type compiles the passes once more: some ten seconds and
/// some hundred kilobytes each. Where FLASHOMP_SCORE_MOD_GPU is 1, the program has GPU code of the type, too
/// (score_mod_gpu.hpp), or does not link.
template <OwnScore F>
ScoreMod score_mod(const F& object)
{
    static const offload::ScoreKernels kernels = offload::kernels_of<F>();
    static const ScoreFunctions functions = offload::functions_of<F>();
    ScoreMod made;
    std::memcpy(made.object.data(), &object, sizeof object);
    made.kernels = &kernels;
    made.functions = &functions;
    return made;
}

} // namespace flashomp
