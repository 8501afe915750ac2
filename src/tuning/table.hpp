// What `flashomp tune` found out: for classes of problems, the machine and tiling that were fastest.
#pragma once

#include "problem.hpp"

#include <compare>
#include <cstdint>
#include <map>
#include <string>

namespace flashomp::tuning {

enum class Mask : std::uint8_t { none, causal, window };

/// Problems that are expected to have the same fastest plan on one device: all that plan() decides by, with sizes
/// rounded up to powers of two. The number of host threads is not among it: then no entry can make the bits of a result
/// depend on that number.
struct ShapeClass {
    Backend backend = Backend::openmp; ///< openmp or cuda
    bool is_backward = false;
    DType dtype = DType::float32;
    int depth = 64;           ///< Problem::kernel_depth()
    Mask mask = Mask::none;   ///< key padding makes no difference
    bool is_modified = false; ///< modifies_scores()
    bool is_packed = false;
    std::int64_t seqlen_q = 1, seqlen_k = 1;     ///< with packed sequences, of the longest
    std::int64_t query_heads = 1, key_heads = 1; ///< of all sequences together

    auto operator<=>(const ShapeClass&) const = default; // NOLINT(modernize-use-nullptr): there is none
};

/// Of a problem as the caller gave it, on openmp or cuda.
[[nodiscard]] ShapeClass class_of(const Problem& problem, Backend backend);

/// "openmp forward bfloat16 d64 causal n4096x4096 heads 32x8".
[[nodiscard]] std::string text_of(const ShapeClass& shape);

/// What a table puts into Options where the caller left both open. All defaults: what plan() decides is best.
struct Choice {
    Machine machine = Machine::automatic;
    Tiling tiling = {};

    friend bool operator==(const Choice&, const Choice&) = default;
};

/// "auto", "plain, 32 resident rows, 16 stream rows, 4 threads a team".
[[nodiscard]] std::string text_of(const Choice& choice);

/// The best choice for a class, and the measurement behind it.
struct Entry {
    Choice choice;
    std::string shape;                         ///< that was measured, such as "b1_h8_n4096_d64"
    std::string machine;                       ///< that ran, as in Report::machine
    double seconds = 0, automatic_seconds = 0; ///< medians of the choice, and of what plan() decides
};

/// What entries hold for.
struct Key {
    std::string device; ///< a GPU's name, or a CPU's
    std::string driver; ///< a GPU's driver version; for a CPU the best instruction set that calls may use
    std::string build;  ///< this_build()

    friend bool operator==(const Key&, const Key&) = default;
};

/// Version, commit, compiler and flags of this build.
[[nodiscard]] const std::string& this_build();

/// Entries of one key.
struct Table {
    Key key;
    std::map<ShapeClass, Entry> entries;
};

/// The tables that a device's calls look into, the user's first. Either may be missing.
struct Tables {
    const Table* user = nullptr;
    const Table* shipped = nullptr;

    /// Null where there is no entry. Allocates nothing.
    [[nodiscard]] const Entry* find(const ShapeClass& shape) const;
};

} // namespace flashomp::tuning
