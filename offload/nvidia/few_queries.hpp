// All gradients of few queries in one pass over the keys, for bfloat16 and float16 on NVIDIA GPUs from sm_80:
// training's counterpart of a step of decoding. There is little to compute, so what counts is memory: a crew reads each
// key and value once and writes its gradients once.
//
// All queries of all query heads of a key head are the columns of a tile, at most 32, and stay. Keys are its rows. Each
// warp has 16 of them at a time, in places of its own, and meets the others only at the end:
//
//     Sᵀ = K·Qᵀ    dPᵀ = V·dOᵀ    dV = Pᵀ·dO    dK = dSᵀ·Q    dQᵀ += Kᵀ·dSᵀ
//
// dQᵀ stays in a warp's registers. Crews have parts of the keys; the last crew of a key head adds up the parts' sums,
// always in the same order.
//
// Nothing knows whole rows, so nothing repairs LSE and D (row_repair.hpp).
#pragma once

#include "algorithm/element.hpp"
#include "algorithm/finite_check.hpp"
#include "algorithm/mask.hpp"
#include "algorithm/math.hpp"
#include "algorithm/score_gradient.hpp"
#include "nvidia/lanes.hpp"
#include "nvidia/last_crew.hpp"
#include "nvidia/panels.hpp"
#include "nvidia/warp_products.hpp"

#pragma omp declare target

namespace flashomp::offload {

namespace ptx {

/// movmatrix: the transposed 8x8 matrix of 16-bit elements, of which a lane has two of row lane / 4.
FLASHOMP_INLINE std::uint32_t transposed(std::uint32_t pair)
{
    std::uint32_t result = 0;
    if (is_nvptx()) {
        asm volatile("{ .reg .b32 s, d; mov.b32 s, %1; movmatrix.sync.aligned.m8n8.trans.b16 d, s; mov.b32 %0, d; }"
                     : "=r"(result)
                     : "r"(pair));
    }
    return result;
}

} // namespace ptx

/// Parts of the keys of each key head, and what they leave.
struct KeyParts {
    int parts = 1;
    float* sums = nullptr;        ///< dQ of a part, [batch, key head, part] of FewQueriesShape::sum_floats
    unsigned* arrivals = nullptr; ///< [batch, key head]: parts that are done; 0 before the launch
};

/// M: ptx::BFloat16Math or Float16Math; head_depth: 64, 128 or 256, no less than both head dims; query_tiles: of 8 rows
/// each, for all queries of the heads of a group.
template <class M, int head_depth, int query_tiles>
struct FewQueriesShape {
    using Math = M;
    enum : int { // not static members: g++ calls classes with those not mappable
        depth = head_depth,
        tiles = query_tiles,
        pairs = (query_tiles + 1) / 2, ///< of tiles: what one product sums over
        rows = 16 * pairs,             ///< of queries in shared memory; zeros beyond those there are
        warps = head_depth == 256 ? 2 : 4,
        threads = 32 * warps,
        stages = 2,
        keys = 16,         ///< of a warp at one time
        round = 16 * warps ///< of a crew
    };
    using Keys = Panels<keys, depth>;
    using Queries = Panels<rows, depth>;
    enum : int {
        stage_bytes = 2 * int{Keys::bytes},
        warp_bytes = stages * stage_bytes,
        queries_at = warps * warp_bytes,
        statistics_at = queries_at + 2 * int{Queries::bytes}, ///< LSE and D of each row
        place_at = statistics_at + 2 * 4 * rows,              ///< of is_last()
        shared_bytes = place_at + 16,
        sum_floats = 8 * tiles * depth,
    };
    static_assert(4 * sum_floats <= warp_bytes);
};

/// Whether the queries of all heads of a group are so few, and nothing asks for what this pass has not.
inline int most_rows_of_few(int depth)
{
    return depth <= 128 ? 32 : 16;
}

/// One crew's part of the keys of one key head.
template <class Shape>
class FewQueries {
    using Math = typename Shape::Math;
    using Keys = typename Shape::Keys;
    using Queries = typename Shape::Queries;
    enum : int { tiles = Shape::tiles, pairs = Shape::pairs, depth = Shape::depth, steps = Shape::depth / 16 };

public:
    FLASHOMP_INLINE FewQueries(const Params& p, const KeyParts& parts, std::int64_t index, const void* memory)
        : p_(p), parts_(parts), memory_(ptx::shared_address(memory)), lane_(ptx::lane()), warp_(ptx::warp())
    {
        part_ = static_cast<int>(index % parts.parts);
        item_ = static_cast<int>(index / parts.parts);
        batch_ = item_ / p.heads_kv;
        head_kv_ = item_ % p.heads_kv;
        group_ = p.heads_q / p.heads_kv;
        sequence_ = sequence(p, batch_);
        band_ = band_of(p, sequence_);
        rows_ = group_ * sequence_.q_len;
    }

