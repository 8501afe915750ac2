// The tensor-core tile machine for float32, on NVIDIA GPUs from sm_80: every operand is split into two TF32 numbers and
// every product is three of mma.m16n8k8's (3xTF32), the small ones first.
//
// Tensor cores cut off what they cannot add instead of rounding it, always towards zero. So only a few steps are summed
// there, 32 deep, and these sums are added up by the ordinary, rounding units.
//
// A product may take its depth in any order, as long as both operands have the same:
//
//     multiply    of each 16 columns of the depth, lane t of a row reads the four from 4t on, 16 bytes: two steps'
//     worth accumulate  of each 8 keys, slots t and t + 4 are keys 2t and 2t + 1: the score piece that a lane has is a
//     left
//                 operand as it is. Columns of the depth, too, are dealt out four to a lane: piece n of an accumulator
//                 has column 32·(n / 4) + 4c + n % 4 of the depth where others have 8n + c.
#pragma once

#include "algorithm/finite_check.hpp"
#include "nvidia/two_stages.hpp"

#pragma omp declare target

namespace flashomp::offload {

template <class Config>
class Tf32Machine : public TwoStages<WarpTile<Config, FloatRows>> {
    using Machine = TwoStages<WarpTile<Config, FloatRows>>;
    using Machine::columns, Machine::depth, Machine::fragments, Machine::row_slots, Machine::rows_in_warp;
    using Block = typename Machine::Block;
    enum : int {
        score_parts = depth / 32, ///< of a product along the depth: four steps each
        /// score pieces of one fragment that are at work at a time
        scores_together = fragments > 1 || columns == 8 ? 1 : (columns % 24 == 0 ? 3 : 2),
        sum_depth = columns < 32 ? columns : 32, ///< keys whose products are summed by tensor cores
        sum_parts = columns / sum_depth,
        sum_steps = sum_depth / 8,
    };
    static_assert(columns / 8 % scores_together == 0);
    static_assert(Config::in_registers == 0, "resident blocks of float32 are read from memory every time");

public:
    using Machine::load;
    using typename Machine::Accumulator, typename Machine::Math, typename Machine::Resident, typename Machine::Row,
        typename Machine::Scores, typename Machine::Stats, typename Machine::StreamBlock;

    FLASHOMP_INLINE explicit Tf32Machine(const void* team_memory) : Machine(team_memory) {}

    /// Probabilities of more than 1 would be as exact; but o and LSE would have other bits than on the plain machine.
    static FLASHOMP_INLINE float lag() { return 0.0F; }

    FLASHOMP_INLINE void load(Resident& block, const Rows& rows)
    {
        this->load_resident(block, rows, this->memory_, [](std::uint32_t) FLASHOMP_LAMBDA {});
    }

    FLASHOMP_INLINE void multiply(Scores& s, const Resident& block, StreamBlock stream)
    {
        constexpr int together = scores_together;
        const std::uint32_t base = stream.address + along_rows();
        Machine::clear(s);
        FLASHOMP_UNROLL(1) // all at once, what is read ahead would fill the registers
        for (int part = 0; part < score_parts; ++part) {
            Left left[fragments][4];
            FLASHOMP_UNROLL(8)
            for (int m = 0; m < fragments; ++m) {
                FLASHOMP_UNROLL(2)
                for (int pair = 0; pair < 2; ++pair) {
                    ptx::Four x[2];
                    this->left(block, m, 2 * part + pair, x[0], x[1]);
                    left[m][2 * pair] = Left(x[0]);
                    left[m][2 * pair + 1] = Left(x[1]);
                }
            }
            FLASHOMP_UNROLL(64)
            for (int n = 0; n < columns / 8; n += together) {
                Right right[together][4];
                FLASHOMP_UNROLL(4)
                for (int i = 0; i < together; ++i) {
                    FLASHOMP_UNROLL(2)
                    for (int pair = 0; pair < 2; ++pair) {
                        const ptx::Four x =
                            ptx::load_shared_128(base + (n + i) * 8 * Block::row_bytes + chunk_offset(2 * part + pair));
                        right[i][2 * pair] = Right(x.x[0], x.x[1]);
                        right[i][2 * pair + 1] = Right(x.x[2], x.x[3]);
                    }
                }
                float sum[together][fragments][4] = {};
                for_products([&](Product product) FLASHOMP_LAMBDA {
                    FLASHOMP_UNROLL(4)
                    for (int k = 0; k < 4; ++k) {
                        FLASHOMP_UNROLL(4)
                        for (int i = 0; i < together; ++i) {
                            FLASHOMP_UNROLL(8)
                            for (int m = 0; m < fragments; ++m) {
                                multiply_add(product, sum[i][m], left[m][k], right[i][k]);
                            }
                        }
                    }
                });
                FLASHOMP_UNROLL(4)
                for (int i = 0; i < together; ++i) {
                    FLASHOMP_UNROLL(8)
                    for (int m = 0; m < fragments; ++m) {
                        FLASHOMP_UNROLL(4)
                        for (int e = 0; e < 4; ++e) {
                            s.s[m][n + i][e] += sum[i][m][e];
                        }
                    }
                }
            }
        }
    }

