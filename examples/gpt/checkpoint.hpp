// Checkpoints: weights, the optimiser's moments, merges and options in one safetensors file, written whole or not at
// all. A run that goes on from one ends with the bits of a run that never stopped: batches and dropout depend on the
// seed and the step alone.
#pragma once

#include "durable_file.hpp"
#include "options.hpp"
#include "tokens.hpp"

#include <cstdint>
#include <filesystem>
#include <vector>

namespace gpt {

struct Checkpoint {
    Options options;
    std::int64_t step = 0;       ///< steps that are done
    std::uint64_t text_hash = 0; ///< of the training text
    std::vector<Tokens::Merge> merges;
    Numbers<float> weights, m, v; ///< in the layout of options.shape()
};

/// Writes and publishes. Throws flashomp::Error where the file cannot be written; a file of that name is then as it
/// was.
void write_checkpoint(DurableFile& file, const Checkpoint& checkpoint);

/// Throws flashomp::Error with one sentence that names the file where it is not there, is no checkpoint, is cut off or
/// damaged in any byte, or has not exactly the tensors that its options have. Before memory for tensors is taken, all
/// of them are known to be in the file.
[[nodiscard]] Checkpoint read_checkpoint(const std::filesystem::path& path);

/// Throws flashomp::Error unless a model of `shape` may go on from the file's.
void expect_same_shape(const std::filesystem::path& path, const ModelShape& in_file, const ModelShape& shape);

} // namespace gpt
