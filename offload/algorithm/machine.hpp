// The tile machine: the few operations that all of attention, forward and backward, is made of.
//
// A pass keeps one block of rows in place (the resident block: queries in the forward and dQ passes, keys in the
// dK/dV pass) and streams blocks of the other side past it. A score tile S holds one value per pair (resident
// row r, streamed row c). Two products are enough for every pass:
//
//     multiply    S[r][c] = Σ_x R[r][x] · T[c][x]                     R resident, T streamed
//     accumulate  C[r][x] = C[r][x] · a[r] + Σ_c S[r][c] · T[c][x]    C stays with the resident rows
//
//     forward     S = Q·Kᵀ               O += P·V                    resident Q      streamed K, V
//     dQ          S = Q·Kᵀ, dP = dO·Vᵀ   dQ += dS·K                  resident Q, dO  streamed K, V
//     dK/dV       S = K·Qᵀ, dP = V·dOᵀ   dV += P·dO, dK += dS·Q      resident K, V   streamed Q, dO
//
// (OnePassMachine and SendingMachine, below, have a third: sums that belong to the streamed rows.)
//
// A machine decides where the pieces live (registers, cache, team-local memory), how a crew shares the work, and how
// streamed blocks arrive: for_blocks(range, step, load, score, attend) calls load(j0, stage, what) for every block of
// the range, possibly while blocks before it are still at work, score(j0, stage), which multiplies, once it is there,
// and then attend(j0, stage), which uses the scores and accumulates. What streams has one block a stage, k[stage]. A
// machine may put off what attend() accumulates until after the next score(): hence stream() says what a block is for,
// and load() is told which to bring, those for score() or the rest.
//
// Every operation is called by all threads of the crew. What one thread of the crew wrote, the others see after
// sync(). Two rules save synchronisation: an element (r, c) of a score tile belongs to the same thread in every
// multiply and combine, and a row r to the same thread in for_rows, map, row_max, row_sum and exp_sum. Row statistics
// belong to their row's thread; column statistics, loaded like streamed blocks, can be read by all.
#pragma once

#include "algorithm/mask.hpp"
#include "algorithm/order.hpp"

#include <concepts>

