// Every option that says what a call computes, once. Validation, overlap checks, the choice of kernels, files,
// cases.json, the command line and its reports take from these lists what they need; tests hold each option to all of
// them (docs/adding_an_option.md).
#pragma once

#include "problem.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace flashomp {

/// What an axis of an option's tensor counts. `boundaries` are one more than the sequences.
/// Those of `pages` are of the caller's choice.
enum class Axis : std::uint8_t { batch, heads_q, heads_kv, seqlen_q, seqlen_k, boundaries, pages };

/// The gradient of an option's tensor, which has its shape and dtype. `name` is null where there is none.
struct OptionGradient {
    const char* name = nullptr; ///< in messages, files and cases.json
    TensorView BackwardArgs::*given = nullptr;
    TensorView Problem::*kept = nullptr;

    [[nodiscard]] constexpr explicit operator bool() const { return name != nullptr; }
};

/// An option that is a tensor.
struct TensorOption {
    const char* name; ///< in Options, messages, files and cases.json
    ConstTensorView Options::*member;
    const char* flag;    ///< on the command line
    const char* meaning; ///< in the command line's help, after dtype and shape
    DType dtype;
    int rank;
    std::array<Axis, 4> axes;
    bool may_have_dtype_of_q = false;
    bool may_have_batch = false;    ///< before the other axes
    bool may_broadcast = false;     ///< each extent may be 1
    bool may_be_bits = false;       ///< 8 of the last axis to a byte (DType::bits); and strides may be any
    bool is_float8_only = false;    ///< for q, k and v of float8_e4m3, and so for the forward pass
    bool is_also_of_cache = false;  ///< and for a cache of 8 bits, whose pages, or sequences, are its batch then
    bool is_of_cache = false;       ///< says where the keys of a cache are, and so for the forward pass
    bool modifies_scores = false;   ///< more than a mask and a positive scale: see modifies_scores()
    bool tells_heads_apart = false; ///< scores of the query heads that share a key head differ by more than queries
    OptionGradient gradient = {};
};

inline constexpr auto tensor_options = [] {
    using enum Axis;
    return std::array<TensorOption, 16>{{
        {.name = "alibi_slopes",
         .member = &Options::alibi_slopes,
         .flag = "--alibi",
         .meaning = "ALiBi, s -= slope*|i + Nk - Nq - j|",
         .dtype = DType::float32,
         .rank = 1,
         .axes = {heads_q},
         .may_have_batch = true,
         .modifies_scores = true,
         .tells_heads_apart = true},
        {.name = "bias",
         .member = &Options::bias,
         .flag = "--bias",
         .meaning = "s += bias",
         .dtype = DType::float32,
         .rank = 4,
         .axes = {batch, heads_q, seqlen_q, seqlen_k},
         .may_have_dtype_of_q = true,
         .may_broadcast = true,
         .modifies_scores = true,
         .tells_heads_apart = true,
         .gradient = {"dbias", &BackwardArgs::dbias, &Problem::dbias}},
        {.name = "key_padding_mask",
         .member = &Options::key_padding_mask,
         .flag = "--key-padding-mask",
         .meaning = "false hides the key",
         .dtype = DType::boolean,
         .rank = 2,
         .axes = {batch, seqlen_k}},
        {.name = "mask",
         .member = &Options::mask,
         .flag = "--mask",
         .meaning = "false hides the pair",
         .dtype = DType::boolean,
         .rank = 4,
         .axes = {batch, heads_q, seqlen_q, seqlen_k},
         .may_broadcast = true,
         .may_be_bits = true},
        {.name = "cu_seqlens_q",
         .member = &Options::cu_seqlens_q,
         .flag = "--cu-seqlens-q",
         .meaning = "q is packed [total_q, Hq, head_dim]",
         .dtype = DType::int32,
         .rank = 1,
         .axes = {boundaries}},
        {.name = "cu_seqlens_k",
         .member = &Options::cu_seqlens_k,
         .flag = "--cu-seqlens-k",
         .meaning = "k and v are packed [total_k, Hkv, ...]",
         .dtype = DType::int32,
         .rank = 1,
         .axes = {boundaries}},
        {.name = "sink",
         .member = &Options::sink,
         .flag = "--sink",
         .meaning = "a logit in the denominator only",
         .dtype = DType::float32,
         .rank = 1,
         .axes = {heads_q},
         .gradient = {"dsink", &BackwardArgs::dsink, &Problem::dsink}},
        {.name = "q_scale",
         .member = &Options::q_scale,
         .flag = "--q-scale",
         .meaning = "factors of a float8_e4m3 q",
         .dtype = DType::float32,
         .rank = 1,
         .axes = {heads_q},
         .may_have_batch = true,
         .is_float8_only = true,
         .tells_heads_apart = true},
        {.name = "k_scale",
         .member = &Options::k_scale,
         .flag = "--k-scale",
         .meaning = "factors of a k of 8 bits",
         .dtype = DType::float32,
         .rank = 1,
         .axes = {heads_kv},
         .may_have_batch = true,
         .is_float8_only = true,
         .is_also_of_cache = true},
        {.name = "v_scale",
         .member = &Options::v_scale,
         .flag = "--v-scale",
         .meaning = "factors of a v of 8 bits",
         .dtype = DType::float32,
         .rank = 1,
         .axes = {heads_kv},
         .may_have_batch = true,
         .is_float8_only = true,
         .is_also_of_cache = true},
        {.name = "cache_seqlens",
         .member = &Options::cache_seqlens,
         .flag = "--cache-seqlens",
         .meaning = "keys of each sequence in its cache",
         .dtype = DType::int32,
         .rank = 1,
         .axes = {batch},
         .is_of_cache = true},
        {.name = "cache_batch_index",
         .member = &Options::cache_batch_index,
         .flag = "--cache-batch-index",
         .meaning = "which cache [caches, Nk, ...] each sequence has",
         .dtype = DType::int32,
         .rank = 1,
         .axes = {batch},
         .is_of_cache = true},
        {.name = "block_table",
         .member = &Options::block_table,
         .flag = "--block-table",
         .meaning = "k and v are pages [pages, page_size, Hkv, ...], these each sequence's",
         .dtype = DType::int32,
         .rank = 2,
         .axes = {batch, pages},
         .is_of_cache = true},
        {.name = "kv_indptr",
         .member = &Options::kv_indptr,
         .flag = "--kv-indptr",
         .meaning = "where each sequence's pages begin in kv_indices",
         .dtype = DType::int32,
         .rank = 1,
         .axes = {boundaries},
         .is_of_cache = true},
        {.name = "kv_indices",
         .member = &Options::kv_indices,
         .flag = "--kv-indices",
         .meaning = "pages of all sequences, one after the other",
         .dtype = DType::int32,
         .rank = 1,
         .axes = {pages},
         .is_of_cache = true},
        {.name = "kv_last_page_len",
         .member = &Options::kv_last_page_len,
         .flag = "--kv-last-page-len",
         .meaning = "rows in use of each sequence's last page",
         .dtype = DType::int32,
         .rank = 1,
         .axes = {batch},
         .is_of_cache = true},
    }};
}();

