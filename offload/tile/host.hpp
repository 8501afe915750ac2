// The host tile machine: a crew is one thread, tiles live in its cache, products run on its vector registers.
//
// Vector lanes run along resident rows in score tiles (stored [c][r]) and along the depth in accumulators, so that
// both products are one matrix kernel with unit-stride loads, row maxima and sums need no horizontal step, and
// streamed blocks are used in the layout they have in memory; only resident blocks, loaded once, are transposed.
#pragma once

#include "tile/machine.hpp"
#include "tile/math.hpp"

#include <cstddef>

namespace flashomp::offload {

/// Isa says what the translation unit is compiled for: lanes (floats in a vector register) and the register block
/// of the matrix kernel (rows x vectors). It also keeps the instantiations for different instruction sets apart.
template <class Isa>
class HostMachine {
public:
    enum : int { lanes = Isa::lanes }; // not a static member: g++ calls classes with those not mappable

    using Row = int;
    struct Stage {}; ///< one: a block is loaded when it is needed

    struct Resident {
        float* data; ///< [depth][rows]: transposed
        int depth, rows;
    };
    struct Stream {
        float* data; ///< [count][padded depth]
        int depth, padded, count;
        FLASHOMP_INLINE Stream& operator[](Stage) { return *this; }
    };
    struct Scores {
        float* data; ///< [c][r]
        int rows, count;
        FLASHOMP_INLINE float& at(int r, int c) const { return data[std::ptrdiff_t{c} * rows + r]; }
    };
    struct Accumulator {
        float* data; ///< [r][padded depth]
        int depth, padded;
    };
    struct Stats {
        float* data;
        FLASHOMP_INLINE float& operator[](int r) const { return data[r]; }
        FLASHOMP_INLINE const Stats& operator[](Stage) const { return *this; }
    };
    using ColumnStats = Stats;
    using ColumnStatsBlock = Stats;

    /// `memory` is the crew's own, 64-byte aligned and as large as *_floats() in forward.hpp and backward.hpp say.
    HostMachine(float* memory, int resident_rows, int stream_rows)
        : next_(memory), resident_rows_(resident_rows), stream_rows_(stream_rows), rows_(resident_rows)
    {
    }

    FLASHOMP_INLINE int resident_rows() const { return resident_rows_; }
    FLASHOMP_INLINE int stream_rows() const { return stream_rows_; }

    static constexpr int padded(int n) { return (n + lanes - 1) / lanes * lanes; }
    static constexpr std::int64_t resident_floats(int rows, int depth) { return whole_lines(padded(rows), depth); }
    static constexpr std::int64_t stream_floats(int rows, int depth) { return whole_lines(rows, padded(depth)); }
    static constexpr std::int64_t scores_floats(int rows, int columns) { return whole_lines(padded(rows), columns); }
    static constexpr std::int64_t accumulator_floats(int rows, int depth)
    {
        return whole_lines(padded(rows), padded(depth));
    }
    static constexpr std::int64_t stats_floats(int rows) { return whole_lines(padded(rows), 1); }

    FLASHOMP_INLINE Resident resident(int depth)
    {
        return {take(resident_floats(resident_rows_, depth)), depth, padded(resident_rows_)};
    }
    FLASHOMP_INLINE Stream stream(const Tensor&, int depth, StreamUse)
    {
        return {take(stream_floats(stream_rows_, depth)), depth, padded(depth), 0};
    }
    FLASHOMP_INLINE Scores scores()
    {
        return {take(scores_floats(resident_rows_, stream_rows_)), padded(resident_rows_), 0};
    }
    FLASHOMP_INLINE Accumulator accumulator(int depth)
    {
        const std::int64_t floats = accumulator_floats(resident_rows_, depth);
        Accumulator a{take(floats), depth, padded(depth)};
        for (std::int64_t i = 0; i < floats; ++i) {
            a.data[i] = 0.0F;
        }
        return a;
    }
    FLASHOMP_INLINE Stats row_stats() { return {take(stats_floats(resident_rows_))}; }
    FLASHOMP_INLINE ColumnStats column_stats() { return {take(stats_floats(stream_rows_))}; }

    static FLASHOMP_INLINE float lag() { return 0.0F; }
    static FLASHOMP_INLINE float exp2(float x) { return exp2_fast(x); }

