// The Hopper tile machine of the backward pass that computes S and dP once: keys stay, dK and dV are accumulators of
// two warpgroups, 64 keys each, and what a tile adds to dQ goes to memory by the copy engine.
//
// Products follow one another without a gap where what they need is there: P is made while dP is computed, dS while
// PᵀdO is, and the sum for dQ is handed over while dSᵀQ is. dQ = dS·K sums over the keys of both warpgroups, so dS goes
// to team memory, too; each warpgroup then computes half of dQ's columns.
//
// A lane sends the sums. Its warp computes like the others, and all wait for all once a tile, before dQ. So the lane
// asks for its turn after that, sends at the end, where products go on and nobody else waits for its warp,
// and tells of a sum that has arrived a tile after. Its warpgroup's products wait for its warp, so these are few
// instructions: what an item's turns have in common is in team memory.
#pragma once

#include "algorithm/turns.hpp"
#include "nvidia/bulk_sums.hpp"
#include "nvidia/hopper_machine.hpp"

#include <new>

#pragma omp declare target

namespace flashomp::offload {

/// Places in team memory for what the loop seldom needs: more registers would be spilled to the stack, which is far
/// away, as each wait for what has been sent empties the L1 cache.
inline constexpr int loop_bytes = 192;
inline constexpr int turns_bytes = 64;

/// Bytes of team memory for tiles of so many keys and queries: two of dS, what is sent, and the places above.
constexpr int once_bytes(int keys, int queries, int depth)
{
    return 2 * 2 * keys * queries + 4 * queries * depth + 2 * ptx::sending_bytes + loop_bytes + turns_bytes;
}

/// Config: HopperMachine's, with all resident blocks in team memory.
template <class Config>
class OnceMachine : public HopperMachine<Config> {
    using Base = HopperMachine<Config>;
    using Products = typename Base::Products;
    using Rings = typename Base::Rings;

public:
    using Base::columns, Base::depth, Base::rows_in_crew, Base::threads;
    using typename Base::Accumulator, typename Base::ColumnStatsBlock, typename Base::Resident, typename Base::Scores,
        typename Base::Stage, typename Base::StreamBlock;
    enum : int {
        sum_columns = int{depth} / 2, ///< of dQ, for each warpgroup
        sum_floats = int{columns} * int{depth},
        gradient_bytes = 2 * int{rows_in_crew} * int{columns},
        sending_warp = Config::warps - 1, ///< the first three ask for copies (BlockRings)
        barrier_of_places = 9,
        barrier_of_sums = 10,
        all_bytes = int{Base::bytes} + once_bytes(rows_in_crew, columns, depth),
    };
    static_assert(int{columns} == 64 && int{sum_columns} == 64); // what a warpgroup's product has
    static_assert(int{all_bytes} <= int{Config::team_bytes});

    struct StreamedSums {
        int group; ///< of wgmma's registers; a constant once all is inlined
    };

    FLASHOMP_INLINE explicit OnceMachine(void* team_memory)
        : Base(team_memory), team_memory_(static_cast<char*>(team_memory)), warpgroup_(ptx::uniform(this->warp() / 4))
    {
    }

    FLASHOMP_INLINE Resident resident(int depth_, ResidentUse = ResidentUse::scores) { return Base::resident(depth_); }

    FLASHOMP_INLINE StreamedSums streamed_sums(int)
    {
        gradients_ = this->take(2 * gradient_bytes);
        outgoing_ = this->take(4 * sum_floats);
        sending_ = this->take(2 * ptx::sending_bytes);
        kept_ = team_memory_ + (this->take(loop_bytes) - this->memory_);
        turns_ = reinterpret_cast<OwnTurns*>(team_memory_ + (this->take(turns_bytes) - this->memory_));
        const StreamedSums sums{Config::accumulators + 2};
        ptx::declare_accumulators<sum_columns / 2>(sums.group);
        return sums;
    }

    /// begin_first() calls begin_scores().
    template <class BeginFirst, class LoadBlock, class Score, class Attend>
    FLASHOMP_INLINE void for_blocks(Range range, int start, int step, const BeginFirst& begin_first,
                                    const LoadBlock& load_block, const Score& score, const Attend& attend)
    {
        if (range.begin >= range.end) {
            ptx::copy_wait<0>();
            ptx::barrier<threads>();
            return;
        }
        ptx::publish_shared();
        ptx::barrier<threads>(); // the blocks' places are free, and the barriers are there
        this->rings_.begin(range, step);
        run_blocks<Bringer::decided_each_time>(range, start, step, begin_first, load_block, score, attend);
    }