    FLASHOMP_INLINE void multiply(Scores& s, const Resident& block, StreamBlock stream, Scores& s2,
                                  const Resident& block2, StreamBlock stream2)
    {
        multiply(s, block, stream);
        multiply(s2, block2, stream2);
    }

    FLASHOMP_INLINE void exp_sum(Scores& s, const Stats& base, float by, const Stats& sum)
    {
        this->exponentials_in_place(s, base, by, sum);
    }

    FLASHOMP_INLINE void accumulate(Accumulator& a, const Scores& s, StreamBlock stream)
    {
        const std::uint32_t even = stream.address + along_columns(0);
        const std::uint32_t odd = stream.address + along_columns(1);
        FLASHOMP_UNROLL(8)
        for (int part = 0; part < sum_parts; ++part) {
            Left left[fragments][sum_steps];
            FLASHOMP_UNROLL(8)
            for (int m = 0; m < fragments; ++m) {
                FLASHOMP_UNROLL(4)
                for (int k = 0; k < sum_steps; ++k) {
                    left[m][k] = Left(s.s[m][part * sum_steps + k]);
                }
            }
            FLASHOMP_UNROLL(8)
            for (int panel = 0; panel < depth / 32; ++panel) {
                float sum[fragments][4][4] = {};
                FLASHOMP_UNROLL(4)
                for (int k = 0; k < sum_steps; ++k) {
                    const int offset = (part * sum_steps + k) * 8 * Block::row_bytes + panel * 128;
                    const ptx::Four first = ptx::load_shared_128(even + offset);
                    const ptx::Four second = ptx::load_shared_128(odd + offset);
                    Right right[4];
                    FLASHOMP_UNROLL(4)
                    for (int n = 0; n < 4; ++n) {
                        right[n] = Right(first.x[n], second.x[n]);
                    }
                    for_products([&](Product product) FLASHOMP_LAMBDA {
                        FLASHOMP_UNROLL(4)
                        for (int n = 0; n < 4; ++n) {
                            FLASHOMP_UNROLL(8)
                            for (int m = 0; m < fragments; ++m) {
                                multiply_add(product, sum[m][n], left[m][k], right[n]);
                            }
                        }
                    });
                }
                FLASHOMP_UNROLL(8)
                for (int m = 0; m < fragments; ++m) {
                    FLASHOMP_UNROLL(4)
                    for (int n = 0; n < 4; ++n) {
                        FLASHOMP_UNROLL(4)
                        for (int e = 0; e < 4; ++e) {
                            a.c[m][4 * panel + n][e] += sum[m][n][e];
                        }
                    }
                }
            }
        }
    }

    FLASHOMP_INLINE void accumulate(Accumulator& a, const Scores& s, StreamBlock stream, bool scales,
                                    const Stats& factor)
    {
        if (scales) { // true for the whole warp; most blocks move no row's base
            Machine::scale(a, factor);
        }
        accumulate(a, s, stream);
    }

    /// A lane has eight neighbouring columns of every 32: whole 32-byte sectors.
    template <class F>
    FLASHOMP_INLINE void store(const Accumulator& a, const Rows& rows, const F& f)
    {
        auto* const target = static_cast<float*>(rows.data) + rows.offset;
        const bool whole = in_chunks<4>(rows);
        const int first = static_cast<int>(8 * (this->lane() % 4));
        FiniteCheck check;
        FLASHOMP_UNROLL(8)
        for (int slot = 0; slot < row_slots; ++slot) {
            const Row r{this->row_index(slot), slot};
            if (r.index >= rows.count) {
                continue;
            }
            const float by = f(r);
            float* const to = target + r.index * rows.stride;
            FLASHOMP_UNROLL(8)
            for (int panel = 0; panel < depth / 32; ++panel) {
                FLASHOMP_UNROLL(2)
                for (int half = 0; half < 2; ++half) {
                    const int column = 32 * panel + first + 4 * half;
                    float x[4];
                    FLASHOMP_UNROLL(4)
                    for (int n = 0; n < 4; ++n) {
                        x[n] = a.c[slot / 2][4 * panel + n][slot % 2 * 2 + half] * by;
                        check.see(x[n], 0.0F);
                    }
                    store_chunk(to + column, x, rows.depth - column, whole);
                }
            }
        }
        check.report(rows.nonfinite);
    }

private:
    enum class Product { low_high, high_low, high_high };

