// What all host machines share: a crew is one thread, tiles live in its cache.
//
// Vector lanes run along resident rows: a score tile is a row of strips, each of one vector of resident rows, stored
// [strip][c][lane]. So a row's statistics are a lane's, row maxima and sums need no horizontal step and stay in
// registers while the columns of a strip pass by, and a strip's part of a product is contiguous.
#pragma once

#include "algorithm/kept_bits.hpp"
#include "algorithm/machine.hpp"
#include "algorithm/modification.hpp"
#include "host/lanes.hpp"

#include <cstddef>
#include <type_traits>

namespace flashomp::offload {

/// Isa says what the translation unit is compiled for (lanes: floats in a vector register), and keeps the
/// instantiations for different instruction sets apart. has_low: some score tiles hold sums of two floats.
template <class Isa, bool has_low = false>
class HostTile {
public:
    enum : int { lanes = Isa::lanes }; // not a static member: g++ calls classes with those not mappable
    enum : int { leaves_out_padding };
    enum : int { takes_masks, takes_seams, knows_parts };

    using Modification = ModificationOf<Isa>;
    using Row = int;
    struct Stage {}; ///< one: a block is loaded when it is needed

    struct Scores {
        float* data;
        int columns;          ///< that there is room for
        int count;            ///< in use
        void* packed;         ///< room for what a machine makes of the tile before it multiplies
        float* low = nullptr; ///< to be added to data, laid out like it; null: nothing
        [[nodiscard]] FLASHOMP_INLINE float* strip(int r) const { return data + std::ptrdiff_t{r} * columns; }
        [[nodiscard]] FLASHOMP_INLINE float* low_strip(int r) const { return low + std::ptrdiff_t{r} * columns; }
        FLASHOMP_INLINE float& at(int r, int c) const { return strip(r / lanes * lanes)[c * lanes + r % lanes]; }
    };
    struct Stats {
        float* data;
        FLASHOMP_INLINE float& operator[](int r) const { return data[r]; }
        FLASHOMP_INLINE const Stats& operator[](Stage) const { return *this; }
    };
    using ColumnStats = Stats;
    using ColumnStatsBlock = Stats;

    /// `memory` is the crew's own, 64-byte aligned and as large as *_floats() in forward.hpp and backward.hpp say.
    HostTile(float* memory, int resident_rows, int stream_rows)
        : rows_(resident_rows), next_(memory), resident_rows_(resident_rows), stream_rows_(stream_rows)
    {
    }

    FLASHOMP_INLINE int resident_rows() const { return resident_rows_; }
    FLASHOMP_INLINE int stream_rows() const { return stream_rows_; }

    static constexpr std::int64_t stats_floats(int rows) { return whole_lines(padded(rows), 1); }

    FLASHOMP_INLINE Stats row_stats() { return {take(stats_floats(resident_rows_))}; }
    FLASHOMP_INLINE ColumnStats column_stats() { return {take(stats_floats(stream_rows_))}; }

    static FLASHOMP_INLINE float lag() { return 0.0F; }
    static FLASHOMP_INLINE float exp2(float x) { return exp2_fast(x); }

    FLASHOMP_INLINE void load(const ColumnStats& stats, const float* source, int count)
    {
        for (int c = 0; c < stream_rows_; ++c) {
            stats[c] = c < count ? source[c] : 0.0F;
        }
    }

    template <class LoadBlock, class Score, class Attend>
    FLASHOMP_INLINE void for_blocks(Range range, int step, LoadBlock load_block, Score score, Attend attend)
    {
        for (int j0 = range.begin; j0 < range.end; j0 += step) {
            load_block(j0, Stage{}, Load::for_scores);
            load_block(j0, Stage{}, Load::for_sums);
            score(j0, Stage{});
            attend(j0, Stage{});
        }
    }

    template <class... S>
    FLASHOMP_INLINE void finish(const S&...)
    {
    }

    template <class F>
    FLASHOMP_INLINE void combine(Scores& s, Scores& other, F f)
    {
        if constexpr (has_low && std::is_invocable_v<F, float, float&, int, int, float>) {
            if (other.low != nullptr) {
                return combine_with(s, other, f, other.low);
            }
        }
        combine_with(s, other, f);
    }

