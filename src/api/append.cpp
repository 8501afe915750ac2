#include "flashomp/cache.hpp"

#include "append_problem.hpp"
#include "cache.hpp"
#include "dispatch.hpp"
#include "option_list.hpp"
#include "overlap.hpp"
#include "validate_cache.hpp"
#include "validate_choice.hpp"
#include "validate_options.hpp"
#include "validate_views.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <fmt/format.h>
#include <utility>
#include <vector>

namespace flashomp {

namespace {

using Named = std::pair<const char*, ConstTensorView>;

/// A tensor of rows, packed or not, in the dtype of k.
void check_rows(const char* name, const ConstTensorView& view, bool packed, DType dtype)
{
    const char* const axes = packed ? "[total, heads, head_dim]" : "[batch, seqlen, heads, head_dim]";
    if (view.rank != (packed ? 3 : 4)) {
        throw Error(fmt::format("{} has {} axes; it must be {}.", name, view.rank, axes));
    }
    if (view.dtype != dtype) {
        throw Error(
            fmt::format("{} is {} but k is {}; they must have one dtype.", name, name_of(view.dtype), name_of(dtype)));
    }
    check_layout(name, view);
}

std::int64_t longest_of(const std::vector<std::int32_t>& starts)
{
    std::int64_t most = 0;
    for (std::size_t i = 1; i < starts.size(); ++i) {
        most = std::max<std::int64_t>(most, starts[i] - starts[i - 1]);
    }
    return most;
}

/// Sequences of rows, and the most rows of one.
struct Sequences {
    std::int64_t batch = 0, rows = 0;
    std::vector<std::int32_t> starts;
};

Sequences sequences_of(const char* name, const ConstTensorView& view, const char* cu_name, const ConstTensorView& cu)
{
    if (!cu) {
        check_extent(name, "rows", view.shape[1], most_rows);
        return {view.shape[0], view.shape[1], {}};
    }
    Sequences packed;
    packed.starts = read_starts(cu_name, cu, view.shape[0]);
    packed.batch = std::ssize(packed.starts) - 1;
    packed.rows = longest_of(packed.starts);
    return packed;
}

void check_rotary(const AppendArgs& args, std::int64_t head_dim, DType dtype)
{
    const Rotary& rotary = args.rotary;
    if (static_cast<bool>(rotary.cos) != static_cast<bool>(rotary.sin)) {
        throw Error("rotary_cos and rotary_sin must be given together.");
    }
    if (static_cast<bool>(args.q) != static_cast<bool>(args.q_out)) {
        throw Error("q and q_out must be given together.");
    }
    if (!rotary.cos) {
        if (args.q) {
            throw Error("q was given without a rotary embedding; allowed is q with rotary_cos and rotary_sin.");
        }
        return;
    }
    for (const auto& [name, view] : {Named{"rotary_cos", rotary.cos}, Named{"rotary_sin", rotary.sin}}) {
        if (view.rank != 2 || (view.dtype != DType::float32 && view.dtype != dtype)) {
            throw Error(fmt::format("{} is {} {}; it must be float32 or {} [positions, rotary_dim/2].", name,
                                    name_of(view.dtype), shape_string(view), name_of(dtype)));
        }
        check_layout(name, view);
    }
    check_tensor("rotary_sin", rotary.sin, rotary.cos.dtype, 2, rotary.cos.shape, "rotary_cos");
    if (rotary.cos.shape[1] < 1 || 2 * rotary.cos.shape[1] > head_dim) {
        throw Error(fmt::format("rotary_cos has {} columns; allowed are 1 to {}, half of head_dim.",
                                rotary.cos.shape[1], head_dim / 2));
    }
}

/// Whoever gives an option that says nothing of where rows go expects something of append() that it does not do.
void check_taken(const Options& options, bool is_quantised)
{
    const auto refuse = [](const char* name) {
        throw Error(fmt::format("{} was given to append(), which takes the tables of a cache, cu_seqlens_q, "
                                "cu_seqlens_k, causal and window, and k_scale and v_scale with a cache of 8 bits.",
                                name));
    };
    for (const TensorOption& option : tensor_options) {
        const bool is_taken = option.is_of_cache || is_boundaries(option) || (is_quantised && option.is_also_of_cache);
        if (!is_taken && options.*option.member) {
            refuse(option.name);
        }
    }
    for (const NumberOption& option : number_options) {
        if (option.value(options) != option.off) {
            refuse(option.name);
        }
    }
    for (const auto& [name, is_given] :
         {std::pair{"dropout", options.dropout.probability != 0.0}, std::pair{"block_mask", bool{options.block_mask}},
          std::pair{"score_mod", bool{options.score_mod}}, std::pair{"positions_q", bool{options.positions_q}},
          std::pair{"positions_k", bool{options.positions_k}}, std::pair{"first_sequence", options.first_sequence != 0},
          std::pair{"first_head", options.first_head != 0}}) {
        if (is_given) {
            refuse(name);
        }
    }
    check_window(options.window);
}

/// Shapes and dtypes, of which the problem then has what the layers below need.
AppendProblem problem_of(const AppendArgs& args, const Options& options)
{
    AppendProblem append;
    append.args = args;
    for (const auto& [name, view] :
         {Named{"k", args.k}, Named{"v", args.v}, Named{"k_cache", args.k_cache}, Named{"v_cache", args.v_cache},
          Named{"rotary_cos", args.rotary.cos}, Named{"rotary_sin", args.rotary.sin}, Named{"q", args.q},
          Named{"q_out", args.q_out}}) {
        check_view(name, view);
    }
    for (const TensorOption& option : tensor_options) {
        check_view(option.name, options.*option.member);
    }
    const bool packed = static_cast<bool>(options.cu_seqlens_k);
    const DType dtype = args.k.dtype;
    if (dtype != DType::float32 && dtype != DType::bfloat16 && dtype != DType::float16) {
        throw Error(fmt::format("k is {}; it must be float32, bfloat16 or float16.", name_of(dtype)));
    }
    const auto has_v = static_cast<bool>(args.v);
    if (has_v != static_cast<bool>(args.v_cache)) {
        throw Error("v and v_cache must be given together, or neither where values are a view of the keys.");
    }
    if (!has_v && options.v_scale) {
        throw Error("v_scale was given without v; allowed is v_scale with v and v_cache.");
    }
    check_rows("k", args.k, packed, dtype);
    if (has_v) {
        check_rows("v", args.v, packed, dtype);
    }
    const DType of_cache = args.k_cache.dtype;
    const bool is_quantised = of_cache == DType::float8_e4m3 || of_cache == DType::int8;
    check_rows("k_cache", args.k_cache, false, is_quantised ? of_cache : dtype);
    if (has_v && is_quantised && args.v_cache.dtype != of_cache) {
        throw Error(fmt::format("v_cache is {} but k_cache is {}; they must have one dtype.",
                                name_of(args.v_cache.dtype), name_of(of_cache)));
    }
    if (has_v) {
        check_rows("v_cache", args.v_cache, false, is_quantised ? of_cache : dtype);
    }
    const auto last = static_cast<std::size_t>(args.k.rank - 1);
    for (const auto& [name, view, cache_name, cache, most] :
         {std::tuple{"k", args.k, "k_cache", args.k_cache, most_head_dim},
          std::tuple{"v", args.v, "v_cache", args.v_cache, most_head_dim_v}}) {
        if (!view) {
            continue;
        }
        if (view.shape.at(last - 1) != cache.shape[2] || view.shape.at(last) != cache.shape[3]) {
            throw Error(fmt::format("{} has shape {} but {} has {}; heads and head_dim must be equal.", name,
                                    shape_string(view), cache_name, shape_string(cache)));
        }
        check_head_dim(name, cache.shape[3], most);
    }
    const ConstTensorView &k = args.k_cache, &v = args.v_cache;
    if (has_v && (!std::equal(k.shape.begin(), k.shape.begin() + 3, v.shape.begin()) ||
                  !std::equal(args.k.shape.begin(), args.k.shape.begin() + args.k.rank - 1, args.v.shape.begin()))) {
        throw Error(
            fmt::format("v has shape {} and v_cache {}, but k has {} and k_cache {}; they must agree in all but "
                        "head_dim.",
                        shape_string(args.v), shape_string(v), shape_string(args.k), shape_string(k)));
    }
    check_extent("k", "heads", k.shape[2], most_heads);
    check_extent("k_cache", "rows", k.shape[1], most_rows);
    check_rotary(args, k.shape[3], dtype);

    Sequences new_rows = sequences_of("k", args.k, "cu_seqlens_k", options.cu_seqlens_k);
    append.rows = new_rows.rows;
    append.starts_k = std::move(new_rows.starts);
    check_extent("k", "sequences", new_rows.batch, most_rows);
    if (args.q) {
        const bool is_packed = static_cast<bool>(options.cu_seqlens_q);
        check_rows("q", args.q, is_packed, dtype);
        if (args.q.shape.at(static_cast<std::size_t>(args.q.rank - 1)) != k.shape[3]) {
            throw Error(fmt::format("q has shape {} but k_cache {}; head_dim must be equal.", shape_string(args.q),
                                    shape_string(k)));
        }
        check_extent("q", "heads", args.q.shape.at(static_cast<std::size_t>(args.q.rank - 2)), most_heads);
        check_tensor("q_out", args.q_out, dtype, args.q.rank, args.q.shape, "q");
        Sequences of_q = sequences_of("q", args.q, "cu_seqlens_q", options.cu_seqlens_q);
        append.rows_q = of_q.rows;
        append.starts_q = std::move(of_q.starts);
        if (of_q.batch != new_rows.batch) {
            throw Error(
                fmt::format("q has {} sequences but k has {}; they must be equal.", of_q.batch, new_rows.batch));
        }
    }

    if (!args.q && options.cu_seqlens_q) {
        throw Error("cu_seqlens_q was given without q; it says where the sequences of q begin.");
    }

    Problem& cache = append.cache;
    cache.options = options;
    cache.options.cu_seqlens_q = cache.options.cu_seqlens_k = {};
    cache.k = k;
    cache.v = has_v ? v : k; // else nobody reads it
    cache.dtype = dtype;
    cache.batch = new_rows.batch;
    cache.heads_q = cache.heads_kv = k.shape[2];
    cache.head_dim = k.shape[3];
    cache.head_dim_v = has_v ? v.shape[3] : 0;
    if (!options.cache_seqlens && !options.kv_last_page_len) {
        throw Error("cache_seqlens was not given; append() needs the lengths of the sequences, from cache_seqlens or "
                    "kv_last_page_len.");
    }
    check_taken(options, is_quantised);
    return append;
}

/// Rows of a page that a sequence writes.
struct Written {
    std::int64_t page = 0, first = 0, sequence = 0;
};

/// The first new row's place of each sequence, with everything checked that places depend on.
void place_rows(AppendProblem& append)
{
    const Problem& problem = append.cache;
    const Options& options = problem.options;
    const KeyCache cache(problem);
    const CacheScales scales(problem);
    const std::int64_t page_rows = cache.page_rows();
    const std::int64_t positions = append.args.rotary.cos ? append.args.rotary.cos.shape[0] : most_rows + 1;
    const char* const table = options.kv_indices          ? "kv_indices"
                              : options.block_table       ? "block_table"
                              : options.cache_batch_index ? "cache_batch_index"
                                                          : "k_cache";
    const auto rows_of = [](const std::vector<std::int32_t>& starts, std::int64_t rows, std::int64_t b) {
        const auto i = static_cast<std::size_t>(b);
        return starts.empty() ? rows : std::int64_t{starts[i + 1]} - starts[i];
    };
    std::vector<Written> written;
    for (std::int64_t b = 0; b < problem.batch; ++b) {
        const std::int64_t rows = rows_of(append.starts_k, append.rows, b);
        const std::int64_t place = cache.length(b) - (options.kv_indices ? rows : 0);
        const std::int64_t room = cache.pages_of(b) * page_rows;
        if (place < 0) {
            throw Error(fmt::format("k has {} new rows for sequence {}, but kv_last_page_len and kv_indptr give the "
                                    "sequence {} in all; allowed are as many or fewer.",
                                    rows, b, cache.length(b)));
        }
        if (place + rows > room) {
            throw Error(
                fmt::format("k has {} new rows for sequence {}, which has {} of the {} rows of its cache; allowed "
                            "are {}.",
                            rows, b, place, room, room - place));
        }
        const std::int64_t rows_q = append.args.q ? rows_of(append.starts_q, append.rows_q, b) : 0;
        if (std::max(rows, rows_q) > 0 && place + std::max(rows, rows_q) > positions) {
            throw Error(fmt::format("rotary_cos has {} positions, but sequence {} needs {}; there must be as many or "
                                    "more.",
                                    positions, b, place + std::max(rows, rows_q)));
        }
        append.places.push_back(static_cast<std::int32_t>(place));
        for (std::int64_t row = place; row < place + rows; row += page_rows - row % page_rows) {
            const std::int64_t page = cache.page(b, row / page_rows);
            if (page < 0 || page >= problem.k.shape[0]) {
                throw Error(fmt::format("{} is {} for page {} of sequence {}, where new rows go; allowed are 0 to {}.",
                                        table, page, row / page_rows, b, problem.k.shape[0] - 1));
            }
            written.push_back({page, row % page_rows, b});
            scales.check_page(page);
        }
    }
    std::sort(written.begin(), written.end(), [](const Written& a, const Written& b) { return a.page < b.page; });
    for (std::size_t i = 1; i < written.size(); ++i) {
        if (written[i].page == written[i - 1].page) {
            throw Error(fmt::format("{} gives page {} to sequences {} and {}, which both append to it; a page that is "
                                    "appended to must belong to one sequence, once.",
                                    table, written[i].page, written[i - 1].sequence, written[i].sequence));
        }
    }
    for (std::int64_t b = 0; b < problem.batch && !written.empty(); ++b) {
        const std::int64_t length = append.places[static_cast<std::size_t>(b)];
        for (std::int64_t n = 0; n * page_rows < length; ++n) {
            const std::int64_t page = cache.page(b, n);
            const auto at = std::lower_bound(written.begin(), written.end(), page,
                                             [](const Written& a, std::int64_t number) { return a.page < number; });
            const bool is_read = at != written.end() && at->page == page && at->first < length - n * page_rows;
            if (is_read) {
                throw Error(
                    fmt::format("{} gives page {} to sequence {}, which appends to it, and to sequence {}, which "
                                "has keys there; a page that is appended to must belong to one sequence.",
                                table, page, at->sequence, b));
            }
        }
    }
}

void check_memory_shared(const AppendArgs& args, const Options& options)
{
    std::vector<Named> inputs{
        {"k", args.k}, {"v", args.v}, {"q", args.q}, {"rotary_cos", args.rotary.cos}, {"rotary_sin", args.rotary.sin}};
    for (const TensorOption& option : tensor_options) {
        inputs.emplace_back(option.name, options.*option.member);
    }
    const std::array<Named, 3> outputs{Named{"k_cache", args.k_cache}, Named{"v_cache", args.v_cache},
                                       Named{"q_out", args.q_out}};
    for (std::size_t i = 0; i < outputs.size(); ++i) {
        const auto& name = outputs.at(i).first; // not a binding, which clang 14 lets no lambda capture
        const auto& view = outputs.at(i).second;
        if (!view) {
            continue;
        }
        check_no_self_overlap(name, view);
        const bool is_q = view.data == args.q.data && view.strides == args.q.strides; // turned where it is
        const auto refuse = [&](const Named& other) {
            if (other.second && overlap(view, other.second)) {
                throw Error(fmt::format("{} overlaps {} in memory; they must not share memory.", name, other.first));
            }
        };
        for (const Named& input : inputs) {
            const bool is_same_q = is_q && std::string_view(name) == "q_out" && std::string_view(input.first) == "q";
            if (!is_same_q) {
                refuse(input);
            }
        }
        for (std::size_t j = 0; j < i; ++j) {
            refuse(outputs.at(j));
        }
    }
}

} // namespace

Report append(const AppendArgs& args, const Options& options)
{
    check_choice(options);
    if (options.backend == Backend::reference) {
        throw Error("backend was reference, which computes attention alone; allowed are auto, openmp and cuda.");
    }
    AppendProblem problem = problem_of(args, options);
    check_cache(problem.cache);
    for (const TensorOption& option : tensor_options) {
        if ((option.is_of_cache || option.is_also_of_cache) && options.*option.member) {
            check_tensor_option(option, problem.cache);
        }
    }
    check_memory_shared(args, options);
    check_cache_values(problem.cache);
    place_rows(problem);
    return run_append(problem);
}

} // namespace flashomp
