#include "models.hpp"

#include <array>
#include <string_view>

namespace flashomp::bench {

namespace {

struct Layer {
    std::string_view model, shape;
    bool forward_alone;
};

// A window of N keys counts a query's own, so that N - 1 are left of it.
constexpr std::array layers{
    Layer{"Llama 3 8B, prefill", "b1_h32kv8_n4096_d128_causal", true},
    Layer{"Llama 3 8B, decode", "b16_h32kv8_n1x8192_d128_causal_page16", true},
    Layer{"Llama 3 8B, training", "b1_h32kv8_n2048_d128_causal", false},
    // A chunk of 8192 tokens sees itself alone, so that a prompt of 16384 is two sequences.
    Layer{"Llama 4, chunked, prefill", "b2_h40kv8_n8192_d128_causal", true},
    Layer{"Llama 4, global, decode", "b16_h40kv8_n1x8192_d128_causal_page16", true},
    Layer{"Llama 4, training", "b1_h40kv8_n2048_d128_causal", false},
    Layer{"Gemma 3 12B, local, prefill", "b1_h16kv8_n4096_d256_causal_window1023", true},
    Layer{"Gemma 3 12B, global, prefill", "b1_h16kv8_n4096_d256_causal", true},
    Layer{"Gemma 3 12B, local, decode", "b16_h16kv8_n1x8192_d256_causal_window1023_page16", true},
    Layer{"Gemma 3 12B, global, decode", "b16_h16kv8_n1x8192_d256_causal_page16", true},
    Layer{"Gemma 3 12B, local, training", "b1_h16kv8_n2048_d256_causal_window1023", false},
    Layer{"Gemma 4 31B, local, prefill", "b1_h32kv16_n4096_d256_causal_window1023", true},
    Layer{"Gemma 4 31B, global, prefill", "b1_h32kv4_n4096_d512_causal", true},
    Layer{"Gemma 4 31B, global, decode", "b16_h32kv4_n1x8192_d512_causal_page16", true},
    Layer{"Gemma 4 31B, global, training", "b1_h32kv4_n2048_d512_causal", false},
    Layer{"Qwen3 30B-A3B, prefill", "b1_h32kv4_n4096_d128_causal", true},
    Layer{"Qwen3 30B-A3B, decode", "b16_h32kv4_n1x8192_d128_causal_page16", true},
    Layer{"Qwen3 30B-A3B, training", "b1_h32kv4_n2048_d128_causal", false},
    Layer{"DeepSeek V3, prefill", "b1_h128_n4096_d192v128_causal", true},
    Layer{"DeepSeek V3, latent decode", "b16_h128kv1_n1x8192_d576v512_latent_causal_page64", true},
    Layer{"DeepSeek V3, training", "b1_h128_n2048_d192v128_causal", false},
    Layer{"gpt-oss, local, prefill", "b1_h64kv8_n4096_d64_causal_window127_sink", true},
    Layer{"gpt-oss, global, prefill", "b1_h64kv8_n4096_d64_causal_sink", true},
    Layer{"gpt-oss, local, decode", "b16_h64kv8_n1x8192_d64_causal_window127_sink_page16", true},
    Layer{"gpt-oss, global, decode", "b16_h64kv8_n1x8192_d64_causal_sink_page16", true},
    Layer{"gpt-oss, local, training", "b1_h64kv8_n2048_d64_causal_window127_sink", false},
    Layer{"gpt-oss, global, training", "b1_h64kv8_n2048_d64_causal_sink", false},
};

} // namespace

std::vector<cost::Shape> models()
{
    std::vector<cost::Shape> shapes;
    for (const Layer& layer : layers) {
        cost::Shape& shape = shapes.emplace_back(cost::parse_shape(std::string(layer.shape)));
        shape.model = layer.model;
        shape.forward_alone = layer.forward_alone;
    }
    return shapes;
}

} // namespace flashomp::bench
