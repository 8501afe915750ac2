// The host machine on plain vectors: all element types become float32, and both products are one matrix kernel on a
// block of vector registers. Streamed blocks are used in the layout they have in memory; only resident blocks, loaded
// once, are transposed.
#pragma once

#include "tile/host_tile.hpp"
#include "tile/rows_ahead.hpp"

#include <algorithm>
#include <atomic>
#include <thread>

#if defined(__SANITIZE_ADDRESS__)
#define FLASHOMP_PRODUCT __attribute__((noinline)) // one copy: GCC takes minutes for one in each place
#else
#define FLASHOMP_PRODUCT FLASHOMP_INLINE
#endif

namespace flashomp::offload {

/// Isa, besides what HostTile needs: the register block of the matrix kernel (rows x vectors); rows divide lanes.
template <class Isa>
class HostMachine : public HostTile<Isa> {
protected:
    using Tile = HostTile<Isa>;
    using Tile::padded, Tile::rows_, Tile::take, Tile::whole_lines;
    using typename Tile::Vector;

public:
    using Tile::lanes, Tile::load;
    using typename Tile::ColumnStats, typename Tile::Row, typename Tile::Scores, typename Tile::Stage,
        typename Tile::Stats;

    struct Resident {
        float* data; ///< [strip][depth][lane]: transposed
        int depth;
        float* rows = nullptr; ///< [r][padded depth], for project(); or null
    };
    struct Stream {
        float* data; ///< [count][padded depth]
        int depth, padded, count;
        FLASHOMP_INLINE Stream& operator[](Stage) { return *this; }
    };
    struct Accumulator {
        float* data; ///< [r][padded depth]
        int depth, padded;
    };
    struct StreamedSums {
        float* data; ///< [c][padded depth]
        int depth, padded;
    };

    using Tile::Tile;

    static constexpr std::int64_t resident_floats(int rows, int depth) { return whole_lines(padded(rows), depth); }
    static constexpr std::int64_t stream_floats(int rows, int depth) { return whole_lines(rows, padded(depth)); }
    static constexpr std::int64_t scores_floats(int rows, int columns) { return whole_lines(padded(rows), columns); }
    static constexpr std::int64_t accumulator_floats(int rows, int depth)
    {
        return whole_lines(padded(rows), padded(depth));
    }

    /// Of project(): resident rows once more, as they are, and its result.
    static constexpr std::int64_t project_floats(int rows, int columns, int depth)
    {
        return accumulator_floats(rows, depth) + stream_floats(columns, depth);
    }

    FLASHOMP_INLINE Resident resident(int depth, ResidentUse use = ResidentUse::scores)
    {
        float* data = take(resident_floats(this->resident_rows(), depth));
        const bool both = use == ResidentUse::both;
        return {data, depth, both ? take(accumulator_floats(this->resident_rows(), depth)) : nullptr};
    }
    FLASHOMP_INLINE StreamedSums streamed_sums(int depth)
    {
        return {take(stream_floats(this->stream_rows(), depth)), depth, padded(depth)};
    }
    FLASHOMP_INLINE Stream stream(const Tensor&, int depth, StreamUse)
    {
        return {take(stream_floats(this->stream_rows(), depth)), depth, padded(depth), 0};
    }
    FLASHOMP_INLINE Scores scores(ScoreUse = ScoreUse::values)
    {
        return {take(scores_floats(this->resident_rows(), this->stream_rows())), this->stream_rows(), 0, nullptr,
                nullptr};
    }
    FLASHOMP_INLINE Accumulator accumulator(int depth)
    {
        const std::int64_t floats = accumulator_floats(this->resident_rows(), depth);
        Accumulator a{take(floats), depth, padded(depth)};
        for (std::int64_t i = 0; i < floats; ++i) {
            a.data[i] = 0.0F;
        }
        return a;
    }

