// The backward passes at depths for which one team has neither the memory nor the registers: a crew is a pair of teams,
// a cluster, of which each has one of the two resident blocks, streams what is multiplied with it, and has the
// accumulator that sums what it streams:
//
//     side 0    S = Q·Kᵀ (or its transpose), P and dS; dQ or dK
//     side 1    dP = dO·Vᵀ (or its transpose); dV
//
// Side 1 sends dP, as it comes from the product, and in the dK/dV pass side 0 sends P, rounded, as it goes into the
// next (pair_exchange.hpp). Both sides run the whole algorithm; what is not a side's own, it leaves out.
#pragma once

#include "algorithm/element.hpp"
#include "nvidia/hopper_machine.hpp"
#include "nvidia/pair_exchange.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// One side's: it has that team's machine. Config: as for HopperMachine; side: this team's; answers: whether P goes to
/// side 1.
template <class Config>
class PairedMachine {
    using Machine = HopperMachine<Config>;
    using StreamBlock = typename Machine::StreamBlock;
    enum : int { columns = Machine::columns, warps = Machine::warps };

public:
    using ColumnStats = typename Machine::ColumnStats;
    using ColumnStatsBlock = typename Machine::ColumnStatsBlock;
    using Row = typename Machine::Row;
    using Scores = typename Machine::Scores;
    using Stage = typename Machine::Stage;
    using Stats = typename Machine::Stats;
    enum : int {
        side = Config::side,
        answers = Config::answers, ///< side 0 sends P, for a sum of side 1's
    };
    using Exchange = PairExchange<side, warps, 4 * Machine::rows_in_warp * columns>;
    static_assert(int{Machine::fragments} == 1 && Machine::defers == 0 && Config::modified == 0);
    static_assert(int{Machine::bytes} + Exchange::bytes + 16 <= int{Config::team_bytes});

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

    FLASHOMP_INLINE explicit PairedMachine(const void* team_memory)
        : team_(team_memory), exchange_(team_.end_of_blocks() & ~15U, team_.thread(), team_.warp(), team_.lane())
    {
    }

    FLASHOMP_INLINE int resident_rows() const { return team_.resident_rows(); }
    FLASHOMP_INLINE int stream_rows() const { return team_.stream_rows(); }
    static FLASHOMP_INLINE float exp2(float x) { return Machine::exp2(x); }

    FLASHOMP_INLINE Scores scores(ScoreUse use = ScoreUse::values) { return team_.scores(use); }
    FLASHOMP_INLINE Stats row_stats() { return team_.row_stats(); }
    FLASHOMP_INLINE ColumnStats column_stats() { return team_.column_stats(); }
    FLASHOMP_INLINE void sync() {}

    FLASHOMP_INLINE Resident resident(int depth_)
    {
        const int owner = used_residents_++;
        return {{owner == side ? team_.resident(depth_) : typename Machine::Resident{}}, owner};
    }
    FLASHOMP_INLINE Accumulator accumulator(int depth_)
    {
        const int owner = used_accumulators_++;
        return {{owner == side ? team_.accumulator(depth_) : typename Machine::Accumulator{}}, owner};
    }
    FLASHOMP_INLINE Stream stream(const Tensor& tensor, int depth_, StreamUse)
    {
        const int owner = used_streams_++;
        return {{owner == side ? team_.stream(tensor, depth_, StreamUse::both) : typename Machine::Stream{}}, owner};
    }

    FLASHOMP_INLINE void load(Resident& block, const Rows& rows)
    {
        if (block.owner == side) {
            team_.load(block, rows);
        }
    }
    FLASHOMP_INLINE void load(OwnedBlock block, const Rows& rows)
    {
        if (block.owner == side) {
            team_.load(block, rows);
        }
    }
    FLASHOMP_INLINE void load(ColumnStatsBlock block, const float* source, int count)
    {
        if constexpr (side == 0) {
            team_.load(block, source, count);
        }
    }

    template <class LoadBlock, class Score, class Attend>
    FLASHOMP_INLINE void for_blocks(Range range, int step, const LoadBlock& load_block, const Score& score,
                                    const Attend& attend)
    {
        ptx::cluster_barrier(); // the barriers are there
        team_.for_blocks(range, step, load_block, score, attend);
    }

