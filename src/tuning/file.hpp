// Tables as JSON text and as files.
#pragma once

#include "table.hpp"

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace flashomp::tuning {

/// {"flashomp_tuning": 1, "tables": [{"device", "driver", "build", "entries": [...]}]}.
[[nodiscard]] std::string json_text(const std::vector<Table>& tables);

/// Throws Error for text that json_text() does not write; `name` is what the sentence begins with.
[[nodiscard]] std::vector<Table> parse_tables(std::string_view text, const std::filesystem::path& name);

/// The tables of a file; none where there is no file. Throws Error where it cannot be read or is not one of tables.
[[nodiscard]] std::vector<Table> read_tables(const std::filesystem::path& file);

/// Puts the entries of `found` among those of the same key, in place of those of the same class.
void merge(std::vector<Table>& tables, const Table& found);

/// Makes the file's folder where it is missing, and throws Error where store() would.
void expect_storable(const std::filesystem::path& file);

/// Puts the entries of `found` among those that the file has, as merge() does. The file changes in one step, and
/// processes that do this at the same time do it one after the other. Throws Error, with the file as it was, where it
/// cannot be written or holds anything else than tables.
void store(const std::filesystem::path& file, const Table& found);

} // namespace flashomp::tuning
