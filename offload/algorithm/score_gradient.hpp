// From a dot product and dP to P and dS of one element: what the backward passes do to every pair of a query and a key.
//
//     P = e^(s - LSE)    dS = P∘(dP - D), and with a softcap times its slope
#pragma once

#include "algorithm/score.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// P and dS of one element from its dot product and dP. residual is base 2; an lse of +inf stands for a row without
/// keys.
template <bool modified, bool masked, class Machine, Known known = Known{}>
struct ScoreGradient {
    const ScoreOn<Machine>& score; // a copy of so many fields would not be kept in registers

    /// low: what is to be added to the dot product, from a machine that has it. The difference to LSE, which is small
    /// where P is not, is rounded once, in both passes and under every mask: with logits of thousands P would else be
    /// another by 0.1 %.
    template <class... Low>
    FLASHOMP_INLINE float probability(float dot, float lse, float residual, int i, int j, Low... low) const
    {
        float difference = 0.0F;
        if constexpr (modified) {
            difference = score.template operator()<masked, known>(dot, i, j) - lse;
        } else {
            difference = fused(score.scale, dot, -lse);
            if constexpr (sizeof...(Low) > 0) {
                difference += score.scale * (low + ...);
            }
            difference = !masked || score.band.keeps(i, j) ? difference : -infinity;
        }
        return Machine::exp2(fused(difference, log2_e, -residual)); // rounded once, whatever the tile
    }

    /// d(loss)/d(logit after softcap, ALiBi and bias); dp is the gradient of the probability after dropout.
    FLASHOMP_INLINE float logit(float p, float dp, float delta, float dropout) const
    {
        return p * (dp * dropout - delta);
    }

    /// d(loss)/d(scaled dot product)
    FLASHOMP_INLINE float operator()(float dot, float p, float dp, float delta, float dropout, int i, int j) const
    {
        float ds = logit(p, dp, delta, dropout);
        if constexpr (modified) {
            ds *= score.template slope_at<known>(dot, i, j);
        }
        return ds;
    }

    FLASHOMP_INLINE float dropout(int i, int j) const
    {
        if constexpr (modified) {
            return score.template dropout<known>(i, j);
        }
        return 1.0F;
    }
};

/// Rows without keys have LSE = -inf, which would make P = e^(+inf): +inf makes it 0.
FLASHOMP_INLINE float usable_lse(float lse)
{
    return lse == -infinity ? infinity : lse;
}

/// What the dQ pass makes of dP: leaves dS, and in the other tile what is summed over the row: P, or P∘(dP - D) where a
/// softcap makes dS something else.
template <bool modified, bool masked, class Machine, Known known = Known{}>
struct QueryGradient {
    ScoreGradient<modified, masked, Machine, known> gradient;
    typename Machine::Stats lse, delta;
    int i0, j0;
    bool keeps_shift;

    // In two steps, for a machine that has dP late: P, and dS from it without the dot product, as modified scores need
    // it.
    FLASHOMP_INLINE float first(float dot, typename Machine::Row r, int c) const
    {
        return gradient.probability(dot, lse[r], 0.0F, i0 + r, j0 + c);
    }
    FLASHOMP_INLINE float second(float dp, float p, typename Machine::Row r, int /*c*/) const
    {
        return gradient.logit(p, dp, delta[r], 1.0F);
    }

    template <class... Low>
    FLASHOMP_INLINE float operator()(float dp, float& x, typename Machine::Row r, int c, Low... low) const
    {
        const float dot = x;
        const float p = gradient.probability(dot, lse[r], 0.0F, i0 + r, j0 + c, low...);
        const float dropout = gradient.dropout(i0 + r, j0 + c);
        x = keeps_shift ? gradient.logit(p, dp, delta[r], dropout) : p;
        return gradient(dot, p, dp, delta[r], dropout, i0 + r, j0 + c);
    }
};

/// What the dK/dV pass makes of dP: leaves dS, and in the other tile the P that dV sums. Rows are keys here, columns
/// queries.
template <bool modified, bool masked, class Machine, Known known = Known{}>
struct KeyGradient {
    ScoreGradient<modified, masked, Machine, known> gradient;
    typename Machine::ColumnStatsBlock lse, delta, residual;
    int i0, j0;

    // The two steps, as of QueryGradient.
    FLASHOMP_INLINE float first(float dot, typename Machine::Row r, int c) const
    {
        return gradient.probability(dot, usable_lse(lse[c]), residual[c], i0 + c, j0 + r);
    }
    FLASHOMP_INLINE float second(float dp, float p, typename Machine::Row /*r*/, int c) const
    {
        return gradient.logit(p, dp, delta[c], 1.0F);
    }

    template <class... Low>
    FLASHOMP_INLINE float operator()(float dp, float& x, typename Machine::Row r, int c, Low... low) const
    {
        const float dot = x;
        const float p = gradient.probability(dot, usable_lse(lse[c]), residual[c], i0 + c, j0 + r, low...);
        const float dropout = gradient.dropout(i0 + c, j0 + r);
        x = p * dropout;
        return gradient(dot, p, dp, delta[c], dropout, i0 + c, j0 + r);
    }
};

/// The P that dV sums, where dK is not computed along with it. Rows are keys, columns queries.
template <bool modified, bool masked, class Machine, Known known = Known{}>
struct KeyProbability {
    ScoreGradient<modified, masked, Machine, known> gradient;
    typename Machine::ColumnStatsBlock lse, residual;
    int i0, j0;

    FLASHOMP_INLINE float operator()(float dot, typename Machine::Row r, int c) const
    {
        return gradient.probability(dot, usable_lse(lse[c]), residual[c], i0 + c, j0 + r) *
               gradient.dropout(i0 + c, j0 + r);
    }
};

} // namespace flashomp::offload

#pragma omp end declare target
