// The host machine for few resident rows, as in decoding. Its time is that of reading keys and values, so it reads each
// once, where it is, in the order of memory: a block of rows may be those of several key heads, whose keys lie beside
// each other, and while it computes on a block of keys the next one is asked for. Products run along the depth, and
// vector lanes of scores along keys, for the rows are too few for them.
#pragma once

#include "host/host_machine.hpp"
#include "host/pair_products.hpp"
#include "host/placed_rows.hpp"

namespace flashomp::offload {

/// is_quantised: k and v are a cache of 8 bits. Scales multiply scores and probabilities, of which there are fewer than
/// elements.
template <class Isa, bool is_quantised = false>
class FewRowsMachine : public HostMachine<Isa> {
    using Base = HostMachine<Isa>;
    using Tile = HostTile<Isa>;
    using Tile::padded, Tile::rows_, Tile::take, Tile::vectors, Tile::whole_lines, Tile::with_element, Base::rescale;
    using typename Tile::Vector, typename Tile::Lanes;

    template <class T>
    using Products = DepthProducts<Isa, T>;

    enum : int {
        most_rows = 8,                               ///< of a register block, which reads up to so many
        most_summed = Isa::lanes < 16 ? 4 : 8,       ///< rows of values' sums: 16 registers hold 4 in two columns
        most_sums = Isa::lanes < 8 ? 8 : Isa::lanes, ///< sums that registers hold beside what is multiplied
        has_16_registers = Isa::lanes < 16,          ///< of vectors; else 32
        asks_for_values = !has_16_registers,         ///< as asks_for_keys()
    };

    /// Where asking for the next rows is faster than leaving them to the CPU (docs/log/host-decoding.md). Zen 3, the
    /// only CPU without AVX-512 that was measured, brings values itself, and keys that are multiplied with one query.
    template <int n, class T>
    static constexpr bool asks_for_keys()
    {
        return has_16_registers == 0 || n > 1 || sizeof(T) == 1;
    }

    /// Rows whose sums registers hold with as many columns as are loaded at once.
    template <class V>
    static constexpr int rows_summed()
    {
        constexpr int held = int{most_sums} / int{V::vectors};
        return held < int{most_summed} ? held : int{most_summed};
    }

public:
    using Base::lanes, Base::load;
    using typename Base::Accumulator, typename Base::Stage, typename Base::Stats;

    struct Resident {
        float* data; ///< [row][padded depth] of DepthProducts::Resident, zeros beyond the depth
        int depth, padded, count;
    };

    /// Lanes run along columns. Beyond `count` there are -infs up to a multiple of the lanes.
    struct Scores {
        float* data; ///< [row][column]
        int columns, count;
        FLASHOMP_INLINE float& at(int r, int c) const { return data[std::ptrdiff_t{r} * columns + c]; }
        [[nodiscard]] FLASHOMP_INLINE Vector* row(int r) const { return vectors(&at(r, 0)); }
    };

    using Stream = PlacedRows;

    using Base::Base;

    /// The resident rows are those of so many key heads, as many of each.
    FLASHOMP_INLINE void spread_over(int heads) { heads_ = heads; }

    static constexpr std::int64_t resident_floats(int rows, int depth)
    {
        return whole_lines(rows + most_rows - 1, in_pieces(depth));
    }
    static constexpr std::int64_t accumulator_floats(int rows, int depth) { return resident_floats(rows, depth); }
    static constexpr std::int64_t scores_floats(int rows, int columns)
    {
        return whole_lines(rows + most_rows - 1, Stream::whole_steps(columns));
    }
    static constexpr std::int64_t stream_floats(int rows, int) { return whole_lines(1, Stream::floats(rows)); }

    FLASHOMP_INLINE Resident resident(int depth)
    {
        return {zeros(resident_floats(this->resident_rows(), depth)), depth, in_pieces(depth), 0};
    }
    FLASHOMP_INLINE Accumulator accumulator(int depth)
    {
        return {zeros(accumulator_floats(this->resident_rows(), depth)), depth, padded(depth)};
    }
    FLASHOMP_INLINE Scores scores(ScoreUse = ScoreUse::values)
    {
        return {zeros(scores_floats(this->resident_rows(), this->stream_rows())),
                Stream::whole_steps(this->stream_rows()), 0};
    }
    FLASHOMP_INLINE Stream stream(const Tensor& tensor, int depth, StreamUse)
    {
        return {take(stream_floats(this->stream_rows(), depth)), tensor.head / heads_, heads_};
    }

