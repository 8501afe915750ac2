// Which rows, keys and heads of a problem are compared with the reference.
#pragma once

#include "chosen.hpp"
#include "shape.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace flashomp::bench {

/// The first, the middle and the last key head, each in the first, the middle and the last sequence, with all query
/// heads that share it. Of each: all rows and keys where group·Nq·Nk is at most 2^22, else blocks of up to 64 rows and
/// of 64 keys at the beginning, in the middle and at the end. dK and dV, whose keys cost all rows, are compared of as
/// many of these heads as group·Nq·Nk·(head_dim + head_dim_v) in all allows (2^38; one alone may take 2^40), the last
/// first.
struct Sample {
    explicit Sample(const cost::Shape& of);

    /// "o, LSE, dQ of rows 0-63, 8160-8223, 16320-16383 of 16384: sequence 0 head 0, sequence 0 head 8; dK, dV of keys
    /// ... (of 1 sequence, 16 heads)".
    [[nodiscard]] std::string text(bool backward) const;

    cost::Shape shape;
    std::vector<reference::Chosen> parts;
};

} // namespace flashomp::bench
