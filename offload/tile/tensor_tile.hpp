// What the machines with tensor cores have in common: a crew is a team of `warps` warps, and each warp owns
// 16·fragments resident rows and works on them alone, so score tiles, accumulators and row statistics never leave its
// registers; only streamed blocks are shared, in team memory.
//
// In registers everything has the layout of mma.m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16"): with
// g = lane / 4 and t = lane % 4, a lane holds of each 16x8 piece of a score tile or accumulator the rows g and g + 8,
// columns 2t and 2t + 1. Two neighbouring 16x8 pieces of scores, rounded to 16 bits, are just a left operand of the
// next product: probabilities need no exchange between lanes.
#pragma once

#include "tile/math.hpp"
#include "tile/panels.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// Config: Math (ptx::BFloat16Math or Float16Math), depth (64, 128 or 256: head_dim and head_dim_v rounded up),
/// fragments, stream_rows, warps, in_registers: how many of the resident blocks (at most two) the registers hold,
/// refetch: whether they are too few for the parameters, and modified: whether scores are more than scaled dot
/// products. What is done to each modified score is so much that its code, written out for every register, would take
/// the driver minutes to compile.
template <class Config>
class TensorTile {
public:
    using Math = typename Config::Math;
    enum : int { // not static members: g++ calls classes with those not mappable
        depth = Config::depth,
        fragments = Config::fragments,
        warps = Config::warps,
        threads = 32 * Config::warps,
        columns = Config::stream_rows,
        rows_in_warp = 16 * Config::fragments,
        rows_in_crew = Config::warps * rows_in_warp,
        row_slots = 2 * Config::fragments,
        most_row_stats = 4,
        piece_rows = rows_in_crew % columns == 0 ? columns : 32, ///< resident blocks lie in pieces of so many rows
        block_bytes = 2 * columns * depth,
        piece_bytes = 2 * piece_rows * depth,
        resident_bytes = 2 * rows_in_crew * depth,
    };
    using Block = Panels<columns, depth>; ///< a streamed block
    using Piece = Panels<piece_rows, depth>;
    static_assert(rows_in_crew % piece_rows == 0 && rows_in_crew <= 4 * columns); // on their way through four blocks

    /// A resident row of this lane. Four neighbouring lanes share it.
    struct Row {
        int index; ///< in the block
        int slot;  ///< among the lane's rows; a constant once loops are unrolled
        FLASHOMP_INLINE operator int() const { return index; }
    };
    struct Resident {
        ptx::Four a[fragments][depth / 16]; ///< fragments of left operands
        std::uint32_t address;              ///< or where they are fetched from, every time
        bool in_memory;                     ///< a constant once all is inlined
    };
    struct StreamBlock {
        std::uint32_t address;
    };
    struct Scores {
        float s[fragments][columns / 8][4];
        ptx::Four p[fragments][columns / 16]; ///< instead, rounded: what exp_sum() left
        bool is_rounded;                      ///< a constant once all is inlined
        int group;                            ///< Hopper: the registers of wgmma that they come from
    };
    struct WarpAccumulator {
        float c[fragments][depth / 8][4];
    };
    struct Stats {
        float* v;
        FLASHOMP_INLINE float& operator[](Row r) const { return v[r.slot]; }
    };
    struct ColumnStatsBlock {
        std::uint32_t address;
        FLASHOMP_INLINE float operator[](int c) const { return ptx::load_shared(address + 4 * c); }
    };

    FLASHOMP_INLINE explicit TensorTile(const void* team_memory)
        : memory_(ptx::shared_address(team_memory)), next_(memory_), lane_(ptx::lane()), warp_(ptx::warp())
    {
    }

    FLASHOMP_INLINE int resident_rows() const { return rows_in_crew; }
    FLASHOMP_INLINE int stream_rows() const { return columns; }
    /// 8·ln 2: probabilities up to 256 are as exact in 16 bits as those up to 1. Dropout's factor could take them
    /// beyond float16.
    static FLASHOMP_INLINE float lag() { return Config::modified != 0 ? 0.0F : 5.5451774F; }
    static FLASHOMP_INLINE float exp2(float x) { return ptx::exp2_approx(x); }

