// One attention problem by its sizes alone, and the name that says them all.
#pragma once

#include "algorithm/mask.hpp"
#include "problem.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace flashomp::cost {

/// Sizes of q [batch, seqlen_q, heads_q, head_dim], k and v [batch, seqlen_k, heads_kv, head_dim and head_dim_v].
struct Shape {
    std::int64_t batch = 1, heads_q = 1, heads_kv = 1, seqlen_q = 1, seqlen_k = 1, head_dim = 64, head_dim_v = 64;
    Causal causal = Causal::none;
    Window window = {};
    std::int64_t softcap = 0; ///< 0 is off
    bool alibi = false;       ///< slopes of each head, as ALiBi's authors have them
    bool bias = false;        ///< of all pairs of each head, in q's dtype, the same for all sequences
    bool dbias = false;       ///< backward computes the gradient of the bias, too
    int dropout_percent = 0;  ///< 0 is off
    bool sink = false;        ///< an extra logit for each head in the denominator
    bool latent = false;      ///< v is a view of k's first head_dim_v columns: multi-head latent attention
    int blocks_percent = 0;   ///< blocks of 128 x 128 pairs that a random block mask keeps, in percent; 0: no mask
    bool packed = false; ///< sequence i of the batch has the first ceil(seqlen·(i + 1)/batch) rows, without padding

    std::int64_t page_size = 0; ///< of a cache whose pages k and v are, forward alone; 0: they are tensors
    /// Of k and v, where they are a cache of 8 bits, forward alone.
    std::optional<DType> cache_dtype = {};

    // Not in the name.
    std::string_view model = {}; ///< whose shape it is: "Llama 3 8B, prefill"
    bool forward_alone = false;  ///< what it is from has no backward pass

    /// "b2_h16kv4_n4096_d128_causal": what parse_shape() reads, with what equals the plain square case left out.
    [[nodiscard]] std::string name() const;

    /// Whether k and v are a key/value cache, which has no gradients.
    [[nodiscard]] bool is_cache() const { return page_size > 0 || cache_dtype.has_value(); }

    /// Rows of q, and of k and v, over all sequences.
    [[nodiscard]] std::int64_t rows_q() const;
    [[nodiscard]] std::int64_t rows_k() const;

    /// Lengths of all sequences, one by one.
    [[nodiscard]] std::vector<std::int64_t> lengths_q() const;
    [[nodiscard]] std::vector<std::int64_t> lengths_k() const;
};

/// Sequences of a shape that have the same lengths (all of them, unless packed: a large batch costs nothing), and which
/// of their pairs the masks keep.
struct Sequences {
    double count = 1;
    offload::Band band;
};
[[nodiscard]] std::vector<Sequences> sequences_of(const Shape& shape);

/// The grammar of names, for messages and --help.
inline constexpr std::string_view shape_grammar =
    "bBATCH_hHEADS[kvHEADS]_nSEQLEN[xSEQLEN_K]_dHEAD_DIM[vHEAD_DIM_V][_latent][_causal|_topleft]"
    "[_window[LEFT][xRIGHT]][_softcapC][_alibi][_bias|_dbias][_dropoutPERCENT][_sink][_blocksPERCENT]"
    "[_varlen|[_pageSIZE][_float8|_int8]], such as "
    "b2_h16kv4_n4096_d128_causal";

/// The shape of a name. Throws Error when it is none or its sizes are not allowed.
[[nodiscard]] Shape parse_shape(const std::string& text);

/// The shapes of a file or pipe: one name a line, # starts a comment. Throws Error naming the line that is no shape,
/// and when there is more than 1 MiB of them.
[[nodiscard]] std::vector<Shape> read_shapes(const std::string& path);

/// The slopes of ALiBi's heads (Press et al. 2022, section 3): 2^(-8/heads), that squared and so on.
[[nodiscard]] std::vector<float> alibi_slopes(std::int64_t heads);

/// The block mask of the shape: whole blocks drawn at random, always the same; none without blocks_percent.
[[nodiscard]] BlockMask block_mask_of(const Shape& shape);

/// The problem without data, contiguous: enough for plan(). The shape's masks replace those of
/// `options`, and so do its softcap, ALiBi, bias, dropout and sinks where it has them.
[[nodiscard]] Problem problem_of(const Shape& shape, DType dtype, bool backward, const Options& options);

} // namespace flashomp::cost
