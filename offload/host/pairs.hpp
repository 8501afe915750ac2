// The host machine on the CPU's bfloat16 matrix instructions: AMX tiles, or dot products of pairs on vectors.
//
// Both products have blocks of streamed rows on the left and resident rows on the right, along the lanes:
//
//     multiply    S[c][r] = Σ_x T[c][x] · Rᵀ[x][r]                     accumulate    Cᵀ[x][r] += Σ_c Tᵀ[x][c] · S[c][r]
//
// so that scores and accumulators both have a resident row to a lane, and the scores become a right operand without
// leaving theirs. Resident rows are transposed once, streamed ones for accumulate().
//
// Operands are sums of bfloat16 terms (terms.hpp), and of the products of terms all are computed that are not below
// the last bit of what is wanted: the one of bfloat16; for float16 all four of scores and three of what is accumulated,
// where the scores are rounded anyway; six of the nine of float32, whose others are below 2^-23 of the product. Sums
// are float32.
#pragma once

#include "algorithm/quantised_source.hpp"
#include "host/host_tile.hpp"
#include "host/terms.hpp"

namespace flashomp::offload {

/// Isa, besides what HostTile needs: Isa::multiply<terms, adds>(), and what it needs of a thread, Isa::Session.
template <class Isa, Element element>
class PairsMachine : public HostTile<Isa, element == Element::float32> {
    using Tile = HostTile<Isa, element == Element::float32>;
    using Tile::padded, Tile::rows_, Tile::take, Tile::whole_lines;
    using T = std::conditional_t<element == Element::float32, float,
                                 std::conditional_t<element == Element::bfloat16, BFloat16, Float16>>;
    enum : int { terms = terms_of(element), inner = PairBlock::elements, most_depth = 576 };

public:
    using Tile::lanes, Tile::load;
    using typename Tile::ColumnStats, typename Tile::Row, typename Tile::Scores, typename Tile::Stage,
        typename Tile::Stats;
    static_assert(int{lanes} == int{PairBlock::rows});

    struct Resident {
        PairBlock* data; ///< [term][strip][depth / 32], right operands
        int depth;
    };
    struct Stream {
        PairBlock* rows;    ///< [term][count / 16][depth / 32], left operands of multiply()
        PairBlock* columns; ///< [term][depth / 16][count / 32], left operands of accumulate()
        StreamUse use;
        int depth, count;
        float* scales; ///< of rows of 8 bits, which all terms hold exactly
        bool is_scaled;
        FLASHOMP_INLINE Stream& operator[](Stage) { return *this; }
    };
    struct Accumulator {
        float* data; ///< [strip][padded depth][lane]
        int depth;
    };

    using Tile::Tile;

    static constexpr std::int64_t resident_floats(int rows, int depth) { return block_floats(blocks(rows, depth)); }
    static constexpr std::int64_t stream_floats(int rows, int depth)
    {
        return block_floats(blocks(rows, depth) + blocks(depth, rows)) + whole_lines(1, rows);
    }
    static constexpr std::int64_t scores_floats(int rows, int columns)
    {
        return std::int64_t{padded(rows)} * inner * tiles(columns, inner) + block_floats(blocks(rows, columns));
    }
    static constexpr std::int64_t accumulator_floats(int rows, int depth)
    {
        return whole_lines(padded(rows), padded(depth));
    }

    FLASHOMP_INLINE Resident resident(int depth) { return {take_blocks(blocks(this->resident_rows(), depth)), depth}; }
    FLASHOMP_INLINE Stream stream(const Tensor&, int depth, StreamUse use)
    {
        PairBlock* rows = take_blocks(blocks(this->stream_rows(), depth));
        PairBlock* columns = take_blocks(blocks(depth, this->stream_rows()));
        return {rows, columns, use, depth, 0, take(whole_lines(1, this->stream_rows())), false};
    }
    FLASHOMP_INLINE Scores scores(ScoreUse use = ScoreUse::values)
    {
        const int columns = tiles(this->stream_rows(), inner) * inner;
        float* data = take(std::int64_t{padded(this->resident_rows())} * columns);
        void* packed = take_blocks(blocks(this->resident_rows(), columns));
        // Scores are packed once they are probabilities, and then the lower floats are no longer needed.
        const bool has_low = element == Element::float32 && use == ScoreUse::exponents;
        return {data, columns, 0, packed, has_low ? static_cast<float*>(packed) : nullptr};
    }
    FLASHOMP_INLINE Accumulator accumulator(int depth)
    {
        const std::int64_t floats = accumulator_floats(this->resident_rows(), depth);
        Accumulator a{take(floats), depth};
        for (std::int64_t i = 0; i < floats; ++i) {
            a.data[i] = 0.0F;
        }
        return a;
    }