    /// Begins the second product: the first one has been begun (begin_scores()).
    FLASHOMP_INLINE void multiply(Scores&, const Resident&, StreamBlock, Scores& s2, const Resident& block2,
                                  StreamBlock stream2)
    {
        ptx::fence_products();
        this->products_.multiply(s2, block2, block2.address + warpgroup_ * 64 * 128, stream2);
        ptx::commit_products();
    }

    /// The first of what multiply() began, and then the second: what has been begun since, one product, goes on.
    FLASHOMP_INLINE void finish(Scores& s)
    {
        ptx::wait_products<1>();
        Products::get(s);
    }

    /// s = 2^(s·by - exponent[c])
    FLASHOMP_INLINE void column_exponentials(Scores& s, float by, const ColumnStatsBlock& exponent)
    {
        const std::uint32_t first = exponent.address + 8 * (this->lane() % 4);
#pragma GCC unroll 64
        for (int n = 0; n < columns / 8; ++n) {
            const ptx::FloatPair own = ptx::load_shared_pair(first + 32 * n);
            float(&x)[4] = s.s[0][n];
            x[0] = Base::exp2(__builtin_fmaf(x[0], by, -own.x));
            x[1] = Base::exp2(__builtin_fmaf(x[1], by, -own.y));
            x[2] = Base::exp2(__builtin_fmaf(x[2], by, -own.x));
            x[3] = Base::exp2(__builtin_fmaf(x[3], by, -own.y));
        }
    }

    /// ds = p·(ds - delta[c])
    FLASHOMP_INLINE void column_gradients(Scores& ds, const Scores& p, const ColumnStatsBlock& delta)
    {
        const std::uint32_t first = delta.address + 8 * (this->lane() % 4);
#pragma GCC unroll 64
        for (int n = 0; n < columns / 8; ++n) {
            const ptx::FloatPair own = ptx::load_shared_pair(first + 32 * n);
            float(&x)[4] = ds.s[0][n];
            x[0] = p.s[0][n][0] * (x[0] - own.x);
            x[1] = p.s[0][n][1] * (x[1] - own.y);
            x[2] = p.s[0][n][2] * (x[2] - own.x);
            x[3] = p.s[0][n][3] * (x[3] - own.y);
        }
    }

    /// Begins dq = dsᵀ·k.
    FLASHOMP_INLINE void project(const StreamedSums& dq, Scores& ds, const Resident& k)
    {
        const unsigned row = this->warp() * 16 + this->lane() % 16;
        gradients_ += is_odd_ ? -gradient_bytes : gradient_bytes; // the other warpgroup may still read the last tile's
        const std::uint32_t at = gradients_ + row * 128;
#pragma GCC unroll 8
        for (int step = 0; step < columns / 16; ++step) {
            const unsigned chunk = static_cast<unsigned>(2 * (step % 4)) + this->lane() / 16;
            ptx::store_matrices(at + step / 4 * Base::Panel::bytes + (chunk ^ (row % 8)) * 16,
                                Base::rounded(ds, 0, step));
        }
        ptx::publish_shared();
        if (is_sender()) {
            ptx::wait_sums_read(); // the next sum may come after the barrier
        }
        ptx::barrier<threads>();
        const std::uint32_t left = ptx::uniform(ptx::matrix_descriptor(gradients_, 0));
        const std::uint32_t right =
            ptx::uniform(ptx::matrix_descriptor(k.address + warpgroup_ * Base::Panel::bytes, 0));
        ptx::fence_products();
        issue(dq.group, left, right, std::make_integer_sequence<int, rows_in_crew / 16>());
        ptx::commit_products();
    }

    using Base::accumulate;
    /// a += dsᵀ·stream, of the dS that project() left in team memory.
    FLASHOMP_INLINE void accumulate_projected(Accumulator& a, StreamBlock stream)
    {
        const std::uint32_t left = ptx::uniform(ptx::matrix_descriptor(gradients_ + warpgroup_ * 64 * 128, 0));
        const std::uint32_t right = ptx::uniform(ptx::matrix_descriptor(stream.address, columns * 128));
        ptx::fence_products();
        issue_sum(a.index, left, right, std::make_integer_sequence<int, columns / 16>());
        ptx::commit_products();
    }