    /// The first ones stay in registers, the others in team memory.
    FLASHOMP_INLINE Resident resident(int)
    {
        Resident block;
        block.in_memory = used_residents_ >= Config::in_registers;
        block.address = // behind what streams
            memory_ + 4 * block_bytes + static_cast<unsigned>(used_residents_ - Config::in_registers) * resident_bytes;
        ++used_residents_;
        return block;
    }
    FLASHOMP_INLINE Stats row_stats()
    {
        const Stats s{&row_stats_[used_stats_ * row_slots]};
        ++used_stats_;
        return s;
    }

    template <class F>
    FLASHOMP_INLINE void map(Scores& s, const F& f)
    {
        Scores none;
        combine(s, none, [=](float x, float&, Row r, int c) FLASHOMP_LAMBDA { return f(x, r, c); });
    }

    template <class F>
    FLASHOMP_INLINE void combine(Scores& s, Scores& other, const F& f)
    {
        const unsigned lane = ptx::here(lane_);
        const int first_row = static_cast<int>(warp_ * rows_in_warp + lane / 4);
        const int first_column = static_cast<int>(2 * (lane % 4));
        const auto piece = [&](int m, int n, int column) FLASHOMP_LAMBDA {
            FLASHOMP_UNROLL(4)
            for (int e = 0; e < 4; ++e) {
                const int slot = 2 * m + e / 2;
                s.s[m][n][e] =
                    f(s.s[m][n][e], other.s[m][n][e], Row{first_row + 8 * slot, slot}, first_column + column + e % 2);
            }
        };
        if constexpr (Config::modified != 0) {
            // A loop over the 16x8 pieces that handles the first and turns the registers round by one.
            const int pieces = static_cast<int>(ptx::here(columns / 8)); // a known number would be unrolled
            FLASHOMP_UNROLL(1)
            for (int n = 0; n < pieces; ++n) {
                ptx::refetch();
                FLASHOMP_UNROLL(8)
                for (int m = 0; m < fragments; ++m) {
                    piece(m, 0, 8 * n);
                }
                rotate(s);
                rotate(other);
            }
        } else {
            FLASHOMP_UNROLL(8)
            for (int m = 0; m < fragments; ++m) {
                FLASHOMP_UNROLL(64)
                for (int n = 0; n < columns / 8; ++n) {
                    piece(m, n, 8 * n);
                }
            }
        }
    }

    FLASHOMP_INLINE void row_max(const Scores& s, const Stats& max)
    {
        reduce(
            max, [&](int m, int n, int e) FLASHOMP_LAMBDA { return s.s[m][n][e]; },
            [](float x, float y) FLASHOMP_LAMBDA { return ptx::max(x, y); });
        FLASHOMP_UNROLL(8)
        for (int slot = 0; slot < row_slots; ++slot) {
            const float x = ptx::max(max.v[slot], ptx::shuffle_xor<1>(max.v[slot]));
            max.v[slot] = ptx::max(x, ptx::shuffle_xor<2>(x));
        }
    }

    /// Sums stay apart in the four lanes of a row until complete().
    FLASHOMP_INLINE void row_sum(const Scores& s, const Stats& sum)
    {
        reduce(
            sum, [&](int m, int n, int e) FLASHOMP_LAMBDA { return s.s[m][n][e]; },
            [](float x, float y) FLASHOMP_LAMBDA { return x + y; });
    }

    /// Each lane looks at its own scores: without what the four lanes of a row would have to tell each other.
    FLASHOMP_INLINE bool may_exceed(const Scores& s, const Stats& limit)
    {
        if constexpr (Config::modified != 0) { // ALiBi gives almost every tile a new base
            return true;
        }
        float most[row_slots];
        FLASHOMP_UNROLL(8)
        for (int slot = 0; slot < row_slots; ++slot) {
            most[slot] = -infinity;
        }
        reduce(
            Stats{most}, [&](int m, int n, int e) FLASHOMP_LAMBDA { return s.s[m][n][e]; },
            [](float x, float y) FLASHOMP_LAMBDA { return ptx::max(x, y); });
        return any_above(Stats{most}, limit);
    }

    FLASHOMP_INLINE bool any_above(const Stats& x, const Stats& y)
    {
        bool above = false;
        FLASHOMP_UNROLL(8)
        for (int slot = 0; slot < row_slots; ++slot) {
            above |= x.v[slot] > y.v[slot];
        }
        return ptx::any_lane(above);
    }

    FLASHOMP_INLINE void complete(const Stats& sum)
    {
        FLASHOMP_UNROLL(8)
        for (int slot = 0; slot < row_slots; ++slot) {
            float x = sum.v[slot];
            x += ptx::shuffle_xor<1>(x);
            sum.v[slot] = x + ptx::shuffle_xor<2>(x);
        }
    }

