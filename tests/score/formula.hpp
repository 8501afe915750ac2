// One type for three scores: each type that score_mod() is given is a compilation of all passes.
#pragma once

#include "flashomp/score_pair.hpp"

#include <cmath>

// always_inline, as docs/score_mod.md asks for on a GPU.
#pragma omp declare target

namespace flashomp::testing {

struct Formula {
    enum class Which : int { everything, distance, cap } which;
    float a;
    const float* slopes;

    template <class T>
    [[gnu::always_inline]] T score(T s, const ScorePair& at) const
    {
        if (which == Which::everything) {
            return s + static_cast<T>(a) * s * s / static_cast<T>(1 + at.head);
        }
        if (which == Which::cap) {
            return static_cast<T>(a) * tanh_of(s / static_cast<T>(a));
        }
        const int behind = at.query + at.seqlen_k - at.seqlen_q - at.key;
        return s - static_cast<T>(slopes[at.head]) * static_cast<T>(behind < 0 ? -behind : behind);
    }

    template <class T>
    [[gnu::always_inline]] T slope(T s, const ScorePair& at) const
    {
        if (which == Which::everything) {
            return 1 + 2 * static_cast<T>(a) * s / static_cast<T>(1 + at.head);
        }
        if (which == Which::distance) {
            return 1;
        }
        const T t = tanh_of(s / static_cast<T>(a));
        return 1 - t * t;
    }

    [[gnu::always_inline]] bool keeps(const ScorePair& at) const
    {
        return which != Which::everything || (at.query * 7 + at.key * 3 + at.head + 2 * at.batch) % 5 != 0;
    }

    /// tanh by exp, which g++ has for GPUs.
    template <class T>
    [[gnu::always_inline]] static T tanh_of(T x)
    {
        const T bounded = x < T{-15} ? T{-15} : (x > T{15} ? T{15} : x);
        const T e = std::exp(2 * bounded);
        return (e - 1) / (e + 1);
    }
};

} // namespace flashomp::testing

#pragma omp end declare target
