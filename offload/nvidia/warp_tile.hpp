// What all machines with tensor cores have in common, whatever their operands are: a crew is a team of `warps` warps,
// and each warp owns 16·fragments resident rows and works on them alone, so score tiles, accumulators and row
// statistics never leave its registers; only streamed blocks are shared, in team memory.
//
// In registers everything has the layout of mma.m16n8k16 and mma.m16n8k8 (PTX ISA, "Matrix Fragments for ..."): with
// g = lane / 4 and t = lane % 4, a lane holds of each 16x8 piece of a score tile or accumulator the rows g and g + 8,
// columns 2t and 2t + 1.
#pragma once

#include "algorithm/math.hpp"
#include "nvidia/panels.hpp"
#include "nvidia/warp_products.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// Config: Math (a type of nvidia/warp_products.hpp), depth (64, 128, 256 or 576: head_dim and head_dim_v rounded up),
/// depth_v: columns of an accumulator, fewer than that only on the LatentMachine, fragments, stream_rows, warps,
/// in_registers: how many of the resident blocks (at most two) the registers hold, places: how many streamed blocks
/// team memory holds, refetch: whether they are too few for the parameters, and modified: whether scores are more than
/// scaled dot products. What is done to each modified score is so much that its code, written out for every register,
/// would take the driver minutes to compile. Layout: how a block of so many rows and so much depth lies in team memory.
template <class Config, template <int, int> class Layout>
class WarpTile {
public:
    using Math = typename Config::Math;
    enum : int { // not static members: g++ calls classes with those not mappable
        depth = Config::depth,
        depth_v = Config::depth_v,
        fragments = Config::fragments,
        warps = Config::warps,
        threads = 32 * Config::warps,
        columns = Config::stream_rows,
        rows_in_warp = 16 * Config::fragments,
        rows_in_crew = Config::warps * rows_in_warp,
        row_slots = 2 * Config::fragments,
        most_row_stats = 4,
        in_turns = Config::places < 4, ///< streamed blocks: see TwoStages
        refetch = Config::refetch,
        piece_rows = rows_in_crew % columns == 0 ? columns : 32, ///< resident blocks lie in pieces of so many rows
    };
    using Block = Layout<columns, depth>; ///< a streamed block
    using Piece = Layout<piece_rows, depth>;
    using ValueBlock = Layout<columns, depth_v>;
    using ValuePiece = Layout<piece_rows, depth_v>; ///< of results
    enum : int {
        block_bytes = Block::bytes,
        streams_bytes =
            int{depth_v} < int{depth} ? int{Block::bytes} + int{ValueBlock::bytes} : int{Config::places} * Block::bytes,
        piece_bytes = Piece::bytes,
        resident_bytes = rows_in_crew / piece_rows * piece_bytes,
        steps = int{Block::element_bytes} * Config::depth / 32, ///< of a product along the depth: 32 bytes each
    };
    // Those that go to registers come by way of the streamed blocks' places.
    static_assert(rows_in_crew % piece_rows == 0 &&
                  (Config::in_registers == 0 || rows_in_crew <= int{Config::places} * Config::stream_rows));

    /// A resident row of this lane. Four neighbouring lanes share it.
    struct Row {
        int index; ///< in the block
        int slot;  ///< among the lane's rows; a constant once loops are unrolled
        FLASHOMP_INLINE operator int() const { return index; }
    };
    struct Resident {
        ptx::Four a[fragments][steps]; ///< fragments of left operands
        std::uint32_t address;         ///< or where they are fetched from, every time
        bool in_memory;                ///< a constant once all is inlined
    };
    struct StreamBlock {
        std::uint32_t address;
    };
    struct Scores {
        float s[fragments][columns / 8][4];
    };
    struct WarpAccumulator {
        float c[fragments][depth_v / 8][4];
    };
    struct Stats {
        float* v;
        FLASHOMP_INLINE float& operator[](Row r) const { return v[r.slot]; }
    };
    struct ColumnStatsBlock {
        std::uint32_t address;
        FLASHOMP_INLINE float operator[](int c) const { return ptx::load_shared(address + 4 * c); }
    };

    FLASHOMP_INLINE explicit WarpTile(const void* team_memory)
        : memory_(ptx::shared_address(team_memory)), next_(memory_), lane_(ptx::lane()), warp_(ptx::warp())
    {
    }

    FLASHOMP_INLINE int resident_rows() const { return rows_in_crew; }
    FLASHOMP_INLINE int stream_rows() const { return columns; }
    static FLASHOMP_INLINE float exp2(float x) { return ptx::exp2_approx(x); }

