// All gradients of few queries in one pass over the keys, for bfloat16 and float16 on NVIDIA GPUs from sm_80:
// training's counterpart of a step of decoding. There is little to compute, so what counts is memory: a crew reads each
// key and value once and writes its gradients once.
//
// All queries of all query heads of a key head, at most 32, are the columns of a tile and stay. Keys are its rows. Each
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
#include "launch/launch.hpp"
#include "nvidia/few_queries_tile.hpp"
#include "nvidia/lanes.hpp"
#include "nvidia/last_crew.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// Parts of the keys of each key head, and what they leave.
struct KeyParts {
    int parts = 1;
    float* sums = nullptr;        ///< dQ of a part, [batch, key head, part] of FewQueriesShape::sum_floats()
    unsigned* arrivals = nullptr; ///< [batch, key head]: parts that are done; 0 before the launch
};

/// Parts of the keys of a launch, whose blocks are parts.
FLASHOMP_INLINE int key_parts(const Params& p, const Launch& launch)
{
    const int parts = (p.seqlen_k + launch.resident_rows - 1) / launch.resident_rows;
    return parts > 1 ? parts : 1;
}

/// One crew's part of the keys of one key head.
template <class Config>
class FewQueries {
    using Math = typename Config::Math;
    using Keys = typename Config::Keys;
    using Queries = typename Config::Queries;
    using Tile = FewQueriesTile<Config>;
    enum : int { depth = Config::depth };

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
        const int blocks = (sequence_.k_len + Config::keys - 1) / Config::keys;
        const int rounds = (blocks + Config::warps - 1) / Config::warps;
        const int each = (rounds + parts_.parts - 1) / parts_.parts * Config::warps;
        const int begin = part_ * each;
        const int end = begin + each < blocks ? begin + each : blocks;
        load_queries(p_.q, p_.head_dim, Config::queries_at);
        load_queries(p_.dout, p_.head_dim_v, Config::queries_at + int{Queries::bytes});
        const int first = begin + static_cast<int>(warp_);
        FLASHOMP_UNROLL(4)
        for (int stage = 0; stage + 1 < Config::stages; ++stage) {
            load_keys(first + stage * Config::warps, end, stage);
        }
        sum_rows();
        ptx::copy_wait<Config::stages - 2>();
        ptx::barrier<Config::threads>();
        tile_.begin(memory_ + Config::statistics_at);
        int stage = 0;
        FLASHOMP_UNROLL(1)
        for (int block = first; block < end; block += Config::warps) {
            ptx::copy_wait<Config::stages - 2>();
            ptx::warp_barrier(); // all lanes' copies are there, and nobody reads what was in the next stage's place
            ptx::refetch();
            constexpr int ahead = Config::stages - 1;
            load_keys(block + ahead * Config::warps, end, (stage + ahead) % Config::stages);
            attend(block * Config::keys, stage_at(stage));
            stage = (stage + 1) % Config::stages;
        }
        ptx::copy_wait<0>();
        leave_sums();
    }