    void load(Resident& block, const Rows& rows)
    {
        rows_ = rows.count;
        block.count = rows.count;
        with_element(rows, [&](const auto* data) {
            using Kept = typename Products<std::remove_cvref_t<decltype(*data)>>::Resident;
            for (int r = 0; r < rows.count; ++r) {
                const auto* source = data + rows.offset + r * rows.stride;
                auto* target = reinterpret_cast<Kept*>(block.data) + std::ptrdiff_t{r} * block.padded;
                for (int x = 0; x < block.depth; ++x) {
                    from_float(to_float(source[x]), target[x]); // of the same type, or a float
                }
            }
        });
    }

    void load(Stream& block, const Rows& rows) { take_and_ask(block, rows); }
    void load(Stream& block, const PagedRows& rows) { take_and_ask(block, rows); }
    void load(Stream& block, const QuantisedRows& rows) { take_and_ask(block, rows); }

    void multiply(Scores& s, const Resident& block, Stream& k)
    {
        s.count = k.count();
        with_elements<true>(k, [&]<bool whole>(const auto* data) FLASHOMP_LAMBDA {
            for_heads<most_rows>(block.count, [&]<int n>(int head, int r, int, bool is_first) FLASHOMP_LAMBDA {
                dots<n, whole>(s, block, k, data, head, r, is_first);
            });
        });
        multiply_by_scales(s, k);
        for (int r = 0; r < block.count; ++r) {
            for (int c = s.count; c % lanes != 0; ++c) {
                s.at(r, c) = -infinity;
            }
        }
    }

    FLASHOMP_INLINE void accumulate(Accumulator& a, Scores& s, Stream& v, bool scales, const Stats& factor)
    {
        if (scales) {
            rescale(a, factor);
        }
        accumulate(a, s, v);
    }

    void accumulate(Accumulator& a, Scores& s, Stream& v)
    {
        multiply_by_scales(s, v);
        with_elements<false>(v, [&]<bool whole>(const auto* data) FLASHOMP_LAMBDA {
            using V = ValueSums<Isa, std::remove_cvref_t<decltype(*data)>>;
            for (int r = 0; r < rows_; ++r) {
                V::prepare(&s.at(r, 0), s.count);
            }
            for_heads<rows_summed<V>()>(rows_, [&]<int n>(int head, int r, int rows, bool is_first) FLASHOMP_LAMBDA {
                constexpr int most = most_sums / n < 8 ? most_sums / n : 8;
                int x = 0;
                const auto columns = [&]<int m>() FLASHOMP_LAMBDA {
                    x = sums<n, m, whole>(a, s, v, data, head, r, rows, x, is_first && x == 0);
                };
                columns.template operator()<most>();
                if constexpr (most > 4) {
                    columns.template operator()<4>();
                }
                if constexpr (most > 1) {
                    columns.template operator()<1>();
                }
            });
        });
    }

    template <class F>
    FLASHOMP_INLINE void map(Scores& s, F f)
    {
        for (int r = 0; r < rows_; ++r) {
            float* const row = &s.at(r, 0);
#pragma omp simd
            for (int c = 0; c < s.count; ++c) {
                row[c] = f(row[c], r, c);
            }
        }
    }

    template <bool keys_are_rows>
    void hide(Scores&, const PairMask&, int, int, int, int) = delete; // Tile's has lanes along rows
    template <class AnyScore>
    void drop(Scores&, const AnyScore&, int, int) = delete; // so too

    static FLASHOMP_INLINE bool may_exceed(const Scores&, const Stats&)
    {
        return true;
    } // as Tile's

    FLASHOMP_INLINE void row_max(const Scores& s, const Stats& max)
    {
        for (int r = 0; r < rows_; ++r) {
            Vector top = Vector{} + max[r];
            for (int i = 0; i * lanes < s.count; ++i) {
                top = Lanes::max(s.row(r)[i], top);
            }
            max[r] = Lanes::max(top);
        }
    }

    FLASHOMP_INLINE void exp_sum(Scores& s, const Stats& base, float factor, const Stats& sum)
    {
        for (int r = 0; r < rows_; ++r) {
            Vector total = {};
            for (int i = 0; i * lanes < s.count; ++i) {
                Vector& x = s.row(r)[i];
                x = Lanes::exp2((x - base[r]) * factor);
                total += x;
            }
            sum[r] += Lanes::sum(total);
        }
    }

private:
    /// A depth in whole pieces of every type.
    static constexpr int in_pieces(int depth)
    {
        constexpr int most = (has_16_registers != 0 ? 2 : 4) * lanes;
        return (depth + most - 1) / most * most;
    }

