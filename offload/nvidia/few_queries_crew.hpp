// What a crew does with few queries, forward and backward, for bfloat16 and float16 on NVIDIA GPUs from sm_80. There is
// little to compute, so what counts is memory, and with few keys the time until the first of them are there.
//
// Queries of query heads that share a key head, at most 32 in all, are the columns of a tile and stay. Keys are its
// rows. Each warp has 16 of them at a time, in places of its own, and meets the others only at the end. Crews have
// parts of the keys; the last one that has done its part puts the results of all together, always in the same order.
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

/// M: ptx::BFloat16Math or Float16Math; shape: launch/few_queries_shapes.hpp.
template <class M, bool backward, int shape_depth, int shape_tiles, int shape_warps>
struct FewQueriesConfig {
    using Math = M;
    enum : int { // not static members: g++ calls classes with those not mappable
        is_backward = backward,
        depth = shape_depth,
        tiles = shape_tiles,
        pairs = (shape_tiles + 1) / 2, ///< of tiles: what one product sums over
        rows = 16 * pairs,             ///< of queries in team memory; zeros beyond those there are
        warps = shape_warps,
        threads = 32 * warps,
        stages = 2,
        keys = 16 ///< of a warp at one time
    };
    using Keys = Panels<keys, depth>;
    using Queries = Panels<rows, depth>;
    enum : int {
        stage_bytes = 2 * int{Keys::bytes},
        warp_bytes = stages * stage_bytes,
        queries_at = warps * warp_bytes,
        statistics_at = queries_at + (1 + is_backward) * int{Queries::bytes}, ///< two of each row, forward of each warp
        place_at = statistics_at + 2 * 4 * rows * (backward ? 1 : warps),     ///< of is_last()
        memory_bytes = place_at + 16,
        sum_floats = 8 * tiles * depth,
    };
    static_assert(4 * sum_floats <= warp_bytes); // where a warp leaves its sums
    static constexpr FewQueriesShape shape() { return {shape_depth, shape_tiles, shape_warps, 0, backward}; }
    static_assert(memory_bytes == shape().memory_bytes());
    static_assert(sum_floats == shape().sum_floats());
};

/// The queries of a block: those of several heads that share a key head, one head's after the other's.
struct FewRows {
    int first_head = 0; ///< query head
    int first = 0;      ///< query of each head, and how many
    int each = 0;
    int count = 0; ///< of all heads
};

/// band_of(), in short where no mask has a diagonal.
FLASHOMP_INLINE Band band_of_few(const Params& p, const Sequence& s)
{
    const bool is_all = (p.causal == Alignment::none) & (p.window_left < 0) & (p.window_right < 0);
    return is_all ? Band{-s.q_len, s.k_len, s.q_len, s.k_len} : band_of(p, s);
}

template <class Config>
class FewQueriesCrew {
protected:
    using Math = typename Config::Math;
    using Keys = typename Config::Keys;
    using Queries = typename Config::Queries;
    using Stored = typename Math::Stored;
    enum : int { depth = Config::depth };

    FLASHOMP_INLINE FewQueriesCrew(const Params& p, const Sequence& sequence, int batch, const FewRows& rows,
                                   const void* memory)
        : p_(p), memory_(ptx::shared_address(memory)), lane_(ptx::lane()), warp_(ptx::warp()), batch_(batch),
          rows_(rows), sequence_(sequence), band_(band_of_few(p, sequence))
    {
    }

    FLASHOMP_INLINE std::uint32_t stage_at(int stage) const
    {
        return memory_ + warp_ * Config::warp_bytes + static_cast<unsigned>(stage) * Config::stage_bytes;
    }

    /// Head and number of row r.
    struct Query {
        int head, i;
    };
    FLASHOMP_INLINE Query query(int r) const
    {
        const int head = rows_.each == rows_.count ? 0 : r / rows_.each;
        return {rows_.first_head + head, rows_.first + r - head * rows_.each};
    }

    /// First element of row r of a tensor of queries.
    FLASHOMP_INLINE std::int64_t offset_of(const Tensor& tensor, int r) const
    {
        const Query at = query(r);
        return batch_ * tensor.batch + at.head * tensor.head + (sequence_.q_start + at.i) * tensor.row;
    }

    /// Row r of LSE, or of parts' LSE.
    FLASHOMP_INLINE std::int64_t statistic_of(const RowTensor& tensor, int r) const
    {
        const Query at = query(r);
        return batch_ * tensor.batch + at.head * tensor.head + sequence_.q_start + at.i;
    }

    FLASHOMP_INLINE void load_queries(const Tensor& tensor, int head_dim, int at)
    {
        const auto* const data = static_cast<const Stored*>(tensor.data);
        const std::uint64_t all =
            reinterpret_cast<std::uintptr_t>(data) |
            static_cast<std::uint64_t>(2 * (batch_ * tensor.batch | tensor.head | tensor.row | std::int64_t{head_dim}));
        const bool whole = all % 16 == 0;
        FLASHOMP_UNROLL(1)
        for (unsigned i = warp_ * 32 + lane_; i < unsigned{Queries::rows} * Queries::chunks; i += Config::threads) {
            const unsigned r = i / Queries::chunks;
            const unsigned chunk = i % Queries::chunks;
            const bool is_row = static_cast<int>(r) < rows_.count;
            const Stored* const row = data + (is_row ? offset_of(tensor, static_cast<int>(r)) : 0);
            if (whole) {
                const bool is_there = is_row & (static_cast<int>(8 * chunk) < head_dim);
                ptx::copy_async_16(memory_ + at + Queries::offset(r, chunk), row + 8 * chunk, 0, is_there ? 1 : 0);
            } else {
                copy_elements<Queries>(memory_ + at, r, chunk, row, is_row, head_dim);
            }
        }
    }

    /// Keys that any of the rows sees.
    FLASHOMP_INLINE Range seen_keys() const { return band_.keys(rows_.first, rows_.first + rows_.each); }

    /// Whether every row sees all keys of the 16 from j0 on.
    FLASHOMP_INLINE bool all_seen(int j0) const
    {
        const Range interior = band_.interior_keys(rows_.first, rows_.first + rows_.each);
        return (j0 >= interior.begin) & (j0 + Config::keys <= interior.end) & (p_.key_padding_mask == nullptr);
    }

    /// The keys that row r, which may be none that there is, sees but for padding; counted from key j0 on.
    FLASHOMP_INLINE Range keys_of(int r, int j0) const
    {
        const int i = rows_.first + (rows_.each > 1 ? r % rows_.each : 0);
        const Range seen = band_.keys(i, i + 1);
        return {seen.begin - j0, seen.end - j0};
    }

    /// Whether key j of the sequence is none of the padding.
    FLASHOMP_INLINE bool is_kept(int j) const
    {
        const bool is_there = (j < sequence_.k_len) & (p_.key_padding_mask != nullptr);
        return !is_there || p_.key_padding_mask[batch_ * p_.key_padding_batch_stride + j] != 0;
    }

    static FLASHOMP_INLINE void add(float (&sum)[4], const ptx::Four& more, float by = 1.0F)
    {
        FLASHOMP_UNROLL(4)
        for (int e = 0; e < 4; ++e) {
            sum[e] += by * float_of(more.x[e]);
        }
    }

    const Params& p_;
    std::uint32_t memory_;
    unsigned lane_, warp_;
    int batch_;
    FewRows rows_;
    Sequence sequence_;
    Band band_;
    FiniteCheck check_;
};

} // namespace flashomp::offload

#pragma omp end declare target
