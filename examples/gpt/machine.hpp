// What the program asks the machine: memory, and the speed that utilisation is relative to.
#pragma once

#include "options.hpp"

#include <cstdint>
#include <string>

namespace gpt {

/// The most resident memory that this process has had since restart_peak_resident(), or since its start, in bytes; 0
/// where the system does not say.
[[nodiscard]] std::int64_t peak_resident_bytes();

/// Gives free memory back to the system, and has peak_resident_bytes() begin with what is resident now. False where the
/// system has no such call.
bool restart_peak_resident();

/// From here on allocations beyond `bytes` of address space fail (RLIMIT_AS). 0 is no limit.
void limit_memory(std::int64_t bytes);

/// Freed memory stays with the process for the next step, which allocates the same again.
void reuse_memory();

/// Throws flashomp::Error where the library cannot run there: a GPU that is named and not there.
void expect_place(const flashomp::Options& library);

/// FLOP/s of float32 multiply-adds that this CPU reaches on so many threads, measured as `flashomp plan` measures it.
[[nodiscard]] double peak_flops(int threads);

/// FLOPs of a step without recomputation: 6 for each weight of a matrix and token, and 12·head_dim for each pair of
/// positions that a causal head sees: the products of the forward pass, and twice as many backward.
[[nodiscard]] double step_flops(const ModelShape& shape, std::int64_t batch);

/// What `flashomp plan --layers` says the layers keep and compute, in 16 bits with dropout, for standard attention and
/// flashomp's, without and with checkpoints: {"none": {"peak_bytes", "flops", "extra_flops"}, "flash", …}.
[[nodiscard]] nlohmann::json predicted(const ModelShape& shape, std::int64_t batch);

} // namespace gpt