    template <class F>
    FLASHOMP_INLINE void for_rows(const F& f)
    {
        FLASHOMP_UNROLL(8)
        for (int slot = 0; slot < row_slots; ++slot) {
            f(Row{row_index(slot), slot});
        }
    }

    template <class F>
    FLASHOMP_INLINE void for_rows(int count, const F& f)
    {
        FLASHOMP_UNROLL(8)
        for (int slot = 0; slot < row_slots; ++slot) {
            const Row r{row_index(slot), slot};
            if (r.index < count) {
                f(r);
            }
        }
    }

    FLASHOMP_INLINE void row_dot(const Rows& a, const Rows& b, const Stats& dot)
    {
        const auto* const left = static_cast<const std::uint16_t*>(a.data) + a.offset;
        const auto* const right = static_cast<const std::uint16_t*>(b.data) + b.offset;
        const int t = static_cast<int>(lane_ % 4);
        FLASHOMP_UNROLL(8)
        for (int slot = 0; slot < row_slots; ++slot) {
            const int r = row_index(slot);
            float sum = 0.0F;
            if (r < a.count) {
                for (int x = t; x < a.depth; x += 4) {
                    sum += Math::low(left[r * a.stride + x]) * Math::low(right[r * b.stride + x]);
                }
            }
            dot.v[slot] = sum;
        }
        complete(dot);
    }

    /// Nothing to wait for: a lane reads only scores and statistics of its own.
    FLASHOMP_INLINE void sync() {}

protected:
    FLASHOMP_INLINE unsigned thread() const { return warp_ * 32 + lane_; }
    FLASHOMP_INLINE unsigned lane() const { return lane_; }

    FLASHOMP_INLINE std::uint32_t take(int bytes)
    {
        const std::uint32_t at = next_;
        next_ += bytes;
        return at;
    }

    /// Of the resident blocks so far; they lie behind the streams, whose bytes take() counts.
    FLASHOMP_INLINE std::uint32_t resident_memory_bytes() const
    {
        const int blocks = used_residents_ - Config::in_registers;
        return blocks > 0 ? static_cast<unsigned>(blocks) * resident_bytes : 0;
    }

    FLASHOMP_INLINE void copy_stats(ColumnStatsBlock block, const float* source, int count)
    {
        const unsigned c = thread();
        if (c < columns) {
            ptx::copy_async_4(block.address + 4 * c, source + c, static_cast<int>(c) < count ? 4 : 0);
        }
    }

    /// By way of the stages, which are not in use yet, to the registers.
    FLASHOMP_INLINE void load_resident(Resident& block, const Rows& rows)
    {
        const std::uint32_t start = block.in_memory ? block.address : memory_;
        FLASHOMP_UNROLL(1)
        for (int part = 0; part < rows_in_crew / piece_rows; ++part) {
            Rows piece = rows;
            piece.offset += part * piece_rows * rows.stride;
            piece.count -= part * piece_rows;
            copy_in<piece_rows, depth, threads>(start + part * piece_bytes, piece, thread());
        }
        ptx::copy_commit();
        ptx::copy_wait<0>();
        ptx::barrier<threads>();
        if (block.in_memory) {
            return;
        }
        FLASHOMP_UNROLL(8)
        for (int m = 0; m < fragments; ++m) {
            FLASHOMP_UNROLL(64)
            for (int k = 0; k < depth / 16; ++k) {
                block.a[m][k] = left_operand(start, m, k);
            }
        }
        ptx::barrier<threads>(); // before the next block comes this way
    }

    FLASHOMP_INLINE ptx::Four left(const Resident& block, int m, int k) const
    {
        return block.in_memory ? left_operand(block.address, m, k) : block.a[m][k];
    }

    /// The row of a 16x16 piece that this lane names to ldmatrix, in bytes: the four 8x8 matrices in the order down the
    /// rows first, or along the columns first.
    FLASHOMP_INLINE std::uint32_t along_columns() const { return (lane_ / 8 % 2 * 8 + lane_ % 8) * 128; }
    FLASHOMP_INLINE std::uint32_t along_rows() const { return (lane_ / 16 * 8 + lane_ % 8) * 128; }

