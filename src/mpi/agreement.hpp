// What all ranks must agree on before anything moves, and how all of them hear of one rank's error.
#pragma once

#include "flashomp/mpi.hpp"
#include "messages.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace flashomp::mpi {

/// Both passes' tensors as those of backward, of which forward has the first five.
struct Call {
    Call(const ForwardArgs& forward, const Options& given);
    Call(const BackwardArgs& backward, const Options& given);

    bool is_backward = false;
    BackwardArgs args; ///< forward's o and lse are outputs, in `o` and `lse`, too
    TensorView o, lse;
    const Options& options;
    bool wants_parts = false; ///< calls do not repair rows, even if they see all of a row's keys

    [[nodiscard]] Memory memory() const { return args.q.memory; } ///< of all tensors, once that is agreed on
    [[nodiscard]] bool is_packed() const { return options.cu_seqlens_q || options.cu_seqlens_k; }
};

/// The problem on all ranks together.
struct Whole {
    std::vector<std::int64_t> rows_q, rows_k;          ///< of each rank
    std::int64_t length_q = 0, length_k = 0;           ///< their sums; of packed sequences all their rows
    bool bias_has_rows = false, mask_has_rows = false; ///< whether they are the rank's own rows, not the same for all
    std::vector<std::int64_t> block_masks;             ///< facts_of_block_masks(), where heads are shared out
};

/// Compares what the ranks were given, and tells each how many rows the others have. Throws the same Error on all
/// ranks.
[[nodiscard]] Whole agree(const Messages& messages, const Call& call, const Sharding& sharding);

/// Runs `local` on every rank, and throws on all of them where it throws on one: Error, or RunFailure where memory ran
/// out.
void expect_everywhere(const Messages& messages, const std::function<void()>& local);

/// Throws RunFailure on all ranks where one of them has a text.
void expect_no_failure(const Messages& messages, const std::string& failure);

/// Throws Error unless flashomp would take the rank's part, and what its options say of the whole. Needs agree().
void validate(const Call& call, const Whole& whole, const Sharding& sharding, int rank, int ranks, Site& site);

/// Whether validate() takes the call on all ranks.
[[nodiscard]] bool is_taken_everywhere(const Messages& messages, const Call& call, const Whole& whole,
                                       const Sharding& sharding);

/// What stands for the values of those tensors that are the same on all ranks. Needs validate().
[[nodiscard]] std::vector<std::int64_t> common_values(const Call& call, Site& site);
/// Compares it.
void agree_on_values(const Messages& messages, const std::vector<std::int64_t>& mine);

} // namespace flashomp::mpi
