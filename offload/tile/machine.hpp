// The tile machine: the few operations that all of attention, forward and backward, is made of.
//
// A pass keeps one block of rows in place (the resident block: queries in the forward and dQ passes, keys in the
// dK/dV pass) and streams blocks of the other side past it. A score tile S holds one value per pair (resident
// row r, streamed row c). Two products are enough for every pass:
//
//     multiply    S[r][c] = f(Σ_x R[r][x] · T[c][x], r, c)          R resident, T streamed
//     accumulate  C[r][x] = C[r][x] · a[r] + Σ_c S[r][c] · T[c][x]    C stays with the resident rows
//
//     forward     S = Q·Kᵀ               O += P·V                    resident Q      streamed K, V
//     dQ          S = Q·Kᵀ, dP = dO·Vᵀ   dQ += dS·K                  resident Q, dO  streamed K, V
//     dK/dV       S = K·Qᵀ, dP = V·dOᵀ   dV += P·dO, dK += dS·Q      resident K, V   streamed Q, dO
//
// A machine decides where the pieces live (registers, cache, team-local memory) and how a crew shares the work.
// Every operation is called by all threads of the crew. What one thread of the crew wrote, the others see after
// sync(). Two rules save synchronisation: an element (r, c) of a score tile belongs to the same thread in every
// multiply, and a row r to the same thread in for_rows, row_max, row_sum and exp_sum.
#pragma once

#include "params.hpp"

#include <concepts>

namespace flashomp::offload {

// clang-format 14 would spread every requirement over three lines.
// clang-format off
template <class M>
concept TileMachine = requires(M m, typename M::Resident r, typename M::Stream t, typename M::Scores s,
                               typename M::Accumulator a, typename M::Stats x, Rows rows, int n,
                               float (*epilogue)(float, int, int), float (*epilogue2)(float, float&, int, int),
                               float (*factor)(int), void (*row)(int), void (*pair)(int, int)) {
    { m.resident_rows() } -> std::same_as<int>; // most rows of a resident block
    { m.stream_rows() } -> std::same_as<int>; // most rows of a streamed block

    // Storage; n is the depth (elements a row). Accumulators start at zero; stats are one float a row, x[r].
    { m.resident(n) } -> std::same_as<typename M::Resident>;
    { m.stream(n) } -> std::same_as<typename M::Stream>;
    { m.scores() } -> std::same_as<typename M::Scores>;
    { m.accumulator(n) } -> std::same_as<typename M::Accumulator>;
    { m.stats(n) } -> std::same_as<typename M::Stats>;

    m.load(r, rows); // from memory, converted to float; rows beyond rows.count read as zero
    m.load(t, rows);
    m.multiply(s, r, t, epilogue);     // s = f(r·tᵀ, r, c)
    m.multiply(s, r, t, s, epilogue2); // s = f(r·tᵀ, other(r, c), r, c); f may also change the other tile
    m.accumulate(a, s, t);             // a += s·t
    m.accumulate(a, s, t, x);          // a = a·x[r] + s·t
    m.row_max(s, x);                   // x[r] = max(x[r], max over c of s)
    m.row_sum(s, x);                   // x[r] += sum over c of s
    m.exp_sum(s, x, x);                // s = e^(s - x[r]); second: y[r] += sum over c of s
    m.for_rows(n, row);                // f(r) for each of n rows
    m.map(s, epilogue);                // s = f(s, r, c), shared out by rows
    m.clear(s);                        // s = 0, shared out as in multiply
    m.add(s, s);                       // s += other, shared out as in multiply
    {
        s.at(n, n)
        } -> std::same_as<float&>; // element (r, c), any thread, after sync
    m.for_elements(n, n, pair);    // f(r, x) for each of n x n pairs
    m.store(a, rows, factor);      // to memory: a[r][:] · f(r), rounded to the tensor's type
    m.sync();                      // crew barrier
};
// clang-format on

} // namespace flashomp::offload
