// A mask alone, for the host alone.
#include "own_scores.hpp"

#undef FLASHOMP_SCORE_MOD_GPU
#include "flashomp/score_mod.hpp"

namespace flashomp::testing {

namespace {

struct Documents {
    const int* of;

    bool keeps(const ScorePair& at) const
    {
        const int* const mine = of + at.batch * at.seqlen_k;
        return mine[at.query] == mine[at.key] && at.key <= at.query;
    }
};

} // namespace

ScoreMod documents(const int* documents)
{
    return score_mod(Documents{documents});
}

} // namespace flashomp::testing
