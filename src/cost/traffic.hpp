// Bytes that cross the border of main memory, counted without running anything.
#pragma once

#include "plan.hpp"
#include "shape.hpp"

namespace flashomp::cost {

/// Bytes of all batch entries and heads.
struct Traffic {
    double read = 0, written = 0;

    [[nodiscard]] double total() const { return read + written; }
    Traffic& operator+=(const Traffic& other)
    {
        read += other.read;
        written += other.written;
        return *this;
    }
};

/// Standard attention, each of its operations reading its matrices from memory and writing its result there: S = QKᵀ,
/// P = softmax(S), O = PV (Dao et al. 2022, Algorithm 0); dV, dP, dS, dQ, dK (Algorithm 3).
[[nodiscard]] Traffic standard_traffic(const Shape& shape, DType dtype, bool backward);

/// Every input read once and every result written once: what no implementation can go below.
[[nodiscard]] Traffic least_traffic(const Shape& shape, DType dtype, bool backward);

/// What the planned passes load and store, block by block, with the tiles and masks of the plan: every block that
/// streams past is counted at every visit. Caches that hold it from one visit to the next make it less; least_traffic()
/// is the other end.
[[nodiscard]] Traffic tile_traffic(const Problem& problem, const Plan& plan);

/// One pass of it.
[[nodiscard]] Traffic pass_traffic(const Problem& problem, const PassPlan& pass);

/// The papers' orders of growth (Dao et al. 2022, Theorem 2), as elements with the factor 1, for all heads: N·d + N²
/// and N²·d²/M with M elements of on-chip memory. Not to be compared with bytes.
struct Growth {
    double standard = 0, tiles = 0;
};
[[nodiscard]] Growth growth(const Shape& shape, double on_chip_elements);

} // namespace flashomp::cost
