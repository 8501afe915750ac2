#include "validate_options.hpp"

#include "option_list.hpp"
#include "overlap.hpp"
#include "validate_cache.hpp"
#include "validate_choice.hpp"
#include "validate_views.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <optional>
#include <string>

namespace flashomp {

namespace {

bool has_form(const ConstTensorView& view, DType dtype, int rank, const std::array<std::int64_t, 4>& shape)
{
    return view.rank == rank && view.dtype == dtype &&
           std::equal(shape.begin(), shape.begin() + rank, view.shape.begin());
}

} // namespace

void check_tensor(const char* name, const ConstTensorView& view, DType dtype, int rank,
                  const std::array<std::int64_t, 4>& shape, const char* like)
{
    ConstTensorView expected;
    expected.rank = rank;
    expected.shape = shape;
    if (!view) {
        throw Error(fmt::format("{} was not given; it must be {} {}, like {}.", name, name_of(dtype),
                                shape_string(expected), like));
    }
    if (!has_form(view, dtype, rank, shape)) {
        throw Error(fmt::format("{} is {} {}; it must be {} {}, like {}.", name, name_of(view.dtype),
                                shape_string(view), name_of(dtype), shape_string(expected), like));
    }
    check_layout(name, view);
}

std::vector<std::int32_t> read_starts(const char* name, const ConstTensorView& view, std::int64_t total)
{
    if (!view) {
        throw Error(fmt::format("{} was not given; cu_seqlens_q and cu_seqlens_k must be given together.", name));
    }
    if (view.rank != 1 || view.dtype != DType::int32 || view.shape[0] < 1) {
        throw Error(
            fmt::format("{} is {} {}; it must be int32 [batch + 1].", name, name_of(view.dtype), shape_string(view)));
    }
    check_extent(name, "sequences", view.shape[0] - 1, most_rows);
    check_layout(name, view);
    if (view.memory != Memory::host) {
        throw Error(fmt::format("{} is in device memory; it must be in host memory, where the work is planned.", name));
    }
    const auto* first = static_cast<const std::int32_t*>(view.data);
    std::vector<std::int32_t> starts(first, first + view.shape[0]);
    if (starts.front() != 0) {
        throw Error(fmt::format("{} starts at {}; it must start at 0.", name, starts.front()));
    }
    for (std::size_t i = 1; i < starts.size(); ++i) {
        if (starts[i] < starts[i - 1]) {
            throw Error(fmt::format("{} decreases from {} to {} at index {}; it must not decrease.", name,
                                    starts[i - 1], starts[i], i));
        }
    }
    if (starts.back() != total) {
        throw Error(
            fmt::format("{} ends at {}; it must end at {}, the packed rows there are.", name, starts.back(), total));
    }
    return starts;
}

namespace {

std::int64_t longest(const std::vector<std::int32_t>& starts)
{
    std::int64_t most = 0;
    for (std::size_t i = 1; i < starts.size(); ++i) {
        most = std::max<std::int64_t>(most, starts[i] - starts[i - 1]);
    }
    return most;
}

void check_packing(Problem& problem)
{
    problem.starts_q = read_starts("cu_seqlens_q", problem.options.cu_seqlens_q, problem.q.shape[0]);
    if (is_cache(problem)) {
        problem.batch = static_cast<std::int64_t>(problem.starts_q.size()) - 1;
        problem.seqlen_q = longest(problem.starts_q);
        return;
    }
    problem.starts_k = read_starts("cu_seqlens_k", problem.options.cu_seqlens_k, problem.k.shape[0]);
    if (problem.starts_q.size() != problem.starts_k.size()) {
        throw Error(fmt::format("cu_seqlens_q has {} sequences and cu_seqlens_k {}; they must have equally many.",
                                problem.starts_q.size() - 1, problem.starts_k.size() - 1));
    }
    problem.batch = static_cast<std::int64_t>(problem.starts_q.size()) - 1;
    problem.seqlen_q = longest(problem.starts_q);
    problem.seqlen_k = longest(problem.starts_k);
}

struct Counted {
    std::int64_t extent;
    const char* name;
};

Counted counted(Axis axis, const Problem& problem)
{
    switch (axis) {
    case Axis::batch:
        return {problem.batch, "batch"};
    case Axis::heads_q:
        return {problem.heads_q, "heads_q"};
    case Axis::heads_kv:
        return {problem.heads_kv, "heads_kv"};
    case Axis::seqlen_q:
        return {problem.seqlen_q, "seqlen_q"};
    case Axis::seqlen_k:
        return {problem.seqlen_k, "seqlen_k"};
    case Axis::boundaries:
        return {problem.batch + 1, "batch + 1"};
    case Axis::pages:
        break;
    }
    return {0, "pages"};
}

/// A tensor each of whose axes may have extent 1.
void check_broadcast(const TensorOption& option, const Problem& problem, const ConstTensorView& view)
{
    const bool is_bits = option.may_be_bits && view.dtype == DType::bits;
    const auto rank = static_cast<std::size_t>(option.rank);
    const auto full = [&](std::size_t axis) {
        const std::int64_t extent = counted(option.axes.at(axis), problem).extent;
        return is_bits && axis + 1 == rank ? (extent + 7) / 8 : extent;
    };
    bool fits = view.rank == option.rank;
    for (std::size_t axis = 0; axis < rank && fits; ++axis) {
        const bool is_one = view.shape.at(axis) == 1 && !(is_bits && axis + 1 == rank);
        fits = is_one || view.shape.at(axis) == full(axis);
    }
    if (!fits) {
        std::string allowed;
        for (std::size_t axis = 0; axis < rank; ++axis) {
            const bool is_packed = is_bits && axis + 1 == rank;
            allowed += fmt::format("{}{}{}", axis > 0 ? ", " : "", is_packed ? "" : "1 or ", full(axis));
        }
        throw Error(fmt::format("{} has shape {}; it must be [{}]{}.", option.name, shape_string(view), allowed,
                                is_bits ? ", 8 keys to a byte" : ""));
    }
    const DType other = option.may_have_dtype_of_q ? problem.dtype : option.dtype;
    if (view.dtype != option.dtype && view.dtype != other && !is_bits) {
        throw Error(fmt::format("{} is {}; it must be {}{}{}.", option.name, name_of(view.dtype), name_of(option.dtype),
                                other == option.dtype ? "" : fmt::format(" or {}, as q", name_of(other)),
                                option.may_be_bits ? " or bits" : ""));
    }
    check_layout(option.name, view, option.may_be_bits && !is_bits);
}

} // namespace

void check_tensor_option(const TensorOption& option, const Problem& problem)
{
    const ConstTensorView& view = problem.options.*option.member;
    const bool is_of_cache = option.is_also_of_cache && problem.is_quantised();
    if (option.is_float8_only && problem.dtype != DType::float8_e4m3 && !is_of_cache) {
        if (option.is_also_of_cache) {
            throw Error(fmt::format("{} was given, but k is {}; it is allowed with k and v of float8_e4m3 or int8.",
                                    option.name, name_of(problem.k.dtype)));
        }
        throw Error(fmt::format("{} was given, but q is {}; it is allowed with float8_e4m3 tensors only.", option.name,
                                name_of(problem.dtype)));
    }
    if (option.may_broadcast) {
        check_broadcast(option, problem, view);
        return;
    }
    const bool has_batch = option.may_have_batch && view.rank == option.rank + 1;
    const bool has_pages = is_of_cache && (problem.options.block_table || problem.options.kv_indices);
    const bool has_caches = is_of_cache && problem.options.cache_batch_index;
    std::array<std::int64_t, 4> shape{is_of_cache ? problem.k.shape[0] : problem.batch};
    for (std::size_t axis = 0; axis < static_cast<std::size_t>(option.rank); ++axis) {
        const Axis counts = option.axes.at(axis);
        shape.at(axis + (has_batch ? 1 : 0)) =
            counts == Axis::pages ? view.shape.at(axis) : counted(counts, problem).extent;
    }
    const int rank = option.rank + (has_batch ? 1 : 0);
    if (has_form(view, option.dtype, rank, shape)) {
        check_layout(option.name, view);
        return;
    }
    std::string axes;
    for (std::size_t axis = 0; axis < static_cast<std::size_t>(option.rank); ++axis) {
        axes += fmt::format("{}{}", axis > 0 ? ", " : "", counted(option.axes.at(axis), problem).name);
    }
    const char* const first = has_pages ? "pages" : (has_caches ? "caches" : "batch");
    const std::string like =
        fmt::format("[{0}]{1}", axes, option.may_have_batch ? fmt::format(" or [{}, {}]", first, axes) : "");
    check_tensor(option.name, view, option.dtype, rank, shape, like.c_str());
}

void check_no_self_overlap(const char* name, const ConstTensorView& view)
{
    if (overlaps_itself(view)) {
        throw Error(
            fmt::format("{} has strides that put two of its elements at one address; an output must not overlap "
                        "itself.",
                        name));
    }
}

void check_dropout(const Dropout& dropout)
{
    if (!(dropout.probability >= 0.0 && dropout.probability < 1.0)) {
        throw Error(fmt::format("dropout was {}; it must be 0 (off) or more and less than 1.", dropout.probability));
    }
}

namespace {

void check_block_mask(const Problem& problem)
{
    const BlockMaskShape& s = problem.options.block_mask.shape();
    const auto fits = [](std::int64_t extent, std::int64_t full) { return extent == 1 || extent == full; };
    if (!fits(s.batch, problem.batch) || !fits(s.heads_q, problem.heads_q) || s.seqlen_q != problem.seqlen_q ||
        s.seqlen_k != problem.seqlen_k) {
        throw Error(fmt::format("block_mask is of [{}, {}, {}, {}]; it must be of [1 or {}, 1 or {}, {}, {}].", s.batch,
                                s.heads_q, s.seqlen_q, s.seqlen_k, problem.batch, problem.heads_q, problem.seqlen_q,
                                problem.seqlen_k));
    }
}

void check_positions(const char* name, const Positions& positions, const char* rows_of, std::int64_t rows)
{
    if (positions == Positions{}) {
        return;
    }
    if (positions.whole < 1 || positions.whole > most_rows) {
        throw Error(fmt::format("{} has a whole of {} rows; it must be 1 to {}.", name, positions.whole, most_rows));
    }
    const auto& [one, two] = positions.stretches;
    for (const auto& [first, count] : positions.stretches) {
        const bool is_in_range = first >= 0 && count >= 0 && first <= positions.whole && count <= positions.whole;
        if (!is_in_range || first + count > positions.whole) {
            throw Error(fmt::format("{} has a stretch of {} rows from {} on; it must lie within the {} rows of the "
                                    "whole.",
                                    name, count, first, positions.whole));
        }
    }
    if (one.count > 0 && two.count > 0 && two.first < one.first + one.count) {
        throw Error(fmt::format("{} has a second stretch that begins at {}; it must begin where the first one ends, at "
                                "{}, or later.",
                                name, two.first, one.first + one.count));
    }
    if (positions.rows() != rows) {
        throw Error(
            fmt::format("{} has {} rows but {} has {}; they must be equal.", name, positions.rows(), rows_of, rows));
    }
}

/// The number of the first of `count` things, of which the whole has at most `most`.
void check_first(const char* name, std::int64_t first, const char* things, std::int64_t count, std::int64_t most)
{
    if (first < 0 || first > most - count) {
        throw Error(
            fmt::format("{} was {} with {} {} of q; it must be 0 to {}.", name, first, count, things, most - count));
    }
}

void check_shard(const Problem& problem)
{
    const Options& options = problem.options;
    if (has_positions(options) && (options.cu_seqlens_q || is_cache(problem))) {
        throw Error(fmt::format("{} was given with {}; it is allowed with sequences that are not packed and with keys "
                                "that are no key/value cache.",
                                options.positions_q ? "positions_q" : "positions_k",
                                is_cache(problem) ? "a key/value cache" : "cu_seqlens_q"));
    }
    check_positions("positions_q", options.positions_q, "q", problem.seqlen_q);
    check_positions("positions_k", options.positions_k, "k", problem.seqlen_k);
    check_first("first_sequence", options.first_sequence, "sequences", problem.batch, most_rows);
    check_first("first_head", options.first_head, "heads", problem.heads_q, most_heads);
}

} // namespace

void check_window(const Window& window)
{
    for (const auto& [name, side] : {std::pair{"left", window.left}, std::pair{"right", window.right}}) {
        if (side < -1) {
            throw Error(fmt::format("window {} was {}; it must be -1 (unbounded), 0 or more.", name, side));
        }
    }
}

void check_options(Problem& problem)
{
    const Options& options = problem.options;
    for (const NumberOption& option : number_options) {
        const std::optional<double> value = option.value(options);
        if (value && !option.is_allowed(*value)) {
            throw Error(fmt::format("{} was {}; it must be {}.", option.name, *value, option.allowed));
        }
    }
    check_window(options.window);
    check_choice(options);
    check_dropout(options.dropout);
    if (options.cu_seqlens_q || (options.cu_seqlens_k && !is_cache(problem))) {
        check_packing(problem);
    }
    check_cache(problem);
    check_shard(problem);
    for (const TensorOption& option : tensor_options) {
        if (options.*option.member) {
            check_tensor_option(option, problem);
        }
    }
    if (options.block_mask) {
        check_block_mask(problem);
    }
}

void check_gradients(const Problem& problem)
{
    for (const TensorOption& option : tensor_options) {
        const auto& [name, given, kept] = option.gradient;
        if (!option.gradient || !(problem.*kept)) {
            continue;
        }
        const ConstTensorView& like = problem.options.*option.member;
        if (!like) {
            throw Error(
                fmt::format("{0} was given without a {1}; allowed is {0} with options.{1}.", name, option.name));
        }
        check_tensor(name, problem.*kept, like.dtype, like.rank, like.shape, option.name);
    }
}

} // namespace flashomp
