// The host machine for fewer resident rows than a vector has lanes, as in decoding: its products run along the depth,
// on keys and values as they are in memory, each of which is read once. Everything else is the host machine's own.
#pragma once

#include "host/host_machine.hpp"

namespace flashomp::offload {

template <class Isa>
class FewRowsMachine : public HostMachine<Isa> {
    using Base = HostMachine<Isa>;
    using Tile = HostTile<Isa>;
    using Tile::padded, Tile::rows_, Tile::take, Tile::whole_lines, Tile::with_element, Base::rescale;
    using typename Tile::Vector, typename Tile::Lanes;
    enum : int { most_rows = 4, keys = 4 }; // of a register block

public:
    using Base::lanes, Base::load;
    using typename Base::Accumulator, typename Base::Scores, typename Base::Stage, typename Base::Stats;

    struct Resident {
        float* data; ///< [row][padded depth], zeros beyond the depth
        int depth, padded, count;
    };
    struct Stream {
        Rows rows;
        FLASHOMP_INLINE Stream& operator[](Stage) { return *this; }
    };

    using Base::Base;

    static constexpr std::int64_t resident_floats(int rows, int depth) { return whole_lines(rows, padded(depth)); }
    static constexpr std::int64_t stream_floats(int, int) { return 0; }

    FLASHOMP_INLINE Resident resident(int depth)
    {
        return {take(resident_floats(this->resident_rows(), depth)), depth, padded(depth), 0};
    }
    FLASHOMP_INLINE Stream stream(const Tensor&, int, StreamUse) { return {}; }
    FLASHOMP_INLINE Scores scores(ScoreUse = ScoreUse::values)
    {
        Scores s = Base::scores();
        this->clear(s); // lanes without a row take part in vectors
        return s;
    }
    FLASHOMP_INLINE Stats row_stats()
    {
        Stats stats = Base::row_stats();
        for (int r = 0; r < padded(this->resident_rows()); ++r) {
            stats[r] = 0.0F;
        }
        return stats;
    }

    void load(Resident& block, const Rows& rows)
    {
        rows_ = padded(rows.count);
        block.count = rows.count;
        with_element(rows, [&](const auto* data) {
            for (int r = 0; r < rows.count; ++r) {
                const auto* source = data + rows.offset + r * rows.stride;
                float* target = block.data + std::ptrdiff_t{r} * block.padded;
                for (int x = 0; x < block.padded; ++x) {
                    target[x] = x < block.depth ? to_float(source[x]) : 0.0F;
                }
            }
        });
    }
    void load(Stream& block, const Rows& rows) { block.rows = rows; }

    FLASHOMP_INLINE void multiply(Scores& s, const Resident& block, const Stream& stream)
    {
        s.count = stream.rows.count;
        with_element(stream.rows, [&](const auto* data) {
            const auto* first = data + stream.rows.offset;
            for (int c = 0; c < s.count; c += keys) {
                prefetch(first + (c + ahead) * stream.rows.stride, stream.rows);
                for (int r = 0; r < block.count; r += most_rows) {
                    with_rows(block.count - r, [&]<int rows>() {
                        dots<rows>(s, block, first + c * stream.rows.stride, stream.rows, r, c);
                    });
                }
            }
        });
    }

    FLASHOMP_INLINE void multiply(Scores& s, const Resident& block, const Stream& stream, Scores& s2,
                                  const Resident& block2, const Stream& stream2)
    {
        multiply(s, block, stream);
        multiply(s2, block2, stream2);
    }

    FLASHOMP_INLINE void accumulate(Accumulator& a, const Scores& s, const Stream& stream, bool scales,
                                    const Stats& factor)
    {
        if (scales) {
            rescale(a, factor);
        }
        accumulate(a, s, stream);
    }