    void load(Resident& block, const Rows& rows)
    {
        rows_ = padded(rows.count); // later products skip vectors of rows that are not there
        Tile::with_element(rows, [&](const auto* data) {
            for (int r = 0; r < rows_; ++r) {
                float* target = block.data + std::ptrdiff_t{r / lanes * lanes} * block.depth + r % lanes;
                for (int x = 0; x < block.depth; ++x) {
                    target[x * lanes] = r < rows.count ? to_float(data[rows.offset + r * rows.stride + x]) : 0.0F;
                }
            }
            if (block.rows != nullptr) {
                copy(block.rows, padded(block.depth), rows, data);
                std::fill_n(block.rows + std::ptrdiff_t{rows.count} * padded(block.depth),
                            std::ptrdiff_t{rows_ - rows.count} * padded(block.depth), 0.0F);
            }
        });
    }

    void load(Stream& block, const Rows& rows)
    {
        block.count = rows.count;
        ahead_.follow(rows);
        Tile::with_element(rows, [&](const auto* data) { copy(block.data, block.padded, rows, data); });
    }

    FLASHOMP_INLINE void multiply(Scores& s, const Resident& block, const Stream& stream)
    {
        s.count = stream.count;
        for (int r0 = 0; r0 < rows_; r0 += columns) {
            const std::ptrdiff_t depth = block.depth;
            matrix_columns({s.strip(r0), lanes, std::ptrdiff_t{s.columns} * lanes}, {stream.data, stream.padded, 1},
                           {block.data + r0 * depth, lanes, depth * lanes}, stream.count, (rows_ - r0) / lanes,
                           block.depth, Start::zero);
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
        for (int r0 = 0; r0 < rows_; r0 += lanes) {
            for (int x = 0; x < a.padded; x += columns) {
                matrix_columns({a.data + std::ptrdiff_t{r0} * a.padded + x, a.padded, lanes}, {s.strip(r0), 1, lanes},
                               {stream.data + x, stream.padded, lanes}, lanes, (a.padded - x) / lanes, s.count,
                               Start::add);
            }
        }
    }

    FLASHOMP_INLINE void accumulate(Accumulator& a, const Scores& s, const Stream& stream, bool scales,
                                    const Stats& factor)
    {
        if (scales) {
            rescale(a, factor);
        }
        accumulate(a, s, stream);
    }

    FLASHOMP_INLINE void project(StreamedSums& sums, const Scores& s, const Resident& block)
    {
        for (int x = 0; x < sums.padded; x += columns) {
            matrix_columns({sums.data + x, sums.padded, lanes}, {s.data, lanes, 1, std::ptrdiff_t{s.columns} * lanes},
                           {block.rows + x, sums.padded, lanes}, s.count, (sums.padded - x) / lanes, lanes, Start::zero,
                           rows_ / lanes);
        }
    }

    FLASHOMP_INLINE void add_rows(const Rows& rows, const StreamedSums& sums, float factor)
    {
        for (int c = 0; c < rows.count; ++c) {
            float* target = static_cast<float*>(rows.data) + rows.offset + c * rows.stride;
            const float* source = sums.data + std::ptrdiff_t{c} * sums.padded;
#pragma omp simd
            for (int x = 0; x < sums.depth; ++x) {
                target[x] += source[x] * factor;
            }
        }
    }

    void take_turns(unsigned* turns)
    {
        turns_ = turns;
    }

    void await_turn(std::int64_t block, unsigned number)
    {
        constexpr int patience = 4096; // looks, some 100 µs; then whoever is waited for may need this CPU
        int looks = 0;
        while (std::atomic_ref(turns_[block]).load(std::memory_order_acquire) != number) {
            if (looks < patience) {
                ++looks;
                relax();
            } else {
                std::this_thread::yield();
            }
        }
    }

    FLASHOMP_INLINE void pass_turn(std::int64_t block, unsigned number)
    {
        std::atomic_ref(turns_[block]).store(number, std::memory_order_release);
    }

    template <class F>
    FLASHOMP_INLINE void store(const Accumulator& a, const Rows& rows, F f)
    {
        Tile::with_element(rows, [&](auto* data) {
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

protected:
    /// a[r][:] *= factor[r]
    FLASHOMP_INLINE void rescale(Accumulator& a, const Stats& factor)
    {
        for (int r = 0; r < rows_; ++r) {
            float* row = a.data + std::ptrdiff_t{r} * a.padded;
            const float by = factor[r];
            if (by == 1.0F) { // most tiles move no row's base
                continue;
            }
#pragma omp simd
            for (int x = 0; x < a.padded; ++x) {
                row[x] *= by;
            }
        }
    }

private:
    enum : int { columns = Isa::register_vectors * Isa::lanes };
    enum class Start { zero, add };

    /// A matrix: element (row, column), or vector (row, vector), is at row · row_step + column · step, where a left one
    /// may have its columns in groups.
    struct Matrix {
        float* data;
        std::ptrdiff_t row_step, step;
        std::ptrdiff_t group_step = 0;
    };

    /// rows.count rows at `target`, each padded with zeros.
    template <class T>
    static FLASHOMP_INLINE void copy(float* target, int padded, const Rows& rows, const T* data)
    {
        for (int r = 0; r < rows.count; ++r, target += padded) {
            const T* source = data + rows.offset + r * rows.stride;
#pragma omp simd
            for (int x = 0; x < rows.depth; ++x) {
                target[x] = to_float(source[x]);
            }
            for (int x = rows.depth; x < padded; ++x) {
                target[x] = 0.0F;
            }
        }
    }

    static FLASHOMP_INLINE void relax()
    {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }

    /// C[m][v] (+)= Σ_k A[m][k] · B[k][v] for at most register_vectors vectors v of the `vectors` that there are; k in
    /// `groups` groups.
    FLASHOMP_PRODUCT void matrix_columns(const Matrix& c, const Matrix& a, const Matrix& b, int m, int vectors, int k,
                                         Start start, int groups = 1)
    {
        if (vectors >= Isa::register_vectors) {
            return matrix_rows<Isa::register_vectors>(c, a, b, m, k, start, groups);
        }
        for (int v = 0; v < vectors; ++v) {
            matrix_rows<1>({c.data + v * c.step, c.row_step, 0}, a, {b.data + v * b.step, b.row_step, 0}, m, k, start,
                           groups);
        }
    }

    template <int V>
    FLASHOMP_INLINE void matrix_rows(const Matrix& c, const Matrix& a, const Matrix& b, int m, int k, Start start,
                                     int groups)
    {
        // Each of a line's 16 floats is multiplied with every resident row.
        const int lines = int{Isa::register_rows} * V * k * groups * lanes / (16 * rows_);
        for (int m0 = 0; m0 < m; m0 += Isa::register_rows) {
            ahead_.ask(lines);
            const int rows = m - m0 < Isa::register_rows ? m - m0 : Isa::register_rows;
            register_rows<Isa::register_rows, V>({c.data + m0 * c.row_step, c.row_step, c.step},
                                                 {a.data + m0 * a.row_step, a.row_step, a.step, a.group_step}, b, rows,
                                                 k, start, groups);
        }
    }

    /// Picks the register block with exactly `rows` rows.
    template <int R, int V>
    static FLASHOMP_INLINE void register_rows(const Matrix& c, const Matrix& a, const Matrix& b, int rows, int k,
                                              Start start, int groups)
    {
        if constexpr (R > 1) {
            if (rows < R) {
                return register_rows<R - 1, V>(c, a, b, rows, k, start, groups);
            }
        }
        register_block<R, V>(c, a, b, k, start, groups);
    }

    template <int R, int V>
    static void register_block(Matrix c, Matrix a, Matrix b, int k, Start start, int groups)
    {
        Vector acc[R][V] = {};
        for (int group = 0; group < groups; ++group) {
            const float* left = a.data + group * a.group_step;
            for (int kk = 0; kk < k; ++kk) {
                Vector row[V];
#pragma GCC unroll 16
                for (int v = 0; v < V; ++v) {
                    row[v] = *reinterpret_cast<const Vector*>(b.data + v * b.step);
                }
#pragma GCC unroll 16
                for (int r = 0; r < R; ++r) {
                    const float x = left[r * a.row_step];
#pragma GCC unroll 16
                    for (int v = 0; v < V; ++v) {
                        acc[r][v] += x * row[v];
                    }
                }
                left += a.step;
                b.data += b.row_step;
            }
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
            for (int v = 0; v < V; ++v) {
                Vector* target = reinterpret_cast<Vector*>(c.data + r * c.row_step + v * c.step);
                *target = start == Start::zero ? acc[r][v] : *target + acc[r][v];
            }
        }
    }

    RowsAhead ahead_;
    unsigned* turns_ = nullptr;
};

} // namespace flashomp::offload
