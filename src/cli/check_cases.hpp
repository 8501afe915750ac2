// The list of cases in a folder: DIR/cases.json, and one folder of .npy files for each case.
#pragma once

#include "flashomp/options.hpp"

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace flashomp::cli {

/// One case: what to run and the files it needs. q, k, v, do and the expected o, lse, dq, dk, dv always have the file
/// of that name; other tensors are those that cases.json names.
struct CheckCase {
    std::string name;
    Options options;                                       ///< without tensors and without where to run
    std::map<std::string, std::filesystem::path> inputs;   ///< q, k, v, do, bias, ...
    std::map<std::string, std::filesystem::path> expected; ///< o, lse, dq, dk, dv, dbias, dsink
};

/// Reads DIR/cases.json. An unknown or repeated key, a wrong type or a name that leaves the folder throws Error.
[[nodiscard]] std::vector<CheckCase> read_cases(const std::filesystem::path& directory);

/// The same for the text of DIR/cases.json.
[[nodiscard]] std::vector<CheckCase> parse_cases(const std::string& text, const std::filesystem::path& directory);

} // namespace flashomp::cli