    void load(Resident& block, const Rows& rows)
    {
        rows_ = padded(rows.count); // later products skip vectors of rows that are not there
        with_element(rows, [&](const auto* data) {
            for (int r = 0; r < rows_; ++r) {
                for (int x = 0; x < block.depth; ++x) {
                    block.data[std::ptrdiff_t{x} * block.rows + r] =
                        r < rows.count ? to_float(data[rows.offset + r * rows.stride + x]) : 0.0F;
                }
            }
        });
    }

    void load(Stream& block, const Rows& rows)
    {
        block.count = rows.count;
        with_element(rows, [&](const auto* data) {
            for (int r = 0; r < rows.count; ++r) {
                const auto* source = data + rows.offset + r * rows.stride;
                float* target = block.data + std::ptrdiff_t{r} * block.padded;
#pragma omp simd
                for (int x = 0; x < block.depth; ++x) {
                    target[x] = to_float(source[x]);
                }
                for (int x = block.depth; x < block.padded; ++x) {
                    target[x] = 0.0F;
                }
            }
        });
    }

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

    FLASHOMP_INLINE void multiply(Scores& s, const Resident& block, const Stream& stream)
    {
        s.count = stream.count;
        matrix_kernel(s.data, s.rows, stream.data, stream.padded, 1, block.data, block.rows, stream.count, rows_,
                      block.depth, Start::zero);
    }

    FLASHOMP_INLINE void multiply(Scores& s, const Resident& block, const Stream& stream, Scores& s2,
                                  const Resident& block2, const Stream& stream2)
    {
        multiply(s, block, stream);
        multiply(s2, block2, stream2);
    }

    template <class... S>
    FLASHOMP_INLINE void finish(const S&...)
    {
    }

    template <class F>
    FLASHOMP_INLINE void combine(Scores& s, Scores& other, F f)
    {
        for (int c = 0; c < s.count; ++c) {
            float* row = s.data + std::ptrdiff_t{c} * s.rows;
            float* other_row = other.data + std::ptrdiff_t{c} * other.rows;
#pragma omp simd
            for (int r = 0; r < rows_; ++r) {
                float value = other_row[r];
                row[r] = f(row[r], value, r, c);
                other_row[r] = value;
            }
        }
    }

    template <class F>
    FLASHOMP_INLINE void map(Scores& s, F f)
    {
        for (int c = 0; c < s.count; ++c) {
            float* row = s.data + std::ptrdiff_t{c} * s.rows;
#pragma omp simd
            for (int r = 0; r < rows_; ++r) {
                row[r] = f(row[r], r, c);
            }
        }
    }

    FLASHOMP_INLINE void clear(Scores& s)
    {
        s.count = stream_rows_;
        for (std::ptrdiff_t i = 0; i < std::ptrdiff_t{s.rows} * s.count; ++i) {
            s.data[i] = 0.0F;
        }
    }

    FLASHOMP_INLINE void add(Scores& total, const Scores& s)
    {
        for (int c = 0; c < s.count; ++c) {
            for (int r = 0; r < rows_; ++r) {
                total.at(r, c) += s.at(r, c);
            }
        }
    }

    FLASHOMP_INLINE void accumulate(Accumulator& a, const Scores& s, const Stream& stream)
    {
        matrix_kernel(a.data, a.padded, s.data, 1, s.rows, stream.data, stream.padded, rows_, a.padded, s.count,
                      Start::add);
    }

    FLASHOMP_INLINE void accumulate(Accumulator& a, const Scores& s, const Stream& stream, bool scales,
                                    const Stats& factor)
    {
        for (int r = 0; scales && r < rows_; ++r) { // most tiles move no row's base
            float* row = a.data + std::ptrdiff_t{r} * a.padded;
            const float by = factor[r];
            if (by == 1.0F) {
                continue;
            }
#pragma omp simd
            for (int x = 0; x < a.padded; ++x) {
                row[x] *= by;
            }
        }
        accumulate(a, s, stream);
    }

    FLASHOMP_INLINE void row_max(const Scores& s, const Stats& max)
    {
        for (int c = 0; c < s.count; ++c) {
            const float* row = s.data + std::ptrdiff_t{c} * s.rows;
#pragma omp simd
            for (int r = 0; r < rows_; ++r) {
                max[r] = row[r] > max[r] ? row[r] : max[r];
            }
        }
    }

