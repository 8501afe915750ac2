#include "standard.hpp"

#include "memory.hpp"

#include "host_threads.hpp"

#include <Eigen/Core>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

namespace flashomp::bench {

namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Rows = Eigen::Map<Matrix, 0, Eigen::OuterStride<>>; ///< of one head inside [batch, rows, heads, depth]
using Scores = std::unique_ptr<float[]>;                  ///< [batch, heads, rows, keys]

io::HostTensor as_float(const ConstTensorView& view)
{
    io::HostTensor copy = io::HostTensor::copy_of(view);
    return view.dtype == DType::float32 ? std::move(copy) : io::converted(copy, DType::float32);
}

Rows head_of(io::HostTensor& tensor, std::int64_t batch, std::int64_t head)
{
    const TensorView view = tensor.view();
    float* const first = static_cast<float*>(view.data) + batch * view.strides[0] + head * view.strides[2];
    return {first, view.shape[1], view.shape[3], Eigen::OuterStride<>(view.strides[1])};
}

/// `count` matrices of scores. Memory that the system has promised but does not have would end the process.
Scores allocate(std::int64_t elements, int count, const char* what)
{
    const std::int64_t bytes = elements * static_cast<std::int64_t>(sizeof(float));
    const auto available = available_memory();
    if (available && count * bytes > *available) {
        throw RunFailure(
            fmt::format("out of memory: {} need {} bytes, {} are there.", what, count * bytes, *available));
    }
    return Scores(new float[static_cast<std::size_t>(elements)]);
}

/// Into a tensor of the result's type, which the caller's view describes.
void store(const io::HostTensor& from, const ConstTensorView& view)
{
    const io::HostTensor result =
        view.dtype == DType::float32 ? io::HostTensor::copy_of(from.view()) : io::converted(from, view.dtype);
    std::copy_n(static_cast<const char*>(result.data()), result.bytes(),
                static_cast<char*>(const_cast<void*>(view.data)));
}

} // namespace

bool has_standard_attention(const cost::Shape& shape)
{
    return !shape.packed && !shape.is_cache() && shape.window == Window{} && shape.softcap == 0 && !shape.alibi &&
           !shape.bias && shape.dropout_percent == 0 && !shape.sink && shape.blocks_percent == 0;
}

void expect_standard_attention(const cost::Shape& shape)
{
    if (!has_standard_attention(shape)) {
        throw NotBuilt(
            "standard attention is not there for such shapes; those without _window, _softcap, _alibi, _bias, _dbias, "
            "_dropout, _sink, _blocks, _varlen, _page, _float8 and _int8 are allowed.");
    }
}

struct StandardAttention::State {
    BenchCase& bench;
    cost::Shape shape;
    int threads;
    float scale;
    io::HostTensor q, k, v, dout;
    Scores p;

    [[nodiscard]] std::int64_t matrix() const { return shape.seqlen_q * shape.seqlen_k; }
    [[nodiscard]] std::int64_t matrices() const { return shape.batch * shape.heads_q; }
    [[nodiscard]] Eigen::Map<Matrix> scores(const Scores& all, std::int64_t index) const
    {
        return {all.get() + index * matrix(), shape.seqlen_q, shape.seqlen_k};
    }
    [[nodiscard]] std::int64_t kv_head(std::int64_t head) const { return head / (shape.heads_q / shape.heads_kv); }

    /// The keys that a query row sees.
    [[nodiscard]] std::int64_t visible(std::int64_t row) const
    {
        const std::int64_t shift = shape.causal == Causal::top_left ? 0 : shape.seqlen_k - shape.seqlen_q;
        return shape.causal == Causal::none ? shape.seqlen_k
                                            : std::clamp<std::int64_t>(row + shift + 1, 0, shape.seqlen_k);
    }
};

StandardAttention::StandardAttention(BenchCase& bench, int threads)
{
    const cost::Shape& shape = bench.shape();
    expect_standard_attention(shape);
    const BackwardArgs args = bench.on_host();
    const double scale = bench.options().scale.value_or(1.0 / std::sqrt(static_cast<double>(shape.head_dim)));
    state_ =
        std::make_unique<State>(State{bench, shape, host_threads(threads), static_cast<float>(scale), as_float(args.q),
                                      as_float(args.k), as_float(args.v), as_float(args.dout), nullptr});
}

StandardAttention::~StandardAttention() = default;

void StandardAttention::drop()
{
    state_->p.reset();
}

