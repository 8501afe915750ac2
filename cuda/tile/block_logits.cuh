// What a warpgroup of a backward kernel makes of its scores: of a Modified shape logits, and -inf where masks hide
// them. Then P and dS of such logits.
#pragma once

#include "tile/modified_scores.cuh"

namespace flashomp::cuda {

/// score_gradients() (warpgroup.cuh) where dp is that of the probabilities behind dropout, which multiplies what it
/// keeps by `by`; p has the sign of what it drops.
__device__ __forceinline__ void kept_gradients(float* dp, float4 p, float2 delta, float by)
{
    const float of[4] = {p.x, p.y, p.z, p.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float kept = of[i] < 0.0F ? 0.0F : dp[i];
        dp[i] = __builtin_fabsf(of[i]) * __builtin_fmaf(kept, by, i % 2 == 0 ? -delta.x : -delta.y);
    }
}

/// What 2 is to be raised to for the probability of a modified logit, in a backward pass whose shape says what LSE is.
template <class Shape>
struct LogitExponent {
    float unit; ///< ModifiedScores::unit()

    /// residual: what rounding took from a natural LSE, base 2.
    __device__ __forceinline__ float operator()(float x, float lse, float residual = 0.0F) const
    {
        return Shape::is_natural ? __builtin_fmaf(__builtin_fmaf(x, unit, -lse), log2_e, -residual)
                                 : __builtin_fmaf(x, unit * log2_e, -lse);
    }
};

/// Of one block after another. The copy engine brings this part of the bias, or none.
template <class Shape, class Memory, bool keys_are_rows, bool is_modified = Shape::is_modified>
class BlockLogits {
public:
    __device__ __forceinline__ BlockLogits(Memory& /*memory*/, const offload::Params& /*p*/, bool /*brings_bias*/,
                                           int /*part*/)
    {
    }

    template <class Item>
    __device__ __forceinline__ void draw(const Item& /*item*/, int /*head*/, int /*row*/, int /*column*/)
    {
    }

    template <class Item, int n, class Hide>
    __device__ __forceinline__ void make(float (&/*s*/)[n], const Item& /*item*/, int /*head*/, int /*row*/,
                                         int /*column*/, bool hides, const Hide& hide)
    {
        if (hides) {
            hide();
        }
    }
};

template <class Shape, class Memory, bool keys_are_rows>
class BlockLogits<Shape, Memory, keys_are_rows, true> {
    static constexpr int scores = (keys_are_rows ? Shape::block_m : Shape::block_n) / 2; // registers
    using Scores = ModifiedScores<typename Shape::Math, Shape::softcap>;

public:
    __device__ __forceinline__ BlockLogits(Memory& memory, const offload::Params& p, bool brings_bias, int part)
        : memory_(memory), p_(p), brings_bias_(brings_bias), part_(part)
    {
    }

    /// What dropout keeps of the next block, while products are under way. row, column: of the lane's first element.
    template <class Item>
    __device__ __forceinline__ void draw(const Item& item, int head, int row, int column)
    {
        kept_.set_all();
        if (p_.dropout_threshold != 0) {
            Scores(p_, item.band, item.batch, head).template draw<keys_are_rows>(kept_, row, column);
        }
    }
    __device__ __forceinline__ const KeptPairs<scores>& kept() const { return kept_; }

    /// Logits divided by ModifiedScores::unit(), and -inf where hide() has it.
    template <class Item, class Hide>
    __device__ __forceinline__ void make(float (&s)[scores], const Item& item, int head, int row, int column,
                                         bool hides, const Hide& hide)
    {
        const Scores modified(p_, item.band, item.batch, head);
        const bool has_softcap =
            Shape::softcap == Softcap::alone || (Shape::softcap == Softcap::asked && p_.softcap > 0.0F);
        if (has_softcap && hides) { // which looks at the largest, and hidden pairs are none
            hide();
        }
        modified.template apply<keys_are_rows>(s, row, column, brings_bias_, hides);
        if constexpr (Shape::bias_bytes > 0) {
            if (brings_bias_) {
                memory_.bias_barriers.read(at_, part_, bias_, [&] {
                    modified.template add_part<keys_are_rows, Shape::bias_queries>(s, memory_.bias.part[part_]);
                });
            }
        }
        if (hides) {
            hide();
        }
    }

    /// Of keys as rows: four logits from s[i] on become the probabilities that dropout keeps. Returns what dS has of
    /// them all: times a softcap's slope, and with the sign of those that are dropped.
    __device__ __forceinline__ float4 exponentials(float (&s)[scores], int i, float2 lse, float2 residual) const
    {
        constexpr bool has_softcap = Shape::softcap == Softcap::alone;
        const float inverse = has_softcap ? offload::quotient(p_.scale, p_.softcap) : 0.0F;
        const LogitExponent<Shape> exponent{Scores::unit(p_)};
        float passed[4];
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            float& x = s[i + n];
            const bool is_left = n % 2 == 0;
            const float power = exponent(x, is_left ? lse.x : lse.y, is_left ? residual.x : residual.y);
            const float p = kept_.signed_of(ptx::exp2_approx(power), i + n);
            passed[n] = has_softcap ? p * Scores::slope_at(x, inverse) : p;
            x = p < 0.0F ? 0.0F : p; // a NaN stays one
        }
        return make_float4(passed[0], passed[1], passed[2], passed[3]);
    }

private:
    Memory& memory_;
    const offload::Params& p_;
    const bool brings_bias_;
    const int part_;
    const Lane at_;
    RingPlace<1> bias_;
    KeptPairs<scores> kept_;
};

} // namespace flashomp::cuda