    template <class F>
    FLASHOMP_INLINE void map(Scores& s, F f)
    {
        for (int r0 = 0; r0 < rows_; r0 += lanes) {
            for (int c = 0; c < s.count; ++c) {
                float* const row = s.strip(r0) + c * lanes;
#pragma omp simd
                for (int lane = 0; lane < lanes; ++lane) {
                    row[lane] = f(row[lane], r0 + lane, c);
                }
            }
        }
    }

    /// Hides what the masks of a head hide, of pairs from (i0, j0) on: rows are queries, or with keys_are_rows keys. No
    /// pair past `queries` and `keys`, the ends of the sequence, is looked at.
    template <bool keys_are_rows>
    FLASHOMP_INLINE void hide(Scores& s, const PairMask& mask, int i0, int j0, int queries, int keys)
    {
        static_assert(lanes <= 32);
        constexpr int most = most_kept;
        for (int r0 = 0; r0 < rows_; r0 += lanes) {
            for (int c0 = 0; c0 < s.count; c0 += most) {
                const int count = s.count - c0 < most ? s.count - c0 : most;
                std::uint32_t kept[most] = {}; // of each column a bit a lane
                if constexpr (keys_are_rows) {
                    const int there = keys - (j0 + r0) < lanes ? keys - (j0 + r0) : lanes;
                    for (int c = 0; c < count && there > 0 && i0 + c0 + c < queries; ++c) {
                        kept[c] = kept_bits(mask, i0 + c0 + c, j0 + r0, there);
                    }
                } else {
                    keep_rows(kept, count, mask, i0 + r0, j0 + c0, queries, keys);
                }
                for (int c = 0; c < count; ++c) {
                    float* const row = s.strip(r0) + (c0 + c) * lanes;
                    const std::uint32_t bits = kept[c];
#pragma omp simd
                    for (int lane = 0; lane < lanes; ++lane) {
                        row[lane] = ((bits >> lane) & 1U) != 0 ? row[lane] : -infinity;
                    }
                }
            }
        }
    }

    /// Probabilities after dropout, of pairs from (i0, j0) on; rows are queries. Four neighbouring keys share their
    /// draws.
    template <class AnyScore>
    FLASHOMP_INLINE void drop(Scores& s, const AnyScore& score, int i0, int j0)
    {
        for (int r0 = 0; r0 < rows_; r0 += lanes) {
            std::uint32_t queries[lanes];
            for (int lane = 0; lane < lanes; ++lane) {
                queries[lane] = score.drawn_query(i0 + r0 + lane);
            }
            typename Lanes::Bits i;
            __builtin_memcpy(&i, queries, sizeof i);
            Vector* const x = vectors(s.strip(r0));
            typename Lanes::Draws draws = {};
            for (int c = 0; c < s.count; ++c) {
                const std::uint32_t key = score.drawn_key(j0 + c);
                if (c == 0 || key / 4 != score.drawn_key(j0 + c - 1) / 4) {
                    draws = Lanes::dropout_draws(score.dropout_key, score.batch, score.head, i, key / 4);
                }
                x[c] = draws.word[key % 4] >= score.dropout_threshold ? x[c] * score.dropout_scale : Vector{};
            }
        }
    }

    FLASHOMP_INLINE void clear(Scores& s)
    {
        s.count = stream_rows_;
        for (std::ptrdiff_t i = 0; i < std::ptrdiff_t{padded(resident_rows_)} * s.columns; ++i) {
            s.data[i] = 0.0F;
        }
    }

    FLASHOMP_INLINE void add(Scores& total, const Scores& s)
    {
        for (int r0 = 0; r0 < rows_; r0 += lanes) {
            for (int i = 0; i < s.count * lanes; ++i) {
                total.strip(r0)[i] += s.strip(r0)[i];
            }
        }
    }

