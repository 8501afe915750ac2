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
#include "tile/wgmma.hpp"

#include <type_traits>
#include <utility>

#pragma omp declare target

namespace flashomp::offload {

/// Config: Math (ptx::BFloat16Math or Float16Math), depth (64, 128 or 256: head_dim and head_dim_v rounded up),
/// fragments, stream_rows, warps, second_in_memory: whether the registers hold only the first of two resident blocks,
/// refetch: whether they are too few for the parameters, and modified: whether scores are more than scaled dot
/// products. What is done to each modified score is so much that its code, written out for every register, would take
/// the driver minutes to compile.
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
        ptx::Four a[fragments][depth / 16]; ///< fragments of left operands
        std::uint32_t address;              ///< or where they are fetched from, every time
        bool in_memory;                     ///< a constant once all is inlined
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
    struct WarpAccumulator {
        float c[fragments][depth / 8][4];
    };
    struct GroupAccumulator {
        int group; ///< of registers of wgmma, one more for each fragment; a constant once all is inlined
    };
    using Accumulator = std::conditional_t<Config::hopper != 0, GroupAccumulator, WarpAccumulator>;
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
        : memory_(ptx::shared_address(team_memory)), next_(memory_), last_(memory_ + 2 * stages * block_bytes),
          lane_(ptx::lane()), warp_(ptx::warp())
    {
    }

    FLASHOMP_INLINE int resident_rows() const { return rows_in_crew; }
    FLASHOMP_INLINE int stream_rows() const { return columns; }

    /// 8·ln 2: probabilities up to 256 are as exact in 16 bits as those up to 1. Dropout's factor could take them
    /// beyond float16.
    static FLASHOMP_INLINE float lag() { return Config::modified != 0 ? 0.0F : 5.5451774F; }
    static FLASHOMP_INLINE float exp2(float x) { return ptx::exp2_approx(x); }

    /// The second one may have to stay in team memory.
    FLASHOMP_INLINE Resident resident(int)
    {
        Resident block;
        block.in_memory = Config::second_in_memory != 0 && used_residents_ == 1;
        block.address = last_; // behind what streams, in whole blocks
        ++used_residents_;
        return block;
    }
    FLASHOMP_INLINE Stream stream(int)
    {
        const Stream s{next_};
        next_ += stages * block_bytes;
        return s;
    }
    FLASHOMP_INLINE Scores scores() { return {}; }
    FLASHOMP_INLINE Accumulator accumulator(int)
    {
        if constexpr (Config::hopper != 0) {
            const Accumulator a{used_groups_};
            used_groups_ += fragments;
            ptx::declare_accumulators<depth / 2>(a.group);
            clear_group(a.group, all_of_depth());
            if constexpr (fragments > 1) {
                ptx::declare_accumulators<depth / 2>(a.group + 1);
                clear_group(a.group + 1, all_of_depth());
            }
            return a;
        } else {
            return {};
        }
    }
    FLASHOMP_INLINE Stats row_stats()
    {
        const Stats s{&row_stats_[used_stats_ * row_slots]};
        ++used_stats_;
        return s;
    }
    FLASHOMP_INLINE ColumnStats column_stats()
    {
        constexpr int resident_bytes = Config::second_in_memory != 0 ? 2 * rows_in_crew * depth : 0;
        const ColumnStats s{last_ + resident_bytes + used_column_stats_ * stages * 4 * columns};
        ++used_column_stats_;
        return s;
    }

