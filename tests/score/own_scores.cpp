#include "own_scores.hpp"

#include "formula.hpp"

#include "flashomp/score_mod.hpp"

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