    FLASHOMP_INLINE float* zeros(std::int64_t floats)
    {
        float* const data = take(floats);
        std::fill_n(data, floats, 0.0F);
        return data;
    }

    template <class StreamedRows>
    static void take_and_ask(Stream& block, const StreamedRows& rows)
    {
        block.take(rows);
        if (block.is_first()) {
            with_streamed(block, [&](const auto* data) { block.ask_here(data); });
        }
    }

    /// Each column by the factor of its row of the stream.
    FLASHOMP_INLINE void multiply_by_scales(Scores& s, const Stream& stream)
    {
        if (!is_quantised || !stream.has_scales()) {
            return;
        }
        const int group = rows_ / heads_;
        for (int head = 0; head < heads_; ++head) {
            for (int first = 0; first < s.count; first += Stream::step) {
                float by[Stream::step];
                stream.scales(head, first, by);
                for (int r = head * group; r < (head + 1) * group; ++r) {
                    float* const scores = &s.at(r, first);
#pragma omp simd
                    for (int c = 0; c < Stream::step; ++c) {
                        scores[c] *= by[c];
                    }
                }
            }
        }
    }

    /// Calls f(data) with the elements of a stream.
    template <class F>
    static FLASHOMP_INLINE void with_streamed(const Stream& block, F f)
    {
        const Rows& rows = block.tensor();
        if constexpr (is_quantised) {
            const auto with = [&]<class T>() FLASHOMP_LAMBDA {
#if FLASHOMP_FEW_ON_PAIRS
                if (rows.element == Element::bfloat16) { // of q, which load() keeps as pairs then
                    return f(static_cast<const OnPairs<T>*>(rows.data));
                }
#endif
                f(static_cast<const T*>(rows.data));
            };
            block.element() == CacheElement::int8 ? with.template operator()<Int8>()
                                                  : with.template operator()<Float8>();
        } else {
            with_element(rows, f);
        }
    }

    /// Calls f<whole>(data): whether rows have no elements beside whole pieces, or whole vectors.
    template <bool in_pieces, class F>
    static FLASHOMP_INLINE void with_elements(const Stream& block, F f)
    {
        const Rows& rows = block.tensor();
        with_streamed(block, [&](const auto* data) FLASHOMP_LAMBDA {
            constexpr int step =
                in_pieces ? static_cast<int>(Products<std::remove_cvref_t<decltype(*data)>>::step) : lanes;
            rows.depth % step == 0 ? f.template operator()<true>(data) : f.template operator()<false>(data);
        });
    }

    /// Calls f<n>(head, r, rows, is_first) for the `count` rows: up to n from r on, that belong to one head.
    template <int most, class F>
    FLASHOMP_INLINE void for_heads(int count, F f)
    {
        const int group = count / heads_;
        for (int head = 0; head < heads_; ++head) {
            for (int i = 0; i < group; i += most) {
                const int rows = group - i < most ? group - i : most;
                const int r = head * group + i;
                if (rows == 1) {
                    f.template operator()<1>(head, r, rows, i == 0);
                } else if (rows == 2) {
                    f.template operator()<2>(head, r, rows, i == 0);
                } else if (rows <= 4) {
                    f.template operator()<4>(head, r, rows, i == 0);
                } else if constexpr (most > 4) {
                    f.template operator()<most>(head, r, rows, i == 0);
                }
            }
        }
    }

