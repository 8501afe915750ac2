// The host machine for fewer resident rows than a vector has lanes, as in decoding: its products run along the depth,
// on keys and values as they are in memory, each of which is read once. Everything else is the host machine's own.
#pragma once

#include "host/host_machine.hpp"

namespace flashomp::offload {

/// StreamedRows: Rows, or PagedRows of a cache.
template <class Isa, class StreamedRows = Rows>
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
        StreamedRows rows;
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
    void load(Stream& block, const StreamedRows& rows) { block.rows = rows; }

    FLASHOMP_INLINE void multiply(Scores& s, const Resident& block, const Stream& stream)
    {
        s.count = stream.rows.count;
        for_keys(stream.rows, s.count, [&](int c, const auto& group, int depth) FLASHOMP_LAMBDA {
            for (int r = 0; r < block.count; r += most_rows) {
                with_rows(block.count - r, [&]<int rows>() { dots<rows>(s, block, group, depth, r, c); });
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
        for_keys(stream.rows, s.count, [&](int c, const auto& group, int depth) FLASHOMP_LAMBDA {
            for (int r = 0; r < this->resident_rows(); r += most_rows) {
                with_rows(this->resident_rows() - r, [&]<int rows>() { sums<rows>(a, s, group, depth, r, c); });
            }
        });
    }

private:
    enum : int { ahead = 16 }; ///< rows that are on their way: their stride is too long for the CPU to see

    /// A group of keys, or of values, at one stride, or each at its place.
    template <class T>
    struct StridedGroup {
        const T* first;
        std::ptrdiff_t stride;
        FLASHOMP_INLINE const T* operator[](int i) const { return first + i * stride; }
    };
    template <class T>
    struct GatheredGroup {
        const T* rows[keys];
        FLASHOMP_INLINE const T* operator[](int i) const { return rows[i]; }
    };

    template <class T>
    static FLASHOMP_INLINE void prefetch(const T* row, int depth)
    {
        for (int x = 0; x < depth; x += 64 / static_cast<int>(sizeof(T))) {
            __builtin_prefetch(row + x); // harmless past the end
        }
    }

    /// Calls f(c, group, depth) for the `count` rows in groups of `keys`, of which the last may have fewer.
    template <class F>
    static FLASHOMP_INLINE void for_keys(const Rows& rows, int count, F f)
    {
        with_element(rows, [&](const auto* data) {
            const StridedGroup all{data + rows.offset, static_cast<std::ptrdiff_t>(rows.stride)};
            for (int c = 0; c < count; c += keys) {
                for (int i = 0; i < keys; ++i) {
                    prefetch(all[c + ahead + i], rows.depth);
                }
                f(c, StridedGroup{all[c], all.stride}, rows.depth);
            }
        });
    }

    /// The same of pages, along which two pointers go: one for the keys at work and one for those that are on their
    /// way, also from the next block.
    template <class F>
    static FLASHOMP_INLINE void for_keys(const PagedRows& rows, int count, F f)
    {
        with_element(rows.page0, [&](const auto* data) {
            using T = std::remove_cvref_t<decltype(*data)>;
            PageWalk here(rows, 0);
            PageWalk there(rows, ahead);
            int in_page = rows.page_rows - rows.first % rows.page_rows; // from here on
            const auto step = [&] {
                here.next();
                in_page = in_page > 1 ? in_page - 1 : rows.page_rows;
            };
            for (int c = 0; c < count; c += keys) {
                for (int i = 0; i < keys && !there.is_over(); ++i, there.next()) {
                    prefetch(data + there.offset(), rows.page0.depth);
                }
                if (in_page >= keys) { // what lies beyond the last row is not read
                    f(c, StridedGroup<T>{data + here.offset(), static_cast<std::ptrdiff_t>(rows.page0.stride)},
                      rows.page0.depth);
                    for (int i = 0; i < keys; ++i) {
                        step();
                    }
                    continue;
                }
                GatheredGroup<T> group;
                for (int i = 0; i < keys; ++i) {
                    group.rows[i] = data + here.offset();
                    step();
                }
                f(c, group, rows.page0.depth);
            }
        });
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
    template <int n, class Group>
    static void dots(Scores& s, const Resident& block, const Group& group, int depth, int r, int c)
    {
        const int last = s.count - 1 - c < keys - 1 ? s.count - 1 - c : keys - 1;
        Vector sum[n][keys] = {};
        for (int x = 0; x < block.padded; x += lanes) {
            Vector k[keys];
#pragma GCC unroll 4
            for (int i = 0; i < keys; ++i) {
                k[i] = values(group[i < last ? i : last], x, depth);
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
    template <int n, class Group>
    static void sums(Accumulator& a, const Scores& s, const Group& group, int depth, int r, int c)
    {
        const int there = s.count - c < keys ? s.count - c : keys;
        for (int x = 0; x < a.padded; x += lanes) {
            Vector sum[n];
#pragma GCC unroll 4
            for (int j = 0; j < n; ++j) {
                sum[j] = Lanes::load(a.data + std::ptrdiff_t{r + j} * a.padded + x);
            }
            for (int i = 0; i < there; ++i) {
                const Vector v = values(group[i], x, depth);
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
