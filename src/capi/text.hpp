// Texts in arrays of C structs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace flashomp::capi {

/// As much of the text as the array holds with a zero behind.
template <std::size_t size>
void copy_text(char (&target)[size], std::string_view text)
{
    *std::copy_n(text.begin(), std::min(text.size(), size - 1), std::begin(target)) = '\0';
}

} // namespace flashomp::capi