    /// The first ones stay in registers, the others in team memory.
    FLASHOMP_INLINE Resident resident(int)
    {
        Resident block;
        block.in_memory = used_residents_ >= Config::in_registers;
        block.address = // behind what streams
            memory_ + streams_bytes + static_cast<unsigned>(used_residents_ - Config::in_registers) * resident_bytes;
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
        constexpr int bytes = Block::element_bytes;
        const auto* const left = static_cast<const typename Math::Stored*>(a.data) + a.offset;
        const auto* const right = static_cast<const typename Math::Stored*>(b.data) + b.offset;
        const int t = static_cast<int>(lane_ % 4);
        const bool whole = in_chunks<bytes>(a) & in_chunks<bytes>(b);
        FLASHOMP_UNROLL(8)
        for (int slot = 0; slot < row_slots; ++slot) {
            const int r = row_index(slot);
            const int end = r < a.count ? a.depth : 0;
            float sum = 0.0F;
            if (whole) { // all on their way at once: one after the other they took as long as ten key blocks
                FLASHOMP_UNROLL(16)
                for (int i = 0; i < Block::chunks / 4; ++i) {
                    const int x = 16 / bytes * (t + 4 * i);
                    sum = add_products(sum, ptx::load_global_128(left + r * a.stride + x, x < end),
                                       ptx::load_global_128(right + r * b.stride + x, x < end));
                }
            } else {
                for (int x = t; x < end; x += 4) {
                    sum += Math::value(left[r * a.stride + x]) * Math::value(right[r * b.stride + x]);
                }
            }
            dot.v[slot] = sum;
        }
        complete(dot);
    }

    /// Nothing to wait for: a lane reads only scores and statistics of its own.
    FLASHOMP_INLINE void sync() {}

    FLASHOMP_INLINE unsigned thread() const { return warp_ * 32 + lane_; }
    FLASHOMP_INLINE unsigned lane() const { return lane_; }
    FLASHOMP_INLINE unsigned warp() const { return warp_; }

protected:
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

    /// To memory, or to the registers by `way`, which nobody uses: fetch(start) is called when the block is there.
    template <class Fetch>
    FLASHOMP_INLINE void load_resident(Resident& block, const Rows& rows, std::uint32_t way, const Fetch& fetch)
    {
        const std::uint32_t start = block.in_memory ? block.address : way;
        FLASHOMP_UNROLL(1)
        for (int part = 0; part < rows_in_crew / piece_rows; ++part) {
            Rows piece = rows;
            piece.offset += part * piece_rows * rows.stride;
            piece.count -= part * piece_rows;
            copy_in<Piece, threads>(start + part * piece_bytes, piece, thread());
        }
        ptx::copy_commit();
        ptx::copy_wait<0>();
        ptx::barrier<threads>();
        if (block.in_memory) {
            return;
        }
        fetch(start);
        ptx::barrier<threads>(); // before the next block comes this way
    }

    /// Row of the block that is this lane's `slot`th.
    FLASHOMP_INLINE int row_index(int slot) const
    {
        return static_cast<int>(warp_ * rows_in_warp + lane_ / 4) + 8 * slot;
    }

    /// Byte offset of resident row r, in pieces; and of a row of results.
    static constexpr std::uint32_t row_offset(unsigned r)
    {
        return r / piece_rows * piece_bytes + r % piece_rows * Piece::row_bytes;
    }
    static constexpr std::uint32_t result_offset(unsigned r)
    {
        return r / piece_rows * ValuePiece::bytes + r % piece_rows * ValuePiece::row_bytes;
    }

    /// s = 2^((s - base)·by); sum += Σ s.
    FLASHOMP_INLINE void exponentials_in_place(Scores& s, const Stats& base, float by, const Stats& sum)
    {
        const auto p = [&](int m, int n, int e) FLASHOMP_LAMBDA {
            float& x = s.s[m][n][e];
            x = exp2((x - base.v[2 * m + e / 2]) * by);
            return x;
        };
        reduce(sum, p, [](float x, float y) FLASHOMP_LAMBDA { return x + y; });
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

    std::uint32_t memory_; ///< the crew's; streams come first in it

private:
    /// sum + the products of 16 bytes of elements.
    static FLASHOMP_INLINE float add_products(float sum, const ptx::Four& a, const ptx::Four& b)
    {
        FLASHOMP_UNROLL(4)
        for (int i = 0; i < 4; ++i) {
            if constexpr (Block::element_bytes == 4) {
                sum += float_of(a.x[i]) * float_of(b.x[i]);
            } else {
                sum += Math::low(a.x[i]) * Math::low(b.x[i]);
                sum += Math::high(a.x[i]) * Math::high(b.x[i]);
            }
        }
        return sum;
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

    std::uint32_t next_; ///< what is not taken yet
    unsigned lane_, warp_;
    int used_stats_ = 0, used_residents_ = 0;
    float row_stats_[most_row_stats * row_slots];
};

} // namespace flashomp::offload

#pragma omp end declare target