    void load(Resident& block, const Rows& rows)
    {
        rows_ = padded(rows.count); // later products skip strips of rows that are not there
        pack_rows(block.data, rows);
        const int count = terms * rows_ / lanes * tiles(block.depth, inner);
        for (int i = 0; i < count; ++i) {
            transpose(block.data[i]);
        }
    }

    template <class SomeRows>
    void load(Stream& block, const SomeRows& rows)
    {
        block.count = count_of(rows);
        if constexpr (std::is_same_v<SomeRows, QuantisedRows>) {
            block.is_scaled = rows.scales != nullptr;
            for (int c = 0; block.is_scaled && c < block.count; ++c) {
                block.scales[c] = rows.scale(c);
            }
        }
        if (block.use != StreamUse::sums) {
            pack_rows(block.rows, rows);
        }
        if (block.use != StreamUse::scores) {
            pack_columns(block.columns, rows);
        }
    }

    FLASHOMP_INLINE void multiply(Scores& s, const Resident& block, const Stream& stream)
    {
        s.count = stream.count;
        const int m = tiles(stream.count, lanes);
        const int k = tiles(block.depth, inner);
        const std::ptrdiff_t strips = rows_ / lanes;
        Isa::template multiply<terms, false>(s.data, s.low, std::ptrdiff_t{s.columns} * lanes, stream.rows,
                                             std::ptrdiff_t{m} * k, block.data, strips * k, m, static_cast<int>(strips),
                                             k);
        multiply_by_scales(s, stream);
    }

    FLASHOMP_INLINE void multiply(Scores& s, const Resident& block, const Stream& stream, Scores& s2,
                                  const Resident& block2, const Stream& stream2)
    {
        multiply(s, block, stream);
        multiply(s2, block2, stream2);
    }

    FLASHOMP_INLINE void accumulate(Accumulator& a, const Scores& s, const Stream& stream)
    {
        const int m = tiles(a.depth, lanes);
        const int k = tiles(s.count, inner);
        const std::ptrdiff_t strips = rows_ / lanes;
        auto* const packed = static_cast<PairBlock*>(s.packed);
        multiply_by_scales(s, stream);
        for (int strip = 0; strip < strips; ++strip) {
            pack_scores(packed + strip * k, strips * k, s.strip(strip * lanes), s.count);
        }
        Isa::template multiply<terms, true>(a.data, nullptr, std::ptrdiff_t{m} * lanes * lanes, stream.columns,
                                            std::ptrdiff_t{m} * k, packed, strips * k, m, static_cast<int>(strips), k);
    }

    FLASHOMP_INLINE void accumulate(Accumulator& a, const Scores& s, const Stream& stream, bool scales,
                                    const Stats& factor)
    {
        const int floats = padded(a.depth) * lanes;
        for (int r = 0; scales && r < rows_; r += lanes) { // most tiles move no row's base
            const __m512 by = _mm512_load_ps(factor.data + r);
            if (_mm512_cmp_ps_mask(by, _mm512_set1_ps(1.0F), _CMP_NEQ_UQ) == 0) {
                continue;
            }
            float* const strip = a.data + std::ptrdiff_t{r} / lanes * floats;
            for (int i = 0; i < floats; i += lanes) {
                _mm512_store_ps(strip + i, _mm512_mul_ps(_mm512_load_ps(strip + i), by));
            }
        }
        accumulate(a, s, stream);
    }

