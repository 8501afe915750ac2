// The host machine on plain vectors: all element types become float32, and both products are one matrix kernel on a
// block of vector registers. Streamed blocks are used in the layout they have in memory; only resident blocks, loaded
// once, are transposed.
#pragma once

#include "algorithm/quantised_source.hpp"
#include "host/host_tile.hpp"
#include "host/matrix_product.hpp"

#include <algorithm>
#include <atomic>
#include <thread>

namespace flashomp::offload {

/// Isa: what HostTile and MatrixProduct need.
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

    /// Zeros for the rows r with is_hidden(r).
    template <class F>
    FLASHOMP_INLINE void clear_rows(Resident& block, F is_hidden)
    {
        for (int r = 0; r < rows_; ++r) {
            if (is_hidden(r)) {
                float* const column = block.data + std::ptrdiff_t{r / lanes * lanes} * block.depth + r % lanes;
                for (int x = 0; x < block.depth; ++x) {
                    column[x * lanes] = 0.0F;
                }
                if (block.rows != nullptr) {
                    std::fill_n(block.rows + std::ptrdiff_t{r} * padded(block.depth), padded(block.depth), 0.0F);
                }
            }
        }
    }

    void load(Stream& block, const Rows& rows)
    {
        block.count = rows.count;
        product_.follow(rows);
        Tile::with_element(rows, [&](const auto* data) { copy(block.data, block.padded, rows, data); });
    }

    void load(Stream& block, const PagedRows& rows)
    {
        block.count = rows.count;
        for (int r = 0; r < rows.count;) {
            const Rows run = rows.run(r, rows.count - r);
            float* const target = block.data + std::ptrdiff_t{r} * block.padded;
            Tile::with_element(run, [&](const auto* data) { copy(target, block.padded, run, data); });
            r += run.count;
        }
        product_.follow(rows.before_next(rows.count));
    }

    void load(Stream& block, const QuantisedRows& rows)
    {
        block.count = rows.rows.count;
        dequantise(block.data, block.padded, rows);
    }

    FLASHOMP_INLINE void multiply(Scores& s, const Resident& block, const Stream& stream)
    {
        s.count = stream.count;
        product_({s.data, lanes, std::ptrdiff_t{s.columns} * lanes}, {stream.data, stream.padded, 1},
                 {block.data, lanes, std::ptrdiff_t{block.depth} * lanes}, {stream.count, rows_ / lanes, block.depth},
                 Start::zero, rows_);
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
            product_({a.data + std::ptrdiff_t{r0} * a.padded, a.padded, lanes}, {s.strip(r0), 1, lanes},
                     {stream.data, stream.padded, lanes}, {lanes, a.padded / lanes, s.count}, Start::add, rows_);
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
        product_({sums.data, sums.padded, lanes}, {s.data, lanes, 1, std::ptrdiff_t{s.columns} * lanes},
                 {block.rows, sums.padded, lanes}, {s.count, sums.padded / lanes, lanes, rows_ / lanes}, Start::zero,
                 rows_);
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
    using Start = typename MatrixProduct<Isa>::Start;

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

    /// The rows as floats, each padded with zeros.
    static void dequantise(float* target, int padded, const QuantisedRows& rows)
    {
        const int depth = rows.rows.page0.depth;
        offload::with_element(rows, [&](const auto* data) {
            PageWalk walk(rows.rows, 0);
            for (int r = 0; r < rows.rows.count; ++r, walk.next(), target += padded) {
                const auto* const source = data + walk.offset();
                const float by = rows.scale(r);
                int x = 0;
                for (; x + lanes <= depth; x += lanes) {
                    *Tile::vectors(target + x) = Lanes<Isa>::load(source + x) * by;
                }
                if (x < depth) {
                    *Tile::vectors(target + x) = Lanes<Isa>::load(source + x, depth - x) * by;
                }
            }
        });
    }

    static FLASHOMP_INLINE void relax()
    {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }

    MatrixProduct<Isa> product_;
    unsigned* turns_ = nullptr;
};

} // namespace flashomp::offload
