// What both parts of a block mask, its storage and its forms, hold to.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flashomp::block_mask {

constexpr std::int64_t most_rows = std::int64_t{1} << 30;
constexpr std::int64_t fewest_of_block = 16, most_of_block = 65536;

inline std::size_t at(std::int64_t index)
{
    return static_cast<std::size_t>(index);
}

} // namespace flashomp::block_mask