namespace flashomp::offload {

/// What a streamed block is for: multiply(), accumulate() or both.
enum class StreamUse { scores, sums, both };

/// What a resident block is for: multiply(), or project() too.
enum class ResidentUse { scores, both };

/// What a tile's dot products are for. Those that only row_max(), exp_sum(), combine() and maps that put -inf in their
/// place see, are exponents: differences to their row's base count, and a machine may hold them to more bits than a
/// float has. combine() then gives f() what is to be added to the value, as one more argument, where f takes it.
enum class ScoreUse { values, exponents };

/// What is to be loaded: the blocks of a stage that multiply() needs, or those that only accumulate() does.
enum class Load { for_scores, for_sums };

// clang-format 14 would spread every requirement over three lines.
// clang-format off
template <class M>
concept TileMachine = requires(M m, typename M::Resident r, typename M::Stream t, typename M::Scores s,
                               typename M::Accumulator a, typename M::Stats x, typename M::ColumnStats y,
                               typename M::Stage stage, Range range, Rows rows, int n, const float* source,
                               float (*epilogue)(float, typename M::Row, int),
                               float (*epilogue2)(float, float&, typename M::Row, int),
                               float (*factor)(typename M::Row), void (*row)(typename M::Row),
                               void (*block)(int, typename M::Stage), StreamUse use, ScoreUse score_use,
                               Tensor tensor,
                               void (*load)(int, typename M::Stage, Load)) {
    { m.resident_rows() } -> std::same_as<int>; // most rows of a resident block
    { m.stream_rows() } -> std::same_as<int>; // most rows of a streamed block
    { M::lag() } -> std::same_as<float>; // see OnlineSoftmax
    { M::exp2(0.0F) } -> std::same_as<float>; // as exact as the machine's element types deserve

    // Storage; n is the depth (elements a row). Accumulators start at zero; stats are one float a row, x[r]. Order
    // matters: of two resident blocks, streams and accumulators, a pair of teams gives the first to its side 0 and the
    // second to its side 1 (nvidia/paired_machine.hpp).
    { m.resident(n) } -> std::same_as<typename M::Resident>;
    { m.stream(tensor, n, use) } -> std::same_as<typename M::Stream>;
    { m.scores(score_use) } -> std::same_as<typename M::Scores>;
    { m.accumulator(n) } -> std::same_as<typename M::Accumulator>;
    { m.row_stats() } -> std::same_as<typename M::Stats>;
    { m.column_stats() } -> std::same_as<typename M::ColumnStats>;

    m.load(r, rows); // from memory; rows beyond rows.count read as zero
    m.load(t[stage], rows);
    m.load(y[stage], source, n); // n columns, zero beyond
    m.for_blocks(range, n, load, block, block);
    m.multiply(s, r, t[stage]);               // s = r·tᵀ, there after finish()
    m.multiply(s, r, t[stage], s, r, t[stage]); // the same for a second tile
    m.finish(s);                              // of all tiles that multiply() began, in one call
    m.finish(s, s);
    m.combine(s, s, epilogue2);               // s = f(s, other(r, c), r, c); f may also change the other tile, and a
                                              // machine that has s late may call other = f.first(other, r, c), and
                                              // then s = f.second(s, other, r, c), where scores are not modified
    m.accumulate(a, s, t[stage]);             // a += s·t
    m.accumulate(a, s, t[stage], true, x);    // a = a·x[r] + s·t; false: all x[r] are 1 or not even set
    m.row_max(s, x);                          // x[r] = max(x[r], max over c of s)
    m.row_sum(s, x);                          // x[r] += sum over c of s, whole after complete()
    { m.may_exceed(s, x) } -> std::same_as<bool>; // false: no s is above its row's x[r]
    { m.any_above(x, x) } -> std::same_as<bool>; // x[r] > y[r] in any row of the thread's; may be true without
    m.exp_sum(s, x, 1.0F, x);                 // s = 2^((s - x[r])·factor); y[r] += sum over c of s, whole after complete()
    m.complete(x);                            // each row's sum, in every thread that has the row
    m.row_dot(rows, rows, x);                 // x[r] = sum of products of two rows in memory
    m.for_rows(row);                          // f(r) for every resident row
    m.for_rows(n, row);                       // f(r) for the first n of them
    m.map(s, epilogue);                       // s = f(s, r, c)
    m.store(a, rows, factor);                 // to memory: a[r][:] · f(r), rounded to the tensor's type
    m.sync();                                 // crew barrier, where there is something to wait for
};

/// What the passes over the options' gradients need besides: score tiles that can be summed and read.
template <class M>
concept SummingMachine = TileMachine<M> && requires(M m, typename M::Scores s, int n, void (*pair)(int, int)) {
    m.clear(s);                 // s = 0, shared out as in multiply
    m.add(s, s);                // s += other, shared out as in multiply
    { s.at(n, n) } -> std::same_as<float&>; // element (r, c), any thread, after sync
    m.for_elements(n, n, pair); // f(r, x) for each of n x n pairs
};

// What a backward pass that computes S and dP once needs besides: sums that go to the streamed rows, in memory, by turns.
template <class M>
concept OnePassMachine = TileMachine<M> && requires(M m, typename M::Resident r, typename M::Scores s,
                                                    typename M::StreamedSums t, Rows rows, int n, unsigned* turns,
                                                    std::int64_t block, bool (*hidden)(int)) {
    { m.resident(n, ResidentUse::both) } -> std::same_as<typename M::Resident>;
    { m.streamed_sums(n) } -> std::same_as<typename M::StreamedSums>;
    m.clear_rows(r, hidden);   // zeros for the rows r with hidden(r)
    m.project(t, s, r);        // t[c][x] = Σ_r s[r][c] · r[r][x]
    m.add_rows(rows, t, 1.0F); // memory, float32: rows[c][:] += t[c][:] · factor
    m.take_turns(turns);       // an array of them, all 0
    m.await_turn(block, 0U);   // until another crew has passed that block's turn on to this number
    m.pass_turn(block, 0U);    // with what was written before
};

// The same where the machine's engine adds sums to memory of their own, float32, tile after tile (Params::sums). Products
// come one after another: S of the next tile is begun before this one has ended, P is made while dP is computed, and dS
// while P·dO is. So for_blocks(range, start, step, begin_first, load, score, attend) begins anywhere in the range and
// comes to what is before at the end, begin_first() begins the first tile's S, and score() only dP.
template <class M>
concept SendingMachine = requires(M m, typename M::Resident r, typename M::Stream t, typename M::Scores s,
                                  typename M::Accumulator a, typename M::ColumnStats y, typename M::StreamedSums u,
                                  typename M::Stage stage, float* sums, unsigned* numbers, Turns turns) {
    m.begin_scores(s, r, t);                  // s = r·tᵀ of the next tile
    m.column_exponentials(s, 1.0F, y[stage]); // s = 2^(s·factor - y[c])
    m.column_gradients(s, s, y[stage]);       // s = other(r, c)·(s - y[c])
    m.project(u, s, r);                       // begins u[c][x] = Σ_r s[r][c] · r[r][x]
    m.accumulate_projected(a, t[stage]);      // a += s·t of that s
    m.hand_over(u);                           // the sum may be sent
    m.send();                                 // in its turn
    { m.is_sender() } -> std::same_as<bool>;
    m.begin_turns(sums, numbers, turns);      // by the sender: of the tiles of the next for_blocks()
    m.end_turns();                            // all that was sent is there, and turns have been passed on
};
// clang-format on

} // namespace flashomp::offload
