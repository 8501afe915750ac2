// The reference for a few rows and keys of a problem that is too large to be computed whole.
#pragma once

#include "reference.hpp"

#include <cstdint>
#include <vector>

namespace flashomp::reference {

/// `count` rows or keys of a sequence from `first` on.
struct Span {
    std::int64_t first = 0, count = 0;
};

/// Rows and keys of one key head of one sequence and of the query heads that share it.
struct Chosen {
    std::int64_t sequence = 0, head_kv = 0;
    std::vector<Span> rows; ///< whose o, LSE and dQ are wanted, of every query head of the group
    std::vector<Span> keys; ///< whose dK and dV are wanted
    bool has_dbias = false; ///< of the rows: the bias has all rows and keys, and no other sequence reads it
};

/// Values of a Chosen, contiguous, one entry for each of its spans. dq, dk and dv are there for a backward problem
/// only.
struct ChosenValues {
    struct Rows {
        std::vector<double> o, lse, dq, dbias; ///< [query heads of the group, rows, width]; lse without width
    };
    struct Keys {
        std::vector<double> dk, dv; ///< [keys, width]
    };
    std::vector<Rows> rows;
    std::vector<Keys> keys;
};

/// What evaluate(problem, rounding) has there, without the rest. A row costs its keys. Keys cost all rows of the group,
/// because dK and dV are sums over rows and need the LSE and D = Σ_j p·dp of each: both are computed here, from q, k, v
/// and dout alone. problem.o and problem.lse are not read.
[[nodiscard]] ChosenValues evaluate(const Problem& problem, const Chosen& chosen, Rounding rounding = Rounding::none);

/// What problem.o, lse, dq, dk, dv and dbias hold there; they are host tensors.
[[nodiscard]] ChosenValues results_of(const Problem& problem, const Chosen& chosen);

} // namespace flashomp::reference