    FLASHOMP_INLINE void multiply(Scores& s, const Resident& block, OwnedBlock stream, Scores& dp,
                                  const Resident& block2, OwnedBlock stream2)
    {
        if constexpr (side == 0) {
            team_.multiply(s, block, stream);
        } else {
            team_.multiply(dp, block2, stream2);
        }
    }

    FLASHOMP_INLINE void finish(Scores& s, Scores& dp)
    {
        exchange_.begin_block();
        if constexpr (side == 0) {
            team_.finish(s);
        } else {
            team_.finish(dp);
            exchange_.wait_until_read();
#pragma GCC unroll 64
            for (int n = 0; n < columns / 8; ++n) {
                const float(&from)[4] = dp.s[0][n];
                exchange_.send_dp(n, {{bits_of(from[0]), bits_of(from[1]), bits_of(from[2]), bits_of(from[3])}});
            }
        }
    }

    /// P is made, and sent, before dP is waited for: f can do it in two steps.
    template <class F>
    FLASHOMP_INLINE void combine(Scores& dp, Scores& s, const F& f)
    {
        if constexpr (side == 0) {
            team_.map(s, [=](float x, Row r, int c) FLASHOMP_LAMBDA { return f.first(x, r, c); });
            send_p(s);
            receive_dp(dp);
            team_.combine(dp, s, [=](float x, float& p, Row r, int c) FLASHOMP_LAMBDA { return f.second(x, p, r, c); });
        }
    }

    FLASHOMP_INLINE void accumulate(Accumulator& a, Scores& s, OwnedBlock stream)
    {
        if (stream.owner != side) {
            return;
        }
        if constexpr (side == 1) {
            exchange_.receive_p();
#pragma GCC unroll 64
            for (int k = 0; k < columns / 16; ++k) {
                s.p[0][k] = exchange_.p(k);
            }
            s.is_rounded = true;
        }
        team_.accumulate(a, s, stream);
    }

    // What only side 0 has scores and statistics for.
    template <class F>
    FLASHOMP_INLINE void map(Scores& s, const F& f)
    {
        if constexpr (side == 0) {
            team_.map(s, f);
        }
    }
    FLASHOMP_INLINE void row_sum(const Scores& s, const Stats& sum)
    {
        if constexpr (side == 0) {
            team_.row_sum(s, sum);
        }
    }
    FLASHOMP_INLINE void complete(const Stats& sum)
    {
        if constexpr (side == 0) {
            team_.complete(sum);
        }
    }
    FLASHOMP_INLINE void row_dot(const Rows& a, const Rows& b, const Stats& dot)
    {
        if constexpr (side == 0) {
            team_.row_dot(a, b, dot);
        }
    }
    template <class... CountAndFunction>
    FLASHOMP_INLINE void for_rows(const CountAndFunction&... x)
    {
        if constexpr (side == 0) {
            team_.for_rows(x...);
        }
    }

    template <class F>
    FLASHOMP_INLINE void store(const Accumulator& a, const Rows& rows, const F& f)
    {
        if (a.owner == side) {
            team_.store(a, rows, f);
        }
    }

private:
    FLASHOMP_INLINE void send_p(const Scores& s) const
    {
        if constexpr (answers != 0) {
#pragma GCC unroll 64
            for (int k = 0; k < columns / 16; ++k) {
                exchange_.send_p(k, Machine::rounded(s, 0, k));
            }
        }
    }

    FLASHOMP_INLINE void receive_dp(Scores& dp)
    {
        exchange_.receive_dp();
#pragma GCC unroll 64
        for (int n = 0; n < columns / 8; ++n) {
            const ptx::Four four = exchange_.dp(n);
#pragma GCC unroll 4
            for (int e = 0; e < 4; ++e) {
                dp.s[0][n][e] = float_of(four.x[e]);
            }
        }
        dp.is_rounded = false;
        exchange_.tell_read();
    }

    Machine team_;
    int used_residents_ = 0, used_accumulators_ = 0, used_streams_ = 0;
    Exchange exchange_;
};

} // namespace flashomp::offload

#pragma omp end declare target
