// The plain tile machine: a crew is a team, shared out by `omp for simd` alone. No intrinsics, no inline assembly:
// what OpenMP directives by themselves reach. With g++ on an NVIDIA GPU the `for` spreads over warps and the
// `simd` over their lanes; on the CPU the same code runs with host threads as the crew, which is how it is tested.
//
// Every piece lives in team memory. Row lengths are odd, so that lanes that read a column of rows touch different
// memory banks.
#pragma once

#include "algorithm/finite_check.hpp"
#include "algorithm/machine.hpp"
#include "algorithm/math.hpp"
#include "algorithm/quantised_source.hpp"
#include "algorithm/team_memory.hpp"

#pragma omp declare target

namespace flashomp::offload {

class PlainMachine {
public:
    /// A lane's share of a product: micro x micro elements in registers, rows and columns far apart so that
    /// neighbouring lanes read neighbouring ones.
    enum : int { micro = 4 }; // not a static member: g++ calls classes with those not mappable

    using Row = int;
    struct Stage {}; ///< one: a block is loaded when it is needed

    struct Block {
        float* data; ///< [row][odd stride]
        int depth, stride, rows;
    };
    struct Resident : Block {};
    struct Stream : Block {
        int count;
        FLASHOMP_INLINE Stream& operator[](Stage) { return *this; }
    };
    struct Scores {
        float* data; ///< [c][r]
        int stride, count;
        FLASHOMP_INLINE float& at(int r, int c) const { return data[c * stride + r]; }
    };
    struct Accumulator {
        float* data; ///< [r][odd stride], depth padded to micro
        int depth, stride;
    };
    struct Stats {
        float* data;
        FLASHOMP_INLINE float& operator[](int r) const { return data[r]; }
        FLASHOMP_INLINE const Stats& operator[](Stage) const { return *this; }
    };
    using ColumnStats = Stats;
    using ColumnStatsBlock = Stats;

    FLASHOMP_INLINE PlainMachine(float* team_memory, int resident_rows, int stream_rows, int crew_threads)
        : next_(team_memory), resident_rows_(resident_rows), stream_rows_(stream_rows), crew_threads_(crew_threads)
    {
    }

    FLASHOMP_INLINE int resident_rows() const { return resident_rows_; }
    FLASHOMP_INLINE int stream_rows() const { return stream_rows_; }

    static constexpr int odd(int n) { return n | 1; }
    static constexpr int padded(int n) { return (n + micro - 1) / micro * micro; }
    static constexpr std::int64_t resident_floats(int rows, int depth)
    {
        return std::int64_t{rows} * odd(padded(depth));
    }
    static constexpr std::int64_t stream_floats(int rows, int depth) { return std::int64_t{rows} * odd(padded(depth)); }
    static constexpr std::int64_t scores_floats(int rows, int columns) { return std::int64_t{columns} * odd(rows); }
    static constexpr std::int64_t accumulator_floats(int rows, int depth)
    {
        return std::int64_t{rows} * odd(padded(depth));
    }
    static constexpr std::int64_t stats_floats(int rows) { return rows; }

    FLASHOMP_INLINE Resident resident(int depth)
    {
        return {{take(resident_floats(resident_rows_, depth)), depth, odd(padded(depth)), resident_rows_}};
    }
    FLASHOMP_INLINE Stream stream(const Tensor&, int depth, StreamUse)
    {
        return {{take(stream_floats(stream_rows_, depth)), depth, odd(padded(depth)), stream_rows_}, 0};
    }
    FLASHOMP_INLINE Scores scores(ScoreUse = ScoreUse::values)
    {
        return {take(scores_floats(resident_rows_, stream_rows_)), odd(resident_rows_), stream_rows_};
    }
    FLASHOMP_INLINE Accumulator accumulator(int depth)
    {
        const int floats = static_cast<int>(accumulator_floats(resident_rows_, depth));
        Accumulator a{take(floats), depth, odd(padded(depth))};
        FLASHOMP_FOR_CREW (i, floats) {
            a.data[i] = 0.0F;
        }
        return a;
    }
    FLASHOMP_INLINE Stats row_stats() { return {take(stats_floats(resident_rows_))}; }
    FLASHOMP_INLINE ColumnStats column_stats() { return {take(stats_floats(stream_rows_))}; }

