// The way of keys and values to a warp's places, 16 rows at a time, in a forward pass over few queries.
#pragma once

#include "nvidia/few_queries_crew.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// Keys of one key head from `first` on, every Config::round of them, as a warp reads them. Source: where they lie
/// (key_source.hpp).
template <class Config, class Source>
class FewKeys {
    using Keys = typename Config::Keys;

public:
    FLASHOMP_INLINE FewKeys(const Params& p, const Sequence& sequence, int batch, int head, int /*first*/)
        : p_(p), sequence_(sequence), batch_(batch), head_(head)
    {
    }

    /// The next 16, which are those from j0 on: keys, and behind them values. What is beyond the sequence is zeros.
    FLASHOMP_INLINE void load(std::uint32_t to, int j0)
    {
        const unsigned lane = ptx::lane();
        const int left = sequence_.k_len - j0;
        const int count = left < Config::keys ? left : int{Config::keys};
        copy_in<Keys, 32>(to, Source::keys(p_, sequence_, batch_, head_, j0, count), lane);
        copy_in<Keys, 32>(to + Keys::bytes, Source::values(p_, sequence_, batch_, head_, j0, count), lane);
    }

private:
    const Params& p_;
    const Sequence& sequence_;
    int batch_, head_;
};

/// Of tensors with strides: a lane's addresses, moved along. Where keys are few, each instruction counts.
template <class Config>
class FewKeys<Config, StridedKeys> {
    using Keys = typename Config::Keys;
    using Stored = typename Keys::Stored;
    enum : int {
        chunks = Keys::chunks,
        apart = 32 / int{Keys::chunks},
        each = int{Config::keys} / apart
    }; ///< rows of a lane
    static_assert(apart >= 1 && apart <= 8);

public:
    FLASHOMP_INLINE FewKeys(const Params& p, const Sequence& sequence, int batch, int head, int first)
        : p_(p), sequence_(sequence), batch_(batch), head_(head)
    {
        const Rows keys = StridedKeys::keys(p, sequence, batch, head, first, 1);
        const Rows values = StridedKeys::values(p, sequence, batch, head, first, 1);
        is_whole_ = in_chunks<2>(keys) & in_chunks<2>(values);
        const auto own = [&](const Rows& rows) FLASHOMP_LAMBDA {
            return static_cast<const Stored*>(rows.data) + rows.offset + row() * rows.stride + 8 * chunk();
        };
        keys_ = own(keys);
        values_ = own(values);
    }

    FLASHOMP_INLINE void load(std::uint32_t to, int j0)
    {
        const int left = sequence_.k_len - j0;
        const int count = left < Config::keys ? left : int{Config::keys};
        if (is_whole_) {
            copy(to, keys_, p_.k.row, static_cast<int>(8 * chunk()) < p_.head_dim ? count : 0);
            copy(to + Keys::bytes, values_, p_.v.row, static_cast<int>(8 * chunk()) < p_.head_dim_v ? count : 0);
            return;
        }
        const unsigned lane = ptx::lane();
        copy_in<Keys, 32>(to, StridedKeys::keys(p_, sequence_, batch_, head_, j0, count), lane);
        copy_in<Keys, 32>(to + Keys::bytes, StridedKeys::values(p_, sequence_, batch_, head_, j0, count), lane);
    }

private:
    static FLASHOMP_INLINE unsigned chunk() { return ptx::lane() % chunks; }
    static FLASHOMP_INLINE unsigned row() { return ptx::lane() / chunks; }

    /// count: rows that are there.
    static FLASHOMP_INLINE void copy(std::uint32_t to, const Stored*& from, std::int64_t stride, int count)
    {
        // Keys::offset() of row() + i·apart: rows are permuted by bits that row() and i·apart do not share.
        const std::uint32_t first = to + Keys::offset(row(), chunk());
        const int reach = count - static_cast<int>(row());
        const Stored* at = from;
        FLASHOMP_UNROLL(16)
        for (int i = 0; i < each; ++i) {
            constexpr auto bytes = unsigned{Keys::row_bytes};
            const auto r = static_cast<unsigned>(i * apart);
            ptx::copy_async_16((first ^ (r % 8 * 16)) + r * bytes, at, i * apart, reach);
            at += apart * stride;
        }
        from += int{Config::keys} * int{Config::warps} * stride;
    }

    const Params& p_;
    const Sequence& sequence_;
    int batch_, head_;
    bool is_whole_;
    const Stored *keys_, *values_;
};

} // namespace flashomp::offload

#pragma omp end declare target
