#include "own_scores.hpp"

#include "flashomp/score_mod.hpp"

#include <cmath>

#pragma omp declare target

namespace flashomp::testing {

namespace {

/// One type for three scores: each type that score_mod() is given is a compilation of all passes.
struct Formula {
    enum : int { everything, distance, cap } which;
    float a;
    const float* slopes;

    template <class T>
    T score(T s, const ScorePair& at) const
    {
        if (which == everything) {
            return s + static_cast<T>(a) * s * s / static_cast<T>(1 + at.head);
        }
        if (which == cap) {
            return static_cast<T>(a) * tanh_of(s / static_cast<T>(a));
        }
        const int behind = at.query + at.seqlen_k - at.seqlen_q - at.key;
        return s - static_cast<T>(slopes[at.head]) * static_cast<T>(behind < 0 ? -behind : behind);
    }

    template <class T>
    T slope(T s, const ScorePair& at) const
    {
        if (which == everything) {
            return 1 + 2 * static_cast<T>(a) * s / static_cast<T>(1 + at.head);
        }
        if (which == distance) {
            return 1;
        }
        const T t = tanh_of(s / static_cast<T>(a));
        return 1 - t * t;
    }

    bool keeps(const ScorePair& at) const
    {
        return which != everything || (at.query * 7 + at.key * 3 + at.head) % 5 != 0;
    }

    /// tanh by exp, which g++ has for GPUs.
    template <class T>
    static T tanh_of(T x)
    {
        const T bounded = x < T{-15} ? T{-15} : (x > T{15} ? T{15} : x);
        const T e = std::exp(2 * bounded);
        return (e - 1) / (e + 1);
    }
};

} // namespace

} // namespace flashomp::testing

#pragma omp end declare target

namespace flashomp::testing {

ScoreMod distance(const float* slopes)
{
    return score_mod(Formula{Formula::distance, 0.0F, slopes});
}

ScoreMod cap(float c)
{
    return score_mod(Formula{Formula::cap, c, nullptr});
}

ScoreMod everything(float a)
{
    return score_mod(Formula{Formula::everything, a, nullptr});
}

} // namespace flashomp::testing