    template <class F>
    FLASHOMP_INLINE void store(const Accumulator& a, const Rows& rows, F f)
    {
        Tile::with_element(rows, [&](auto* data) FLASHOMP_LAMBDA { // float32 where it is a partial result
            const int depth = padded(a.depth);
            for (int r0 = 0; r0 < rows.count; r0 += lanes) {
                const int count = rows.count - r0 < lanes ? rows.count - r0 : lanes;
                alignas(64) float by[lanes] = {};
                for (int r = 0; r < count; ++r) {
                    by[r] = f(r0 + r);
                }
                const __m512 factor = _mm512_load_ps(by);
                for (int x0 = 0; x0 < a.depth; x0 += lanes) {
                    __m512i block[16];
                    for (int x = 0; x < 16; ++x) {
                        const float* source = a.data + std::ptrdiff_t{r0} * depth + (x0 + x) * lanes;
                        block[x] = _mm512_castps_si512(_mm512_mul_ps(_mm512_load_ps(source), factor));
                    }
                    transpose(block);
                    auto* target = data + rows.offset + r0 * rows.stride + x0;
                    for (int r = 0; r < count; ++r) {
                        store_lanes(target + r * rows.stride, a.depth - x0, _mm512_castsi512_ps(block[r]));
                    }
                }
            }
        });
    }

private:
    /// Each column by the factor of its row of the stream.
    void multiply_by_scales(const Scores& s, const Stream& stream)
    {
        if (!stream.is_scaled) {
            return;
        }
        for (int r = 0; r < rows_; r += lanes) {
            for (float* const strip : {s.strip(r), s.low != nullptr ? s.low_strip(r) : nullptr}) {
                for (int c = 0; strip != nullptr && c < s.count; ++c) {
                    float* const column = strip + std::ptrdiff_t{c} * lanes;
                    _mm512_store_ps(column, _mm512_mul_ps(_mm512_load_ps(column), _mm512_set1_ps(stream.scales[c])));
                }
            }
        }
    }

    static constexpr int tiles(int n, int size) { return (n + size - 1) / size; }

    /// Blocks of an operand with `across` rows, or columns, of `along` elements of the inner dimension.
    static constexpr std::int64_t blocks(int across, int along)
    {
        return std::int64_t{terms} * tiles(across, lanes) * tiles(along, inner);
    }
    static constexpr std::int64_t block_floats(std::int64_t count)
    {
        return count * static_cast<std::int64_t>(sizeof(PairBlock) / sizeof(float));
    }
    FLASHOMP_INLINE PairBlock* take_blocks(std::int64_t count)
    {
        return reinterpret_cast<PairBlock*>(take(block_floats(count)));
    }

    /// Some consecutive rows, at one stride.
    struct Strip {
        const T* first;
        std::ptrdiff_t stride;
    };

    /// Rows from row r on; `gathered` is for those that do not lie at one stride.
    static FLASHOMP_INLINE Strip strip_of(const Rows& rows, int r, int /*most*/, T* /*gathered*/)
    {
        return {static_cast<const T*>(rows.data) + rows.offset + r * rows.stride, rows.stride};
    }
    static FLASHOMP_INLINE Strip strip_of(const PagedRows& rows, int r, int most, T* gathered)
    {
        const int count = rows.count - r < most ? rows.count - r : most;
        const T* const data = static_cast<const T*>(rows.page0.data);
        if (const Rows run = rows.run(r, count); run.count == count) {
            return {data + run.offset, run.stride};
        }
        for (int i = 0; i < count; ++i) {
            __builtin_memcpy(gathered + i * most_depth, data + rows.offset_of(r + i),
                             static_cast<std::size_t>(rows.page0.depth) * sizeof(T));
        }
        return {gathered, most_depth};
    }
    static FLASHOMP_INLINE Strip strip_of(const QuantisedRows& rows, int r, int most, T* gathered)
    {
        const int count = rows.rows.count - r < most ? rows.rows.count - r : most;
        with_element(rows, [&](const auto* data) {
            for (int i = 0; i < count; ++i) {
                const auto* const source = data + rows.rows.offset_of(r + i);
                T* const target = gathered + i * most_depth;
                for (int x = 0; x < rows.rows.page0.depth; ++x) {
                    from_float(to_float(source[x]), target[x]);
                }
            }
        });
        return {gathered, most_depth};
    }
    static FLASHOMP_INLINE int depth_of(const Rows& rows) { return rows.depth; }
    static FLASHOMP_INLINE int depth_of(const PagedRows& rows) { return rows.page0.depth; }
    static FLASHOMP_INLINE int depth_of(const QuantisedRows& rows) { return rows.rows.page0.depth; }
    static FLASHOMP_INLINE int count_of(const Rows& rows) { return rows.count; }
    static FLASHOMP_INLINE int count_of(const PagedRows& rows) { return rows.count; }
    static FLASHOMP_INLINE int count_of(const QuantisedRows& rows) { return rows.rows.count; }