    /// Two neighbouring 16x8 pieces of scores as a left operand.
    static FLASHOMP_INLINE ptx::Four rounded(const Scores& s, int m, int k)
    {
        if (s.is_rounded) {
            return s.p[m][k];
        }
        return {{Math::pack(s.s[m][2 * k][0], s.s[m][2 * k][1]), Math::pack(s.s[m][2 * k][2], s.s[m][2 * k][3]),
                 Math::pack(s.s[m][2 * k + 1][0], s.s[m][2 * k + 1][1]),
                 Math::pack(s.s[m][2 * k + 1][2], s.s[m][2 * k + 1][3])}};
    }

    /// p = 2^((s - base)·by), in the scores' place where they are modified, else rounded; sum += Σ p.
    /// before_rounding() is called when the first are there, but none is rounded yet.
    template <class F>
    FLASHOMP_INLINE void exponentials(Scores& s, const Stats& base, float by, const Stats& sum,
                                      const F& before_rounding)
    {
        const auto add = [](float x, float y) FLASHOMP_LAMBDA { return x + y; };
        if constexpr (Config::modified != 0) {
            const auto p = [&](int m, int n, int e) FLASHOMP_LAMBDA {
                float& x = s.s[m][n][e];
                x = exp2((x - base.v[2 * m + e / 2]) * by);
                return x;
            };
            reduce(sum, p, add);
            s.is_rounded = false;
        } else {
            Scores exact; // never all there: a fragment's are rounded before the next one's
            exact.is_rounded = false;
            FLASHOMP_UNROLL(8)
            for (int fragment = 0; fragment < fragments; ++fragment) {
                const float scaled[2] = {base.v[2 * fragment] * by, base.v[2 * fragment + 1] * by};
                // One fused multiply-add an element; what base·by loses is common to the row, but LSE does not know of
                // it: with ALiBi's logits of thousands the difference comes first (above).
                const auto p = [&](int m, int n, int e) FLASHOMP_LAMBDA {
                    float& x = exact.s[m][n][e];
                    x = exp2(__builtin_fmaf(s.s[m][n][e], by, -scaled[e / 2]));
                    return x;
                };
                reduce_fragment(fragment, sum, p, add);
                if (fragment == 0) {
                    before_rounding();
                }
                FLASHOMP_UNROLL(64)
                for (int k = 0; k < columns / 16; ++k) {
                    s.p[fragment][k] = rounded(exact, fragment, k);
                }
            }
            s.is_rounded = true;
        }
    }

    template <class F>
    FLASHOMP_INLINE void store_values(const WarpAccumulator& c, const Rows& rows, const F& f)
    {
        if (rows.element == Element::float32) { // parts of split keys
            auto* const target = static_cast<float*>(rows.data) + rows.offset;
            store_pairs(c, rows, f, [=](std::int64_t at, bool both, float x, float y) FLASHOMP_LAMBDA {
                target[at] = x;
                if (both) {
                    target[at + 1] = y;
                }
            });
            return;
        }
        // By way of the stages, so that whole rows go out together. Nobody reads them any more: for_blocks has ended.
        FLASHOMP_UNROLL(8)
        for (int slot = 0; slot < row_slots; ++slot) {
            const Row r{row_index(slot), slot};
            const float by = r.index < rows.count ? f(r) : 0.0F;
            const std::uint32_t base = memory_ + row_offset(static_cast<unsigned>(r.index)) + 4 * (lane_ % 4);
            FLASHOMP_UNROLL(64)
            for (int n = 0; n < depth / 8; ++n) {
                const float* const pair = &c.c[slot / 2][n][slot % 2 * 2];
                ptx::store_shared_32(base + Piece::panel(n) + ((n % 8) ^ (lane_ / 4)) * 16,
                                     Math::pack(pair[0] * by, pair[1] * by));
            }
        }
        ptx::barrier<threads>();
        auto* const target = static_cast<std::uint16_t*>(rows.data) + rows.offset;
        constexpr int chunks = Piece::chunks;
        const unsigned chunk = thread() % chunks;
        const int column = static_cast<int>(8 * chunk);
        const bool whole = in_chunks(rows);
        FLASHOMP_UNROLL(1)
        for (unsigned r = thread() / chunks; static_cast<int>(r) < rows.count; r += threads / chunks) {
            const std::uint32_t from = memory_ + row_offset(r) + Piece::panel(chunk) + ((chunk % 8) ^ (r % 8)) * 16;
            std::uint16_t* const to = target + r * rows.stride;
            const int end = rows.depth < column + 8 ? rows.depth : column + 8;
            if (whole && end > column) {
                ptx::copy_out_16(to + column, from);
                continue;
            }
            FLASHOMP_UNROLL(1)
            for (int x = column; x < end; ++x) {
                to[x] = static_cast<std::uint16_t>(ptx::load_shared_16(from + 2 * static_cast<unsigned>(x - column)));
            }
        }
        ptx::barrier<threads>();
    }

private:
    /// Row of the block that is this lane's `slot`th.
    FLASHOMP_INLINE int row_index(int slot) const
    {
        return static_cast<int>(warp_ * rows_in_warp + lane_ / 4) + 8 * slot;
    }

