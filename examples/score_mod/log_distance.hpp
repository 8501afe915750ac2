// A penalty that grows with the logarithm of the distance, for each head another one, within chunks of the sequence.
#pragma once

#include <flashomp/score_pair.hpp>

#include <cmath>
#include <cstdlib>

// always_inline: in GPU code g++ 12 fails where a loop over a warp's lanes calls a function by reference.
#pragma omp declare target
struct LogDistance {
    float strength;
    int chunk;

    template <class T>
    [[gnu::always_inline]] T score(T s, const flashomp::ScorePair& at) const
    {
        const int distance = std::abs(at.query - at.key);
        return s - static_cast<T>(strength) / static_cast<T>(1 + at.head) * std::log(static_cast<T>(1 + distance));
    }
    template <class T>
    [[gnu::always_inline]] T slope(T /*s*/, const flashomp::ScorePair& /*at*/) const
    {
        return 1; // d(score)/ds
    }
    [[gnu::always_inline]] bool keeps(const flashomp::ScorePair& at) const
    {
        return at.key <= at.query && at.query / chunk == at.key / chunk;
    }
};
#pragma omp end declare target
