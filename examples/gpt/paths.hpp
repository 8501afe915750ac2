// Paths that a user names: where they lead, and which of them may not be the same.
#pragma once

#include "options.hpp"

#include <filesystem>

namespace gpt {

/// Where a file of that name is or would be: absolute, links followed. Empty where its folder is not there, links loop
/// or a name is too long.
[[nodiscard]] std::filesystem::path real_path(const std::filesystem::path& path);

/// Throws flashomp::Error for an empty path, for --data that is not UTF-8, which JSON could not record, for two options
/// that name the same file, but for --save and --resume, and for --json in a folder of --data, whose text it would be.
void check_paths(const Options& options);

} // namespace gpt