    /// Room for so many gathered rows.
    template <class SomeRows, int rows>
    using Gathered = T[std::is_same_v<SomeRows, Rows> ? 1 : int{rows} * int{most_depth}];

    /// Blocks [count / 16][depth / 32] with the pairs along each row.
    template <class SomeRows>
    static void pack_rows(PairBlock* target, const SomeRows& rows)
    {
        Gathered<SomeRows, lanes> gathered;
        const int depth = depth_of(rows), count = count_of(rows);
        const int k = tiles(depth, inner);
        const std::ptrdiff_t plane = std::ptrdiff_t{tiles(count, lanes)} * k;
        for (int r0 = 0; r0 < count; r0 += lanes) {
            const auto [first, stride] = strip_of(rows, r0, lanes, gathered);
            [[maybe_unused]] RowGrids grids;
            if constexpr (element == Element::float32) {
                grids = row_grids(first, stride, count - r0, depth);
            }
            for (int x0 = 0; x0 < depth; x0 += inner, ++target) {
                if constexpr (element == Element::float32) {
                    pack_along(first + x0, stride, count - r0, depth - x0, grids, target, plane);
                } else {
                    pack_along<terms>(first + x0, stride, count - r0, depth - x0, target, plane);
                }
            }
        }
    }

    /// Blocks [depth / 16][count / 32] with the pairs across rows.
    template <class SomeRows>
    static void pack_columns(PairBlock* target, const SomeRows& rows)
    {
        Gathered<SomeRows, inner> gathered;
        const int depth = depth_of(rows), count = count_of(rows);
        const int k = tiles(count, inner);
        const std::ptrdiff_t plane = std::ptrdiff_t{tiles(depth, lanes)} * k;
        for (int r0 = 0; r0 < count; r0 += inner) {
            const auto [first, stride] = strip_of(rows, r0, inner, gathered);
            for (int x0 = 0; x0 < depth; x0 += lanes) {
                PairBlock* const block = target + std::ptrdiff_t{x0 / lanes} * k + r0 / inner;
                pack_across<terms>(first + x0, stride, count - r0, depth - x0, block, plane);
                for (int t = 0; t < terms; ++t) {
                    transpose(block[t * plane]);
                }
            }
        }
    }

    /// One strip of scores as blocks [count / 32].
    static FLASHOMP_OUT_OF_LINE void pack_scores(PairBlock* target, std::ptrdiff_t plane, const float* strip, int count)
    {
        int c = 0;
        for (; c + inner <= count; c += inner, ++target, strip += int{inner} * int{lanes}) {
#pragma GCC unroll 4
            for (int pair = 0; pair < PairBlock::rows; ++pair) {
                const float* even = strip + 2 * pair * lanes;
                store_pairs<terms>(_mm512_load_ps(even), _mm512_load_ps(even + lanes), target, plane, pair);
            }
        }
        for (int pair = 0; c < count && pair < PairBlock::rows; ++pair) {
            const float* even = strip + 2 * pair * lanes;
            store_pairs<terms>(c + 2 * pair < count ? _mm512_load_ps(even) : _mm512_setzero_ps(),
                               c + 2 * pair + 1 < count ? _mm512_load_ps(even + lanes) : _mm512_setzero_ps(), target,
                               plane, pair);
        }
    }
};

} // namespace flashomp::offload