    FLASHOMP_INLINE void row_max(const Scores& s, const Stats& max)
    {
        for (int r0 = 0; r0 < rows_; r0 += lanes) {
            with_scores(s, r0, [&](auto score) FLASHOMP_LAMBDA {
                Vector top[chains];
                for (Vector& t : top) {
                    t = *vectors(max.data + r0);
                }
                int c = 0;
                for (; c + chains <= s.count; c += chains) {
#pragma GCC unroll 4
                    for (int i = 0; i < chains; ++i) {
                        top[i] = Lanes::max(score(c + i), top[i]);
                    }
                }
                for (; c < s.count; ++c) {
                    top[0] = Lanes::max(score(c), top[0]);
                }
                *vectors(max.data + r0) = Lanes::max(Lanes::max(top[0], top[1]), Lanes::max(top[2], top[3]));
            });
        }
    }

    FLASHOMP_INLINE void row_sum(const Scores& s, const Stats& sum)
    {
        for (int r0 = 0; r0 < rows_; r0 += lanes) {
            const Vector* const x = vectors(s.strip(r0));
            Sums total(*vectors(sum.data + r0));
            total.add(s.count, [x](int c) FLASHOMP_LAMBDA { return x[c]; });
            *vectors(sum.data + r0) = total.get();
        }
    }

    FLASHOMP_INLINE bool any_above(const Stats& x, const Stats& y)
    {
        int above = 0;
#pragma omp simd reduction(+ : above)
        for (int r = 0; r < rows_; ++r) {
            above += x[r] > y[r] ? 1 : 0;
        }
        return above > 0;
    }

    FLASHOMP_INLINE void exp_sum(Scores& s, const Stats& base, float factor, const Stats& sum)
    {
        for (int r0 = 0; r0 < rows_; r0 += lanes) {
            Vector* const x = vectors(s.strip(r0));
            const Vector b = *vectors(base.data + r0);
            Sums total(*vectors(sum.data + r0));
            with_scores(s, r0, [&](auto score) FLASHOMP_LAMBDA {
                total.add(s.count, [&](int c) FLASHOMP_LAMBDA {
                    const Vector p = Lanes::exp2(score.above(c, b) * factor);
                    x[c] = p;
                    return p;
                });
            });
            *vectors(sum.data + r0) = total.get();
        }
    }

    /// Finding out would cost as much as the maximum.
    static FLASHOMP_INLINE bool may_exceed(const Scores&, const Stats&)
    {
        return true;
    }

    FLASHOMP_INLINE void complete(const Stats&) {}

    FLASHOMP_INLINE void row_dot(const Rows& a, const Rows& b, const Stats& dot)
    {
        with_element(a, [&](const auto* data_a) {
            with_element(b, [&](const auto* data_b) { // o may be float32 beside a dout of 16 bits
                for (int r = 0; r < a.count; ++r) {
                    const auto* x = data_a + a.offset + r * a.stride;
                    const auto* y = data_b + b.offset + r * b.stride;
                    float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
                    for (int i = 0; i < a.depth; ++i) {
                        sum += to_float(x[i]) * to_float(y[i]);
                    }
                    dot[r] = sum;
                }
            });
        });
    }

    template <class F>
    FLASHOMP_INLINE void for_rows(F f)
    {
        for_rows(resident_rows_, f);
    }

    template <class F>
    FLASHOMP_INLINE void for_rows(int count, F f)
    {
        for (int r = 0; r < count; ++r) {
            f(r);
        }
    }

    template <class F>
    FLASHOMP_INLINE void for_elements(int rows, int depth, F f)
    {
        for (int r = 0; r < rows; ++r) {
#pragma omp simd
            for (int x = 0; x < depth; ++x) {
                f(r, x);
            }
        }
    }

    FLASHOMP_INLINE void sync() {}

protected:
    enum : int { most_kept = 64 }; // columns at a time of hide()

    /// The bits of hide() where rows are queries: those of a query turned over to its lane.
    static FLASHOMP_INLINE void keep_rows(std::uint32_t (&kept)[most_kept], int count, const PairMask& mask, int i0,
                                          int j0, int queries, int keys)
    {
        constexpr int most = 32;
        count = keys - j0 < count ? keys - j0 : count;
        for (int lane = 0; lane < lanes && i0 + lane < queries; ++lane) {
            for (int c0 = 0; c0 < count; c0 += most) {
                const std::uint32_t bits = kept_bits(mask, i0 + lane, j0 + c0, count - c0 < most ? count - c0 : most);
#pragma omp simd
                for (int c = 0; c < most; ++c) {
                    kept[c0 + c] |= ((bits >> c) & 1U) << lane;
                }
            }
        }
    }