    static FLASHOMP_INLINE float lag() { return 0.0F; }
    static FLASHOMP_INLINE float exp2(float x) { return exp2_fast(x); }

    FLASHOMP_INLINE void load(Resident& block, const Rows& rows) { load_block(block, rows); }
    FLASHOMP_INLINE void load(Stream& block, const Rows& rows)
    {
        block.count = rows.count;
        load_block(block, rows);
    }
    FLASHOMP_INLINE void load(Stream& block, const PagedRows& rows)
    {
        block.count = rows.count;
        switch (rows.page0.element) {
        case Element::float32:
            return load_pages_as<float>(block, rows);
        case Element::bfloat16:
            return load_pages_as<BFloat16>(block, rows);
        case Element::float16:
            return load_pages_as<Float16>(block, rows);
        }
    }
    FLASHOMP_INLINE void load(Stream& block, const QuantisedRows& rows)
    {
        block.count = rows.rows.count;
        rows.element == CacheElement::int8 ? load_quantised_as<Int8>(block, rows)
                                           : load_quantised_as<Float8>(block, rows);
    }

    FLASHOMP_INLINE void load(const ColumnStats& stats, const float* source, int count)
    {
        float* const target = stats.data;
        const int columns = stream_rows_;
        FLASHOMP_FOR_CREW (c, columns) {
            target[c] = c < count ? source[c] : 0.0F;
        }
    }

    template <class LoadBlock, class Score, class Attend>
    FLASHOMP_INLINE void for_blocks(Range range, int step, LoadBlock load_block, Score score, Attend attend)
    {
        for (int j0 = range.begin; j0 < range.end; j0 += step) {
            load_block(j0, Stage{}, Load::for_scores);
            load_block(j0, Stage{}, Load::for_sums);
            sync();
            score(j0, Stage{});
            attend(j0, Stage{});
            sync(); // before the next block overwrites this one
        }
    }

    FLASHOMP_INLINE void multiply(Scores& s, const Resident& block, const Stream& stream)
    {
        s.count = padded(stream.count); // masked columns of a padded tile hold zeros where they are summed
        float* const target = s.data;
        const float* const a = block.data;
        const float* const b = stream.data;
        const int lds = s.stride, lda = block.stride, ldb = stream.stride, depth = block.depth;
        const int step_r = resident_rows_ / micro, step_c = stream_rows_ / micro;
        FLASHOMP_FOR_CREW (item, step_r * step_c) {
            const int r0 = item / step_c;
            const int c0 = item % step_c;
            float acc[micro][micro] = {};
            const float* left[micro];
            const float* right[micro];
            FLASHOMP_UNROLL(8)
            for (int i = 0; i < micro; ++i) {
                left[i] = a + (r0 + i * step_r) * lda;
                right[i] = b + (c0 + i * step_c) * ldb;
            }
            // Whole steps: what lies between depth and its padding is zero.
            for (int x = 0; x < depth; x += micro) {
                FLASHOMP_UNROLL(8)
                for (int u = 0; u < micro; ++u) {
                    FLASHOMP_UNROLL(8)
                    for (int i = 0; i < micro; ++i) {
                        FLASHOMP_UNROLL(8)
                        for (int j = 0; j < micro; ++j) {
                            acc[i][j] += left[i][u] * right[j][u];
                        }
                    }
                }
                FLASHOMP_UNROLL(8)
                for (int i = 0; i < micro; ++i) {
                    left[i] += micro;
                    right[i] += micro;
                }
            }
            FLASHOMP_UNROLL(8)
            for (int i = 0; i < micro; ++i) {
                FLASHOMP_UNROLL(8)
                for (int j = 0; j < micro; ++j) {
                    const int r = r0 + i * step_r;
                    const int c = c0 + j * step_c;
                    target[c * lds + r] = acc[i][j];
                }
            }
        }
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
        const Scores tile = s;
        const Scores beside = other;
        for_micro_tiles([=](int r, int c) FLASHOMP_LAMBDA {
            float value = beside.at(r, c);
            tile.at(r, c) = f(tile.at(r, c), value, r, c);
            beside.at(r, c) = value;
        });
    }