    /// Of the next tile. After the last tile they are of no use; but for a product that is not always issued ptxas
    /// waits every time.
    FLASHOMP_INLINE void begin_scores(const Scores& s, const Resident& k, typename Base::Stream& q)
    {
        if (has_next_) {
            this->rings_.template arrive<Bringer::decided_each_time>(Rings::score_barrier(scored_));
            if (!this->rings_.has_engine()) {
                ptx::barrier<threads>(); // what others copied
            }
        }
        ptx::fence_products();
        this->products_.multiply(s, k, k.address + warpgroup_ * 64 * 128, q[scored_]);
        ptx::commit_products();
    }

    /// The sum goes to where it is sent from, once it is there; what has been begun since, one product, goes on.
    FLASHOMP_INLINE void hand_over(const StreamedSums& dq)
    {
        ptx::wait_products<1>();
        const std::uint32_t at = outgoing_ + this->thread() / 128 * 16384 + this->thread() % 128 * 16;
        put(dq.group, at, std::make_integer_sequence<int, sum_columns / 8>());
        ptx::publish_shared();
    }

    FLASHOMP_INLINE bool is_sender() const
    {
        return this->warp() == sending_warp;
    }

    /// The sum of all warps goes out, in its turn, and the turn of the one before is passed on.
    FLASHOMP_INLINE void send()
    {
        if (!is_sender()) {
            ptx::arrive<threads, barrier_of_sums>();
        } else {
            ptx::barrier<threads, barrier_of_sums>();
            if (has_sent_) {
                ptx::pass_turn(notes(!is_odd_));
            }
            ptx::send_sum(notes(is_odd_), seen_, outgoing_, 4 * sum_floats);
        }
        has_sent_ = true;
        is_odd_ = !is_odd_;
    }

    /// By the sender.
    FLASHOMP_INLINE void begin_turns(float* sums, unsigned* numbers, const Turns& turns)
    {
        *turns_ = {
            sums + turns.block * sum_floats, numbers + turns.block, turns.first, turns.last, turns.before, turns.own};
    }

    /// The sender notes where the sum of this tile's queries goes, and when, and asks for the turn: the answer has
    /// until send().
    FLASHOMP_INLINE void ask_turn()
    {
        if (!is_sender()) {
            return;
        }
        const int block = queries_ / columns;
        const OwnTurns& turns = *turns_;
        const auto is_in = [block](const Range& range) FLASHOMP_LAMBDA { // without a branch
            return static_cast<unsigned>(block - range.begin) < static_cast<unsigned>(range.end - range.begin);
        };
        unsigned* const number = turns.numbers + block;
        seen_ = ptx::ask_turn(number);
        const unsigned before = is_in(turns.first) ? 0 : ~0U;
        const unsigned own = is_in(turns.last) ? 0 : ~0U;
        ptx::note_sending(
            {turns.sums + std::int64_t{block} * sum_floats, number, before & turns.before, own & turns.own},
            notes(is_odd_));
    }

    /// Until the next one is kept. All threads write the same.
    template <class T, class... Arguments>
    FLASHOMP_INLINE const T& keep(const Arguments&... arguments)
    {
        static_assert(sizeof(T) <= loop_bytes);
        return *new (kept_) T(arguments...);
    }

    /// After the last tile: the turn of its sum is passed on.
    FLASHOMP_INLINE void end_turns()
    {
        if (is_sender() && has_sent_) {
            ptx::pass_turn(notes(!is_odd_));
        }
    }

private:
    /// The sums and numbers are those of the head's first query block.
    struct OwnTurns {
        float* sums;
        unsigned* numbers;
        Range first, last;
        unsigned before, own;
    };
    static_assert(sizeof(OwnTurns) <= turns_bytes);

