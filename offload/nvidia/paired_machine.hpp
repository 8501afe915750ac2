// The backward passes at depths for which one team has neither the memory nor the registers: a crew is a pair of teams,
// a cluster, of which each has one of the two resident blocks, streams what is multiplied with it, and has the
// accumulator that sums what it streams:
//
//     side 0    S = Q·Kᵀ (or its transpose), P and dS; dQ or dK
//     side 1    dP = dO·Vᵀ (or its transpose); dV
//
// Side 1 sends dP, as it comes from the product, and in the dK/dV pass side 0 sends P, rounded, as it goes into the
// next. Thread t of one side has the same rows and columns as thread t of the other, so a thread sends to a thread, and
// a warp waits for a warp. Both sides run the whole algorithm; what is not a side's own, it leaves out.
//
// dP has one place in side 0's memory, and side 1 is told when it has been read. P has two in side 1's, and needs no
// answer: who has received a dP knows that the P before the last one was read.
#pragma once

#include "algorithm/element.hpp"
#include "nvidia/cluster.hpp"
#include "nvidia/hopper_machine.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// Config: as for HopperMachine; side: this team's.
template <class Config>
class PairedMachine : public HopperMachine<Config> {
    using Machine = HopperMachine<Config>;
    using Machine::columns, Machine::fragments, Machine::warps;

public:
    using typename Machine::Scores, typename Machine::Stats, typename Machine::StreamBlock,
        typename Machine::ColumnStatsBlock, typename Machine::Stage, typename Machine::Row;
    enum : int {
        side = Config::side,
        answers = Config::answers,                      ///< side 0 sends P, for a sum of side 1's
        dp_bytes = 4 * Machine::rows_in_warp * columns, ///< a warp's
        p_bytes = dp_bytes / 2,
        has_been_read = 16, ///< this one of a warp's barriers is told when dP has; the others count what comes
        warp_barriers = 3,
        all_barriers = warp_barriers * warps,
        barriers_bytes = 8 * all_barriers,
        exchange_bytes = dp_bytes * warps + barriers_bytes,
    };
    static_assert(fragments == 1 && Machine::defers == 0 && Config::modified == 0);
    static_assert(int{Machine::bytes} + exchange_bytes + 16 <= team_memory_bytes);

    /// Storage of either side. The constants are some once all is inlined.
    struct Resident : Machine::Resident {
        int owner;
    };
    struct Accumulator : Machine::Accumulator {
        int owner;
    };
    struct OwnedBlock : StreamBlock {
        int owner;
    };
    struct Stream : Machine::Stream {
        int owner;
        FLASHOMP_INLINE OwnedBlock operator[](Stage stage) const
        {
            return {{Machine::Stream::operator[](stage)}, owner};
        }
    };

    FLASHOMP_INLINE explicit PairedMachine(const void* team_memory) : Machine(team_memory)
    {
        const std::uint32_t end = this->barriers_ & ~15U;
        const std::uint32_t first_barrier = end - barriers_bytes;
#pragma GCC unroll 16
        for (int i = 0; i < all_barriers; ++i) {
            ptx::barrier_init(first_barrier + 8 * i, 1, this->thread());
        }
        barrier_here_ = first_barrier + 8 * warp_barriers * this->warp();
        barrier_there_ = ptx::address_in_team(barrier_here_, 1 - side);
        place_ = end - exchange_bytes + this->warp() * dp_bytes + 16 * this->lane();
        ptx::publish_barriers();
    }

    FLASHOMP_INLINE Resident resident(int depth_)
    {
        return {{Machine::resident(depth_)}, used_residents_++};
    }
    FLASHOMP_INLINE Accumulator accumulator(int depth_)
    {
        const int owner = used_accumulators_++;
        return {{owner == side ? Machine::accumulator(depth_) : typename Machine::Accumulator{}}, owner};
    }
    FLASHOMP_INLINE Stream stream(const Tensor& tensor, int depth_, StreamUse)
    {
        const int owner = used_streams_++;
        return {{owner == side ? Machine::stream(tensor, depth_, StreamUse::both) : typename Machine::Stream{}}, owner};
    }

    FLASHOMP_INLINE void load(Resident& block, const Rows& rows)
    {
        if (block.owner == side) {
            Machine::load(block, rows);
        }
    }
    FLASHOMP_INLINE void load(OwnedBlock block, const Rows& rows)
    {
        if (block.owner == side) {
            Machine::load(block, rows);
        }
    }
    FLASHOMP_INLINE void load(ColumnStatsBlock block, const float* source, int count)
    {
        if constexpr (side == 0) {
            Machine::load(block, source, count);
        }
    }

    template <class LoadBlock, class Score, class Attend>
    FLASHOMP_INLINE void for_blocks(Range range, int step, const LoadBlock& load_block, const Score& score,
                                    const Attend& attend)
    {
        ptx::cluster_barrier(); // the barriers are there
        Machine::for_blocks(range, step, load_block, score, attend);
    }

    FLASHOMP_INLINE void multiply(Scores& s, const Resident& block, OwnedBlock stream, Scores& dp,
                                  const Resident& block2, OwnedBlock stream2)
    {
        if constexpr (side == 0) {
            Machine::multiply(s, block, stream);
        } else {
            Machine::multiply(dp, block2, stream2);
        }
    }