    /// A left operand, 16x8, of floats or of the lane's part of a score piece.
    struct Left {
        ptx::Four high, low;

        Left() = default;
        FLASHOMP_INLINE explicit Left(const ptx::Four& x)
        {
            FLASHOMP_UNROLL(4)
            for (int i = 0; i < 4; ++i) {
                set(i, float_of(x.x[i]));
            }
        }
        FLASHOMP_INLINE explicit Left(const float (&piece)[4])
        {
            set(0, piece[0]); // row g, slot t
            set(1, piece[2]); // row g + 8
            set(2, piece[1]); // row g, slot t + 4
            set(3, piece[3]);
        }

    private:
        FLASHOMP_INLINE void set(int i, float x)
        {
            const typename Math::Halves halves = Math::split(x);
            high.x[i] = halves.high;
            low.x[i] = halves.low;
        }
    };

    /// A right operand, 8x8.
    struct Right {
        typename Math::Halves b0, b1;

        Right() = default;
        FLASHOMP_INLINE Right(std::uint32_t slot, std::uint32_t slot_and_4)
            : b0(Math::split(float_of(slot))), b1(Math::split(float_of(slot_and_4)))
        {
        }
    };

    /// In the order of their size.
    template <class F>
    static FLASHOMP_INLINE void for_products(const F& f)
    {
        f(Product::low_high);
        f(Product::high_low);
        f(Product::high_high);
    }

    static FLASHOMP_INLINE void multiply_add(Product product, float (&c)[4], const Left& a, const Right& b)
    {
        switch (product) {
        case Product::low_high:
            return Math::multiply_add(c, a.low, b.b0.high, b.b1.high);
        case Product::high_low:
            return Math::multiply_add(c, a.high, b.b0.low, b.b1.low);
        case Product::high_high:
            return Math::multiply_add(c, a.high, b.b0.high, b.b1.high);
        }
    }

    /// Two steps of the left operand: columns from 16·pair on, rows from 16·m on.
    FLASHOMP_INLINE void left(const Resident& block, int m, int pair, ptx::Four& first, ptx::Four& second) const
    {
        const std::uint32_t at = block.address +
                                 (this->warp() * rows_in_warp + 16 * static_cast<unsigned>(m)) * Block::row_bytes +
                                 along_rows() + chunk_offset(pair);
        const ptx::Four upper = ptx::load_shared_128(at);
        const ptx::Four lower = ptx::load_shared_128(at + 8 * Block::row_bytes);
        first = {{upper.x[0], lower.x[0], upper.x[1], lower.x[1]}};
        second = {{upper.x[2], lower.x[2], upper.x[3], lower.x[3]}};
    }

    /// Byte offset of this lane's row of eight.
    FLASHOMP_INLINE std::uint32_t along_rows() const { return this->lane() / 4 * Block::row_bytes; }

    /// Byte offset in it of this lane's chunk of the 16 columns from 16·pair on.
    FLASHOMP_INLINE std::uint32_t chunk_offset(int pair) const
    {
        const unsigned chunk = this->lane() % 4 ^ Block::turn(this->lane() / 4);
        return static_cast<unsigned>(pair) / 2 * 128 + (chunk * 16 ^ static_cast<unsigned>(pair) % 2 * 64);
    }

    /// Byte offset of this lane's chunk of 32 columns in its even or odd row of eight.
    FLASHOMP_INLINE std::uint32_t along_columns(unsigned odd) const
    {
        return Block::offset(2 * (this->lane() % 4) + odd, this->lane() / 4);
    }

    static FLASHOMP_INLINE void store_chunk(float* to, const float (&x)[4], int count, bool whole)
    {
        if (count <= 0) {
            return;
        }
        if (whole) {
            ptx::store_global_128(to, x);
            return;
        }
        FLASHOMP_UNROLL(4)
        for (int i = 0; i < 4; ++i) {
            if (i < count) {
                to[i] = x[i];
            }
        }
    }
};

} // namespace flashomp::offload

#pragma omp end declare target