    template <Bringer bringer, class BeginFirst, class LoadBlock, class Score, class Attend>
    FLASHOMP_INLINE void run_blocks(Range range, int start, int step, const BeginFirst& begin_first,
                                    const LoadBlock& load_block, const Score& score, const Attend& attend)
    {
        Stage here, ahead;
        const bool asks = !this->rings_.has_engine() || this->thread() < 32 * Rings::score_warps;
        const int blocks = (range.end - range.begin + step - 1) / step;
        int next = start, left = blocks; // to be loaded
        const auto load_next = [&]() FLASHOMP_LAMBDA {
            if (left > 0) {
                this->rings_.template start<bringer>(this->thread(), load_block, next, ahead, Load::for_scores);
                next = next + step < range.end ? next + step : range.begin;
                --left;
                ahead.advance();
            }
        };
#pragma GCC unroll 1
        for (int i = 0; i < Base::lead; ++i) {
            if (asks) {
                load_next();
            }
        }
        ptx::copy_wait<0>(); // the resident blocks
        ptx::publish_shared();
        ptx::barrier<threads>();
        int i0 = start;
        has_next_ = true;
        scored_ = here;
        begin_first();
        for (int i = 0; i < blocks; ++i) {
            ptx::refetch();
            score(i0, here);
            if (!asks) {
                ptx::arrive<threads, barrier_of_places>();
            } else {
                ptx::barrier<threads, barrier_of_places>(); // nobody reads the last tile's queries any more
                load_next();
            }
            has_next_ = i + 1 < blocks;
            if (has_next_) {
                scored_.advance();
            }
            queries_ = i0;
            attend(i0, here);
            ptx::wait_products<0>(); // dk and the next scores, which ptxas lets no loop carry on
            here.advance();
            i0 = i0 + step < range.end ? i0 + step : range.begin;
        }
        ptx::wait_products<0>();
        ptx::barrier<threads>();
    }

    FLASHOMP_INLINE std::uint32_t notes(bool is_odd) const
    {
        return sending_ + (is_odd ? ptx::sending_bytes : 0);
    }

    template <int... step>
    static FLASHOMP_INLINE void issue(int group, std::uint32_t left, std::uint32_t right,
                                      std::integer_sequence<int, step...>)
    {
        (ptx::multiply_add<Config::Math::is_bfloat16, sum_columns, (step > 0), true, true>(
             group, left + step * 2048 / 16, right + step * 2048 / 16),
         ...);
    }

    template <int... step>
    static FLASHOMP_INLINE void issue_sum(int group, std::uint32_t left, std::uint32_t right,
                                          std::integer_sequence<int, step...>)
    {
        (ptx::multiply_add<Config::Math::is_bfloat16, depth, true, true>(
             group, left + (step / 4 * Base::Panel::bytes + step % 4 * 32) / 16, right + step * 2048 / 16),
         ...);
    }

    template <int... piece>
    static FLASHOMP_INLINE void put(int group, std::uint32_t at, std::integer_sequence<int, piece...>)
    {
        (ptx::store_shared_128(at + piece * 2048, ptx::get_accumulator<4 * piece>(group),
                               ptx::get_accumulator<4 * piece + 1>(group), ptx::get_accumulator<4 * piece + 2>(group),
                               ptx::get_accumulator<4 * piece + 3>(group)),
         ...);
    }

    char* const team_memory_;
    char* kept_ = nullptr;
    OwnTurns* turns_ = nullptr;
    const unsigned warpgroup_;
    std::uint32_t gradients_ = 0; ///< dsᵀ of this tile: keys along the rows, a panel of 64 queries
    std::uint32_t outgoing_ = 0;  ///< a sum for dQ, in the order of its lanes: piece of 8 columns, lane
    std::uint32_t sending_ = 0;   ///< ptx::Sending of this tile's sum, and of the last one's
    unsigned seen_ = 0;           ///< whose turn it was when the sender asked
    int queries_ = 0;             ///< the tile's first
    bool is_odd_ = false;         ///< this tile's place of two
    bool has_sent_ = false;
    bool has_next_ = false; ///< a tile whose scores are not begun
    Stage scored_;          ///< of the tile whose scores were begun last
};

/// The machine of the launches before and after: rows of D and of LSE to base 2, and dQ from the sums of all tiles.
template <class Config>
class SumsMachine : public TensorTile<Config> {
    using Tile = TensorTile<Config>;

public:
    using Tile::columns, Tile::depth, Tile::rows_in_crew, Tile::Tile;
    static_assert(int{rows_in_crew} == 64); // four warps, as of a warpgroup

    /// Rows = by · those of 64 queries; zeros if there are no sums.
    FLASHOMP_INLINE void store_sums(const float* sums, std::int64_t block, bool has_any, const Rows& rows, float by)
    {
        const float* const own = sums + block * (rows_in_crew * depth) + 4 * this->thread();
        typename Tile::WarpAccumulator c;
#pragma GCC unroll 64
        for (int n = 0; n < depth / 8; ++n) {
            const ptx::Four four = ptx::load_global_128(own + 512 * n, has_any);
#pragma GCC unroll 4
            for (int e = 0; e < 4; ++e) {
                c.c[0][n][e] = float_of(four.x[e]);
            }
        }
        this->store_values(c, rows, [by](typename Tile::Row) FLASHOMP_LAMBDA { return by; });
    }
};

} // namespace flashomp::offload

#pragma omp end declare target
