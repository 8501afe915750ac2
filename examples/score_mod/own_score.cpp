// Attention with a score and a mask of one's own (docs/score_mod.md): a penalty that grows with the logarithm of the
// distance, for each head another one, within chunks of the sequence. Forward and backward are compared with the
// library's reference, which computes the same in double with every N x N matrix stored.
#include "log_distance.hpp"

#include <flashomp/score_mod.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

namespace {

constexpr std::int64_t batch = 2, heads = 4, heads_kv = 2, n = 300, depth = 64;

struct Tensor {
    std::vector<float> values;
    std::int64_t heads;

    explicit Tensor(std::int64_t of_heads)
        : values(static_cast<std::size_t>(batch * n * of_heads * depth)), heads(of_heads)
    {
    }
    void fill(std::mt19937& random)
    {
        std::normal_distribution<float> normal;
        std::generate(values.begin(), values.end(), [&] { return normal(random); });
    }
    operator flashomp::TensorView()
    {
        return flashomp::TensorView::contiguous(values.data(), flashomp::DType::float32, {batch, n, heads, depth});
    }
};

struct Results {
    Tensor o{heads}, dq{heads}, dk{heads_kv}, dv{heads_kv};
};

double largest_error(const Tensor& a, const Tensor& b)
{
    double largest = 0.0;
    for (std::size_t x = 0; x < a.values.size(); ++x) {
        largest = std::max(largest, std::abs(static_cast<double>(a.values[x]) - static_cast<double>(b.values[x])));
    }
    return largest;
}

} // namespace

int main()
{
    std::mt19937 random(1);
    Tensor q(heads), k(heads_kv), v(heads_kv), dout(heads);
    for (Tensor* tensor : {&q, &k, &v, &dout}) {
        tensor->fill(random);
    }
    flashomp::Options options;
    options.score_mod = flashomp::score_mod(LogDistance{0.8F, 100});

    const auto run = [&](flashomp::Backend backend, Results& results) {
        options.backend = backend;
        std::vector<float> lse_values(static_cast<std::size_t>(batch * heads * n));
        const auto lse =
            flashomp::TensorView::contiguous(lse_values.data(), flashomp::DType::float32, {batch, heads, n});
        const flashomp::TensorView o = results.o;
        flashomp::forward({.q = flashomp::TensorView(q),
                           .k = flashomp::TensorView(k),
                           .v = flashomp::TensorView(v),
                           .o = o,
                           .lse = lse},
                          options);
        return flashomp::backward({.q = flashomp::TensorView(q),
                                   .k = flashomp::TensorView(k),
                                   .v = flashomp::TensorView(v),
                                   .o = o,
                                   .lse = lse,
                                   .dout = flashomp::TensorView(dout),
                                   .dq = results.dq,
                                   .dk = results.dk,
                                   .dv = results.dv},
                                  options);
    };
    Results fast, exact;
    const flashomp::Report report = run(flashomp::Backend::openmp, fast);
    run(flashomp::Backend::reference, exact);

    const double largest = std::max({largest_error(fast.o, exact.o), largest_error(fast.dq, exact.dq),
                                     largest_error(fast.dk, exact.dk), largest_error(fast.dv, exact.dv)});
    std::printf("%s on %s\n", report.machine.c_str(), report.ran_on.c_str());
    std::printf("largest error %.1e\n", largest);

    options.backend = flashomp::Backend::cuda;
    try {
        run(flashomp::Backend::cuda, fast);
    } catch (const flashomp::Error& error) {
        std::printf("refused: %s\n", error.what());
    }
    return largest < 1e-4 ? 0 : 1;
}
