#include "suites.hpp"

#include "models.hpp"

#include "flashomp/error.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace flashomp::bench {

namespace {

using cost::Shape;

Shape square(std::int64_t batch, std::int64_t heads_q, std::int64_t heads_kv, std::int64_t seqlen, std::int64_t depth,
             bool causal)
{
    Shape shape{batch, heads_q, heads_kv, seqlen, seqlen, depth, depth};
    shape.causal = causal ? Causal::bottom_right : Causal::none;
    return shape;
}

/// The grid of the FlashAttention papers: 16384 tokens, 2048 numbers a token.
std::vector<Shape> fa2()
{
    std::vector<Shape> shapes;
    for (const std::int64_t depth : {64, 128, 256}) {
        for (const bool causal : {false, true}) {
            for (std::int64_t n = 512; n <= 16384; n *= 2) {
                shapes.push_back(square(16384 / n, 2048 / depth, 2048 / depth, n, depth, causal));
            }
        }
    }
    return shapes;
}

/// Batch 4, 16 heads of 64, each with its own keys and all with the same.
std::vector<Shape> repro()
{
    std::vector<Shape> shapes;
    for (const std::int64_t heads_kv : {16, 1}) {
        for (const bool causal : {false, true}) {
            for (std::int64_t n = 512; n <= 16384; n *= 2) {
                shapes.push_back(square(4, 16, heads_kv, n, 64, causal));
            }
        }
    }
    return shapes;
}

/// One new token against a cache of keys, 32 query heads on 8 key heads.
std::vector<Shape> decode()
{
    std::vector<Shape> shapes;
    for (const std::int64_t batch : {1, 16}) {
        for (std::int64_t n = 1024; n <= 65536; n *= 4) {
            Shape shape = square(batch, 32, 8, n, 128, false);
            shape.seqlen_q = 1;
            shapes.push_back(shape);
        }
    }
    return shapes;
}

/// The same from pages of a cache, and from tensors of as many keys for comparison.
std::vector<Shape> cache()
{
    std::vector<Shape> shapes;
    for (const auto& [batch, keys] : {std::pair{1, 65536}, std::pair{8, 8192}, std::pair{64, 1024}}) {
        for (const std::int64_t page_size : {0, 1, 16, 64, 256}) {
            Shape shape = square(batch, 32, 8, keys, 128, false);
            shape.seqlen_q = 1;
            shape.page_size = page_size;
            shapes.push_back(shape);
        }
    }
    return shapes;
}

/// DeepSeek's multi-head latent attention as it decodes: 128 query heads on one latent row a key, whose first 512 of
/// 576 columns are its value, too.
std::vector<Shape> mla()
{
    std::vector<Shape> shapes;
    for (const std::int64_t batch : {1, 16, 64}) {
        for (std::int64_t n = 1024; n <= 16384; n *= 2) {
            Shape shape = square(batch, 128, 1, n, 576, false);
            shape.seqlen_q = 1;
            shape.head_dim_v = 512;
            shape.latent = true;
            shapes.push_back(shape);
        }
    }
    return shapes;
}

/// Eight packed sequences whose lengths climb to N.
std::vector<Shape> varlen()
{
    std::vector<Shape> shapes;
    for (const std::int64_t depth : {64, 128}) {
        for (const bool causal : {false, true}) {
            for (const std::int64_t n : {1024, 4096}) {
                Shape shape = square(8, 16, 16, n, depth, causal);
                shape.packed = true;
                shapes.push_back(shape);
            }
        }
    }
    return shapes;
}

/// 8 heads of 64, 4096 queries and keys: without a mask, and under block masks that keep ever fewer blocks.
std::vector<Shape> density()
{
    std::vector<Shape> shapes;
    for (const int percent : {0, 100, 75, 50, 25, 10, 5, 2}) {
        Shape shape = square(1, 8, 8, 4096, 64, false);
        shape.blocks_percent = percent;
        shapes.push_back(shape);
    }
    return shapes;
}

/// Batch 4, N 4096, heads·head_dim = 2048: scores as they are, and with each thing that modifies them; and of batch 1
/// as they are and with the gradient of a bias.
std::vector<Shape> modified()
{
    std::vector<Shape> shapes;
    for (const std::int64_t depth : {64, 128, 256}) {
        for (const bool causal : {false, true}) {
            const std::string plain = square(4, 2048 / depth, 2048 / depth, 4096, depth, causal).name();
            for (const char* const by : {"", "_softcap50", "_alibi", "_bias", "_dropout10"}) {
                shapes.push_back(cost::parse_shape(plain + by));
            }
        }
        const std::string one = square(1, 2048 / depth, 2048 / depth, 4096, depth, false).name();
        shapes.push_back(cost::parse_shape(one));
        shapes.push_back(cost::parse_shape(one + "_dbias"));
    }
    return shapes;
}

/// Seconds on two cores, and one of everything.
std::vector<Shape> quick()
{
    std::vector<Shape> shapes;
    for (const std::int64_t n : {512, 1024, 2048}) {
        shapes.push_back(square(1, 4, 4, n, 64, false));
    }
    for (const char* const name :
         {"b1_h4_n1024_d64_causal", "b1_h4kv1_n1024_d128", "b1_h8kv2_n1x4096_d128", "b4_h4_n512_d64_causal_varlen"}) {
        shapes.push_back(cost::parse_shape(name));
    }
    return shapes;
}

} // namespace

const std::vector<Suite>& suites()
{
    static const std::vector<Suite> all{
        {"fa2", "the papers' grid: batch·N = 16384, heads·head_dim = 2048, head_dim 64, 128, 256", false, fa2()},
        {"repro", "batch 4, 16 heads of 64, MHA and MQA, beside standard attention", true, repro()},
        {"decode", "one query against 1024 to 65536 keys, 32 heads on 8", false, decode()},
        {"cache", "one query each of 1 to 64 sequences, from tensors and from pages of 1 to 256 rows", false, cache()},
        {"mla", "one query against 1024 to 16384 latent rows, 128 heads on 1, head dims 576 and 512", false, mla()},
        {"varlen", "eight packed sequences", false, varlen()},
        {"models", "layers of models of 2024 to 2026: prefill, decoding and training steps", false, models()},
        {"density", "block masks that keep 100 to 2 percent of the blocks of 128 x 128 pairs", false, density()},
        {"modified", "softcap, ALiBi, bias and dropout beside scores as they are, batch 4, N 4096", false, modified()},
        {"quick", "seconds on two cores, beside standard attention", true, quick()},
    };
    return all;
}

const Suite& find_suite(const std::string& name)
{
    std::string names;
    for (const Suite& suite : suites()) {
        if (suite.name == name) {
            return suite;
        }
        names += (names.empty() ? "" : ", ") + std::string(suite.name);
    }
    throw Error(fmt::format("suite was '{}'; allowed is one of {}.", name, names));
}

} // namespace flashomp::bench