    FLASHOMP_INLINE void run()
    {
        const int blocks = (sequence_.k_len + Shape::keys - 1) / Shape::keys;
        const int rounds = (blocks + Shape::warps - 1) / Shape::warps;
        const int each = (rounds + parts_.parts - 1) / parts_.parts * Shape::warps;
        const int begin = part_ * each;
        const int end = begin + each < blocks ? begin + each : blocks;
        load_queries(p_.q, p_.head_dim, Shape::queries_at);
        load_queries(p_.dout, p_.head_dim_v, Shape::queries_at + int{Queries::bytes});
        const int first = begin + static_cast<int>(warp_);
        FLASHOMP_UNROLL(4)
        for (int stage = 0; stage + 1 < Shape::stages; ++stage) {
            load_keys(first + stage * Shape::warps, end, stage);
        }
        sum_rows();
        ptx::copy_wait<Shape::stages - 2>();
        ptx::barrier<Shape::threads>();
        keep_statistics();
        clear();
        int stage = 0;
        FLASHOMP_UNROLL(1)
        for (int block = first; block < end; block += Shape::warps) {
            ptx::copy_wait<Shape::stages - 2>();
            ptx::warp_barrier(); // all lanes' copies are there, and nobody reads what was in the next stage's place
            constexpr int ahead = Shape::stages - 1;
            load_keys(block + ahead * Shape::warps, end, (stage + ahead) % Shape::stages);
            attend(block * Shape::keys, stage_at(stage));
            stage = (stage + 1) % Shape::stages;
        }
        ptx::copy_wait<0>();
        leave_sums();
    }

private:
    FLASHOMP_INLINE std::uint32_t stage_at(int stage) const
    {
        return memory_ + warp_ * Shape::warp_bytes + static_cast<unsigned>(stage) * Shape::stage_bytes;
    }

    /// Bytes to the row of a 16x16 piece that this lane names to ldmatrix: its four 8x8 matrices in the order down the
    /// rows first, or along the columns first.
    FLASHOMP_INLINE std::uint32_t along_columns() const { return (lane_ / 8 % 2 * 8 + lane_ % 8) * 128; }
    FLASHOMP_INLINE std::uint32_t along_rows() const { return (lane_ / 16 * 8 + lane_ % 8) * 128; }

    /// First element of row r of a tensor of queries: of the heads of the group, one after the other.
    FLASHOMP_INLINE std::int64_t offset_of(const Tensor& tensor, int r) const
    {
        const int head = r / sequence_.q_len;
        const int i = r - head * sequence_.q_len;
        return batch_ * tensor.batch + (head_kv_ * group_ + head) * tensor.head + (sequence_.q_start + i) * tensor.row;
    }

    FLASHOMP_INLINE void load_queries(const Tensor& tensor, int head_dim, int at)
    {
        using Stored = typename Math::Stored;
        const auto* const data = static_cast<const Stored*>(tensor.data);
        const std::uint64_t all =
            reinterpret_cast<std::uintptr_t>(data) |
            static_cast<std::uint64_t>(2 * (batch_ * tensor.batch | tensor.head | tensor.row | std::int64_t{head_dim}));
        const bool whole = all % 16 == 0;
        FLASHOMP_UNROLL(1)
        for (unsigned i = warp_ * 32 + lane_; i < unsigned{Queries::rows} * Queries::chunks; i += Shape::threads) {
            const unsigned r = i / Queries::chunks;
            const unsigned chunk = i % Queries::chunks;
            const bool is_row = static_cast<int>(r) < rows_;
            const Stored* const row = data + (is_row ? offset_of(tensor, static_cast<int>(r)) : 0);
            if (whole) {
                const bool is_there = is_row & (static_cast<int>(8 * chunk) < head_dim);
                ptx::copy_async_16(memory_ + at + Queries::offset(r, chunk), row + 8 * chunk, 0, is_there ? 1 : 0);
            } else {
                copy_elements<Queries>(memory_ + at, r, chunk, row, is_row, head_dim);
            }
        }
    }