    FLASHOMP_INLINE void accumulate(Accumulator& a, const Scores& s, const Stream& stream)
    {
        with_element(stream.rows, [&](const auto* data) {
            const auto* first = data + stream.rows.offset;
            for (int c = 0; c < s.count; c += keys) {
                prefetch(first + (c + ahead) * stream.rows.stride, stream.rows);
                for (int r = 0; r < this->resident_rows(); r += most_rows) {
                    with_rows(this->resident_rows() - r,
                              [&]<int rows>() { sums<rows>(a, s, first + c * stream.rows.stride, stream.rows, r, c); });
                }
            }
        });
    }

private:
    enum : int { ahead = 16 }; ///< rows that are on their way: their stride is too long for the CPU to see

    template <class T>
    static FLASHOMP_INLINE void prefetch(const T* row, const Rows& rows)
    {
        for (int i = 0; i < keys; ++i) {
            for (int x = 0; x < rows.depth; x += 64 / static_cast<int>(sizeof(T))) {
                __builtin_prefetch(row + i * rows.stride + x); // harmless past the end
            }
        }
    }

    /// Calls f<n>() for n rows, at most most_rows.
    template <class F>
    static FLASHOMP_INLINE void with_rows(int n, F f)
    {
        switch (n) {
        case 1:
            return f.template operator()<1>();
        case 2:
            return f.template operator()<2>();
        case 3:
            return f.template operator()<3>();
        default:
            return f.template operator()<most_rows>();
        }
    }

    /// Elements [x, x + lanes) of a row of `depth`, zeros beyond.
    template <class T>
    static FLASHOMP_INLINE Vector values(const T* row, int x, int depth)
    {
        if (x + lanes <= depth) {
            return Lanes::load(row + x);
        }
        T rest[lanes] = {};
        for (int i = 0; x + i < depth; ++i) {
            rest[i] = row[x + i];
        }
        return Lanes::load(rest);
    }

    /// Scores of rows [r, r + n) and keys [c, c + keys), of which the tile may have fewer.
    template <int n, class T>
    static void dots(Scores& s, const Resident& block, const T* key, const Rows& rows, int r, int c)
    {
        const int last = s.count - 1 - c < keys - 1 ? s.count - 1 - c : keys - 1;
        Vector sum[n][keys] = {};
        for (int x = 0; x < block.padded; x += lanes) {
            Vector k[keys];
#pragma GCC unroll 4
            for (int i = 0; i < keys; ++i) {
                k[i] = values(key + (i < last ? i : last) * rows.stride, x, rows.depth);
            }
#pragma GCC unroll 4
            for (int j = 0; j < n; ++j) {
                const Vector q = Lanes::load(block.data + std::ptrdiff_t{r + j} * block.padded + x);
#pragma GCC unroll 4
                for (int i = 0; i < keys; ++i) {
                    sum[j][i] += q * k[i];
                }
            }
        }
        for (int i = 0; i <= last; ++i) {
            for (int j = 0; j < n; ++j) {
                s.at(r + j, c + i) = Lanes::sum(sum[j][i]);
            }
        }
    }

    /// Adds what keys [c, c + keys) have for rows [r, r + n).
    template <int n, class T>
    static void sums(Accumulator& a, const Scores& s, const T* value, const Rows& rows, int r, int c)
    {
        const int there = s.count - c < keys ? s.count - c : keys;
        for (int x = 0; x < a.padded; x += lanes) {
            Vector sum[n];
#pragma GCC unroll 4
            for (int j = 0; j < n; ++j) {
                sum[j] = Lanes::load(a.data + std::ptrdiff_t{r + j} * a.padded + x);
            }
            for (int i = 0; i < there; ++i) {
                const Vector v = values(value + i * rows.stride, x, rows.depth);
#pragma GCC unroll 4
                for (int j = 0; j < n; ++j) {
                    sum[j] += s.at(r + j, c + i) * v;
                }
            }
#pragma GCC unroll 4
            for (int j = 0; j < n; ++j) {
                *Tile::vectors(a.data + std::ptrdiff_t{r + j} * a.padded + x) = sum[j];
            }
        }
    }
};

} // namespace flashomp::offload
