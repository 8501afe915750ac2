#include "shape.hpp"

#include "flashomp/error.hpp"

#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <fstream>
#include <regex>

namespace flashomp::cost {

namespace {

std::vector<std::int64_t> lengths(std::int64_t longest, const Shape& shape)
{
    std::vector<std::int64_t> all;
    for (std::int64_t i = 1; i <= shape.batch; ++i) {
        all.push_back(shape.packed ? (longest * i + shape.batch - 1) / shape.batch : longest);
    }
    return all;
}

std::vector<std::int32_t> starts(const std::vector<std::int64_t>& lengths)
{
    std::vector<std::int32_t> all{0};
    for (const std::int64_t length : lengths) {
        all.push_back(all.back() + static_cast<std::int32_t>(length));
    }
    return all;
}

void require(bool allowed, const std::string& text, std::string_view rule)
{
    if (!allowed) {
        throw Error(fmt::format("shape was '{}'; {}.", text, rule));
    }
}

} // namespace

std::string Shape::name() const
{
    std::string text = fmt::format("b{}_h{}", batch, heads_q);
    text += heads_kv == heads_q ? "" : fmt::format("kv{}", heads_kv);
    text += seqlen_q == seqlen_k ? fmt::format("_n{}", seqlen_q) : fmt::format("_n{}x{}", seqlen_q, seqlen_k);
    text += head_dim == head_dim_v ? fmt::format("_d{}", head_dim) : fmt::format("_d{}v{}", head_dim, head_dim_v);
    text += causal == Causal::none ? "" : causal == Causal::top_left ? "_topleft" : "_causal";
    return text + (packed ? "_varlen" : "");
}

std::vector<std::int64_t> Shape::lengths_q() const
{
    return lengths(seqlen_q, *this);
}

std::vector<std::int64_t> Shape::lengths_k() const
{
    return lengths(seqlen_k, *this);
}

Shape parse_shape(const std::string& text)
{
    static const std::regex grammar(
        R"(b(\d{1,9})_h(\d{1,9})(?:kv(\d{1,9}))?_n(\d{1,10})(?:x(\d{1,10}))?_d(\d{1,3})(?:v(\d{1,3}))?(_causal|_topleft)?(_varlen)?)");
    std::smatch words;
    require(std::regex_match(text, words, grammar), text, fmt::format("allowed is {}", shape_grammar));
    const auto number = [&](std::size_t word, std::int64_t otherwise) {
        return words[word].matched ? std::stoll(words[word].str()) : otherwise;
    };
    Shape s;
    s.batch = number(1, 1);
    s.heads_q = number(2, 1);
    s.heads_kv = number(3, s.heads_q);
    s.seqlen_q = number(4, 1);
    s.seqlen_k = number(5, s.seqlen_q);
    s.head_dim = number(6, 1);
    s.head_dim_v = number(7, s.head_dim);
    if (words[8].matched) {
        s.causal = words[8].str() == "_causal" ? Causal::bottom_right : Causal::top_left;
    }
    s.packed = words[9].matched;

    constexpr std::int64_t longest = std::int64_t{1} << 30;
    require(s.batch >= 1 && s.batch <= longest && s.seqlen_q >= 1 && s.seqlen_q <= longest && s.seqlen_k >= 1 &&
                s.seqlen_k <= longest,
            text, "allowed are a batch and sequence lengths of 1 to 2^30");
    require(s.heads_kv >= 1 && s.heads_q <= (1 << 20) && s.heads_q >= 1 && s.heads_q % s.heads_kv == 0, text,
            "allowed are 1 to 2^20 heads, those of queries a multiple of those of keys");
    require(s.head_dim >= 1 && s.head_dim <= 256 && s.head_dim_v >= 1 && s.head_dim_v <= 256, text,
            "allowed are head dims of 1 to 256");
    // Offsets of packed sequences are int32.
    require(!s.packed || s.batch * std::max(s.seqlen_q, s.seqlen_k) <= 2 * longest - 1, text,
            "packed sequences may have at most 2^31 - 1 rows in all");
    return s;
}

std::vector<Shape> read_shapes(const std::string& path)
{
    std::ifstream file(path);
    if (!file) {
        throw Error(fmt::format("shapes file {} cannot be read; it must exist.", path));
    }
    std::vector<Shape> shapes;
    std::string line;
    for (int number = 1; std::getline(file, line); ++number) {
        line = line.substr(0, line.find('#'));
        line.erase(line.find_last_not_of(" \t\r") + 1);
        line.erase(0, line.find_first_not_of(" \t"));
        if (line.empty()) {
            continue;
        }
        try {
            shapes.push_back(parse_shape(line));
        } catch (const Error& error) {
            throw Error(fmt::format("{}:{}: {}", path, number, error.what()));
        }
    }
    return shapes;
}

Problem problem_of(const Shape& s, DType dtype, bool backward, const Options& choice)
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
    p.scale = 1.0 / std::sqrt(static_cast<double>(s.head_dim));
    p.causal = s.causal;
    p.choice = choice;
    p.is_backward = backward;
    if (s.packed) {
        p.starts_q = starts(s.lengths_q());
        p.starts_k = starts(s.lengths_k());
    }
    const auto view = [&](std::int64_t length, const std::vector<std::int32_t>& offsets, std::int64_t heads,
                          std::int64_t depth) {
        return s.packed ? TensorView::contiguous(nullptr, dtype, {offsets.back(), heads, depth})
                        : TensorView::contiguous(nullptr, dtype, {s.batch, length, heads, depth});
    };
    p.q = view(s.seqlen_q, p.starts_q, s.heads_q, s.head_dim);
    p.k = view(s.seqlen_k, p.starts_k, s.heads_kv, s.head_dim);
    p.v = view(s.seqlen_k, p.starts_k, s.heads_kv, s.head_dim_v);
    p.o = view(s.seqlen_q, p.starts_q, s.heads_q, s.head_dim_v);
    p.lse = s.packed ? TensorView::contiguous(nullptr, DType::float32, {s.heads_q, p.starts_q.back()})
                     : TensorView::contiguous(nullptr, DType::float32, {s.batch, s.heads_q, s.seqlen_q});
    return p;
}

} // namespace flashomp::cost
