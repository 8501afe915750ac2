#include "option_list.hpp"

#include "positions.hpp"

#include "flashomp/dropout.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <fmt/format.h>
#include <limits>

namespace flashomp {

/// Converts to any member of a struct. In the unnamed namespace clang would miss its definition, which nobody needs.
struct Anything {
    template <class T>
    operator T() const; // NOLINT(google-explicit-constructor): the conversion is what it is for
};

namespace {

/// How many members an aggregate has.
template <class Aggregate, class... Values>
constexpr std::size_t member_count()
{
    if constexpr (requires { Aggregate{Values{}..., Anything{}}; }) {
        return member_count<Aggregate, Values..., Anything>();
    } else {
        return sizeof...(Values);
    }
}

constexpr std::size_t where_and_how = 6; // backend, machine, device, threads, stream, tiling
constexpr std::size_t compiled = 1;      // score_mod: of C++ alone
static_assert(member_count<Options>() == tensor_options.size() + number_options.size() + other_options.size() +
                                             program_options.size() + compiled + where_and_how,
              "Options has a member that is in none of the lists of option_list.hpp");

const char* word_of(Axis axis)
{
    switch (axis) {
    case Axis::batch:
        return "B";
    case Axis::heads_q:
        return "Hq";
    case Axis::heads_kv:
        return "Hkv";
    case Axis::seqlen_q:
        return "Nq";
    case Axis::seqlen_k:
        return "Nk";
    case Axis::boundaries:
        return "B+1";
    case Axis::pages:
        return "pages";
    }
    return "";
}

} // namespace

std::string shape_words(const TensorOption& option)
{
    std::string axes;
    for (std::size_t i = 0; i < static_cast<std::size_t>(option.rank); ++i) {
        axes += fmt::format("{}{}{}", i > 0 ? ", " : "", option.may_broadcast ? "1|" : "", word_of(option.axes.at(i)));
    }
    return fmt::format("{}{} [{}]{}", name_of(option.dtype), option.may_have_dtype_of_q ? " or q's dtype," : "", axes,
                       option.may_have_batch ? fmt::format(" or [B, {}]", axes) : "");
}

bool fits_float32(double value)
{
    const double size = std::abs(value);
    return size == 0.0 || (size >= static_cast<double>(std::numeric_limits<float>::min()) &&
                           size <= static_cast<double>(std::numeric_limits<float>::max())); // false for a NaN
}

namespace {

/// Whether kernels drop anything: a chance below their resolution is none.
bool drops(const Options& options)
{
    return dropout_threshold(options.dropout.probability) != 0;
}

} // namespace

bool modifies_scores(const Options& options)
{
    const auto tensor = [&](const TensorOption& o) { return o.modifies_scores && options.*o.member; };
    const auto number = [&](const NumberOption& o) {
        const std::optional<double> value = o.value(options);
        return value && o.modifies_scores(*value);
    };
    return drops(options) || options.score_mod || std::any_of(tensor_options.begin(), tensor_options.end(), tensor) ||
           std::any_of(number_options.begin(), number_options.end(), number);
}

bool is_read_on_host(std::string_view name)
{
    return std::any_of(tensor_options.begin(), tensor_options.end(), [&](const TensorOption& option) {
        return name == option.name && (is_boundaries(option) || option.is_of_cache);
    });
}

bool is_cache(const Problem& problem)
{
    return problem.is_quantised() ||
           std::any_of(tensor_options.begin(), tensor_options.end(),
                       [&](const TensorOption& o) { return o.is_of_cache && problem.options.*o.member; });
}

bool has_pair_mask(const Options& options)
{
    return options.mask || options.block_mask;
}

bool has_positions(const Options& options)
{
    return options.positions_q || options.positions_k;
}

bool has_seam(const Options& options)
{
    return placed_rows(options.positions_q).gap != 0 || placed_rows(options.positions_k).gap != 0;
}

bool tells_heads_apart(const Options& options)
{
    const auto tensor = [&](const TensorOption& o) { return o.tells_heads_apart && options.*o.member; };
    return drops(options) || options.score_mod || (options.mask && options.mask.shape[1] > 1) || options.block_mask ||
           std::any_of(tensor_options.begin(), tensor_options.end(), tensor);
}

} // namespace flashomp