void StandardAttention::forward(bool keep_p)
{
    State& all = *state_;
    const cost::Shape& shape = all.shape;
    all.p.reset();
    const Scores s = allocate(all.matrices() * all.matrix(), 2, "S and P of all heads");
    Scores p = allocate(all.matrices() * all.matrix(), 1, "P of all heads");
    io::HostTensor o(DType::float32, {shape.batch, shape.seqlen_q, shape.heads_q, shape.head_dim_v});
    const BackwardArgs out = all.bench.on_host();
    auto* const lse = static_cast<float*>(const_cast<void*>(out.lse.data));

    // Each operation over all heads before the next one begins: that is what makes it standard attention.
#pragma omp parallel for num_threads(all.threads) schedule(dynamic, 1)
    for (std::int64_t i = 0; i < all.matrices(); ++i) {
        const std::int64_t batch = i / shape.heads_q;
        const std::int64_t head = i % shape.heads_q;
        all.scores(s, i).noalias() =
            all.scale * head_of(all.q, batch, head) * head_of(all.k, batch, all.kv_head(head)).transpose();
    }
#pragma omp parallel for num_threads(all.threads) schedule(dynamic, 1)
    for (std::int64_t i = 0; i < all.matrices(); ++i) {
        const Eigen::Map<Matrix> scores = all.scores(s, i);
        Eigen::Map<Matrix> result = all.scores(p, i);
        for (std::int64_t row = 0; row < shape.seqlen_q; ++row) {
            const std::int64_t seen = all.visible(row);
            float& statistic = lse[i * shape.seqlen_q + row];
            result.row(row).setZero();
            statistic = -std::numeric_limits<float>::infinity();
            if (seen > 0) {
                const float most = scores.row(row).head(seen).maxCoeff();
                result.row(row).head(seen) = (scores.row(row).head(seen).array() - most).exp();
                const float sum = result.row(row).head(seen).sum();
                result.row(row).head(seen) /= sum;
                statistic = most + std::log(sum);
            }
        }
    }
#pragma omp parallel for num_threads(all.threads) schedule(dynamic, 1)
    for (std::int64_t i = 0; i < all.matrices(); ++i) {
        const std::int64_t batch = i / shape.heads_q;
        const std::int64_t head = i % shape.heads_q;
        head_of(o, batch, head).noalias() = all.scores(p, i) * head_of(all.v, batch, all.kv_head(head));
    }
    store(o, out.o);
    if (keep_p) {
        all.p = std::move(p);
    }
}

void StandardAttention::backward()
{
    State& all = *state_;
    const cost::Shape& shape = all.shape;
    const Scores dp = allocate(all.matrices() * all.matrix(), 2, "dP and dS of all heads");
    const Scores ds = allocate(all.matrices() * all.matrix(), 1, "dS of all heads");
    const BackwardArgs out = all.bench.on_host();
    io::HostTensor dq(DType::float32, all.q.shape());
    io::HostTensor dk(DType::float32, all.k.shape());
    io::HostTensor dv(DType::float32, all.v.shape());
    const std::int64_t group = shape.heads_q / shape.heads_kv;

#pragma omp parallel for num_threads(all.threads) schedule(dynamic, 1)
    for (std::int64_t i = 0; i < all.matrices(); ++i) {
        const std::int64_t batch = i / shape.heads_q;
        const std::int64_t head = i % shape.heads_q;
        all.scores(dp, i).noalias() =
            head_of(all.dout, batch, head) * head_of(all.v, batch, all.kv_head(head)).transpose();
    }
#pragma omp parallel for num_threads(all.threads) schedule(dynamic, 1)
    for (std::int64_t i = 0; i < all.matrices(); ++i) {
        const Eigen::Map<Matrix> p = all.scores(all.p, i);
        const Eigen::Map<Matrix> gradient = all.scores(dp, i);
        Eigen::Map<Matrix> result = all.scores(ds, i);
        for (std::int64_t row = 0; row < shape.seqlen_q; ++row) {
            const float delta = p.row(row).dot(gradient.row(row));
            result.row(row) = p.row(row).array() * (gradient.row(row).array() - delta);
        }
    }
    // Heads that share a key head add to the same rows of dk and dv: a task is a key head.
#pragma omp parallel for num_threads(all.threads) schedule(dynamic, 1)
    for (std::int64_t task = 0; task < shape.batch * shape.heads_kv; ++task) {
        const std::int64_t batch = task / shape.heads_kv;
        const std::int64_t head_kv = task % shape.heads_kv;
        for (std::int64_t head = head_kv * group; head < (head_kv + 1) * group; ++head) {
            const std::int64_t i = batch * shape.heads_q + head;
            head_of(dv, batch, head_kv).noalias() += all.scores(all.p, i).transpose() * head_of(all.dout, batch, head);
            head_of(dk, batch, head_kv).noalias() +=
                all.scale * all.scores(ds, i).transpose() * head_of(all.q, batch, head);
            head_of(dq, batch, head).noalias() = all.scale * all.scores(ds, i) * head_of(all.k, batch, head_kv);
        }
    }
    store(dq, out.dq);
    store(dk, out.dk);
    store(dv, out.dv);
}

} // namespace flashomp::bench