    /// Byte offset of resident row r, in pieces.
    static constexpr std::uint32_t row_offset(unsigned r)
    {
        return r / piece_rows * piece_bytes + r % piece_rows * 128;
    }

    /// The fragment of 16 columns from 16·k on of this warp's rows from 16·m on.
    FLASHOMP_INLINE ptx::Four left_operand(std::uint32_t start, int m, int k) const
    {
        const unsigned first = warp_ * rows_in_warp + 16 * static_cast<unsigned>(m);
        return ptx::load_matrices(start + row_offset(first) + along_columns() +
                                  Piece::pair_offset(2 * k, lane_ / 16, lane_));
    }

    /// x[r] = op(x[r], get() of all of this lane's scores in row r), along four chains that do not wait for each other.
    template <class Get, class Op>
    FLASHOMP_INLINE void reduce(const Stats& x, const Get& get, const Op& op)
    {
        FLASHOMP_UNROLL(8)
        for (int m = 0; m < fragments; ++m) {
            reduce_fragment(m, x, get, op);
        }
    }

    template <class Get, class Op>
    static FLASHOMP_INLINE void reduce_fragment(int m, const Stats& x, const Get& get, const Op& op)
    {
        constexpr int pieces = columns / 8;
        constexpr int chains = pieces < 4 ? pieces : 4;
        FLASHOMP_UNROLL(2)
        for (int half = 0; half < 2; ++half) {
            float chain[chains];
            FLASHOMP_UNROLL(4)
            for (int i = 0; i < chains; ++i) {
                const float first = get(m, i, 2 * half);
                chain[i] = op(first, get(m, i, 2 * half + 1));
            }
            FLASHOMP_UNROLL(64)
            for (int n = chains; n < pieces; ++n) {
                const float first = get(m, n, 2 * half);
                chain[n % chains] = op(chain[n % chains], op(first, get(m, n, 2 * half + 1)));
            }
            float all = x.v[2 * m + half];
            FLASHOMP_UNROLL(4)
            for (int i = 0; i < chains; ++i) {
                all = op(all, chain[i]);
            }
            x.v[2 * m + half] = all;
        }
    }

    static FLASHOMP_INLINE void rotate(Scores& s)
    {
        FLASHOMP_UNROLL(8)
        for (int m = 0; m < fragments; ++m) {
            FLASHOMP_UNROLL(4)
            for (int e = 0; e < 4; ++e) {
                const float first = s.s[m][0][e];
                FLASHOMP_UNROLL(64)
                for (int n = 0; n + 1 < columns / 8; ++n) {
                    s.s[m][n][e] = s.s[m][n + 1][e];
                }
                s.s[m][columns / 8 - 1][e] = first;
            }
        }
    }

    template <class F, class Write>
    FLASHOMP_INLINE void store_pairs(const WarpAccumulator& c, const Rows& rows, const F& f, const Write& write)
    {
        const int t = static_cast<int>(lane_ % 4);
        FLASHOMP_UNROLL(8)
        for (int slot = 0; slot < row_slots; ++slot) {
            const Row r{row_index(slot), slot};
            if (r.index < rows.count) {
                const float by = f(r);
                FLASHOMP_UNROLL(64)
                for (int n = 0; n < depth / 8; ++n) {
                    const int x = 8 * n + 2 * t;
                    if (x < rows.depth) {
                        const float* const pair = &c.c[slot / 2][n][slot % 2 * 2];
                        write(r.index * rows.stride + x, x + 1 < rows.depth, pair[0] * by, pair[1] * by);
                    }
                }
            }
        }
    }

protected:
    std::uint32_t memory_; ///< the crew's; streams come first in it

private:
    std::uint32_t next_; ///< what is not taken yet
    unsigned lane_, warp_;
    int used_stats_ = 0, used_residents_ = 0;
    float row_stats_[most_row_stats * row_slots];
};

} // namespace flashomp::offload

#pragma omp end declare target
