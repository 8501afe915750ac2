// A call as one rank was given it, and what all ranks were given together.
#pragma once

#include "flashomp/mpi.hpp"

#include <cstdint>
#include <string_view>
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

/// "device" or "host".
[[nodiscard]] std::string_view word_of(Memory memory);

} // namespace flashomp::mpi
