#include "shape.hpp"

#include "masks.hpp"
#include "printable.hpp"

#include "flashomp/error.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <fstream>
#include <istream>
#include <numeric>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

namespace flashomp::cost {

namespace {

std::vector<std::int64_t> lengths(std::int64_t longest, const Shape& shape)
{
    std::vector<std::int64_t> all;
    if (!shape.packed) {
        all.assign(static_cast<std::size_t>(shape.batch), longest);
        return all;
    }
    for (std::int64_t i = 1; i <= shape.batch; ++i) {
        all.push_back((longest * i + shape.batch - 1) / shape.batch);
    }
    return all;
}

std::int64_t rows(std::int64_t longest, const Shape& shape)
{
    if (!shape.packed) {
        return shape.batch * longest;
    }
    const std::vector<std::int64_t> all = lengths(longest, shape);
    return std::accumulate(all.begin(), all.end(), std::int64_t{0});
}

std::vector<std::int32_t> starts(const std::vector<std::int64_t>& lengths)
{
    std::vector<std::int32_t> all{0};
    for (const std::int64_t length : lengths) {
        all.push_back(all.back() + static_cast<std::int32_t>(length));
    }
    return all;
}

/// A name, read from left to right.
struct Words {
    std::string_view rest;
    bool fit = true; ///< with the grammar so far

    [[nodiscard]] bool starts_with(std::string_view word) const { return rest.starts_with(word); }

    bool take(std::string_view word)
    {
        const bool is_there = starts_with(word);
        rest.remove_prefix(is_there ? word.size() : 0);
        return is_there;
    }