    FLASHOMP_INLINE void finish(Scores& s, Scores& dp)
    {
        ++block_;
        if constexpr (side == 0) {
            Machine::finish(s);
        } else {
            Machine::finish(dp);
            ptx::barrier_wait(barrier_here_ + has_been_read,
                              (block_ & 1U) ^ 1U); // the last one; at first there is none
#pragma GCC unroll 64
            for (int n = 0; n < columns / 8; ++n) {
                const float(&from)[4] = dp.s[0][n];
                send(0, n, {{bits_of(from[0]), bits_of(from[1]), bits_of(from[2]), bits_of(from[3])}});
            }
        }
    }

    /// P is made, and sent, before dP is waited for: f can do it in two steps.
    template <class F>
    FLASHOMP_INLINE void combine(Scores& dp, Scores& s, const F& f)
    {
        if constexpr (side == 0) {
            Machine::map(s, [=](float x, Row r, int c) FLASHOMP_LAMBDA { return f.first(x, r, c); });
            send_p(s);
            receive_dp(dp);
            Machine::combine(dp, s,
                             [=](float x, float& p, Row r, int c) FLASHOMP_LAMBDA { return f.second(x, p, r, c); });
        }
    }

    FLASHOMP_INLINE void accumulate(Accumulator& a, Scores& s, OwnedBlock stream)
    {
        if (stream.owner != side) {
            return;
        }
        if constexpr (side == 1) {
            const unsigned turn = block_ & 1U;
            receive<p_bytes>(8 * turn, block_ >> 1 & 1U);
#pragma GCC unroll 64
            for (int k = 0; k < columns / 16; ++k) {
                s.p[0][k] = ptx::load_shared_128(place_ + turn * p_bytes + k * 512);
            }
            s.is_rounded = true;
        }
        Machine::accumulate(a, s, stream);
    }

    // What only side 0 has scores and statistics for.
    template <class F>
    FLASHOMP_INLINE void map(Scores& s, const F& f)
    {
        if constexpr (side == 0) {
            Machine::map(s, f);
        }
    }
    FLASHOMP_INLINE void row_sum(const Scores& s, const Stats& sum)
    {
        if constexpr (side == 0) {
            Machine::row_sum(s, sum);
        }
    }
    FLASHOMP_INLINE void complete(const Stats& sum)
    {
        if constexpr (side == 0) {
            Machine::complete(sum);
        }
    }
    FLASHOMP_INLINE void row_dot(const Rows& a, const Rows& b, const Stats& dot)
    {
        if constexpr (side == 0) {
            Machine::row_dot(a, b, dot);
        }
    }
    template <class... CountAndFunction>
    FLASHOMP_INLINE void for_rows(const CountAndFunction&... x)
    {
        if constexpr (side == 0) {
            Machine::for_rows(x...);
        }
    }

    template <class F>
    FLASHOMP_INLINE void store(const Accumulator& a, const Rows& rows, const F& f)
    {
        if (a.owner == side) {
            Machine::store(a, rows, f);
        }
    }

private:
    /// A warp's i-th 16 bytes a lane, of the message that this barrier counts.
    FLASHOMP_INLINE void send(std::uint32_t barrier, std::uint32_t i, const ptx::Four& x) const
    {
        ptx::send_128(barrier_there_ + (place_ - barrier_here_) + i * 512, x, barrier_there_ + barrier);
    }

    /// Until this warp's message has come.
    template <int bytes>
    FLASHOMP_INLINE void receive(std::uint32_t barrier, unsigned phase)
    {
        ptx::barrier_expect(barrier_here_ + barrier, bytes);
        ptx::barrier_wait(barrier_here_ + barrier, phase);
    }

    FLASHOMP_INLINE void send_p(const Scores& s) const
    {
        if constexpr (answers != 0) {
            const unsigned turn = block_ & 1U;
#pragma GCC unroll 64
            for (int k = 0; k < columns / 16; ++k) {
                send(8 * turn, turn * (p_bytes / 512) + k, Machine::rounded(s, 0, k));
            }
        }
    }

    FLASHOMP_INLINE void receive_dp(Scores& dp)
    {
        receive<dp_bytes>(0, block_ & 1U);
#pragma GCC unroll 64
        for (int n = 0; n < columns / 8; ++n) {
            const ptx::Four four = ptx::load_shared_128(place_ + n * 512);
#pragma GCC unroll 4
            for (int e = 0; e < 4; ++e) {
                dp.s[0][n][e] = float_of(four.x[e]);
            }
        }
        dp.is_rounded = false;
        ptx::arrive_in_team(barrier_there_ + has_been_read);
    }

    int used_residents_ = 0, used_accumulators_ = 0, used_streams_ = 0;
    std::uint32_t barrier_here_, barrier_there_; ///< this warp's first one, and the same in the other team
    std::uint32_t place_;                        ///< of this lane in what comes
    unsigned block_ = ~0U;                       ///< number of the one at work
};

} // namespace flashomp::offload

#pragma omp end declare target
