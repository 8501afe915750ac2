// The plain machine for rows that team memory has no room for: head dims beyond most_plain_depth. Resident and streamed
// rows stay where they are. A product brings them a slice of columns at a time; a sum, which reads each row of values
// once for every few resident rows, reads them in place, neighbouring lanes neighbouring columns. Score tiles,
// accumulators and statistics are the plain machine's.
#pragma once

#include "plain/plain_machine.hpp"
#include "plain/row_values.hpp"
#include "plain/slices.hpp"

#include <type_traits>
#include <utility>

#pragma omp declare target

namespace flashomp::offload {

/// Keys: what a pass's keys and values come from.
template <class Keys>
class SlicedMachine : public PlainMachine {
    using Found = decltype(Keys::keys(std::declval<const Params&>(), Sequence{}, 0, 0, 0, 0));
    enum : int { is_cache = !std::is_same_v<Found, Rows> };

public:
    enum : int { slice = plain_slice }; // columns

    struct Block {
        float* data; ///< a slice of the rows, [row][odd stride]
        int rows;    ///< that there is room for
    };
    struct Resident : Block {
        Rows source;
    };
    struct Stream : Block {
        std::conditional_t<is_cache, CacheRows<Found>, Rows> source;
        FLASHOMP_INLINE Stream& operator[](Stage) { return *this; }
    };

    using PlainMachine::load;
    using PlainMachine::PlainMachine;

    static constexpr std::int64_t resident_floats(int rows, int) { return std::int64_t{rows} * odd(slice); }
    static constexpr std::int64_t stream_floats(int rows, int)
    {
        return std::int64_t{rows} * (odd(slice) + (is_cache ? int{CacheRows<Found>::floats_of_row} : 0));
    }

    FLASHOMP_INLINE Resident resident(int depth)
    {
        return {{take(resident_floats(resident_rows(), depth)), resident_rows()}, Rows{}};
    }
    FLASHOMP_INLINE Stream stream(const Tensor&, int depth, StreamUse)
    {
        const int rows = stream_rows();
        float* const memory = take(stream_floats(rows, depth));
        if constexpr (is_cache) { // rows are multiples of micro, and so is what was taken before
            auto* const offsets = reinterpret_cast<std::int64_t*>(memory);
            float* const scales = memory + 2 * rows;
            return {{scales + rows, rows}, {Found{}, offsets, scales}};
        } else {
            return {{memory, rows}, Rows{}};
        }
    }

    FLASHOMP_INLINE void load(Resident& block, const Rows& rows) { block.source = rows; }
    FLASHOMP_INLINE void load(Stream& block, const Found& rows)
    {
        if constexpr (is_cache) {
            block.source.rows = rows;
            std::int64_t* const offsets = block.source.offsets;
            float* const scales = block.source.scales;
            const Found found = rows;
            FLASHOMP_FOR_CREW (r, block.rows) {
                const bool is_there = r < pages_of(found).count; // no page is looked up beyond the keys
                offsets[r] = is_there ? pages_of(found).offset_of(r) : 0;
                scales[r] = is_there ? scale_of(found, r) : 0.0F;
            }
        } else {
            block.source = rows;
        }
    }

    FLASHOMP_INLINE void multiply(Scores& s, const Resident& block, const Stream& stream)
    {
        if constexpr (is_cache) {
            s.count = padded(pages_of(stream.source.rows).count); // as in the plain machine
        } else {
            s.count = padded(stream.source.count);
        }
        for (int x0 = 0; x0 < block.source.depth; x0 += slice) {
            load_slice(block, block.source, x0);
            load_slice(stream, stream.source, x0);
            sync();
            add_products(s, block, stream, x0 > 0);
            sync(); // before the next slice overwrites this one
        }
    }

    FLASHOMP_INLINE void multiply(Scores& s, const Resident& block, const Stream& stream, Scores& s2,
                                  const Resident& block2, const Stream& stream2)
    {
        multiply(s, block, stream);
        multiply(s2, block2, stream2);
    }

    FLASHOMP_INLINE void accumulate(Accumulator& a, const Scores& s, const Stream& stream)
    {
        accumulate_scaled(a, s, stream, [](int) FLASHOMP_LAMBDA { return 1.0F; });
    }

    FLASHOMP_INLINE void accumulate(Accumulator& a, const Scores& s, const Stream& stream, bool, const Stats& factor)
    {
        accumulate_scaled(a, s, stream, [=](int r) FLASHOMP_LAMBDA { return factor[r]; });
    }

