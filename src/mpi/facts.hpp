// What ranks are given, as numbers, which travel and compare alike whatever they say.
#pragma once

#include "call.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace flashomp::mpi {

enum class Kind : std::uint8_t { number, bits, real, dtype, flag, causal, layout, scheme, pass, memory };

/// One thing that ranks are given.
struct Fact {
    std::string name;
    Kind kind = Kind::number;
    std::int64_t value = 0;
    bool is_common = true; ///< must be the same on all ranks
};

/// The value in words.
[[nodiscard]] std::string text_of(const Fact& fact, std::int64_t value);

/// Enough to tell apart what was given by mistake (FNV-1a of Fowler, Noll and Vo).
[[nodiscard]] std::int64_t hash_of(const void* data, std::int64_t bytes, std::int64_t seed = 0);

/// The same list on every rank, whatever the arguments are: nothing here looks at elements.
class Facts {
public:
    Facts(const Call& call, const Sharding& sharding);

    [[nodiscard]] const std::vector<Fact>& list() const { return list_; }
    [[nodiscard]] std::size_t rows() const { return rows_; }         ///< then those of k
    [[nodiscard]] std::size_t own_rows() const { return own_rows_; } ///< of bias, then of mask

private:
    void add(std::string name, Kind kind, std::int64_t value);
    void add_own(const char* name, std::int64_t value);
    void add_form(const char* name, const ConstTensorView& view, int axis_of_rows);

    std::vector<Fact> list_;
    std::size_t rows_ = 0, own_rows_ = 0;
};

} // namespace flashomp::mpi
