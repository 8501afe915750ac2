// The plain machine, but for sums: they leave out hidden pairs, whatever the rows hold that these would be multiplied
// with. Slower than the plain machine, and for calls of which a machine found results that are not finite
// (nonfinite.hpp).
#pragma once

#include "plain/sliced_machine.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// Plain: PlainMachine or a SlicedMachine.
template <class Plain>
class VisibleOn : public Plain {
public:
    enum : int { leaves_out_hidden = 1 };
    enum : int { takes_masks = 1, takes_seams = 1 };

    using typename Plain::Accumulator, typename Plain::Scores, typename Plain::Stats, typename Plain::Stream;

    using Plain::Plain;

    /// Marks the elements (r, c) of a tile for which is_visible(r, c) does not hold. Between syncs.
    template <class F>
    FLASHOMP_INLINE void keep(Scores& s, F is_visible)
    {
        this->map(s, [=](float x, int r, int c) FLASHOMP_LAMBDA { return is_visible(r, c) ? x : float_of(hidden); });
    }

    FLASHOMP_INLINE void row_sum(const Scores& s, const Stats& sum)
    {
        const Scores tile = s;
        this->for_rows(this->all_rows(), [=](int r) FLASHOMP_LAMBDA {
            float total = sum[r];
            for (int c = 0; c < tile.count; ++c) {
                const float x = tile.at(r, c);
                total += bits_of(x) == hidden ? 0.0F : x;
            }
            sum[r] = total;
        });
    }

    FLASHOMP_INLINE void accumulate(Accumulator& a, const Scores& s, const Stream& stream)
    {
        sum_visible(a, s, stream, [](int) FLASHOMP_LAMBDA { return 1.0F; });
    }

    FLASHOMP_INLINE void accumulate(Accumulator& a, const Scores& s, const Stream& stream, bool, const Stats& factor)
    {
        sum_visible(a, s, stream, [=](int r) FLASHOMP_LAMBDA { return factor[r]; });
    }

private:
    /// A signalling NaN: arithmetic makes quiet ones, also of a signalling one in an input.
    enum : std::uint32_t { hidden = 0x7FA0DEADU };

    template <class F>
    FLASHOMP_INLINE void sum_visible(const Accumulator& a, const Scores& s, const Stream& stream, F factor)
    {
        const Accumulator target = a;
        const Scores scores = s;
        const int rows = this->all_rows();
        this->with_values(stream,
                          [=](auto value) FLASHOMP_LAMBDA { add_visible(target, scores, rows, value, factor); });
    }

    template <class V, class F>
    static FLASHOMP_INLINE void add_visible(const Accumulator& target, const Scores& s, int rows, const V& value,
                                            F factor)
    {
        const float* const left = s.data;
        const int lds = s.stride, count = s.count, width = Plain::padded(target.depth);
        FLASHOMP_FOR_CREW (item, rows * width) {
            const int r = item / width;
            const int x = item % width;
            float sum = 0.0F;
            for (int c = 0; c < count; ++c) {
                const float weight = left[c * lds + r];
                sum += bits_of(weight) == hidden ? 0.0F : weight * value(c, x);
            }
            float& total = target.data[r * target.stride + x];
            total = total * factor(r) + sum;
        }
    }
};

class VisibleMachine : public VisibleOn<PlainMachine> {
public:
    using VisibleOn::VisibleOn;
};

template <class Keys>
class VisibleSlicedMachine : public VisibleOn<SlicedMachine<Keys>> {
public:
    using VisibleOn<SlicedMachine<Keys>>::VisibleOn;
};

} // namespace flashomp::offload

#pragma omp end declare target