    /// The number that stands after `word`; 0, and no fit, where there is none.
    std::int64_t number_after(std::string_view word)
    {
        std::int64_t value = 0;
        const bool has_digits = take(word) && !rest.empty() && rest.front() >= '0' && rest.front() <= '9';
        const auto [stop, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
        fit = fit && has_digits && error == std::errc();
        rest.remove_prefix(static_cast<std::size_t>(stop - rest.data()));
        return fit ? value : 0;
    }
};

void require(bool allowed, const std::string& text, std::string_view rule)
{
    if (!allowed) {
        constexpr std::size_t longest_shown = 100; // every name is shorter
        throw Error(fmt::format("shape was '{}'; {}.", printable(text, longest_shown), rule));
    }
}

/// All that a stream holds, but not more than `most` bytes and one.
std::string beginning_of(std::istream& stream, std::size_t most)
{
    std::string text(most + 1, '\0');
    stream.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<std::size_t>(stream.gcount()));
    return text;
}

} // namespace

std::string Shape::name() const
{
    std::string text = fmt::format("b{}_h{}", batch, heads_q);
    text += heads_kv == heads_q ? "" : fmt::format("kv{}", heads_kv);
    text += seqlen_q == seqlen_k ? fmt::format("_n{}", seqlen_q) : fmt::format("_n{}x{}", seqlen_q, seqlen_k);
    text += head_dim == head_dim_v ? fmt::format("_d{}", head_dim) : fmt::format("_d{}v{}", head_dim, head_dim_v);
    text += latent ? "_latent" : "";
    text += causal == Causal::none ? "" : causal == Causal::top_left ? "_topleft" : "_causal";
    if (window != Window{}) {
        text += "_window" + (window.left >= 0 ? std::to_string(window.left) : "");
        text += window.right >= 0 ? fmt::format("x{}", window.right) : "";
    }
    text += softcap > 0 ? fmt::format("_softcap{}", softcap) : "";
    text += alibi ? "_alibi" : "";
    text += dbias ? "_dbias" : bias ? "_bias" : "";
    text += dropout_percent > 0 ? fmt::format("_dropout{}", dropout_percent) : "";
    text += sink ? "_sink" : "";
    text += blocks_percent > 0 ? fmt::format("_blocks{}", blocks_percent) : "";
    text += packed ? "_varlen" : "";
    text += page_size > 0 ? fmt::format("_page{}", page_size) : "";
    return text + (cache_dtype ? (*cache_dtype == DType::int8 ? "_int8" : "_float8") : "");
}

std::int64_t Shape::rows_q() const
{
    return rows(seqlen_q, *this);
}

std::int64_t Shape::rows_k() const
{
    return rows(seqlen_k, *this);
}

std::vector<std::int64_t> Shape::lengths_q() const
{
    return lengths(seqlen_q, *this);
}

std::vector<std::int64_t> Shape::lengths_k() const
{
    return lengths(seqlen_k, *this);
}

std::vector<Sequences> sequences_of(const Shape& shape)
{
    Problem masks;
    masks.options.causal = shape.causal;
    masks.options.window = shape.window;
    const auto band = [&](std::int64_t q_len, std::int64_t k_len) {
        return band_of(masks, static_cast<int>(q_len), static_cast<int>(k_len));
    };
    if (!shape.packed) {
        return {{static_cast<double>(shape.batch), band(shape.seqlen_q, shape.seqlen_k)}};
    }
    const std::vector<std::int64_t> q = shape.lengths_q();
    const std::vector<std::int64_t> k = shape.lengths_k();
    std::vector<Sequences> all;
    for (std::size_t i = 0; i < q.size(); ++i) {
        all.push_back({1, band(q[i], k[i])});
    }
    return all;
}

Shape parse_shape(const std::string& text)
{
    Words words{text};
    Shape s;
    s.batch = words.number_after("b");
    s.heads_q = words.number_after("_h");
    s.heads_kv = words.starts_with("kv") ? words.number_after("kv") : s.heads_q;
    s.seqlen_q = words.number_after("_n");
    s.seqlen_k = words.starts_with("x") ? words.number_after("x") : s.seqlen_q;
    s.head_dim = words.number_after("_d");
    s.head_dim_v = words.starts_with("v") ? words.number_after("v") : s.head_dim;
    s.latent = words.take("_latent");
    if (words.take("_causal")) {
        s.causal = Causal::bottom_right;
    } else if (words.take("_topleft")) {
        s.causal = Causal::top_left;
    }
    if (words.take("_window")) {
        s.window.left = words.starts_with("x") ? -1 : words.number_after("");
        s.window.right = words.starts_with("x") ? words.number_after("x") : -1;
    }
    const bool has_softcap = words.starts_with("_softcap");
    s.softcap = has_softcap ? words.number_after("_softcap") : 0;
    s.alibi = words.take("_alibi");
    s.dbias = words.take("_dbias");
    s.bias = s.dbias || words.take("_bias");
    if (words.starts_with("_dropout")) {
        const std::int64_t percent = words.number_after("_dropout");
        require(!words.fit || (percent >= 1 && percent <= 99), text, "allowed are dropouts of 1 to 99 percent");
        s.dropout_percent = static_cast<int>(percent);
    }
    s.sink = words.take("_sink");
    if (words.starts_with("_blocks")) {
        const std::int64_t percent = words.number_after("_blocks");
        require(!words.fit || (percent >= 1 && percent <= 100), text, "allowed are 1 to 100 percent of the blocks");
        s.blocks_percent = static_cast<int>(percent);
    }
    s.packed = words.take("_varlen");
    const bool has_pages = !s.packed && words.starts_with("_page");
    s.page_size = has_pages ? words.number_after("_page") : 0;
    if (!s.packed && words.take("_float8")) {
        s.cache_dtype = DType::float8_e4m3;
    } else if (!s.packed && words.take("_int8")) {
        s.cache_dtype = DType::int8;
    }
    require(words.fit && words.rest.empty(), text, fmt::format("allowed is {}", shape_grammar));

    constexpr std::int64_t longest = std::int64_t{1} << 30;
    require(s.batch >= 1 && s.batch <= longest && s.seqlen_q >= 1 && s.seqlen_q <= longest && s.seqlen_k >= 1 &&
                s.seqlen_k <= longest,
            text, "allowed are a batch and sequence lengths of 1 to 2^30");
    require(s.heads_kv >= 1 && s.heads_q <= (1 << 20) && s.heads_q >= 1 && s.heads_q % s.heads_kv == 0, text,
            "allowed are 1 to 2^20 heads, those of queries a multiple of those of keys");
    require(s.head_dim >= 1 && s.head_dim <= most_head_dim && s.head_dim_v >= 1 && s.head_dim_v <= most_head_dim_v,
            text, fmt::format("allowed are head dims of 1 to {}, those of v to {}", most_head_dim, most_head_dim_v));
    require(!s.latent || s.head_dim_v <= s.head_dim, text, "with _latent, v is at most as wide as k");
    require(!s.latent || !s.cache_dtype, text, "a cache of 8 bits is allowed without _latent");
    require(std::max(s.window.left, s.window.right) <= longest, text, "allowed are windows of at most 2^30 keys");
    require(!has_softcap || (s.softcap >= 1 && s.softcap <= longest), text, "allowed are softcaps of 1 to 2^30");
    require(!s.bias || (!s.packed && !has_pages), text, "a bias goes without packed sequences and pages");
    require(!s.dbias || s.batch == 1, text, "_dbias goes with a batch of 1");
    require(!has_pages || (s.page_size >= 1 && s.seqlen_k % s.page_size == 0), text,
            "allowed are pages of 1 row or more that divide the number of keys");
    require(!has_pages || s.batch * (s.seqlen_k / s.page_size) <= longest, text, "allowed are at most 2^30 pages");
    // Offsets of packed sequences are int32.
    constexpr std::int64_t most_packed = std::int64_t{1} << 20; // their lengths differ, so each is looked at
    require(!s.packed || s.batch <= most_packed, text, "allowed are at most 2^20 packed sequences");
    require(s.blocks_percent == 0 || (!s.packed && !has_pages && s.causal == Causal::none && s.window == Window{}),
            text, "blocks go without causal masks, windows, packed sequences and pages");
    constexpr std::int64_t most_of_mask = 1 << 18; // rows and keys, 2^22 blocks
    require(s.blocks_percent == 0 || std::max(s.seqlen_q, s.seqlen_k) <= most_of_mask, text,
            "allowed with blocks are sequence lengths to 2^18");
    require(!s.packed || s.batch * std::max(s.seqlen_q, s.seqlen_k) <= 2 * longest - 1, text,
            "packed sequences may have at most 2^31 - 1 rows in all");
    return s;
}

std::vector<Shape> read_shapes(const std::string& path)
{
    constexpr std::size_t largest = std::size_t{1} << 20;
    const std::string shown = printable(path, longest_shown_path);
    std::ifstream file(path, std::ios::binary); // a pipe is all right, so the size shows only on the way
    if (!file) {
        throw Error(fmt::format("shapes file {} cannot be read; it must exist.", shown));
    }
    std::string text = beginning_of(file, largest);
    if (file.bad() || (text.empty() && !file.eof())) {
        throw Error(fmt::format("shapes file {} cannot be read; a file of shapes is needed.", shown));
    }
    if (text.size() > largest) {
        throw Error(
            fmt::format("shapes file {} holds more than {} bytes; at most that many are allowed.", shown, largest));
    }
    std::istringstream lines(std::move(text));
    std::vector<Shape> shapes;
    std::string line;
    for (int number = 1; std::getline(lines, line); ++number) {
        line = line.substr(0, line.find('#'));
        line.erase(line.find_last_not_of(" \t\r") + 1);
        line.erase(0, line.find_first_not_of(" \t"));
        if (line.empty()) {
            continue;
        }
        try {
            shapes.push_back(parse_shape(line));
        } catch (const Error& error) {
            throw Error(fmt::format("{}:{}: {}", shown, number, error.what()));
        }
    }
    return shapes;
}

std::vector<float> alibi_slopes(std::int64_t heads)
{
    std::vector<float> slopes;
    for (std::int64_t head = 1; head <= heads; ++head) {
        slopes.push_back(std::exp2(-8.0F * static_cast<float>(head) / static_cast<float>(heads)));
    }
    return slopes;
}

BlockMask block_mask_of(const Shape& shape)
{
    if (shape.blocks_percent == 0) {
        return {};
    }
    struct RandomBlocks {
        std::int64_t blocks_k, size;
        std::uint64_t percent;

        [[nodiscard]] bool keeps(std::int64_t block_q, std::int64_t block_k) const
        {
            // SplitMix64 (Steele et al. 2014) of the block's number.
            auto x = static_cast<std::uint64_t>(block_q * blocks_k + block_k + 1) * 0x9E3779B97F4A7C15U;
            x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
            x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
            return (x ^ (x >> 31U)) % 100 < percent;
        }
        bool operator()(std::int64_t /*b*/, std::int64_t /*h*/, std::int64_t i, std::int64_t j) const
        {
            return keeps(i / size, j / size);
        }
        [[nodiscard]] BlockKind block(std::int64_t /*b*/, std::int64_t /*h*/, std::int64_t i0, std::int64_t /*i1*/,
                                      std::int64_t j0, std::int64_t /*j1*/) const
        {
            return keeps(i0 / size, j0 / size) ? BlockKind::whole : BlockKind::hidden;
        }
    };
    const BlockMaskShape of{1, 1, shape.seqlen_q, shape.seqlen_k};
    return BlockMask::from_predicate(
        of, RandomBlocks{of.blocks_k(), of.block_q, static_cast<std::uint64_t>(shape.blocks_percent)});
}

Problem problem_of(const Shape& s, DType dtype, bool backward, const Options& options)
{
    Problem p;
    p.batch = s.batch;
    p.heads_q = s.heads_q;
    p.heads_kv = s.heads_kv;
    p.seqlen_q = s.seqlen_q;
    p.seqlen_k = s.seqlen_k;
    p.head_dim = s.head_dim;
    p.head_dim_v = s.head_dim_v;
    p.dtype = dtype;
    p.options = options;
    p.options.causal = s.causal;
    p.options.window = s.window;
    if (s.softcap > 0) {
        p.options.softcap = static_cast<double>(s.softcap);
    }
    if (s.alibi) {
        p.options.alibi_slopes = TensorView::contiguous(nullptr, DType::float32, {s.heads_q});
    }
    if (s.bias) {
        p.options.bias = TensorView::contiguous(nullptr, output_type_of(dtype), {1, s.heads_q, s.seqlen_q, s.seqlen_k});
    }
    if (s.dropout_percent > 0) {
        p.options.dropout.probability = s.dropout_percent / 100.0;
    }
    if (s.sink) {
        p.options.sink = TensorView::contiguous(nullptr, DType::float32, {s.heads_q});
    }
    p.options.block_mask = block_mask_of(s);
    p.is_backward = backward;
    if (s.packed) {
        p.starts_q = starts(s.lengths_q());
        p.starts_k = starts(s.lengths_k());
    }
    const DType of_keys = s.cache_dtype.value_or(dtype);
    const auto view = [&](std::int64_t length, const std::vector<std::int32_t>& offsets, std::int64_t heads,
                          std::int64_t depth) {
        return s.packed ? TensorView::contiguous(nullptr, dtype, {offsets.back(), heads, depth})
                        : TensorView::contiguous(nullptr, dtype, {s.batch, length, heads, depth});
    };
    p.q = view(s.seqlen_q, p.starts_q, s.heads_q, s.head_dim);
    p.k = view(s.seqlen_k, p.starts_k, s.heads_kv, s.head_dim);
    p.v = view(s.seqlen_k, p.starts_k, s.heads_kv, s.head_dim_v);
    p.k.dtype = p.v.dtype = of_keys;
    if (s.page_size > 0) {
        const std::int64_t pages = s.seqlen_k / s.page_size; // of a sequence
        const auto cache = [&](std::int64_t depth) {
            return TensorView::contiguous(nullptr, of_keys, {s.batch * pages, s.page_size, s.heads_kv, depth});
        };
        p.k = cache(s.head_dim);
        p.v = cache(s.head_dim_v);
        p.options.block_table = TensorView::contiguous(nullptr, DType::int32, {s.batch, pages});
    }
    if (s.latent) { // its columns
        p.v.strides = p.k.strides;
    }
    p.o = view(s.seqlen_q, p.starts_q, s.heads_q, s.head_dim_v);
    if (backward) {
        p.dout = p.o;
        p.dq = as_result(p.q);
        p.dk = as_result(p.k);
        p.dv = as_result(view(s.seqlen_k, p.starts_k, s.heads_kv, s.head_dim_v));
        if (s.dbias) {
            p.dbias = as_result(p.options.bias);
        }
    }
    p.lse = s.packed ? TensorView::contiguous(nullptr, DType::float32, {s.heads_q, p.starts_q.back()})
                     : TensorView::contiguous(nullptr, DType::float32, {s.batch, s.heads_q, s.seqlen_q});
    return p;
}

} // namespace flashomp::cost
