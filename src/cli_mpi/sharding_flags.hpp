// The flags of how ranks share a call: the same for all commands of flashomp-mpi.
#pragma once

#include "flashomp/mpi.hpp"

#include "schemes.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace flashomp::cli {

/// The heading of these flags in --help.
inline constexpr const char* sharing_group = "Ranks that share the call";

/// What the user said; a command has its own default.
struct SharingFlags {
    std::optional<mpi::Layout> layout;
    std::optional<mpi::Scheme> scheme; ///< never automatic
    int heads_ranks = 0;

    /// Contiguous shards and the library's scheme unless the user named others.
    [[nodiscard]] mpi::Sharding sharding() const;

    /// Throws Error unless so many ranks can share a call as was said.
    void expect_ranks(std::int64_t ranks) const;
};

/// Adds --sharding, --scheme and --heads-ranks. A value that is not allowed throws Error. takes_all: where none is
/// named, the command goes through all of them.
void add_sharing_flags(CLI::App& command, SharingFlags& flags, bool takes_all);

/// The same scheme where it is planned.
[[nodiscard]] cost::Scheme planned(const mpi::Sharding& sharding, std::int64_t ranks);

/// Throws NotBuilt where more ranks would share out heads than `name` has.
void expect_heads(const mpi::Sharding& sharding, std::int64_t ranks, std::int64_t heads, const std::string& name);

/// Those to plan for: the user's, or all, of the user's layout where there is one. Throws Error where so many ranks
/// cannot have the user's.
[[nodiscard]] std::vector<cost::Scheme> planned_schemes(const SharingFlags& flags, const cost::Shape& shape,
                                                        std::int64_t ranks);

} // namespace flashomp::cli