    FLASHOMP_INLINE Rows rows_of_keys(const Tensor& tensor, int j0, int head_dim) const
    {
        const int left = sequence_.k_len - j0;
        return written_rows(p_, tensor, batch_, head_kv_, sequence_.k_start + j0,
                            left < Shape::keys ? left : int{Shape::keys}, head_dim);
    }

    /// One group of copies, which is empty where there are no keys, or nobody sees them.
    FLASHOMP_INLINE void load_keys(int block, int end, int stage)
    {
        const int j0 = block * Shape::keys;
        if (block < end && is_seen(j0)) {
            copy_in<Keys, 32>(stage_at(stage), rows_of_keys(p_.k, j0, p_.head_dim), lane_);
            copy_in<Keys, 32>(stage_at(stage) + Keys::bytes, rows_of_keys(p_.v, j0, p_.head_dim_v), lane_);
        }
        ptx::copy_commit();
    }

    /// Whether any query sees one of the keys from j0 on.
    FLASHOMP_INLINE bool is_seen(int j0) const
    {
        const Range seen = band_.keys(0, sequence_.q_len);
        return (j0 < seen.end) & (j0 + Shape::keys > seen.begin);
    }

    /// LSE and D of all rows to shared memory; rows without keys, and beyond the last, have P = 0.
    FLASHOMP_INLINE void sum_rows()
    {
        using Stored = typename Math::Stored;
        FLASHOMP_UNROLL(1)
        for (int r = static_cast<int>(warp_); r < Shape::rows; r += Shape::warps) {
            float lse = infinity;
            float delta = 0.0F;
            if (r < rows_) {
                const Stored* const o = static_cast<const Stored*>(p_.o.data) + offset_of(p_.o, r);
                const Stored* const dout = static_cast<const Stored*>(p_.dout.data) + offset_of(p_.dout, r);
                for (int x = static_cast<int>(lane_); x < p_.head_dim_v; x += 32) {
                    delta += Math::value(o[x]) * Math::value(dout[x]);
                }
                const int head = r / sequence_.q_len;
                lse = usable_lse(
                    row_stats(p_.lse, batch_, head_kv_ * group_ + head, sequence_.q_start)[r - head * sequence_.q_len]);
            }
            delta = of_all_lanes(delta, [](float x, float y) FLASHOMP_LAMBDA { return x + y; });
            const std::uint32_t place = memory_ + Shape::statistics_at + 8 * static_cast<unsigned>(r);
            ptx::store_shared_32(place, bits_of(lse));
            ptx::store_shared_32(place + 4, bits_of(delta));
        }
    }

    /// Those of this lane's columns of each tile.
    FLASHOMP_INLINE void keep_statistics()
    {
        FLASHOMP_UNROLL(4)
        for (int t = 0; t < tiles; ++t) {
            FLASHOMP_UNROLL(2)
            for (int c = 0; c < 2; ++c) {
                const ptx::FloatPair pair =
                    ptx::load_shared_pair(memory_ + Shape::statistics_at + 8 * static_cast<unsigned>(column(t) + c));
                lse_[t][c] = pair.x;
                delta_[t][c] = pair.y;
            }
        }
    }

    FLASHOMP_INLINE void clear()
    {
        FLASHOMP_UNROLL(4)
        for (int t = 0; t < tiles; ++t) {
            FLASHOMP_UNROLL(16)
            for (int m = 0; m < steps; ++m) {
                FLASHOMP_UNROLL(4)
                for (int e = 0; e < 4; ++e) {
                    dq_[t][m][e] = 0.0F;
                }
            }
        }
    }

    /// Of a tile whose columns are queries: this lane's first of two columns, and its first of two rows, 8 apart.
    FLASHOMP_INLINE int column(int tile) const { return 8 * tile + static_cast<int>(lane_ % 4) * 2; }
    FLASHOMP_INLINE int row() const { return static_cast<int>(lane_ / 4); }

    /// Two tiles of P or dS, rounded, as left operands of products over queries: [tile][row, row + 8].
    struct Rounded {
        std::uint32_t x[2 * pairs][2];