/// Whether the option says where packed sequences begin: plan() reads its values.
[[nodiscard]] constexpr bool is_boundaries(const TensorOption& option)
{
    return option.axes[0] == Axis::boundaries && !option.is_of_cache;
}

/// Whether the host reads the values of the tensor with this name, on whatever hardware the call runs.
[[nodiscard]] bool is_read_on_host(std::string_view name);

/// Whether k and v are a cache, which options or 8 bits make them, and whether a table says where the keys of its
/// sequences are.
[[nodiscard]] bool is_cache(const Problem& problem);
[[nodiscard]] inline bool has_pages(const Options& options)
{
    return options.block_table || options.kv_indices || options.cache_batch_index;
}

/// "float32 [Hq] or [B, Hq]", as in documentation.
[[nodiscard]] std::string shape_words(const TensorOption& option);

/// An option that is a number.
struct NumberOption {
    const char* name; ///< in Options, messages and cases.json
    const char* flag; ///< on the command line
    const char* placeholder;
    const char* meaning;                            ///< in the command line's help
    std::optional<double> (*value)(const Options&); ///< none: the default, which depends on the shape
    void (*set)(Options&, double);
    std::optional<double> off; ///< the default
    bool (*is_allowed)(double);
    const char* allowed; ///< "it must be ..."
    bool (*modifies_scores)(double);
};

inline constexpr double most_scale = 2.35e38; ///< kernels multiply with log2 e
/// A cap from here on changes no float score, and as a float it might be infinite: it counts as none.
inline constexpr double no_softcap = 1e30;

/// Whether kernels, which compute in float32, have the number: beyond its range it would be infinite there, and below
/// it 0, which means another thing (a softcap of 0 is off).
[[nodiscard]] bool fits_float32(double value);

inline constexpr std::array<NumberOption, 2> number_options{{
    {.name = "scale",
     .flag = "--scale",
     .placeholder = "X",
     .meaning = "factor on q.k (default 1/sqrt(head_dim))",
     .value = [](const Options& options) { return options.scale; },
     .set = [](Options& options, double value) { options.scale = value; },
     .off = {},
     .is_allowed = [](double value) { return fits_float32(value) && value <= most_scale && value >= -most_scale; },
     .allowed = "0, or 1.2e-38 to 2.35e+38 in size, so that it and its product with log2(e) are float32 numbers",
     // Turned round, the largest dot product would not be the largest logit.
     .modifies_scores = [](double value) { return value <= 0.0; }},
    {.name = "softcap",
     .flag = "--softcap",
     .placeholder = "C",
     .meaning = "s = C*tanh(s/C) for C > 0 (default 0: off)",
     .value = [](const Options& options) { return std::optional(options.softcap); },
     .set = [](Options& options, double value) { options.softcap = value; },
     .off = 0.0,
     .is_allowed = [](double value) { return fits_float32(value) && value >= 0.0; },
     .allowed = "0 (off), or 1.2e-38 to 3.4e+38, as float32 has it",
     .modifies_scores = [](double value) { return value > 0.0 && value < no_softcap; }},
}};

/// Options of more than one number or word. Each user of the lists reads them in its own way.
inline constexpr std::array<const char*, 3> other_options{"causal", "window", "dropout"};

/// Options that only programs can give: neither files nor the command line have them.
inline constexpr std::array<const char*, 5> program_options{"block_mask", "positions_q", "positions_k",
                                                            "first_sequence", "first_head"};

/// Whether probabilities are more than the softmax of dot products under a mask and a positive scale. Plans and the
/// choice of kernels ask this and nothing else.
[[nodiscard]] bool modifies_scores(const Options& options);

/// Whether the call has a mask of any shape: mask or block_mask.
[[nodiscard]] bool has_pair_mask(const Options& options);

/// Whether q, or k and v, are some rows of a longer sequence.
[[nodiscard]] bool has_positions(const Options& options);

/// Whether the rows of either stand in two stretches with a gap between them.
[[nodiscard]] bool has_seam(const Options& options);

/// Whether scores of the query heads that share a key head differ by more than their queries.
[[nodiscard]] bool tells_heads_apart(const Options& options);

} // namespace flashomp