    /// Scores of n rows from r on and all keys. What does not change within the loops is in locals:
    /// stores of floats could change members as far as g++ knows.
    template <int n, bool whole, class T>
    static void dots(Scores& s, const Resident& block, Stream& k, const T* data, int head, int r, bool asks)
    {
        using P = Products<T>;
        constexpr int keys = most_sums / n, at_once = keys < 8 ? keys : 8; // pointers that registers hold
        const int count = s.count, columns = s.columns, depth = block.depth, width = block.padded;
        float* const row = &s.at(r, 0);
        const auto* const queries =
            reinterpret_cast<const typename P::Resident*>(block.data) + std::ptrdiff_t{r} * width;
        for (int c = 0; c < count; c += keys) {
            if (asks_for_keys<n, T>() && asks) {
                k.ask(data, keys);
            }
            Vector sum[n][keys] = {};
#pragma GCC unroll 2
            for (int first = 0; first < keys; first += at_once) {
                const T* key[at_once];
                for (int i = 0; i < at_once; ++i) {
                    key[i] = k.row(data, head, c + first + i);
                }
                for (int x = 0; x < depth; x += P::step) {
                    typename P::Piece q[n];
#pragma GCC unroll 8
                    for (int j = 0; j < n; ++j) {
                        q[j] = P::resident(queries + std::ptrdiff_t{j} * width + x);
                        if constexpr (has_16_registers != 0 && n <= 4) {
                            P::keep(q[j]);
                        }
                    }
                    const int left = depth - x;
#pragma GCC unroll 8
                    for (int i = 0; i < at_once; ++i) {
                        const auto piece = whole || left >= P::step ? P::load(key[i] + x) : P::load(key[i] + x, left);
#pragma GCC unroll 8
                        for (int j = 0; j < n; ++j) {
                            sum[j][first + i] = P::add(sum[j][first + i], q[j], piece);
                        }
                    }
                }
            }
            float scores[n][keys];
            for (int i = 0; i < most_sums; i += lanes) {
                const Vector several = Lanes::sums(&sum[0][0] + i) * P::factor;
                __builtin_memcpy(&scores[0][0] + i, &several, sizeof several);
            }
            // Where fewer than n are left, the others are written anew as rows of the next head, or are nobody's.
#pragma GCC unroll 8
            for (int j = 0; j < n; ++j) {
                __builtin_memcpy(row + std::ptrdiff_t{j} * columns + c, scores[j], sizeof scores[j]);
            }
        }
    }

    /// m vectors of columns from x on.
    template <class V, bool whole, int m, class T>
    static FLASHOMP_INLINE void load_columns(typename V::Piece (&piece)[m], const T* const (&row)[V::values], int x,
                                             int depth)
    {
        constexpr int at_once = whole && m % V::vectors == 0 ? static_cast<int>(V::vectors) : 1;
#pragma GCC unroll 8
        for (int i = 0; i < m; i += at_once) {
            const int first = x + i * lanes;
            if constexpr (at_once > 1) {
                V::load(row, first, piece + i);
            } else {
                piece[i] = whole || depth - first >= lanes ? V::load(row, first) : V::load(row, first, depth - first);
            }
        }
    }

    /// Adds what the block's values have for `rows` rows from r on, at most n, in m vectors of columns at a time from x
    /// on. Returns the first column that is left.
    template <int n, int m, bool whole, class T>
    int sums(Accumulator& a, Scores& s, Stream& v, const T* data, int head, int r, int rows, int x, bool asks)
    {
        using V = ValueSums<Isa, T>;
        const int count = s.count, columns = s.columns, depth = a.depth, width = a.padded;
        const float* const weights = &s.at(r, 0);
        float* const into = a.data + std::ptrdiff_t{r} * width;
        for (; x + m * lanes <= width; x += m * lanes) {
            Vector sum[n][m];
#pragma GCC unroll 8
            for (int j = 0; j < n; ++j) {
#pragma GCC unroll 8
                for (int i = 0; i < m; ++i) {
                    sum[j][i] = Lanes::load(into + std::ptrdiff_t{j} * width + x + i * lanes);
                }
            }
            for (int c = 0; c < count; c += V::values) {
                if (asks_for_values != 0 && asks) {
                    v.ask(data, V::values);
                }
                const T* row[V::values];
                for (int i = 0; i < V::values; ++i) {
                    row[i] = v.row(data, head, c + i);
                }
                typename V::Piece piece[m];
                load_columns<V, whole>(piece, row, x, depth);
#pragma GCC unroll 8
                for (int j = 0; j < n; ++j) {
                    typename V::Weight p;
                    __builtin_memcpy(&p, weights + std::ptrdiff_t{j} * columns + c / V::values, sizeof p);
#pragma GCC unroll 8
                    for (int i = 0; i < m; ++i) {
                        sum[j][i] = V::add(sum[j][i], p, piece[i]);
                    }
                }
            }
            asks = false;
#pragma GCC unroll 8
            for (int j = 0; j < n; ++j) {
#pragma GCC unroll 8
                for (int i = 0; i < m && j < rows; ++i) {
                    *vectors(into + std::ptrdiff_t{j} * width + x + i * lanes) = sum[j][i];
                }
            }
        }
        return x;
    }

    int heads_ = 1;
};

} // namespace flashomp::offload