    template <class F>
    FLASHOMP_INLINE void with_values(const Stream& stream, F f)
    {
        with_values_of(stream.source, f);
    }

private:
    template <class Source>
    FLASHOMP_INLINE void load_slice(const Block& block, const Source& source, int x0)
    {
        float* const target = block.data;
        const int rows = block.rows;
        with_values_of(source, [=](auto value) FLASHOMP_LAMBDA { fill_slice(target, rows, value, x0); });
    }

    template <class V>
    // NOLINTNEXTLINE(readability-non-const-parameter): the crew writes to it
    static FLASHOMP_INLINE void fill_slice(float* target, int rows, const V& value, int x0)
    {
        FLASHOMP_FOR_CREW (item, rows * slice) {
            const int r = item / slice;
            const int x = item % slice;
            target[r * odd(slice) + x] = value(r, x0 + x);
        }
    }

    /// s (+)= the products of two slices, shared out as in the plain machine.
    FLASHOMP_INLINE void add_products(const Scores& s, const Block& block, const Block& stream, bool adds)
    {
        float* const target = s.data;
        const float* const a = block.data;
        const float* const b = stream.data;
        const int lds = s.stride;
        const int step_r = resident_rows() / micro, step_c = stream_rows() / micro;
        FLASHOMP_FOR_CREW (item, step_r * step_c) {
            const int r0 = item / step_c;
            const int c0 = item % step_c;
            float acc[micro][micro] = {};
            FLASHOMP_UNROLL(4)
            for (int x = 0; x < slice; ++x) {
                float left[micro], right[micro];
                FLASHOMP_UNROLL(8)
                for (int i = 0; i < micro; ++i) {
                    left[i] = a[(r0 + i * step_r) * odd(slice) + x];
                    right[i] = b[(c0 + i * step_c) * odd(slice) + x];
                }
                FLASHOMP_UNROLL(8)
                for (int i = 0; i < micro; ++i) {
                    FLASHOMP_UNROLL(8)
                    for (int j = 0; j < micro; ++j) {
                        acc[i][j] += left[i] * right[j];
                    }
                }
            }
            FLASHOMP_UNROLL(8)
            for (int i = 0; i < micro; ++i) {
                FLASHOMP_UNROLL(8)
                for (int j = 0; j < micro; ++j) {
                    float& score = target[(c0 + j * step_c) * lds + r0 + i * step_r];
                    score = adds ? score + acc[i][j] : acc[i][j];
                }
            }
        }
    }

    template <class F>
    FLASHOMP_INLINE void accumulate_scaled(const Accumulator& a, const Scores& s, const Stream& stream, F factor)
    {
        const Accumulator sums = a;
        const Scores scores = s;
        const int step_r = resident_rows() / micro;
        with_values(stream, [=](auto value) FLASHOMP_LAMBDA { add_sums(sums, scores, step_r, value, factor); });
    }

    template <class V, class F>
    static FLASHOMP_INLINE void add_sums(const Accumulator& a, const Scores& s, int step_r, const V& value, F factor)
    {
        float* const target = a.data;
        const float* const left = s.data;
        const int ldc = a.stride, lds = s.stride, count = value.count, step_x = padded(a.depth) / micro;
        FLASHOMP_FOR_CREW (item, step_r * step_x) {
            const int r0 = item / step_x;
            const int x0 = item % step_x;
            float acc[micro][micro] = {};
            for (int c = 0; c < count; ++c) {
                float weights[micro], values[micro];
                FLASHOMP_UNROLL(8)
                for (int i = 0; i < micro; ++i) {
                    weights[i] = left[c * lds + r0 + i * step_r];
                    values[i] = value(c, x0 + i * step_x);
                }
                FLASHOMP_UNROLL(8)
                for (int i = 0; i < micro; ++i) {
                    FLASHOMP_UNROLL(8)
                    for (int j = 0; j < micro; ++j) {
                        acc[i][j] += weights[i] * values[j];
                    }
                }
            }
            FLASHOMP_UNROLL(8)
            for (int i = 0; i < micro; ++i) {
                const float by = factor(r0 + i * step_r);
                FLASHOMP_UNROLL(8)
                for (int j = 0; j < micro; ++j) {
                    float& sum = target[(r0 + i * step_r) * ldc + x0 + j * step_x];
                    sum = sum * by + acc[i][j];
                }
            }
        }
    }
};

} // namespace flashomp::offload

#pragma omp end declare target
