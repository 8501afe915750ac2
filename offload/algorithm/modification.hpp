// A program's own score and mask, compiled with the passes (flashomp/score_mod.hpp). A machine that has one names its
// type as Machine::Modification; the library's machines have none, and their kernels nothing of this.
#pragma once

#include "algorithm/params.hpp"

#include "flashomp/score_pair.hpp"

#include <concepts>

#pragma omp declare target

namespace flashomp::offload {

// clang-format 14 would spread every requirement over three lines.
// clang-format off
/// Changes scores: score(s, pair) of the scaled dot product s, and slope(s, pair), its derivative by s.
template <class F>
concept ModifiesScores = requires(const F& f, float s, const ScorePair& pair) {
    { f.score(s, pair) } -> std::convertible_to<float>;
    { f.slope(s, pair) } -> std::convertible_to<float>;
};

/// Hides the pairs for which keeps(pair) is false.
template <class F>
concept HidesPairs = requires(const F& f, const ScorePair& pair) {
    { f.keeps(pair) } -> std::convertible_to<bool>;
};
// clang-format on

struct Unmodified {};

template <class Machine>
struct ModificationOfMachine {
    using Type = Unmodified;
};
template <class Machine>
    requires requires
    {
        typename Machine::Modification;
    }
struct ModificationOfMachine<Machine> {
    using Type = typename Machine::Modification;
};
template <class Machine>
using ModificationOf = typename ModificationOfMachine<Machine>::Type;

/// The program's object, of which the call carries the bytes.
template <class Modification>
FLASHOMP_INLINE Modification modification_of(const Params& p)
{
    if constexpr (std::same_as<Modification, Unmodified>) {
        return {};
    } else {
        struct Bytes {
            unsigned char of[sizeof(Modification)];
        } bytes;
        for (std::size_t n = 0; n < sizeof(Modification); ++n) {
            bytes.of[n] = p.score_mod[n];
        }
        return __builtin_bit_cast(Modification, bytes);
    }
}

} // namespace flashomp::offload

#pragma omp end declare target