        FLASHOMP_INLINE ptx::Four left(int pair) const
        {
            return {{x[2 * pair][0], x[2 * pair][1], x[2 * pair + 1][0], x[2 * pair + 1][1]}};
        }
    };

    /// Gradients of 16 keys from j0 on, which are at `place` with their values.
    FLASHOMP_INLINE void attend(int j0, std::uint32_t place)
    {
        const Rows dk = results_at(p_.dk, j0, p_.head_dim);
        const Rows dv = results_at(p_.dv, j0, p_.head_dim_v);
        Rounded p, ds;
        if (is_seen(j0)) {
            float s[tiles][4], dp[tiles][4];
            multiply(s, place, memory_ + Shape::queries_at);
            multiply(dp, place + Keys::bytes, memory_ + Shape::queries_at + Queries::bytes);
            gradients(s, dp, j0);
            round(p, s);
            round(ds, dp);
            project(ds, place);
        } else {
            hide(p);
            hide(ds);
        }
        ptx::warp_barrier(); // keys and values have been read: their gradients take their places
        sum_keys(p, memory_ + Shape::queries_at + Queries::bytes, place + Keys::bytes, 1.0F);
        sum_keys(ds, memory_ + Shape::queries_at, place, p_.scale);
        ptx::warp_barrier();
        store(dk, place);
        store(dv, place + Keys::bytes);
    }

    /// s = keys · queriesᵀ
    FLASHOMP_INLINE void multiply(float (&s)[tiles][4], std::uint32_t keys, std::uint32_t queries)
    {
        FLASHOMP_UNROLL(4)
        for (int t = 0; t < tiles; ++t) {
            FLASHOMP_UNROLL(4)
            for (int e = 0; e < 4; ++e) {
                s[t][e] = 0.0F;
            }
        }
        FLASHOMP_UNROLL(16)
        for (int k = 0; k < steps; ++k) {
            const ptx::Four left =
                ptx::load_matrices(keys + along_columns() + Keys::pair_offset(2 * k, lane_ / 16, lane_));
            FLASHOMP_UNROLL(2)
            for (int pair = 0; pair < pairs; ++pair) {
                const ptx::Four right =
                    ptx::load_matrices(queries + along_rows() + static_cast<unsigned>(pair) * 16 * 128 +
                                       Queries::pair_offset(2 * k, lane_ / 8 % 2, lane_));
                Math::multiply_add(s[2 * pair], left, right.x[0], right.x[1]);
                if (2 * pair + 1 < tiles) {
                    Math::multiply_add(s[2 * pair + 1], left, right.x[2], right.x[3]);
                }
            }
        }
    }

    /// P in the place of the dot products, and dS in that of dP (score_gradient.hpp).
    FLASHOMP_INLINE void gradients(float (&s)[tiles][4], float (&dp)[tiles][4], int j0)
    {
        const Range interior = band_.interior_keys(0, sequence_.q_len);
        const bool is_interior =
            (j0 >= interior.begin) & (j0 + Shape::keys <= interior.end) & (p_.key_padding_mask == nullptr);
        FLASHOMP_UNROLL(4)
        for (int t = 0; t < tiles; ++t) {
            FLASHOMP_UNROLL(4)
            for (int e = 0; e < 4; ++e) {
                float difference = fused(p_.scale, s[t][e], -lse_[t][e % 2]);
                bool is_seen = true;
                if (!is_interior) {
                    is_seen = sees(column(t) + e % 2, j0 + row() + 8 * (e / 2));
                    difference = is_seen ? difference : -infinity;
                }
                const float probability = ptx::exp2_approx(difference * log2_e);
                s[t][e] = probability;
                dp[t][e] = is_seen ? probability * (dp[t][e] - delta_[t][e % 2]) : 0.0F;
            }
        }
    }

    FLASHOMP_INLINE bool sees(int r, int j) const
    {
        const int i = sequence_.q_len > 0 ? r % sequence_.q_len : 0;
        return band_.keeps(i, j) &&
               (p_.key_padding_mask == nullptr || p_.key_padding_mask[batch_ * p_.key_padding_batch_stride + j] != 0);
    }

    FLASHOMP_INLINE void round(Rounded& to, const float (&from)[tiles][4])
    {
        FLASHOMP_UNROLL(4)
        for (int t = 0; t < 2 * pairs; ++t) {
            FLASHOMP_UNROLL(2)
            for (int half = 0; half < 2; ++half) {
                to.x[t][half] =
                    t < tiles ? Math::pack(from[t < tiles ? t : 0][2 * half], from[t < tiles ? t : 0][2 * half + 1])
                              : 0U;
            }
        }
    }

