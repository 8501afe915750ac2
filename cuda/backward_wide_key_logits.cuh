// Modified scores in the dK/dV kernel of backward_wide_key.cuh, for the warpgroup that computes P.
#pragma once

#include "backward_wide_key_blocks.cuh"
#include "tile/modified_scores.cuh"

namespace flashomp::cuda {

/// Of a shape whose scores are not modified: nothing.
template <class Shape, bool is_modified = Shape::is_modified>
class WideKeyLogits {
public:
    __device__ __forceinline__ WideKeyLogits(WideKeyMemory<Shape>& /*memory*/, const Params& /*p*/,
                                             bool /*brings_bias*/)
    {
    }
};

template <class Shape>
class WideKeyLogits<Shape, true> {
    static constexpr int scores = Shape::block_m / 2; // registers
    using Logits = ModifiedScores<typename Shape::Math, Shape::softcap>;

public:
    __device__ __forceinline__ WideKeyLogits(WideKeyMemory<Shape>& memory, const Params& p, bool brings_bias)
        : memory_(memory), p_(p), brings_bias_(brings_bias)
    {
    }

    /// What dropout keeps, drawn while products are under way.
    __device__ __forceinline__ void draw(const BackwardItem<Shape>& item, int head, int i0)
    {
        kept_.set_all();
        if (p_.dropout_threshold != 0) {
            modified(item, head).template draw<true>(kept_, item.j0 + at_.row(), i0 + at_.column());
        }
    }

    /// Logits of dot products, -inf where hide() has it.
    template <class Hide>
    __device__ __forceinline__ void make(float (&s)[scores], const BackwardItem<Shape>& item, int head, int i0,
                                         bool hides, const Hide& hide)
    {
        const auto add_block = [&](const Logits& logits) {
            if constexpr (Shape::bias_bytes > 0) {
                if (brings_bias_) {
                    memory_.bias_barriers.read(at_, 0, bias_, [&] {
                        logits.template add_part<true, Shape::bias_queries>(s, memory_.bias.part[0]);
                    });
                }
            }
        };
        modified(item, head)
            .template make_logits<true>(s, item.j0 + at_.row(), i0 + at_.column(), brings_bias_, hides, add_block,
                                        hide);
    }

    /// Of four logits from s[i] on, with LSE at this stage: leaves the probabilities that dropout keeps. Returns what
    /// dS has of them all: times a softcap's slope, and with the sign of those that are dropped.
    __device__ __forceinline__ float4 exponentials(float (&s)[scores], int i, float2 lse, int stage) const
    {
        constexpr bool has_softcap = Shape::softcap == Softcap::alone;
        const float inverse = has_softcap ? offload::quotient(p_.scale, p_.softcap) : 0.0F;
        const LogitExponent<Shape> exponent{Logits::unit(p_)};
        float2 residual{};
        if constexpr (Shape::is_natural) {
            residual = reinterpret_cast<const float2*>(memory_.residual.stage[stage])[at_.lane % 4 + i];
        }
        float passed[4];
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            float& x = s[i + n];
            const bool is_left = n % 2 == 0;
            const float power = exponent(x, is_left ? lse.x : lse.y, is_left ? residual.x : residual.y);
            const float p = kept_.signed_of(ptx::exp2_approx(power), i + n);
            passed[n] = has_softcap ? p * Logits::slope_at(x, inverse) : p;
            x = ptx::max(p, 0.0F);
        }
        return make_float4(passed[0], passed[1], passed[2], passed[3]);
    }

private:
    __device__ __forceinline__ Logits modified(const BackwardItem<Shape>& item, int head) const
    {
        return Logits(p_, item.band, item.batch, item.head_kv * item.group + head);
    }

    WideKeyMemory<Shape>& memory_;
    const Params& p_;
    const bool brings_bias_;
    const Lane at_;
    RingPlace<1> bias_;
    KeptPairs<scores> kept_;
};

} // namespace flashomp::cuda
