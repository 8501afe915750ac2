#include "own_scores.hpp"

#include "formula.hpp"

#include "flashomp/score_mod.hpp"

namespace flashomp::testing {

ScoreMod distance(const float* slopes)
{
    return score_mod(Formula{Formula::Which::distance, 0.0F, slopes});
}

ScoreMod cap(float c)
{
    return score_mod(Formula{Formula::Which::cap, c, nullptr});
}

ScoreMod everything(float a)
{
    return score_mod(Formula{Formula::Which::everything, a, nullptr});
}

} // namespace flashomp::testing
