// The gradients of a whole model of two layers against finite differences, in float64.
#include "small_model.hpp"

#include "attention_standard.hpp"

#include "reference.hpp"

#include <gtest/gtest.h>

namespace gpt {
namespace {

using flashomp::DType;

/// Attention by the library's reference in float64, which defines what every backend computes. The public functions
/// take no float64.
class ReferenceAttention final : public Attention<double> {
public:
    void forward(const Heads& heads, const Rows<double>& qkv, const flashomp::Dropout& dropout, Rows<double> o,
                 AttentionKept<double>& /*kept*/, Meter& /*meter*/) override
    {
        const auto result = flashomp::reference::forward(problem(heads, qkv, dropout));
        std::copy(result.o.begin(), result.o.end(), o.data());
    }

    void backward(const Heads& heads, const Rows<double>& qkv, const Rows<double>& /*o*/,
                  const AttentionKept<double>& /*kept*/, const Rows<double>& dout, const flashomp::Dropout& dropout,
                  Rows<double> dqkv) override
    {
        flashomp::Problem all = problem(heads, qkv, dropout);
        all.is_backward = true;
        all.dout = view(dout, heads, 0, heads.heads);
        const auto result = flashomp::reference::backward(all);
        const auto put = [&](const std::vector<double>& values, Index column, Index count) {
            const Index width = count * heads.head_dim;
            dqkv.middleCols(column, width) = Rows<double>(const_cast<double*>(values.data()), heads.rows(), width);
        };
        put(result.dq, 0, heads.heads);
        put(result.dk, heads.key_column(), heads.heads_kv);
        put(result.dv, heads.value_column(), heads.heads_kv);
    }

    [[nodiscard]] std::string ran_on() const override { return "reference"; }

private:
    static flashomp::ConstTensorView view(const Rows<double>& rows, const Heads& heads, Index column, Index count)
    {
        const Index width = rows.cols();
        return {rows.data() + column,
                DType::float64,
                {heads.batch, heads.seqlen, count, heads.head_dim},
                {heads.seqlen * width, width, heads.head_dim, 1}};
    }

    static flashomp::Problem problem(const Heads& heads, const Rows<double>& qkv, const flashomp::Dropout& dropout)
    {
        flashomp::Problem all;
        all.batch = heads.batch;
        all.heads_q = heads.heads;
        all.heads_kv = heads.heads_kv;
        all.seqlen_q = all.seqlen_k = heads.seqlen;
        all.head_dim = all.head_dim_v = heads.head_dim;
        all.dtype = DType::float64;
        all.options.causal = flashomp::Causal::bottom_right;
        all.options.dropout = dropout;
        all.options.threads = 1;
        all.q = view(qkv, heads, 0, heads.heads);
        all.k = view(qkv, heads, heads.key_column(), heads.heads_kv);
        all.v = view(qkv, heads, heads.value_column(), heads.heads_kv);
        return all;
    }
};

/// Every weight, by (loss(w + h) − loss(w − h))/2h, whose error is of order h².
void check(Attention<double>& attention, Recompute recompute, double dropout)
{
    const ModelShape shape{13, 7, 2, 4, 2, 12, false, 3, 5};
    Model<double> model(shape, 5, attention, recompute);
    testing::shake(model, 7, 0.3);
    const testing::RandomBatch batch(shape, 2, 11);
    const Drops drops{dropout, 3, 40};
    model.train(batch.view(), drops);
    const Numbers<double> gradients = model.gradients();
    for (const Place& place : model.layout().places()) {
        double largest = 0;
        double error = 0;
        for (Index i = place.first; i < place.first + place.rows * place.columns; ++i) {
            constexpr double h = 1e-5;
            double& weight = model.weights()[static_cast<std::size_t>(i)];
            const double saved = weight;
            weight = saved + h;
            const double above = model.train(batch.view(), drops);
            weight = saved - h;
            const double below = model.train(batch.view(), drops);
            weight = saved;
            const double expected = (above - below) / (2 * h);
            largest = std::max(largest, std::abs(expected));
            error = std::max(error, std::abs(gradients[static_cast<std::size_t>(i)] - expected));
        }
        EXPECT_GT(largest, 1e-6) << place.name << " has no influence";
        EXPECT_LE(error, 1e-8 * std::max(1.0, largest)) << place.name;
    }
}

TEST(GptGradient, ReferenceAttention)
{
    ReferenceAttention attention;
    check(attention, Recompute::none, 0);
}

TEST(GptGradient, WithDropoutAndLayersRunAgain)
{
    ReferenceAttention attention;
    check(attention, Recompute::layer, 0.2);
}

TEST(GptGradient, StandardAttention)
{
    StandardAttention<double> attention;
    check(attention, Recompute::attention, 0.2);
}

} // namespace
} // namespace gpt