    template <class F>
    FLASHOMP_INLINE void map(Scores& s, F f)
    {
        const Scores tile = s;
        for_rows(resident_rows_, [=](int r) FLASHOMP_LAMBDA {
            for (int c = 0; c < tile.count; ++c) {
                tile.at(r, c) = f(tile.at(r, c), r, c);
            }
        });
    }

    FLASHOMP_INLINE void clear(Scores& s)
    {
        s.count = stream_rows_;
        const Scores tile = s;
        for_micro_tiles([=](int r, int c) FLASHOMP_LAMBDA { tile.at(r, c) = 0.0F; });
    }

    FLASHOMP_INLINE void add(Scores& total, const Scores& s)
    {
        const Scores to = total;
        const Scores from = s;
        for_micro_tiles([=](int r, int c) FLASHOMP_LAMBDA { to.at(r, c) += from.at(r, c); });
    }

    FLASHOMP_INLINE void accumulate(Accumulator& a, const Scores& s, const Stream& stream)
    {
        accumulate_scaled(a, s, stream, [](int) FLASHOMP_LAMBDA { return 1.0F; });
    }

    FLASHOMP_INLINE void accumulate(Accumulator& a, const Scores& s, const Stream& stream, bool, const Stats& factor)
    {
        accumulate_scaled(a, s, stream, [=](int r) FLASHOMP_LAMBDA { return factor[r]; });
    }

    FLASHOMP_INLINE void row_max(const Scores& s, const Stats& max)
    {
        const float* const data = s.data;
        const int stride = s.stride, count = s.count;
        for_rows(resident_rows_, [=](int r) FLASHOMP_LAMBDA {
            float m = max[r];
            for (int c = 0; c < count; ++c) {
                const float x = data[c * stride + r];
                m = x > m ? x : m;
            }
            max[r] = m;
        });
    }

    FLASHOMP_INLINE void row_sum(const Scores& s, const Stats& sum)
    {
        const float* const data = s.data;
        const int stride = s.stride, count = s.count;
        for_rows(resident_rows_, [=](int r) FLASHOMP_LAMBDA {
            float total = sum[r];
            for (int c = 0; c < count; ++c) {
                total += data[c * stride + r];
            }
            sum[r] = total;
        });
    }

    /// What one thread finds is not known to the others, who must all do the same.
    FLASHOMP_INLINE bool any_above(const Stats&, const Stats&) { return true; }

    FLASHOMP_INLINE void exp_sum(Scores& s, const Stats& base, float factor, const Stats& sum)
    {
        float* const data = s.data;
        const int stride = s.stride, count = s.count;
        for_rows(resident_rows_, [=](int r) FLASHOMP_LAMBDA {
            float total = sum[r];
            const float b = base[r];
            for (int c = 0; c < count; ++c) {
                const float p = exp2_fast((data[c * stride + r] - b) * factor);
                data[c * stride + r] = p;
                total += p;
            }
            sum[r] = total;
        });
    }

    /// Finding out would cost as much as the maximum.
    static FLASHOMP_INLINE bool may_exceed(const Scores&, const Stats&) { return true; }

    FLASHOMP_INLINE void complete(const Stats&) {}

    FLASHOMP_INLINE void row_dot(const Rows& a, const Rows& b, const Stats& dot)
    {
        for_rows(a.count, [=](int r) FLASHOMP_LAMBDA { dot[r] = dot_product(a, b, r); });
    }

    template <class F>
    FLASHOMP_INLINE void for_rows(F f)
    {
        for_rows(resident_rows_, f);
    }

