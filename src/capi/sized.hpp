// Structs of the C interface that begin with their size, from callers that were compiled with another version's header.
#pragma once

#include "flashomp/error.hpp"
#include "flashomp/version.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <fmt/format.h>
#include <span>

namespace flashomp::capi {

/// The sizes that a struct has had, first that of the first version, last that of this library.
template <class Struct>
struct Versions {
    const char* name; ///< of the type
    std::span<const std::size_t> sizes;
};

/// What no struct of any version reaches: a size that is not one at all.
inline constexpr std::size_t most_size = std::size_t{1} << 16U;

/// Throws Error unless `size` is that of a version which this library knows, or of a later one.
template <class Struct>
void check_size(const char* argument, std::size_t size, const Versions<Struct>& versions)
{
    const bool is_known = std::find(versions.sizes.begin(), versions.sizes.end(), size) != versions.sizes.end();
    if (!is_known && (size <= sizeof(Struct) || size > most_size)) {
        throw Error(fmt::format("{}->size was {}; it must be sizeof({}), which is {} in version {}.", argument, size,
                                versions.name, sizeof(Struct), build_info().version));
    }
}

/// What the caller gave, with the defaults for members of a later version than the caller's. Throws Error where the
/// size is none, or a member that this library does not know is given.
template <class Struct>
[[nodiscard]] Struct read_struct(const char* argument, const Struct* given, const Versions<Struct>& versions,
                                 const Struct& defaults)
{
    if (given == nullptr) {
        throw Error(fmt::format("{} was null; it must point to a {}.", argument, versions.name));
    }
    const std::size_t size = given->size;
    check_size(argument, size, versions);
    const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(given), size);
    const auto unknown = bytes.subspan(std::min(size, sizeof(Struct)));
    if (std::any_of(unknown.begin(), unknown.end(), [](std::byte byte) { return byte != std::byte{}; })) {
        throw Error(
            fmt::format("{}->size was {} with members beyond byte {}, which are not in version {}; they must be "
                        "zero there.",
                        argument, size, sizeof(Struct), build_info().version));
    }
    Struct read = defaults;
    std::memcpy(&read, bytes.data(), std::min(size, sizeof(Struct)));
    return read;
}

/// Writes as much as the caller's struct holds, and keeps its size.
template <class Struct>
void write_struct(Struct* target, Struct values)
{
    const std::size_t size = target->size;
    values.size = size;
    std::memcpy(target, &values, std::min(size, sizeof(Struct)));
}

/// A struct whose defaults are zeros.
template <class Struct>
[[nodiscard]] Struct default_of()
{
    Struct defaults{};
    defaults.size = sizeof defaults;
    return defaults;
}

/// Sets `size` bytes: the defaults, and zeros beyond.
template <class Struct>
void init_struct(Struct* target, std::size_t size, Struct defaults)
{
    if (target == nullptr || size < sizeof(std::size_t)) {
        return;
    }
    defaults.size = size;
    const std::size_t known = std::min(size, sizeof(Struct));
    std::memcpy(target, &defaults, known);
    std::memset(reinterpret_cast<std::byte*>(target) + known, 0, size - known);
}

} // namespace flashomp::capi