    FLASHOMP_INLINE void hide(Rounded& to)
    {
        FLASHOMP_UNROLL(4)
        for (int t = 0; t < 2 * pairs; ++t) {
            to.x[t][0] = to.x[t][1] = 0;
        }
    }

    /// dQᵀ += keysᵀ · dSᵀ
    FLASHOMP_INLINE void project(const Rounded& ds, std::uint32_t keys)
    {
        std::uint32_t right[tiles][2];
        FLASHOMP_UNROLL(4)
        for (int t = 0; t < tiles; ++t) {
            right[t][0] = ptx::transposed(ds.x[t][0]);
            right[t][1] = ptx::transposed(ds.x[t][1]);
        }
        FLASHOMP_UNROLL(16)
        for (int m = 0; m < steps; ++m) {
            const ptx::Four left =
                ptx::load_matrices_transposed(keys + along_rows() + Keys::pair_offset(2 * m, lane_ / 8 % 2, lane_));
            FLASHOMP_UNROLL(4)
            for (int t = 0; t < tiles; ++t) {
                Math::multiply_add(dq_[t][m], left, right[t][0], right[t][1]);
            }
        }
    }

    /// To shared memory: weights · queries · factor, rounded.
    FLASHOMP_INLINE void sum_keys(const Rounded& weights, std::uint32_t queries, std::uint32_t to, float factor)
    {
        const std::uint32_t base = to + static_cast<unsigned>(row()) * 128 + 4 * (lane_ % 4);
        FLASHOMP_UNROLL(16)
        for (int n = 0; n < steps; ++n) {
            float sum[2][4] = {};
            FLASHOMP_UNROLL(2)
            for (int pair = 0; pair < pairs; ++pair) {
                const ptx::Four right =
                    ptx::load_matrices_transposed(queries + along_columns() + static_cast<unsigned>(pair) * 16 * 128 +
                                                  Queries::pair_offset(2 * n, lane_ / 16, lane_));
                const ptx::Four left = weights.left(pair);
                Math::multiply_add(sum[0], left, right.x[0], right.x[1]);
                Math::multiply_add(sum[1], left, right.x[2], right.x[3]);
            }
            FLASHOMP_UNROLL(2)
            for (int c = 0; c < 2; ++c) {
                const unsigned chunk = static_cast<unsigned>(2 * n + c);
                const std::uint32_t at = base + Keys::panel(chunk) + ((chunk % 8) ^ (lane_ / 4)) * 16;
                ptx::store_shared_32(at, Math::pack(sum[c][0] * factor, sum[c][1] * factor));
                ptx::store_shared_32(at + 8 * 128, Math::pack(sum[c][2] * factor, sum[c][3] * factor));
            }
        }
    }

    FLASHOMP_INLINE Rows results_at(const Tensor& tensor, int j0, int head_dim) const
    {
        Rows rows = rows_of_keys(tensor, j0, head_dim);
        rows.nonfinite = p_.nonfinite;
        return rows;
    }

    /// From a warp's place to memory.
    FLASHOMP_INLINE void store(const Rows& rows, std::uint32_t from)
    {
        constexpr int chunks = Keys::chunks;
        auto* const target = static_cast<std::uint16_t*>(rows.data) + rows.offset;
        const bool whole = in_chunks<2>(rows);
        const unsigned chunk = lane_ % chunks;
        const int column = static_cast<int>(8 * chunk);
        HalvesCheck check;
        FLASHOMP_UNROLL(1)
        for (int r = static_cast<int>(lane_) / chunks; r < rows.count; r += 32 / chunks) {
            const std::uint32_t at = from + Keys::offset(static_cast<unsigned>(r), chunk);
            check.see(Math::is_bfloat16, ptx::load_shared_128(at));
            std::uint16_t* const to = target + r * rows.stride;
            const int end = rows.depth < column + 8 ? rows.depth : column + 8;
            if (whole && end > column) {
                ptx::copy_out_16(to + column, at);
                continue;
            }
            FLASHOMP_UNROLL(1)
            for (int x = column; x < end; ++x) {
                to[x] = static_cast<std::uint16_t>(ptx::load_shared_16(at + 2 * static_cast<unsigned>(x - column)));
            }
        }
        check.report(rows.nonfinite);
    }

