// The tensor-core tile machine, for bfloat16 and float16 on NVIDIA GPUs from sm_80: a crew is a team of `warps` warps.
//
// Each warp owns 16·fragments resident rows and works on them alone, so score tiles, accumulators and row statistics
// never leave its registers; only streamed blocks are shared. They pass through two stages of team memory, the next
// block arriving while the crew works on this one, at the price of one barrier a block.
//
// In registers everything has the layout of mma.m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16"): with
// g = lane / 4 and t = lane % 4, a lane holds of each 16x8 piece of a score tile or accumulator the rows g and g + 8,
// columns 2t and 2t + 1. Two neighbouring 16x8 pieces of scores, rounded to 16 bits, are just a left operand of the
// next product: probabilities need no exchange between lanes.
#pragma once

#include "tile/machine.hpp"
#include "tile/math.hpp"
#include "tile/ptx.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// Config: Math (ptx::BFloat16Math or Float16Math), depth (64, 128 or 256: head_dim and head_dim_v rounded up),
/// fragments, stream_rows, warps, and compact: whether what is done to each score is so much that its code, written out
/// for every register, would take the driver minutes to compile.
template <class Config>
class TensorMachine {
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
        stages = 2,
        panel_columns = 64, ///< elements in a row of a panel: 128 bytes, the span of all banks
        block_bytes = 2 * Config::stream_rows * Config::depth,
    };

    /// A resident row of this lane. Four neighbouring lanes share it.
    struct Row {
        int index; ///< in the block
        int slot;  ///< among the lane's rows; a constant once loops are unrolled
        FLASHOMP_INLINE operator int() const { return index; }
    };
    using Stage = int;

    struct Resident {
        ptx::Four a[fragments][depth / 16];
    };
    struct StreamBlock {
        std::uint32_t address;
    };
    struct Stream {
        std::uint32_t address;
        FLASHOMP_INLINE StreamBlock operator[](Stage stage) const { return {address + stage * block_bytes}; }
    };
    struct Scores {
        float s[fragments][columns / 8][4];
    };
    struct Accumulator {
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
    struct ColumnStats {
        std::uint32_t address;
        FLASHOMP_INLINE ColumnStatsBlock operator[](Stage stage) const { return {address + stage * 4 * columns}; }
    };

    FLASHOMP_INLINE explicit TensorMachine(const void* team_memory)
        : memory_(ptx::shared_address(team_memory)), next_(memory_), lane_(ptx::lane()),
          first_row_(ptx::warp() * rows_in_warp), thread_(ptx::warp() * 32 + ptx::lane())
    {
    }

    FLASHOMP_INLINE int resident_rows() const { return rows_in_crew; }
    FLASHOMP_INLINE int stream_rows() const { return columns; }

    static FLASHOMP_INLINE float exp2(float x) { return ptx::exp2_approx(x); }

    FLASHOMP_INLINE Resident resident(int) { return {}; }
    FLASHOMP_INLINE Stream stream(int)
    {
        const Stream s{next_};
        next_ += stages * block_bytes;
        return s;
    }
    FLASHOMP_INLINE Scores scores() { return {}; }
    FLASHOMP_INLINE Accumulator accumulator(int) { return {}; }
    FLASHOMP_INLINE Stats row_stats()
    {
        const Stats s{&row_stats_[used_stats_ * row_slots]};
        ++used_stats_;
        return s;
    }
    FLASHOMP_INLINE ColumnStats column_stats()
    {
        const ColumnStats s{next_};
        next_ += stages * 4 * columns;
        return s;
    }

    /// By way of the stages, which are not in use yet, to the registers.
    FLASHOMP_INLINE void load(Resident& block, const Rows& rows)
    {
        constexpr int parts = rows_in_crew / columns;
        static_assert(parts * columns == rows_in_crew && parts <= 2 * stages);
#pragma GCC unroll 1
        for (int part = 0; part < parts; ++part) {
            Rows piece = rows;
            piece.offset += part * columns * rows.stride;
            piece.count -= part * columns;
            load(StreamBlock{memory_ + part * block_bytes}, piece);
        }
        ptx::copy_commit();
        ptx::copy_wait<0>();
        ptx::barrier<threads>();
        const int inner = lane_ % 8;
#pragma GCC unroll 8
        for (int m = 0; m < fragments; ++m) {
            const std::uint32_t base = row_address(first_row_ + 16 * m + lane_ / 8 % 2 * 8 + inner);
#pragma GCC unroll 64
            for (int k = 0; k < depth / 16; ++k) {
                block.a[m][k] = ptx::load_matrices(base + panel(2 * k) + ((2 * k % 8) ^ ((lane_ / 16) ^ inner)) * 16);
            }
        }
        ptx::barrier<threads>(); // before the next block comes this way
    }

    FLASHOMP_INLINE void load(StreamBlock block, const Rows& rows)
    {
        constexpr int chunks = depth / 8; // of 8 elements, 16 bytes, in a row
        constexpr int each = columns * chunks / threads;
        static_assert(each * threads == columns * chunks);
        const auto* const source = static_cast<const std::uint16_t*>(rows.data) + rows.offset;
        const int thread = ptx::here(thread_);
        const int chunk = thread % chunks;
        const int first = thread / chunks;
        if (in_chunks(rows)) {
#pragma GCC unroll 64
            for (int i = 0; i < each; ++i) {
                const int r = first + i * (threads / chunks);
                const bool there = (r < rows.count) & (8 * chunk < rows.depth);
                ptx::copy_async_16(element_address(block.address, r, chunk), source + r * rows.stride + 8 * chunk,
                                   there ? 16 : 0);
            }
            return;
        }
#pragma GCC unroll 1
        for (int i = 0; i < each; ++i) { // rows that no 16-byte copy can read
            const int r = first + i * (threads / chunks);
#pragma GCC unroll 1
            for (int x = 8 * chunk; x < 8 * chunk + 8; ++x) {
                const bool there = (r < rows.count) & (x < rows.depth);
                const std::uint32_t value = there ? source[r * rows.stride + x] : 0U;
                ptx::store_shared_16(element_address(block.address, r, chunk) + 2 * (x % 8), value);
            }
        }
    }

    FLASHOMP_INLINE void load(ColumnStatsBlock block, const float* source, int count)
    {
        const int c = thread_ % columns; // where there are more threads than columns several copy the same
        ptx::copy_async_4(block.address + 4 * c, source + c, c < count ? 4 : 0);
    }

    /// The blocks of `range` in turn: load(j0, stage) starts the next while compute(j0, stage) works on this one.
    template <class Load, class Compute>
    FLASHOMP_INLINE void for_blocks(Range range, int step, const Load& load_block, const Compute& compute)
    {
        if (range.begin >= range.end) {
            return;
        }
        int stage = 1;
        for (int j0 = range.begin - step; j0 < range.end; j0 += step) { // the first round only loads
            ptx::copy_wait<0>();
            ptx::barrier<threads>(); // this block is there for all, and nobody reads the other stage any more
            if (j0 + step < range.end) {
                load_block(j0 + step, stage ^ 1);
                ptx::copy_commit();
            }
            if (j0 >= range.begin) {
                compute(j0, stage);
            }
            stage ^= 1;
        }
        ptx::barrier<threads>(); // whatever comes next may overwrite the stages
    }

    template <class F>
    FLASHOMP_INLINE void multiply(Scores& s, const Resident& block, StreamBlock stream, const F& f)
    {
        product(s, block, stream);
        map(s, f);
    }

    template <class F>
    FLASHOMP_INLINE void multiply(Scores& s, const Resident& block, StreamBlock stream, Scores& other, const F& f)
    {
        product(s, block, stream);
        each_score(s, other, f);
    }

    template <class F>
    FLASHOMP_INLINE void map(Scores& s, const F& f)
    {
        Scores none;
        each_score(s, none, [=](float x, float&, Row r, int c) FLASHOMP_LAMBDA { return f(x, r, c); });
    }

    FLASHOMP_INLINE void accumulate(Accumulator& a, const Scores& s, StreamBlock stream)
    {
        const int lane = ptx::here(lane_);
        const int inner = lane % 8;
        const std::uint32_t base = stream.address + ((lane / 8 % 2) * 8 + inner) * 128;
#pragma GCC unroll 64
        for (int k = 0; k < columns / 16; ++k) {
            ptx::Four left[fragments];
#pragma GCC unroll 8
            for (int m = 0; m < fragments; ++m) {
                left[m] = {{Math::pack(s.s[m][2 * k][0], s.s[m][2 * k][1]),
                            Math::pack(s.s[m][2 * k][2], s.s[m][2 * k][3]),
                            Math::pack(s.s[m][2 * k + 1][0], s.s[m][2 * k + 1][1]),
                            Math::pack(s.s[m][2 * k + 1][2], s.s[m][2 * k + 1][3])}};
            }
#pragma GCC unroll 64
            for (int n = 0; n < depth / 16; ++n) {
                const std::uint32_t swizzled = ((2 * n % 8) ^ ((lane / 16) ^ inner)) * 16;
                const ptx::Four right = ptx::load_matrices_transposed(base + swizzled + panel(2 * n) + k * 16 * 128);
#pragma GCC unroll 8
                for (int m = 0; m < fragments; ++m) {
                    Math::multiply_add(a.c[m][2 * n], left[m], right.x[0], right.x[1]);
                    Math::multiply_add(a.c[m][2 * n + 1], left[m], right.x[2], right.x[3]);
                }
            }
        }
    }

    FLASHOMP_INLINE void accumulate(Accumulator& a, const Scores& s, StreamBlock stream, const Stats& factor)
    {
        bool moved = false;
#pragma GCC unroll 8
        for (int slot = 0; slot < row_slots; ++slot) {
            moved |= factor.v[slot] != 1.0F;
        }
        if (ptx::any_lane(moved)) { // most blocks move no row's maximum
#pragma GCC unroll 8
            for (int m = 0; m < fragments; ++m) {
#pragma GCC unroll 64
                for (int n = 0; n < depth / 8; ++n) {
#pragma GCC unroll 4
                    for (int e = 0; e < 4; ++e) {
                        a.c[m][n][e] *= factor.v[2 * m + e / 2];
                    }
                }
            }
        }
        accumulate(a, s, stream);
    }

    FLASHOMP_INLINE void row_max(const Scores& s, const Stats& max)
    {
        for_scores([&](int m, int n, int e, Row r, int) FLASHOMP_LAMBDA {
            const float x = s.s[m][n][e];
            max[r] = x > max[r] ? x : max[r];
        });
#pragma GCC unroll 8
        for (int slot = 0; slot < row_slots; ++slot) {
            float x = max.v[slot];
            const float y = ptx::shuffle_xor<1>(x);
            x = y > x ? y : x;
            const float z = ptx::shuffle_xor<2>(x);
            max.v[slot] = z > x ? z : x;
        }
    }

    /// Sums stay apart in the four lanes of a row until complete().
    FLASHOMP_INLINE void row_sum(const Scores& s, const Stats& sum)
    {
        for_scores([&](int m, int n, int e, Row r, int) FLASHOMP_LAMBDA { sum[r] += s.s[m][n][e]; });
    }

    FLASHOMP_INLINE void exp_sum(Scores& s, const Stats& base, const Stats& sum)
    {
        float scaled[row_slots]; // one fused multiply-add an element; what base·log2 e loses is common to the row
#pragma GCC unroll 8
        for (int slot = 0; slot < row_slots; ++slot) {
            scaled[slot] = base.v[slot] * log2_e;
        }
        for_scores([&](int m, int n, int e, Row r, int) FLASHOMP_LAMBDA {
            const float p = exp2(__builtin_fmaf(s.s[m][n][e], log2_e, -scaled[r.slot]));
            s.s[m][n][e] = p;
            sum[r] += p;
        });
    }

    FLASHOMP_INLINE void complete(const Stats& sum)
    {
#pragma GCC unroll 8
        for (int slot = 0; slot < row_slots; ++slot) {
            float x = sum.v[slot];
            x += ptx::shuffle_xor<1>(x);
            sum.v[slot] = x + ptx::shuffle_xor<2>(x);
        }
    }

    template <class F>
    FLASHOMP_INLINE void for_rows(int count, const F& f)
    {
#pragma GCC unroll 8
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
        const int t = lane_ % 4;
#pragma GCC unroll 8
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

    template <class F>
    FLASHOMP_INLINE void store(const Accumulator& a, const Rows& rows, const F& f)
    {
        if (rows.element == Element::float32) { // parts of split keys
            auto* const target = static_cast<float*>(rows.data) + rows.offset;
            store_pairs(a, rows, f, [=](std::int64_t at, bool both, float x, float y) FLASHOMP_LAMBDA {
                target[at] = x;
                if (both) {
                    target[at + 1] = y;
                }
            });
            return;
        }
        // By way of the stages, so that whole rows go out together. Nobody reads them any more: for_blocks has ended.
#pragma GCC unroll 8
        for (int slot = 0; slot < row_slots; ++slot) {
            const Row r{row_index(slot), slot};
            const float by = r.index < rows.count ? f(r) : 0.0F;
            const std::uint32_t base = row_address(r.index) + 4 * (lane_ % 4);
#pragma GCC unroll 64
            for (int n = 0; n < depth / 8; ++n) {
                const float* const pair = &a.c[slot / 2][n][slot % 2 * 2];
                ptx::store_shared_32(base + panel(n) + ((n % 8) ^ (r.index % 8)) * 16,
                                     Math::pack(pair[0] * by, pair[1] * by));
            }
        }
        ptx::barrier<threads>();
        auto* const target = static_cast<std::uint16_t*>(rows.data) + rows.offset;
        constexpr int chunks = depth / 8;
        const int chunk = thread_ % chunks;
        const bool whole = in_chunks(rows);
#pragma GCC unroll 1
        for (int r = thread_ / chunks; r < rows.count; r += threads / chunks) {
            const std::uint32_t from = row_address(r) + panel(chunk) + ((chunk % 8) ^ (r % 8)) * 16;
            std::uint16_t* const to = target + r * rows.stride;
            const int end = rows.depth < 8 * chunk + 8 ? rows.depth : 8 * chunk + 8;
            if (whole && end > 8 * chunk) {
                ptx::copy_out_16(to + 8 * chunk, from);
                continue;
            }
#pragma GCC unroll 1
            for (int x = 8 * chunk; x < end; ++x) {
                to[x] = static_cast<std::uint16_t>(ptx::load_shared_16(from + 2 * (x % 8)));
            }
        }
        ptx::barrier<threads>();
    }

    /// Nothing to wait for: a lane reads only scores and statistics of its own.
    FLASHOMP_INLINE void sync() {}

private:
    /// Row of the block that is this lane's `slot`th.
    FLASHOMP_INLINE int row_index(int slot) const
    {
        return first_row_ + 8 * slot + lane_ / 4;
    }

    /// f(fragment, 16x8 piece, element, row, column) for every score of this lane.
    template <class F>
    FLASHOMP_INLINE void for_scores(const F& f)
    {
        const int lane = ptx::here(lane_);
        const int first_row = first_row_ + lane / 4;
        const int first_column = 2 * (lane % 4);
#pragma GCC unroll 8
        for (int m = 0; m < fragments; ++m) {
#pragma GCC unroll 64
            for (int n = 0; n < columns / 8; ++n) {
#pragma GCC unroll 4
                for (int e = 0; e < 4; ++e) {
                    const int slot = 2 * m + e / 2;
                    f(m, n, e, Row{first_row + 8 * slot, slot}, first_column + 8 * n + e % 2);
                }
            }
        }
    }

    /// s = f(s, other, r, c)
    template <class F>
    FLASHOMP_INLINE void each_score(Scores& s, Scores& other, const F& f)
    {
        if constexpr (Config::compact != 0) {
            // A loop over the 16x8 pieces that handles the first and turns the registers round by one.
            const int lane = ptx::here(lane_);
#pragma GCC unroll 1
            for (int n = 0; n < columns / 8; ++n) {
#pragma GCC unroll 8
                for (int m = 0; m < fragments; ++m) {
#pragma GCC unroll 4
                    for (int e = 0; e < 4; ++e) {
                        const int slot = 2 * m + e / 2;
                        s.s[m][0][e] = f(s.s[m][0][e], other.s[m][0][e], Row{first_row_ + lane / 4 + 8 * slot, slot},
                                         2 * (lane % 4) + 8 * n + e % 2);
                    }
                }
                rotate(s);
                rotate(other);
            }
        } else {
            for_scores([&](int m, int n, int e, Row r, int c)
                           FLASHOMP_LAMBDA { s.s[m][n][e] = f(s.s[m][n][e], other.s[m][n][e], r, c); });
        }
    }

    static FLASHOMP_INLINE void rotate(Scores& s)
    {
#pragma GCC unroll 8
        for (int m = 0; m < fragments; ++m) {
#pragma GCC unroll 4
            for (int e = 0; e < 4; ++e) {
                const float first = s.s[m][0][e];
#pragma GCC unroll 64
                for (int n = 0; n + 1 < columns / 8; ++n) {
                    s.s[m][n][e] = s.s[m][n + 1][e];
                }
                s.s[m][columns / 8 - 1][e] = first;
            }
        }
    }

    /// Whether rows can be read in 16-byte chunks.
    static FLASHOMP_INLINE bool in_chunks(const Rows& rows)
    {
        constexpr std::uintptr_t bytes = 16;
        const auto start = reinterpret_cast<std::uintptr_t>(rows.data) + static_cast<std::uintptr_t>(2 * rows.offset);
        const auto sizes = static_cast<std::uintptr_t>(2 * rows.stride) | static_cast<std::uintptr_t>(2 * rows.depth);
        return (start | sizes) % bytes == 0;
    }

    /// Byte offset of the panel that holds a chunk.
    static constexpr std::uint32_t panel(int chunk)
    {
        return chunk / 8 * columns * 128;
    }

    /// Where chunk `chunk` of row r lies: panels of 64 columns, the chunks of each 128-byte row permuted by the row, so
    /// that eight rows of one chunk (what ldmatrix reads) lie in different banks.
    static FLASHOMP_INLINE std::uint32_t element_address(std::uint32_t block, int r, int chunk)
    {
        return block + panel(chunk) + r * 128 + ((chunk % 8) ^ (r % 8)) * 16;
    }

    /// First byte of resident row r on its way through the stages.
    FLASHOMP_INLINE std::uint32_t row_address(int r) const
    {
        return memory_ + r / columns * block_bytes + r % columns * 128;
    }

    template <class F, class Write>
    FLASHOMP_INLINE void store_pairs(const Accumulator& a, const Rows& rows, const F& f, const Write& write)
    {
        const int t = lane_ % 4;
#pragma GCC unroll 8
        for (int slot = 0; slot < row_slots; ++slot) {
            const Row r{row_index(slot), slot};
            if (r.index < rows.count) {
                const float by = f(r);
#pragma GCC unroll 64
                for (int n = 0; n < depth / 8; ++n) {
                    const int x = 8 * n + 2 * t;
                    if (x < rows.depth) {
                        const float* const pair = &a.c[slot / 2][n][slot % 2 * 2];
                        write(r.index * rows.stride + x, x + 1 < rows.depth, pair[0] * by, pair[1] * by);
                    }
                }
            }
        }
    }

    /// s = block·streamᵀ
    FLASHOMP_INLINE void product(Scores& s, const Resident& block, StreamBlock stream)
    {
        const int lane = ptx::here(lane_);
        const int inner = lane % 8;
        const std::uint32_t base = stream.address + (lane / 16 * 8 + inner) * 128;
#pragma GCC unroll 8
        for (int m = 0; m < fragments; ++m) {
#pragma GCC unroll 64
            for (int n = 0; n < columns / 8; ++n) {
#pragma GCC unroll 4
                for (int e = 0; e < 4; ++e) {
                    s.s[m][n][e] = 0.0F;
                }
            }
        }
#pragma GCC unroll 64
        for (int k = 0; k < depth / 16; ++k) {
            const std::uint32_t swizzled = ((2 * k % 8) ^ ((lane / 8 % 2) ^ inner)) * 16;
#pragma GCC unroll 64
            for (int n = 0; n < columns / 16; ++n) {
                const ptx::Four right = ptx::load_matrices(base + swizzled + panel(2 * k) + n * 16 * 128);
#pragma GCC unroll 8
                for (int m = 0; m < fragments; ++m) {
                    Math::multiply_add(s.s[m][2 * n], block.a[m][k], right.x[0], right.x[1]);
                    Math::multiply_add(s.s[m][2 * n + 1], block.a[m][k], right.x[2], right.x[3]);
                }
            }
        }
    }

    std::uint32_t memory_; ///< the crew's; streams come first in it
    std::uint32_t next_;   ///< not yet given out
    int lane_, first_row_, thread_;
    int used_stats_ = 0;
    float row_stats_[most_row_stats * row_slots];
};

} // namespace flashomp::offload

#pragma omp end declare target
