// What the two teams of a pair send each other. Thread t of one team has the same rows and columns as thread t of the
// other, so a thread sends to a thread, and a warp waits for a warp.
//
// dP has one place in side 0's memory, and side 1 is told when it has been read. P has two in side 1's, and needs no
// answer: who has received a dP knows that the P before the last one was read.
#pragma once

#include "nvidia/cluster.hpp"
#include "nvidia/ptx.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// side: this team's. dp_bytes: of a warp's part of dP, in float32.
template <int side, int warps, int dp_bytes>
class PairExchange {
public:
    enum : int {
        p_bytes = dp_bytes / 2, ///< of a warp's part of P, in 16 bits
        warp_barriers = 3,
        all_barriers = warp_barriers * warps,
        barriers_bytes = 8 * all_barriers,
        bytes = dp_bytes * warps + barriers_bytes,
    };

    /// Takes the team memory that ends at `end`. The caller waits for the other team before it sends.
    FLASHOMP_INLINE PairExchange(std::uint32_t end, unsigned thread, unsigned warp, unsigned lane)
    {
        const std::uint32_t first_barrier = end - barriers_bytes;
#pragma GCC unroll 16
        for (int i = 0; i < all_barriers; ++i) {
            ptx::barrier_init(first_barrier + 8 * i, 1, thread);
        }
        barrier_here_ = first_barrier + 8 * warp_barriers * warp;
        barrier_there_ = ptx::address_in_team(barrier_here_, 1 - side);
        place_ = end - bytes + warp * dp_bytes + 16 * lane;
        ptx::publish_barriers();
    }

    FLASHOMP_INLINE void begin_block()
    {
        ++block_;
    }

    /// Side 1: dP, 16 bytes a lane at a time, once the last one has been read.
    FLASHOMP_INLINE void wait_until_read() const
    {
        ptx::barrier_wait(barrier_here_ + has_been_read, (block_ & 1U) ^ 1U); // at first there is none
    }
    FLASHOMP_INLINE void send_dp(std::uint32_t i, const ptx::Four& x) const
    {
        send(0, i, x);
    }

    /// Side 0: the same.
    FLASHOMP_INLINE void receive_dp() const
    {
        receive<dp_bytes>(0, block_ & 1U);
    }
    FLASHOMP_INLINE ptx::Four dp(std::uint32_t i) const
    {
        return ptx::load_shared_128(place_ + i * 512);
    }
    FLASHOMP_INLINE void tell_read() const
    {
        ptx::arrive_in_team(barrier_there_ + has_been_read);
    }

    /// Side 0: P, in two places by turns.
    FLASHOMP_INLINE void send_p(std::uint32_t i, const ptx::Four& x) const
    {
        send(8 * turn(), turn() * (p_bytes / 512) + i, x);
    }

    /// Side 1: the same.
    FLASHOMP_INLINE void receive_p() const
    {
        receive<p_bytes>(8 * turn(), block_ >> 1 & 1U);
    }
    FLASHOMP_INLINE ptx::Four p(std::uint32_t i) const
    {
        return ptx::load_shared_128(place_ + turn() * p_bytes + i * 512);
    }

private:
    enum : int {
        has_been_read = 16, ///< this one of a warp's barriers is told when dP has; the others count what comes
    };

    FLASHOMP_INLINE unsigned turn() const
    {
        return block_ & 1U;
    }

    /// A warp's i-th 16 bytes a lane, of the message that this barrier counts.
    FLASHOMP_INLINE void send(std::uint32_t barrier, std::uint32_t i, const ptx::Four& x) const
    {
        ptx::send_128(barrier_there_ + (place_ - barrier_here_) + i * 512, x, barrier_there_ + barrier);
    }

    /// Until this warp's message has come.
    template <int message_bytes>
    FLASHOMP_INLINE void receive(std::uint32_t barrier, unsigned phase) const
    {
        ptx::barrier_expect(barrier_here_ + barrier, message_bytes);
        ptx::barrier_wait(barrier_here_ + barrier, phase);
    }

    std::uint32_t barrier_here_, barrier_there_; ///< this warp's first one, and the same in the other team
    std::uint32_t place_;                        ///< of this lane in what comes
    unsigned block_ = ~0U;                       ///< number of the one at work
};

} // namespace flashomp::offload

#pragma omp end declare target