    using Lanes = offload::Lanes<Isa>;
    using Vector = typename Lanes::Vector;
    enum : int { chains = 4 }; // sums and maxima in flight: as many as an addition takes cycles

    /// A sum of vectors, in a few chains. Their number, and the chain that a vector goes to by its place in the tile,
    /// are part of the result: so zeros at the end of a longer tile change no bit.
    struct Sums {
        Vector part[chains] = {};
        FLASHOMP_INLINE explicit Sums(Vector start) { part[0] = start; }
        template <class F>
        FLASHOMP_INLINE void add(int count, F f)
        {
            int c = 0;
            for (; c + chains <= count; c += chains) {
#pragma GCC unroll 4
                for (int i = 0; i < chains; ++i) {
                    part[i] += f(c + i);
                }
            }
            for (int i = 0; c < count; ++c, ++i) {
                part[i] += f(c);
            }
        }
        [[nodiscard]] FLASHOMP_INLINE Vector get() const
        {
            return (part[0] + part[1]) + (part[2] + part[3]);
        }
    };

    /// A strip of scores, and of scores that are sums of two floats: the difference to a base near them is rounded
    /// once.
    struct Single {
        const Vector* x;
        FLASHOMP_INLINE Vector operator()(int c) const { return x[c]; }
        FLASHOMP_INLINE Vector above(int c, Vector base) const { return x[c] - base; }
    };
    struct Sum {
        const Vector *x, *low;
        FLASHOMP_INLINE Vector operator()(int c) const { return x[c] + low[c]; }
        FLASHOMP_INLINE Vector above(int c, Vector base) const { return (x[c] - base) + low[c]; }
    };

    template <class F>
    static FLASHOMP_INLINE void with_scores(const Scores& s, int r0, F f)
    {
        if constexpr (has_low) {
            if (s.low != nullptr) {
                return f(Sum{vectors(s.strip(r0)), vectors(s.low_strip(r0))});
            }
        }
        f(Single{vectors(s.strip(r0))});
    }

    /// combine(), with what `low` has for an element as f()'s last argument where there is one.
    template <class F, class... Low>
    FLASHOMP_INLINE void combine_with(Scores& s, Scores& other, F f, const Low*... low)
    {
        for (int r0 = 0; r0 < rows_; r0 += lanes) {
            for (int c = 0; c < s.count; ++c) {
                const std::ptrdiff_t first = std::ptrdiff_t{r0} * s.columns + c * lanes;
                float* const row = s.data + first;
                float* const other_row = other.data + first;
#pragma omp simd
                for (int lane = 0; lane < lanes; ++lane) {
                    float value = other_row[lane];
                    row[lane] = f(row[lane], value, r0 + lane, c, low[first + lane]...);
                    other_row[lane] = value;
                }
            }
        }
    }

    static FLASHOMP_INLINE Vector* vectors(float* data)
    {
        return reinterpret_cast<Vector*>(data);
    }

    static constexpr int padded(int n)
    {
        return (n + lanes - 1) / lanes * lanes;
    }

    FLASHOMP_INLINE float* take(std::int64_t floats)
    {
        float* block = next_;
        next_ += floats;
        return block;
    }

    /// Floats of a rows x depth piece in whole cache lines of 16, so that every piece starts on one.
    static constexpr std::int64_t whole_lines(std::int64_t rows, std::int64_t depth)
    {
        return (rows * depth + 15) / 16 * 16;
    }

    template <class F>
    static FLASHOMP_INLINE void with_element(const Rows& rows, F f)
    {
        switch (rows.element) {
        case Element::float32:
            return f(static_cast<float*>(rows.data));
        case Element::bfloat16:
            return f(static_cast<BFloat16*>(rows.data));
        case Element::float16:
            return f(static_cast<Float16*>(rows.data));
        }
    }

    int rows_; ///< resident rows in use, rounded up to whole vectors

private:
    float* next_;
    int resident_rows_, stream_rows_;
};

} // namespace flashomp::offload
