// Which rows of the whole a shard has, which pairs of stretches meet, and what a mask hides of them: all ranks find the
// same for each other.
#pragma once

#include "flashomp/mpi.hpp"

#include <cstdint>
#include <vector>

namespace flashomp::mpi {

/// Stretches of the whole in ascending order, no two of them adjacent.
using Stretches = std::vector<Stretch>;

[[nodiscard]] std::int64_t rows_of(const Stretches& stretches);

/// The rows of ranks [first, first + count) of all, given how many rows each rank has.
[[nodiscard]] Stretches rows_of_ranks(Layout layout, const std::vector<std::int64_t>& rows, int first, int count);

/// How many rows a rank must have; -1: any number.
[[nodiscard]] std::int64_t rows_wanted(Layout layout, int rank, int ranks, std::int64_t length);

/// The place of a row of the whole among the rows of `stretches`, which have it.
[[nodiscard]] std::int64_t place_of(std::int64_t position, const Stretches& stretches);

/// Rows of a shard that follow one another in one sequence.
struct Run {
    std::int64_t sequence = 0; ///< of a packed batch; 0: the tensors have the sequences on an axis of their own
    std::int64_t row = 0;      ///< in the shard
    Stretch at = {};           ///< in the sequence
    std::int64_t whole = 0;    ///< rows of the sequence
};

/// The runs of a shard, by sequence. `starts` are the boundaries of packed sequences, empty where the whole of
/// `length` rows is one sequence.
[[nodiscard]] std::vector<Run> runs_of(const Stretches& stretches, const std::vector<std::int32_t>& starts,
                                       std::int64_t length);

/// Queries and keys of one call.
struct Piece {
    Run q, k;
};

/// Whether causal and window leave any pair of the two runs.
[[nodiscard]] bool sees(const Options& options, const Run& q, const Run& k);

/// The pairs of runs that are to be computed, in a fixed order.
[[nodiscard]] std::vector<Piece> pieces_of(const Options& options, const std::vector<Run>& q,
                                           const std::vector<Run>& k);

/// Whether there are any.
[[nodiscard]] bool any_piece(const Options& options, const std::vector<Run>& q, const std::vector<Run>& k);

} // namespace flashomp::mpi
