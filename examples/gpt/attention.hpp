// Causal self-attention of a model's layers: one interface, several implementations.
#pragma once

#include "matrix.hpp"

#include "flashomp/attention.hpp"

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace gpt {

/// Sizes of one call. q, k and v are columns of one matrix [batch·seqlen, width()], heads side by side.
struct Heads {
    Index batch = 1, seqlen = 1, heads = 1, heads_kv = 1, head_dim = 1;
    std::span<const float> slopes = {}; ///< ALiBi's, one a head; none without

    [[nodiscard]] Index rows() const { return batch * seqlen; }
    [[nodiscard]] Index key_column() const { return heads * head_dim; }
    [[nodiscard]] Index value_column() const { return (heads + heads_kv) * head_dim; }
    [[nodiscard]] Index width() const { return (heads + 2 * heads_kv) * head_dim; }
};

/// What an implementation keeps from its forward to its backward pass besides q, k, v and o.
template <class S>
struct AttentionKept {
    Kept<float> lse;         ///< flash: [batch·heads, seqlen]
    Kept<S> p;               ///< standard: softmax of the scores, [batch·heads·seqlen, seqlen]
    Kept<std::uint8_t> mask; ///< standard, with dropout: 1 where a probability is kept
    Kept<S> dropped;         ///< standard, with dropout: p ∘ mask/(1 − probability), which multiplies v

    void drop()
    {
        lse.drop();
        p.drop();
        mask.drop();
        dropped.drop();
    }
};

/// o = dropout(softmax(q·kᵀ/√head_dim − slope·(i − j), causal))·v, and its gradients.
template <class S>
class Attention {
public:
    Attention() = default;
    virtual ~Attention() = default;
    Attention(const Attention&) = delete;
    Attention& operator=(const Attention&) = delete;

    /// qkv [rows, width] to o [rows, heads·head_dim].
    virtual void forward(const Heads& heads, const Rows<S>& qkv, const flashomp::Dropout& dropout, Rows<S> o,
                         AttentionKept<S>& kept, Meter& meter) = 0;

    /// dout, as o, to dqkv, as qkv.
    virtual void backward(const Heads& heads, const Rows<S>& qkv, const Rows<S>& o, const AttentionKept<S>& kept,
                          const Rows<S>& dout, const flashomp::Dropout& dropout, Rows<S> dqkv) = 0;

    /// "openmp (host (2 threads), host-avx512)", once a pass has run.
    [[nodiscard]] virtual std::string ran_on() const = 0;
};

/// The names that --attention takes: standard, flash and the backends that this build of the library has.
[[nodiscard]] std::vector<std::string> attention_names();

/// What the library is told: the backend of such a name, a device (auto, host or a GPU's number) and threads. Throws
/// flashomp::Error for other words.
[[nodiscard]] flashomp::Options library_options(const std::string& name, const std::string& device, int threads);

/// The implementation of such a name, for S float or bfloat16.
template <class S>
[[nodiscard]] std::unique_ptr<Attention<S>> make_attention(const std::string& name, const flashomp::Options& library);

} // namespace gpt