private:
    FLASHOMP_INLINE std::uint32_t stage_at(int stage) const
    {
        return memory_ + warp_ * Config::warp_bytes + static_cast<unsigned>(stage) * Config::stage_bytes;
    }

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
        for (unsigned i = warp_ * 32 + lane_; i < unsigned{Queries::rows} * Queries::chunks; i += Config::threads) {
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
                            left < Config::keys ? left : int{Config::keys}, head_dim);
    }

    /// One group of copies, which is empty where there are no keys, or nobody sees them.
    FLASHOMP_INLINE void load_keys(int block, int end, int stage)
    {
        const int j0 = block * Config::keys;
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
        return (j0 < seen.end) & (j0 + Config::keys > seen.begin);
    }

    /// LSE and D of all rows to shared memory; rows without keys, and beyond the last, have P = 0.
    FLASHOMP_INLINE void sum_rows()
    {
        using Stored = typename Math::Stored;
        FLASHOMP_UNROLL(1)
        for (int r = static_cast<int>(warp_); r < Config::rows; r += Config::warps) {
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
            const std::uint32_t place = memory_ + Config::statistics_at + 8 * static_cast<unsigned>(r);
            ptx::store_shared(place, lse);
            ptx::store_shared(place + 4, delta);
        }
    }

    /// Gradients of 16 keys from j0 on, which are at `place` with their values.
    FLASHOMP_INLINE void attend(int j0, std::uint32_t place)
    {
        const std::uint32_t q = memory_ + Config::queries_at, dout = q + Queries::bytes, values = place + Keys::bytes;
        typename Tile::Rounded p = Tile::hidden(), ds = Tile::hidden();
        if (is_seen(j0)) {
            typename Tile::Scores s, dp;
            tile_.multiply(s, place, q);
            tile_.multiply(dp, values, dout);
            const Range interior = band_.interior_keys(0, sequence_.q_len);
            const bool all_seen =
                (j0 >= interior.begin) & (j0 + Config::keys <= interior.end) & (p_.key_padding_mask == nullptr);
            tile_.gradients(s, dp, p_.scale, all_seen,
                            [&](int r, int key) FLASHOMP_LAMBDA { return sees(r, j0 + key); });
            p = Tile::rounded(s);
            ds = Tile::rounded(dp);
            tile_.project(ds, place);
        }
        ptx::warp_barrier(); // keys and values have been read: their gradients take their places
        tile_.sum_keys(p, dout, values, 1.0F);
        tile_.sum_keys(ds, q, place, p_.scale);
        ptx::warp_barrier();
        store(results_at(p_.dk, j0, p_.head_dim), place);
        store(results_at(p_.dv, j0, p_.head_dim_v), values);
    }

    FLASHOMP_INLINE bool sees(int r, int j) const
    {
        const int i = sequence_.q_len > 0 ? r % sequence_.q_len : 0;
        return band_.keeps(i, j) &&
               (p_.key_padding_mask == nullptr || p_.key_padding_mask[batch_ * p_.key_padding_batch_stride + j] != 0);
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
        const unsigned lane = ptx::here(lane_);
        const unsigned chunk = lane % chunks;
        const int column = static_cast<int>(8 * chunk);
        HalvesCheck check;
        FLASHOMP_UNROLL(1)
        for (int r = static_cast<int>(lane) / chunks; r < rows.count; r += 32 / chunks) {
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
        tile_.leave(memory_ + warp_ * Config::warp_bytes);
        ptx::barrier<Config::threads>();
        float* const own = parts_.sums + (std::int64_t{item_} * parts_.parts + part_) * Config::sum_floats;
        for_fours([&](int i) FLASHOMP_LAMBDA {
            float sum[4] = {};
            FLASHOMP_UNROLL(4)
            for (int w = 0; w < Config::warps; ++w) {
                const ptx::Four more =
                    ptx::load_shared_128(memory_ + static_cast<unsigned>(w * Config::warp_bytes + 4 * i));
                add(sum, more);
            }
            if (parts_.parts == 1) {
                write(i, sum);
            } else {
                ptx::store_global_128(own + i, sum);
            }
        });
        if (parts_.parts > 1 &&
            is_last<Config::warps>(parts_.arrivals + item_, parts_.parts, memory_ + Config::place_at)) {
            add_parts();
        }
        check_.report(p_.nonfinite);
    }

    FLASHOMP_INLINE void add_parts()
    {
        constexpr int at_once = 8; // loads that do not wait for each other: the call waits for this crew
        const float* const first = parts_.sums + std::int64_t{item_} * parts_.parts * Config::sum_floats;
        for_fours([&](int i) FLASHOMP_LAMBDA {
            float sum[4] = {};
            for (int part = 0; part < parts_.parts; part += at_once) {
                ptx::Four more[at_once];
                FLASHOMP_UNROLL(8)
                for (int n = 0; n < at_once; ++n) {
                    more[n] = ptx::load_global_128(first + std::int64_t{part + n} * Config::sum_floats + i,
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
        for (int i = 4 * static_cast<int>(warp_ * 32 + lane_); i < rows_ * depth; i += 4 * Config::threads) {
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
    Tile tile_;
    FiniteCheck check_;
};

} // namespace flashomp::offload

#pragma omp end declare target