    template <class F>
    FLASHOMP_INLINE void for_rows(int count, F f)
    {
        // Always the same trip count, so that the static schedule gives row r to the same thread every time.
        const int all = resident_rows_;
        FLASHOMP_FOR_CREW (r, all) {
            if (r < count) {
                f(r);
            }
        }
    }

    template <class F>
    FLASHOMP_INLINE void for_elements(int rows, int depth, F f)
    {
        FLASHOMP_FOR_CREW (item, rows * depth) {
            f(item / depth, item % depth);
        }
    }

    template <class F>
    FLASHOMP_INLINE void store(const Accumulator& a, const Rows& rows, F f)
    {
        switch (rows.element) {
        case Element::float32:
            return store_as<float>(a, rows, f);
        case Element::bfloat16:
            return store_as<BFloat16>(a, rows, f);
        case Element::float16:
            return store_as<Float16>(a, rows, f);
        }
    }

    /// Calls f(value), where value(c, x) is element x of streamed row c.
    template <class F>
    FLASHOMP_INLINE void with_values(const Stream& stream, F f)
    {
        const float* const data = stream.data;
        const int stride = stream.stride;
        f([=](int c, int x) FLASHOMP_LAMBDA { return data[c * stride + x]; });
    }

    FLASHOMP_INLINE void sync() { team_barrier(crew_threads_); }

protected:
    [[nodiscard]] FLASHOMP_INLINE int all_rows() const { return resident_rows_; }

    FLASHOMP_INLINE float* take(std::int64_t floats)
    {
        float* block = next_;
        next_ += floats;
        return block;
    }

private:
    /// f(r, c) for every element of a score tile, by the thread that owns it in multiply.
    template <class F>
    FLASHOMP_INLINE void for_micro_tiles(F f)
    {
        const int step_r = resident_rows_ / micro, step_c = stream_rows_ / micro;
        FLASHOMP_FOR_CREW (item, step_r * step_c) {
            for (int i = 0; i < micro; ++i) {
                for (int j = 0; j < micro; ++j) {
                    f(item / step_c + i * step_r, item % step_c + j * step_c);
                }
            }
        }
    }

    FLASHOMP_INLINE void load_block(const Block& block, const Rows& rows)
    {
        switch (rows.element) {
        case Element::float32:
            return load_as<float>(block, rows);
        case Element::bfloat16:
            return load_as<BFloat16>(block, rows);
        case Element::float16:
            return load_as<Float16>(block, rows);
        }
    }

    template <class E>
    FLASHOMP_INLINE void load_pages_as(const Block& block, const PagedRows& rows)
    {
        const E* const source = static_cast<const E*>(rows.page0.data);
        float* const target = block.data;
        const PagedRows all = rows;
        const int stride = block.stride, depth = block.depth;
        const int chunks = padded(depth) / micro;
        FLASHOMP_FOR_CREW (item, block.rows * chunks) {
            const int r = item / chunks;
            const int x0 = item % chunks * micro;
            const bool is_there = r < all.count;
            const E* const row = source + (is_there ? all.offset_of(r) : 0); // no page is looked up beyond the keys
            FLASHOMP_UNROLL(8)
            for (int x = x0; x < x0 + micro; ++x) {
                target[r * stride + x] = is_there && x < depth ? to_float(row[x]) : 0.0F;
            }
        }
    }

    template <class E>
    FLASHOMP_INLINE void load_quantised_as(const Block& block, const QuantisedRows& rows)
    {
        const E* const source = static_cast<const E*>(rows.rows.page0.data);
        float* const target = block.data;
        const QuantisedRows all = rows;
        const int stride = block.stride, depth = block.depth;
        const int chunks = padded(depth) / micro;
        FLASHOMP_FOR_CREW (item, block.rows * chunks) {
            const int r = item / chunks;
            const int x0 = item % chunks * micro;
            const bool is_there = r < all.rows.count;
            const E* const row = source + (is_there ? all.rows.offset_of(r) : 0);
            const float by = is_there ? all.scale(r) : 0.0F;
            FLASHOMP_UNROLL(8)
            for (int x = x0; x < x0 + micro; ++x) {
                target[r * stride + x] = is_there && x < depth ? to_float(row[x]) * by : 0.0F;
            }
        }
    }