    /// By way of the stages, which are not in use yet, to the registers.
    FLASHOMP_INLINE void load(Resident& block, const Rows& rows)
    {
        constexpr int parts = rows_in_crew / columns;
        static_assert(parts * columns == rows_in_crew && (parts <= 2 * stages));
        const std::uint32_t start = block.in_memory ? block.address : memory_;
#pragma GCC unroll 1
        for (int part = 0; part < parts; ++part) {
            Rows piece = rows;
            piece.offset += part * columns * rows.stride;
            piece.count -= part * columns;
            load(StreamBlock{start + part * block_bytes}, piece);
        }
        ptx::copy_commit();
        ptx::copy_wait<0>();
        ptx::barrier<threads>();
        if (block.in_memory) {
            return;
        }
#pragma GCC unroll 8
        for (int m = 0; m < fragments; ++m) {
#pragma GCC unroll 64
            for (int k = 0; k < depth / 16; ++k) {
                block.a[m][k] = left_operand(start, m, k);
                if constexpr (Config::hopper != 0) {
                    ptx::keep(block.a[m][k], memory_);
                }
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
        const unsigned thread = ptx::here(warp_ * 32 + lane_);
        const unsigned chunk = thread % chunks;
        const unsigned first = thread / chunks;
        if (in_chunks(rows)) {
            constexpr int apart = threads / chunks; // rows between those of one thread
            const std::uint16_t* from = source + first * rows.stride + 8 * chunk;
            const std::int64_t step = apart * rows.stride;
            const int reach = (8 * static_cast<int>(chunk) < rows.depth ? rows.count : 0) - static_cast<int>(first);
            const std::uint32_t to = element_address(block.address, first, chunk);
#pragma GCC unroll 64
            for (int i = 0; i < each; ++i) {
                // Rows a multiple of eight apart have their chunks in the same order.
                const std::uint32_t at = apart % 8 == 0 ? to + static_cast<std::uint32_t>(i) * apart * 128
                                                        : element_address(block.address, first + i * apart, chunk);
                ptx::copy_async_16(at, from, i * apart, reach);
                from += step;
            }
            return;
        }
#pragma GCC unroll 1
        for (int i = 0; i < each; ++i) { // rows that no 16-byte copy can read
            const unsigned r = first + static_cast<unsigned>(i) * (threads / chunks);
#pragma GCC unroll 1
            for (unsigned x = 0; x < 8; ++x) {
                const int column = static_cast<int>(8 * chunk + x);
                const bool there = (static_cast<int>(r) < rows.count) & (column < rows.depth);
                const std::uint32_t value = there ? source[r * rows.stride + column] : 0U;
                ptx::store_shared_16(element_address(block.address, r, chunk) + 2 * x, value);
            }
        }
    }

    FLASHOMP_INLINE void load(ColumnStatsBlock block, const float* source, int count)
    {
        const unsigned c = (warp_ * 32 + lane_) % columns; // several threads copy the same where there are more
        ptx::copy_async_4(block.address + 4 * c, source + c, static_cast<int>(c) < count ? 4 : 0);
    }

    /// The blocks of `range` in turn: load(j0, stage) starts the next while compute(j0, stage) works on this one.
    template <class Load, class Compute>
    FLASHOMP_INLINE void for_blocks(Range range, int step, const Load& load_block, const Compute& compute)
    {
        if (range.begin >= range.end) {
            return;
        }
        int stage = 0;
        load_block(range.begin, 0);
        ptx::copy_commit();
        for (int j0 = range.begin; j0 < range.end; j0 += step) {
            if constexpr (Config::refetch != 0) {
                ptx::refetch();
            }
            ptx::copy_wait<0>();
            if constexpr (Config::hopper != 0) {
                ptx::wait_products();
                ptx::publish_shared();
            }
            ptx::barrier<threads>(); // this block is there for all, and nobody reads the other stage any more
            if (j0 + step < range.end) {
                load_block(j0 + step, stage ^ 1);
                ptx::copy_commit();
            }
            compute(j0, stage);
            stage ^= 1;
        }
        if constexpr (Config::hopper != 0) {
            ptx::wait_products();
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
        if constexpr (Config::hopper != 0) {
            accumulate_group(a, s, stream, std::make_integer_sequence<int, columns / 16>());
        } else {
            accumulate_warp(a, s, stream);
        }
    }

    FLASHOMP_INLINE void accumulate(Accumulator& a, const Scores& s, StreamBlock stream, bool scales,
                                    const Stats& factor)
    {
        if (scales) { // true for the whole warp; most blocks move no row's base
            if constexpr (Config::hopper != 0) {
                scale_group(a.group, factor.v, all_of_depth());
                if constexpr (fragments > 1) {
                    scale_group(a.group + 1, factor.v + 2, all_of_depth());
                }
            } else {
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
        }
        accumulate(a, s, stream);
    }

    FLASHOMP_INLINE void row_max(const Scores& s, const Stats& max)
    {
        reduce(
            max, [&](int m, int n, int e) FLASHOMP_LAMBDA { return s.s[m][n][e]; },
            [](float x, float y) FLASHOMP_LAMBDA { return ptx::max(x, y); });
#pragma GCC unroll 8
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

    FLASHOMP_INLINE bool any_above(const Stats& x, const Stats& y)
    {
        bool above = false;
#pragma GCC unroll 8
        for (int slot = 0; slot < row_slots; ++slot) {
            above |= x.v[slot] > y.v[slot];
        }
        return ptx::any_lane(above);
    }

    FLASHOMP_INLINE void exp_sum(Scores& s, const Stats& base, float by, const Stats& sum)
    {
        float scaled[row_slots];
#pragma GCC unroll 8
        for (int slot = 0; slot < row_slots; ++slot) {
            scaled[slot] = base.v[slot] * by;
        }
        reduce(
            sum,
            [&](int m, int n, int e) FLASHOMP_LAMBDA {
                float& x = s.s[m][n][e];
                const int slot = 2 * m + e / 2;
                // One fused multiply-add an element; what base·by loses is common to the row, but LSE does not know of
                // it: with ALiBi's logits of thousands the difference comes first.
                x = exp2(Config::modified != 0 ? (x - base.v[slot]) * by : __builtin_fmaf(x, by, -scaled[slot]));
                return x;
            },
            [](float x, float y) FLASHOMP_LAMBDA { return x + y; });
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
    FLASHOMP_INLINE void for_rows(const F& f)
    {
#pragma GCC unroll 8
        for (int slot = 0; slot < row_slots; ++slot) {
            f(Row{row_index(slot), slot});
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
        const int t = static_cast<int>(lane_ % 4);
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
        const WarpAccumulator c = values(a);
#pragma GCC unroll 8
        for (int slot = 0; slot < row_slots; ++slot) {
            const Row r{row_index(slot), slot};
            const float by = r.index < rows.count ? f(r) : 0.0F;
            const std::uint32_t base = memory_ + row_offset(static_cast<unsigned>(r.index)) + 4 * (lane_ % 4);
#pragma GCC unroll 64
            for (int n = 0; n < depth / 8; ++n) {
                const float* const pair = &c.c[slot / 2][n][slot % 2 * 2];
                ptx::store_shared_32(base + panel(n) + ((n % 8) ^ (lane_ / 4)) * 16,
                                     Math::pack(pair[0] * by, pair[1] * by));
            }
        }
        ptx::barrier<threads>();
        auto* const target = static_cast<std::uint16_t*>(rows.data) + rows.offset;
        constexpr int chunks = depth / 8;
        const unsigned thread = warp_ * 32 + lane_;
        const unsigned chunk = thread % chunks;
        const int column = static_cast<int>(8 * chunk);
        const bool whole = in_chunks(rows);
#pragma GCC unroll 1
        for (unsigned r = thread / chunks; static_cast<int>(r) < rows.count; r += threads / chunks) {
            const std::uint32_t from = memory_ + row_offset(r) + panel(chunk) + ((chunk % 8) ^ (r % 8)) * 16;
            std::uint16_t* const to = target + r * rows.stride;
            const int end = rows.depth < column + 8 ? rows.depth : column + 8;
            if (whole && end > column) {
                ptx::copy_out_16(to + column, from);
                continue;
            }
#pragma GCC unroll 1
            for (int x = column; x < end; ++x) {
                to[x] = static_cast<std::uint16_t>(ptx::load_shared_16(from + 2 * static_cast<unsigned>(x - column)));
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
        return static_cast<int>(warp_ * rows_in_warp + lane_ / 4) + 8 * slot;
    }

    /// f(fragment, 16x8 piece, element, row, column) for every score of this lane.
    template <class F>
    FLASHOMP_INLINE void for_scores(const F& f)
    {
        const unsigned lane = ptx::here(lane_);
        const int first_row = static_cast<int>(warp_ * rows_in_warp + lane / 4);
        const int first_column = static_cast<int>(2 * (lane % 4));
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

    /// x[r] = op(x[r], get() of all of this lane's scores in row r), along four chains that do not wait for each other.
    template <class Get, class Op>
    FLASHOMP_INLINE void reduce(const Stats& x, const Get& get, const Op& op)
    {
        constexpr int pieces = columns / 8;
        constexpr int chains = pieces < 4 ? pieces : 4;
#pragma GCC unroll 8
        for (int m = 0; m < fragments; ++m) {
#pragma GCC unroll 2
            for (int half = 0; half < 2; ++half) {
                float chain[chains];
#pragma GCC unroll 4
                for (int i = 0; i < chains; ++i) {
                    const float first = get(m, i, 2 * half);
                    chain[i] = op(first, get(m, i, 2 * half + 1));
                }
#pragma GCC unroll 64
                for (int n = chains; n < pieces; ++n) {
                    const float first = get(m, n, 2 * half);
                    chain[n % chains] = op(chain[n % chains], op(first, get(m, n, 2 * half + 1)));
                }
                float all = x.v[2 * m + half];
#pragma GCC unroll 4
                for (int i = 0; i < chains; ++i) {
                    all = op(all, chain[i]);
                }
                x.v[2 * m + half] = all;
            }
        }
    }

    /// s = f(s, other, r, c)
    template <class F>
    FLASHOMP_INLINE void each_score(Scores& s, Scores& other, const F& f)
    {
        if constexpr (Config::modified != 0) {
            // A loop over the 16x8 pieces that handles the first and turns the registers round by one.
            const int pieces = static_cast<int>(ptx::here(columns / 8)); // a known number would be unrolled
            const unsigned lane = ptx::here(lane_);
            const int first_row = static_cast<int>(warp_ * rows_in_warp + lane / 4);
            const int first_column = static_cast<int>(2 * (lane % 4));
#pragma GCC unroll 1
            for (int n = 0; n < pieces; ++n) {
                ptx::refetch();
#pragma GCC unroll 8
                for (int m = 0; m < fragments; ++m) {
#pragma GCC unroll 4
                    for (int e = 0; e < 4; ++e) {
                        const int slot = 2 * m + e / 2;
                        s.s[m][0][e] = f(s.s[m][0][e], other.s[m][0][e], Row{first_row + 8 * slot, slot},
                                         first_column + 8 * n + e % 2);
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
    static constexpr std::uint32_t panel(unsigned chunk)
    {
        return chunk / 8 * columns * 128;
    }

    /// Where chunk `chunk` of row r lies: panels of 64 columns, the chunks of each 128-byte row permuted by the row, so
    /// that eight rows of one chunk (what ldmatrix reads) lie in different banks.
    static FLASHOMP_INLINE std::uint32_t element_address(std::uint32_t block, unsigned r, unsigned chunk)
    {
        return block + panel(chunk) + r * 128 + ((chunk % 8) ^ (r % 8)) * 16;
    }

    /// Byte offset of resident row r in blocks of `columns` rows.
    static constexpr std::uint32_t row_offset(unsigned r)
    {
        return r / columns * block_bytes + r % columns * 128;
    }

    /// The fragment of 16 columns from 16·k on of this warp's rows from 16·m on.
    FLASHOMP_INLINE ptx::Four left_operand(std::uint32_t start, int m, int k) const
    {
        const unsigned first = warp_ * rows_in_warp + 16 * static_cast<unsigned>(m);
        return ptx::load_matrices(start + row_offset(first) + along_columns() + chunk_offset(2 * k, lane_ / 16));
    }

    /// The row of a 16x16 piece that this lane names to ldmatrix, in bytes: the four 8x8 matrices in the order down the
    /// rows first, or along the columns first.
    FLASHOMP_INLINE std::uint32_t along_columns() const
    {
        return (lane_ / 8 % 2 * 8 + lane_ % 8) * 128;
    }
    FLASHOMP_INLINE std::uint32_t along_rows() const
    {
        return (lane_ / 16 * 8 + lane_ % 8) * 128;
    }

    /// The chunk this lane names: of a pair of chunks that starts at an even one, the first (0) or the second (1).
    FLASHOMP_INLINE std::uint32_t chunk_offset(int even, unsigned second) const
    {
        const auto chunk = static_cast<unsigned>(even);
        return panel(chunk) + ((chunk % 8 * 16) ^ ((second ^ (lane_ % 8)) * 16));
    }

    template <class F, class Write>
    FLASHOMP_INLINE void store_pairs(const Accumulator& a, const Rows& rows, const F& f, const Write& write)
    {
        const WarpAccumulator c = values(a);
        const int t = static_cast<int>(lane_ % 4);
#pragma GCC unroll 8
        for (int slot = 0; slot < row_slots; ++slot) {
            const Row r{row_index(slot), slot};
            if (r.index < rows.count) {
                const float by = f(r);
#pragma GCC unroll 64
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

    /// Two neighbouring 16x8 pieces of scores as a left operand.
    static FLASHOMP_INLINE ptx::Four packed(const Scores& s, int m, int k)
    {
        return {{Math::pack(s.s[m][2 * k][0], s.s[m][2 * k][1]), Math::pack(s.s[m][2 * k][2], s.s[m][2 * k][3]),
                 Math::pack(s.s[m][2 * k + 1][0], s.s[m][2 * k + 1][1]),
                 Math::pack(s.s[m][2 * k + 1][2], s.s[m][2 * k + 1][3])}};
    }

    /// s = block·streamᵀ
    FLASHOMP_INLINE void product(Scores& s, const Resident& block, StreamBlock stream)
    {
        if constexpr (Config::hopper != 0) {
            product_of_group(s, block, stream, std::make_integer_sequence<int, depth / 16>());
        } else {
            product_of_warp(s, block, stream);
        }
    }

    FLASHOMP_INLINE void product_of_warp(Scores& s, const Resident& block, StreamBlock stream)
    {
        const std::uint32_t base = stream.address + along_rows();
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
            ptx::Four left[fragments];
#pragma GCC unroll 8
            for (int m = 0; m < fragments; ++m) {
                left[m] = block.in_memory ? left_operand(block.address, m, k) : block.a[m][k];
            }
            const std::uint32_t chunk = base + chunk_offset(2 * k, lane_ / 8 % 2);
#pragma GCC unroll 64
            for (int n = 0; n < columns / 16; ++n) {
                const ptx::Four right = ptx::load_matrices(chunk + n * 16 * 128);
#pragma GCC unroll 8
                for (int m = 0; m < fragments; ++m) {
                    Math::multiply_add(s.s[m][2 * n], left[m], right.x[0], right.x[1]);
                    Math::multiply_add(s.s[m][2 * n + 1], left[m], right.x[2], right.x[3]);
                }
            }
        }
    }

    FLASHOMP_INLINE void accumulate_warp(WarpAccumulator& a, const Scores& s, StreamBlock stream)
    {
        const std::uint32_t base = stream.address + along_columns();
#pragma GCC unroll 64
        for (int k = 0; k < columns / 16; ++k) {
            ptx::Four left[fragments];
#pragma GCC unroll 8
            for (int m = 0; m < fragments; ++m) {
                left[m] = packed(s, m, k);
            }
#pragma GCC unroll 64
            for (int n = 0; n < depth / 16; ++n) {
                const ptx::Four right =
                    ptx::load_matrices_transposed(base + chunk_offset(2 * n, lane_ / 16) + k * 16 * 128);
#pragma GCC unroll 8
                for (int m = 0; m < fragments; ++m) {
                    Math::multiply_add(a.c[m][2 * n], left[m], right.x[0], right.x[1]);
                    Math::multiply_add(a.c[m][2 * n + 1], left[m], right.x[2], right.x[3]);
                }
            }
        }
    }

    // Hopper: the products of four warps at once, straight from the streamed block.

    static constexpr auto all_of_depth()
    {
        return std::make_integer_sequence<int, depth / 2>();
    }

    template <int... i>
    static FLASHOMP_INLINE void clear_group(int group, std::integer_sequence<int, i...>)
    {
        (ptx::clear_accumulator<i>(group), ...);
    }

    /// `by` are the factors of a fragment's two rows.
    template <int... i>
    static FLASHOMP_INLINE void scale_group(int group, const float* by, std::integer_sequence<int, i...>)
    {
        (ptx::scale_accumulator<i>(group, by[i / 2 % 2]), ...);
    }

    template <int... i>
    static FLASHOMP_INLINE void get_group(int group, float* d, std::integer_sequence<int, i...>)
    {
        ((d[i] = ptx::get_accumulator<i>(group)), ...);
    }

    static FLASHOMP_INLINE WarpAccumulator values(const Accumulator& a)
    {
        if constexpr (Config::hopper != 0) {
            WarpAccumulator c;
            get_group(a.group, &c.c[0][0][0], all_of_depth());
            if constexpr (fragments > 1) {
                get_group(a.group + 1, &c.c[1][0][0], all_of_depth());
            }
            return c;
        } else {
            return a;
        }
    }

    /// A step of 16 along the inner dimension for each fragment, so that two share the descriptor of the right operand.
    template <int n, bool adds, bool transposed>
    static FLASHOMP_INLINE void multiply_step(int group, const ptx::Four& first, const ptx::Four& last,
                                              std::uint32_t right)
    {
        ptx::multiply_add<Math::is_bfloat16, n, adds, transposed>(group, first, right);
        if constexpr (fragments > 1) {
            ptx::multiply_add<Math::is_bfloat16, n, adds, transposed>(group + 1, last, right);
        }
    }

    template <int... step>
    FLASHOMP_INLINE void product_of_group(Scores& s, const Resident& block, StreamBlock stream,
                                          std::integer_sequence<int, step...>)
    {
        constexpr auto all = std::make_integer_sequence<int, columns / 2>();
        const std::uint32_t right = ptx::matrix_descriptor(stream.address, 0);
        ptx::open_product<columns / 2>();
        ptx::fence_products();
        (multiply_step<columns, (step > 0), false>(0, left(block, 0, step), left(block, fragments - 1, step),
                                                   right + (panel(2 * step) + step % 4 * 32) / 16),
         ...);
        ptx::commit_products();
        ptx::wait_products();
        get_group(0, &s.s[0][0][0], all);
        if constexpr (fragments > 1) {
            get_group(1, &s.s[1][0][0], all);
        }
        ptx::close_product();
    }

    FLASHOMP_INLINE ptx::Four left(const Resident& block, int m, int k) const
    {
        return block.in_memory ? left_operand(block.address, m, k) : block.a[m][k];
    }

    template <int... step>
    FLASHOMP_INLINE void accumulate_group(const Accumulator& a, const Scores& s, StreamBlock stream,
                                          std::integer_sequence<int, step...>)
    {
        const std::uint32_t right = ptx::matrix_descriptor(stream.address, columns * 128);
        ptx::Four left[fragments][columns / 16] = {{packed(s, 0, step)...}};
        if constexpr (fragments > 1) {
            ((left[1][step] = packed(s, 1, step)), ...);
        }
        ptx::fence_products();
        (multiply_step<depth, true, true>(a.group, left[0][step], left[fragments - 1][step], right + step * 2048 / 16),
         ...);
        ptx::commit_products(); // for_blocks waits
    }

    std::uint32_t memory_; ///< the crew's; streams come first in it
    std::uint32_t next_;   ///< where the next stream begins
    std::uint32_t last_;   ///< behind the two streams of a pass
    unsigned lane_, warp_;
    int used_stats_ = 0, used_column_stats_ = 0, used_residents_ = 0;
    int used_groups_ = 2; ///< behind those of scores
    float row_stats_[most_row_stats * row_slots];
};

} // namespace flashomp::offload

#pragma omp end declare target
