// The tables that calls of this process look into.
#pragma once

#include "table.hpp"

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace flashomp::tuning {

/// Where the user's tables are: the file that FLASHOMP_TUNING names, else flashomp/tuning.json in XDG_CACHE_HOME, else
/// in ~/.cache.
struct Place {
    bool is_off = false;          ///< FLASHOMP_TUNING=off: no tables at all
    bool is_shipped_only = false; ///< FLASHOMP_TUNING=shipped: none of the user's
    std::filesystem::path file;   ///< empty for these two, and where no variable says where
};

/// From the environment as it is now.
[[nodiscard]] Place user_place();

/// The tables for a device and this build: the user's for this driver, and those that were shipped for the device,
/// whatever its driver. Files are read once, by the first call of the process. A file that cannot be read or is not one
/// of tables counts as none.
[[nodiscard]] Tables tables_for(std::string_view device, std::string_view driver) noexcept;

/// One sentence about a file that counts as none; empty when there is nothing to say.
[[nodiscard]] const std::string& user_problem();

/// From now on tables_for() finds nothing: for those who time what plan() decides by itself.
void ignore_tables();

/// The JSON texts of the tables that come with the library.
[[nodiscard]] const std::vector<std::string_view>& shipped_texts();

} // namespace flashomp::tuning