    FLASHOMP_INLINE void row_sum(const Scores& s, const Stats& sum)
    {
        for (int c = 0; c < s.count; ++c) {
            const float* row = s.data + std::ptrdiff_t{c} * s.rows;
#pragma omp simd
            for (int r = 0; r < rows_; ++r) {
                sum[r] += row[r];
            }
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
        for (int c = 0; c < s.count; ++c) {
            float* row = s.data + std::ptrdiff_t{c} * s.rows;
#pragma omp simd
            for (int r = 0; r < rows_; ++r) {
                const float p = exp2_fast((row[r] - base[r]) * factor);
                row[r] = p;
                sum[r] += p;
            }
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
        for (int r = 0; r < a.count; ++r) {
            dot[r] = dot_product(a, b, r);
        }
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
            for (int x = 0; x < depth; ++x) {
                f(r, x);
            }
        }
    }

    template <class F>
    FLASHOMP_INLINE void store(const Accumulator& a, const Rows& rows, F f)
    {
        with_element(rows, [&](auto* data) {
            for (int r = 0; r < rows.count; ++r) {
                auto* target = data + rows.offset + r * rows.stride;
                const float* row = a.data + std::ptrdiff_t{r} * a.padded;
                const float by = f(r);
#pragma omp simd
                for (int x = 0; x < a.depth; ++x) {
                    from_float(row[x] * by, target[x]);
                }
            }
        });
    }

    FLASHOMP_INLINE void sync() {}

private:
    using Vector __attribute__((vector_size(sizeof(float) * Isa::lanes))) = float;
    enum class Start { zero, add };

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

    /// C[m][n] (+)= Σ_k A[m·a_m + k·a_k] · B[k][n]; n is a multiple of lanes.
    static void matrix_kernel(float* c, int ldc, const float* a, int a_m, int a_k, const float* b, int ldb, int m,
                              int n, int k, Start start)
    {
        constexpr int columns = Isa::register_vectors * lanes;
        for (int n0 = 0; n0 < n; n0 += columns) {
            const bool whole = n - n0 >= columns;
            for (int m0 = 0; m0 < m; m0 += Isa::register_rows) {
                const int rows = m - m0 < Isa::register_rows ? m - m0 : Isa::register_rows;
                float* cc = c + std::ptrdiff_t{m0} * ldc + n0;
                const float* aa = a + std::ptrdiff_t{m0} * a_m;
                if (whole) {
                    register_rows<Isa::register_rows, Isa::register_vectors>(cc, ldc, aa, a_m, a_k, b + n0, ldb, rows,
                                                                             k, start);
                } else {
                    for (int x = 0; x < n - n0; x += lanes) {
                        register_rows<Isa::register_rows, 1>(cc + x, ldc, aa, a_m, a_k, b + n0 + x, ldb, rows, k,
                                                             start);
                    }
                }
            }
        }
    }

    /// Picks the register block with exactly `rows` rows.
    template <int R, int V>
    static FLASHOMP_INLINE void register_rows(float* c, int ldc, const float* a, int a_m, int a_k, const float* b,
                                              int ldb, int rows, int k, Start start)
    {
        if constexpr (R > 1) {
            if (rows < R) {
                return register_rows<R - 1, V>(c, ldc, a, a_m, a_k, b, ldb, rows, k, start);
            }
        }
        register_block<R, V>(c, ldc, a, a_m, a_k, b, ldb, k, start);
    }

    template <int R, int V>
    static void register_block(float* c, int ldc, const float* a, std::ptrdiff_t a_m, std::ptrdiff_t a_k,
                               const float* b, int ldb, int k, Start start)
    {
        Vector acc[R][V] = {};
        for (int kk = 0; kk < k; ++kk) {
            Vector row[V];
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) {
                row[v] = *reinterpret_cast<const Vector*>(b + v * lanes);
            }
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
                const float x = a[r * a_m];
#pragma GCC unroll 16
                for (int v = 0; v < V; ++v) {
                    acc[r][v] += x * row[v];
                }
            }
            a += a_k;
            b += ldb;
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) {
                Vector* target = reinterpret_cast<Vector*>(c + std::ptrdiff_t{r} * ldc + v * lanes);
                *target = start == Start::zero ? acc[r][v] : *target + acc[r][v];
            }
        }
    }

    float* next_;
    int resident_rows_, stream_rows_;
    int rows_; ///< resident rows in use, rounded up to whole vectors
};

} // namespace flashomp::offload