    template <class E>
    FLASHOMP_INLINE void load_as(const Block& block, const Rows& rows)
    {
        const E* const source = static_cast<const E*>(rows.data) + rows.offset;
        float* const target = block.data;
        const int stride = block.stride, depth = block.depth, count = rows.count;
        const std::int64_t row_stride = rows.stride;
        const int chunks = padded(depth) / micro;
        FLASHOMP_FOR_CREW (item, block.rows * chunks) {
            const int r = item / chunks;
            const int x0 = item % chunks * micro;
            FLASHOMP_UNROLL(8)
            for (int x = x0; x < x0 + micro; ++x) {
                target[r * stride + x] = r < count && x < depth ? to_float(source[r * row_stride + x]) : 0.0F;
            }
        }
    }

    template <class E, class F>
    FLASHOMP_INLINE void store_as(const Accumulator& a, const Rows& rows, F f)
    {
        E* const target = static_cast<E*>(rows.data) + rows.offset;
        const float* const source = a.data;
        const int stride = a.stride, depth = a.depth;
        const std::int64_t row_stride = rows.stride;
        unsigned* const nonfinite = rows.nonfinite;
        FLASHOMP_FOR_WARPS (r, rows.count) {
            const float by = f(r);
            FLASHOMP_FOR_LANES (x, depth) {
                const float value = source[r * stride + x] * by;
                from_float(value, target[r * row_stride + x]);
                set_nonfinite(nonfinite, !is_finite(value));
            }
        }
    }

    template <class F>
    FLASHOMP_INLINE void accumulate_scaled(Accumulator& a, const Scores& s, const Stream& stream, F factor)
    {
        float* const target = a.data;
        const float* const left = s.data;
        const float* const right = stream.data;
        const int ldc = a.stride, lds = s.stride, ldb = stream.stride, count = s.count;
        const int step_r = resident_rows_ / micro, step_x = padded(a.depth) / micro;
        FLASHOMP_FOR_CREW (item, step_r * step_x) {
            const int r0 = item / step_x;
            const int x0 = item % step_x;
            float acc[micro][micro] = {};
            const float* score[micro];
            const float* value[micro];
            FLASHOMP_UNROLL(8)
            for (int i = 0; i < micro; ++i) {
                score[i] = left + r0 + i * step_r;
                value[i] = right + x0 + i * step_x;
            }
            for (int c = 0; c < count; c += micro) {
                FLASHOMP_UNROLL(8)
                for (int u = 0; u < micro; ++u) {
                    float s_u[micro], v_u[micro];
                    FLASHOMP_UNROLL(8)
                    for (int i = 0; i < micro; ++i) {
                        s_u[i] = *score[i];
                        v_u[i] = *value[i];
                        score[i] += lds;
                        value[i] += ldb;
                    }
                    FLASHOMP_UNROLL(8)
                    for (int i = 0; i < micro; ++i) {
                        FLASHOMP_UNROLL(8)
                        for (int j = 0; j < micro; ++j) {
                            acc[i][j] += s_u[i] * v_u[j];
                        }
                    }
                }
            }
            FLASHOMP_UNROLL(8)
            for (int i = 0; i < micro; ++i) {
                const float by = factor(r0 + i * step_r);
                FLASHOMP_UNROLL(8)
                for (int j = 0; j < micro; ++j) {
                    float& c = target[(r0 + i * step_r) * ldc + x0 + j * step_x];
                    c = c * by + acc[i][j];
                }
            }
        }
    }

    float* next_;
    int resident_rows_, stream_rows_; ///< multiples of micro
    int crew_threads_;
};

} // namespace flashomp::offload

#pragma omp end declare target
