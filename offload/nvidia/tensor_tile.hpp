// Operands of 16 bits on the machines with tensor cores. Two neighbouring 16x8 pieces of scores, rounded to 16 bits,
// are just a left operand of the next product (mma.m16n8k16): probabilities need no exchange between lanes.
#pragma once

#include "algorithm/finite_check.hpp"
#include "nvidia/warp_tile.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// Config: as WarpTile's, with ptx::BFloat16Math or Float16Math.
template <class Config>
class TensorTile : public WarpTile<Config, Panels> {
    using Tile = WarpTile<Config, Panels>;

public:
    using Tile::columns, Tile::depth, Tile::depth_v, Tile::fragments, Tile::row_slots, Tile::rows_in_warp, Tile::steps,
        Tile::threads;
    using typename Tile::Math, typename Tile::Piece, typename Tile::Resident, typename Tile::Row, typename Tile::Stats,
        typename Tile::ValuePiece, typename Tile::WarpAccumulator;
    struct Scores : Tile::Scores {
        ptx::Four p[fragments][columns / 16]; ///< instead, rounded: what exp_sum() left
        bool is_rounded;                      ///< a constant once all is inlined
        int group;                            ///< Hopper: the registers of wgmma that they come from
    };

    using Tile::Tile;

    /// 8·ln 2: probabilities up to 256 are as exact in 16 bits as those up to 1. Dropout's factor could take them
    /// beyond float16.
    static FLASHOMP_INLINE float lag() { return Config::modified != 0 ? 0.0F : 5.5451774F; }

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

protected:
    FLASHOMP_INLINE void load_resident(Resident& block, const Rows& rows) { load_resident(block, rows, this->memory_); }
    /// way: the team memory that a block for registers comes by.
    FLASHOMP_INLINE void load_resident(Resident& block, const Rows& rows, std::uint32_t way)
    {
        Tile::load_resident(block, rows, way, [&](std::uint32_t start) FLASHOMP_LAMBDA {
            FLASHOMP_UNROLL(8)
            for (int m = 0; m < fragments; ++m) {
                FLASHOMP_UNROLL(64)
                for (int k = 0; k < steps; ++k) {
                    block.a[m][k] = left_operand(start, m, k);
                }
            }
        });
    }

    FLASHOMP_INLINE ptx::Four left(const Resident& block, int m, int k) const
    {
        return block.in_memory ? left_operand(block.address, m, k) : block.a[m][k];
    }

    /// The row of a 16x16 piece that this lane names to ldmatrix, in bytes: the four 8x8 matrices in the order down the
    /// rows first, or along the columns first.
    FLASHOMP_INLINE std::uint32_t along_columns() const { return (this->lane() / 8 % 2 * 8 + this->lane() % 8) * 128; }
    FLASHOMP_INLINE std::uint32_t along_rows() const { return (this->lane() / 16 * 8 + this->lane() % 8) * 128; }

    /// p = 2^((s - base)·by), in the scores' place where they are modified, else rounded; sum += Σ p.
    /// before_rounding() is called when the first are there, but none is rounded yet.
    template <class F>
    FLASHOMP_INLINE void exponentials(Scores& s, const Stats& base, float by, const Stats& sum,
                                      const F& before_rounding)
    {
        if constexpr (Config::modified != 0) {
            this->exponentials_in_place(s, base, by, sum);
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
                    x = Tile::exp2(__builtin_fmaf(s.s[m][n][e], by, -scaled[e / 2]));
                    return x;
                };
                Tile::reduce_fragment(fragment, sum, p, [](float x, float y) FLASHOMP_LAMBDA { return x + y; });
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
        if (rows.element == Element::float32) { // parts of split keys, or results that are to be float32
            auto* const target = static_cast<float*>(rows.data) + rows.offset;
            FiniteCheck check;
            store_pairs(c, rows, f, [target, &check](std::int64_t at, bool both, float x, float y) FLASHOMP_LAMBDA {
                target[at] = x;
                check.see(x, 0.0F);
                if (both) {
                    target[at + 1] = y;
                    check.see(y, 0.0F);
                }
            });
            check.report(rows.nonfinite);
            return;
        }
        // By way of the stages, so that whole rows go out together. Nobody reads them any more: for_blocks has ended.
        FLASHOMP_UNROLL(8)
        for (int slot = 0; slot < row_slots; ++slot) {
            const Row r{this->row_index(slot), slot};
            const float by = r.index < rows.count ? f(r) : 0.0F;
            const std::uint32_t base =
                this->memory_ + this->result_offset(static_cast<unsigned>(r.index)) + 4 * (this->lane() % 4);
            FLASHOMP_UNROLL(64)
            for (int n = 0; n < depth_v / 8; ++n) {
                const float* const pair = &c.c[slot / 2][n][slot % 2 * 2];
                ptx::store_shared_32(base + ValuePiece::panel(n) + ((n % 8) ^ (this->lane() / 4)) * 16,
                                     Math::pack(pair[0] * by, pair[1] * by));
            }
        }
        ptx::barrier<threads>();
        auto* const target = static_cast<std::uint16_t*>(rows.data) + rows.offset;
        constexpr int chunks = ValuePiece::chunks;
        const unsigned chunk = this->thread() % chunks;
        const int column = static_cast<int>(8 * chunk);
        const bool whole = in_chunks<2>(rows);
        HalvesCheck check; // not of the sums themselves: looked at there, those of depth 64 are spilled
        FLASHOMP_UNROLL(1)
        for (unsigned r = this->thread() / chunks; static_cast<int>(r) < rows.count; r += threads / chunks) {
            const std::uint32_t from =
                this->memory_ + this->result_offset(r) + ValuePiece::panel(chunk) + ((chunk % 8) ^ (r % 8)) * 16;
            check.see(Math::is_bfloat16, ptx::load_shared_128(from));
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
        check.report(rows.nonfinite);
        ptx::barrier<threads>();
    }

private:
    /// The fragment of 16 columns from 16·k on of this warp's rows from 16·m on.
    FLASHOMP_INLINE ptx::Four left_operand(std::uint32_t start, int m, int k) const
    {
        const unsigned first = this->warp() * rows_in_warp + 16 * static_cast<unsigned>(m);
        return ptx::load_matrices(start + this->row_offset(first) + along_columns() +
                                  Piece::pair_offset(2 * k, this->lane() / 16, this->lane()));
    }

    template <class F, class Write>
    FLASHOMP_INLINE void store_pairs(const WarpAccumulator& c, const Rows& rows, const F& f, const Write& write)
    {
        const int t = static_cast<int>(this->lane() % 4);
        FLASHOMP_UNROLL(8)
        for (int slot = 0; slot < row_slots; ++slot) {
            const Row r{this->row_index(slot), slot};
            if (r.index < rows.count) {
                const float by = f(r);
                FLASHOMP_UNROLL(64)
                for (int n = 0; n < depth_v / 8; ++n) {
                    const int x = 8 * n + 2 * t;
                    if (x < rows.depth) {
                        const float* const pair = &c.c[slot / 2][n][slot % 2 * 2];
                        write(r.index * rows.stride + x, x + 1 < rows.depth, pair[0] * by, pair[1] * by);
                    }
                }
            }
        }
    }
};

} // namespace flashomp::offload

#pragma omp end declare target