    /// dQ of all warps, and of all parts if this is the last.
    FLASHOMP_INLINE void leave_sums()
    {
        ptx::warp_barrier();
        FLASHOMP_UNROLL(4)
        for (int t = 0; t < tiles; ++t) {
            FLASHOMP_UNROLL(16)
            for (int m = 0; m < steps; ++m) {
                FLASHOMP_UNROLL(4)
                for (int e = 0; e < 4; ++e) {
                    const auto at = static_cast<unsigned>((column(t) + e % 2) * depth + 16 * m + row() + 8 * (e / 2));
                    ptx::store_shared_32(memory_ + warp_ * Shape::warp_bytes + 4 * at, bits_of(dq_[t][m][e]));
                }
            }
        }
        ptx::barrier<Shape::threads>();
        float* const own = parts_.sums + (std::int64_t{item_} * parts_.parts + part_) * Shape::sum_floats;
        for_fours([&](int i) FLASHOMP_LAMBDA {
            float sum[4] = {};
            FLASHOMP_UNROLL(4)
            for (int w = 0; w < Shape::warps; ++w) {
                const ptx::Four more =
                    ptx::load_shared_128(memory_ + static_cast<unsigned>(w * Shape::warp_bytes + 4 * i));
                add(sum, more);
            }
            if (parts_.parts == 1) {
                write(i, sum);
            } else {
                ptx::store_global_128(own + i, sum);
            }
        });
        if (parts_.parts > 1 &&
            is_last<Shape::warps>(parts_.arrivals + item_, parts_.parts, memory_ + Shape::place_at)) {
            add_parts();
        }
        check_.report(p_.nonfinite);
    }

    FLASHOMP_INLINE void add_parts()
    {
        constexpr int at_once = 8; // loads that do not wait for each other: the call waits for this crew
        const float* const first = parts_.sums + std::int64_t{item_} * parts_.parts * Shape::sum_floats;
        for_fours([&](int i) FLASHOMP_LAMBDA {
            float sum[4] = {};
            for (int part = 0; part < parts_.parts; part += at_once) {
                ptx::Four more[at_once];
                FLASHOMP_UNROLL(8)
                for (int n = 0; n < at_once; ++n) {
                    more[n] = ptx::load_global_128(first + std::int64_t{part + n} * Shape::sum_floats + i,
                                                   part + n < parts_.parts);
                }
                FLASHOMP_UNROLL(8)
                for (int n = 0; n < at_once; ++n) {
                    add(sum, more[n]);
                }
            }
            write(i, sum);
        });
    }

    static FLASHOMP_INLINE void add(float (&sum)[4], const ptx::Four& more)
    {
        FLASHOMP_UNROLL(4)
        for (int e = 0; e < 4; ++e) {
            sum[e] += float_of(more.x[e]);
        }
    }

    /// f(i) for each four floats of the rows there are, shared out to the threads.
    template <class F>
    FLASHOMP_INLINE void for_fours(const F& f)
    {
        FLASHOMP_UNROLL(1)
        for (int i = 4 * static_cast<int>(warp_ * 32 + lane_); i < rows_ * depth; i += 4 * Shape::threads) {
            f(i);
        }
    }

    /// Four floats of dQ from number i of a part's sums on.
    FLASHOMP_INLINE void write(int i, const float (&sum)[4])
    {
        const int r = i / depth;
        const int x = i - r * depth;
        const std::int64_t at = offset_of(p_.dq, r) + x;
        FLASHOMP_UNROLL(4)
        for (int e = 0; e < 4; ++e) {
            const float value = sum[e] * p_.scale;
            if (x + e < p_.head_dim) {
                write_element(p_.dq.data, p_.dq.element, at + e, value);
                check_.see(value, 0.0F);
            }
        }
    }

    const Params& p_;
    const KeyParts& parts_;
    std::uint32_t memory_;
    unsigned lane_, warp_;
    int part_, item_, batch_, head_kv_, group_;
    int rows_; ///< queries of all heads of the group
    Sequence sequence_;
    Band band_;
    float lse_[tiles][2], delta_[tiles][2];
    float dq_[tiles][steps][4];
    FiniteCheck check_;
};

} // namespace flashomp::offload

#pragma omp end declare target
