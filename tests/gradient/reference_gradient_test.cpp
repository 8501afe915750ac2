// The reference's gradients against central finite differences in float64, over random mixes of every option.
#include "../unit/reference_case.hpp"

#include "accuracy.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <string>

namespace flashomp {
namespace {

using testing::ReferenceCase;
using testing::ReferenceShape;

/// The loss whose gradient with respect to o is dout.
double loss(const ReferenceCase& c)
{
    const std::vector<double> o = reference::forward(c.problem).o;
    return std::inner_product(o.begin(), o.end(), c.dout.begin(), 0.0);
}

/// dloss/dx for every element of an input, by (loss(x + h) − loss(x − h)) / 2h: the error is of order h².
std::vector<double> finite_differences(const ReferenceCase& c, std::vector<double>& input)
{
    constexpr double h = 1e-5;
    std::vector<double> gradient;
    for (double& x : input) {
        const double saved = x;
        x = saved + h;
        const double above = loss(c);
        x = saved - h;
        const double below = loss(c);
        x = saved;
        gradient.push_back((above - below) / (2.0 * h));
    }
    return gradient;
}

void expect_gradient(const char* name, const std::vector<double>& gradient, const std::vector<double>& expected)
{
    double size = 1.0; // errors are relative to the largest gradient, or to 1 where all are small
    for (const double x : expected) {
        size = std::max(size, std::abs(x));
    }
    EXPECT_LE(reference::max_error(gradient, expected) / size, 1e-8) << name;
}

void check(ReferenceCase& c)
{
    c.problem.options.threads = 1; // the problems are far too small to share
    const reference::BackwardResult gradients = reference::backward(c.problem);
    expect_gradient("dq", gradients.dq, finite_differences(c, c.q));
    expect_gradient("dk", gradients.dk, finite_differences(c, c.k));
    expect_gradient("dv", gradients.dv, finite_differences(c, c.v));
    expect_gradient("dbias", gradients.dbias, finite_differences(c, c.bias));
    expect_gradient("dsink", gradients.dsink, finite_differences(c, c.sink));
}

/// A choice between 0 and n − 1.
template <class Random>
std::int64_t below(Random& random, std::uint64_t n)
{
    return static_cast<std::int64_t>(random() % n);
}

/// Any mix of options: each is on or off with its own draw.
std::string add_random_options(ReferenceCase& c)
{
    std::string text;
    const auto chosen = [&](const char* name, std::uint64_t one_in) {
        const bool on = below(c.random, one_in) == 0;
        text += on ? std::string(" ") + name : "";
        return on;
    };
    c.problem.options.causal = static_cast<Causal>(below(c.random, 3));
    if (chosen("window", 3)) {
        c.problem.options.window = {below(c.random, 5) - 1, below(c.random, 5) - 1};
    }
    if (chosen("softcap", 2)) {
        c.problem.options.softcap = 0.5;
    }
    if (chosen("alibi", 2)) {
        c.add_alibi(chosen("per batch", 2));
    }
    if (chosen("bias", 2)) {
        c.add_bias({chosen("1", 2), chosen("1", 2), chosen("1", 2), chosen("1", 4)});
    }
    if (chosen("sink", 2)) {
        c.add_sink();
    }
    if (chosen("key padding", 3)) {
        c.add_key_padding();
    }
    if (chosen("dropout", 2)) {
        c.problem.options.dropout = {0.3, c.random(), c.random()};
    }
    return text;
}

ReferenceShape random_shape(std::mt19937_64& random)
{
    const std::int64_t heads_kv = 1 + below(random, 2);
    return {1 + below(random, 2),
            heads_kv * (1 + below(random, 3)),
            heads_kv,
            1 + below(random, 6),
            1 + below(random, 7),
            1 + below(random, 5),
            1 + below(random, 5)};
}

TEST(ReferenceGradient, MatchesFiniteDifferencesForAnyMixOfOptions)
{
    std::mt19937_64 random(2024);
    for (int trial = 0; trial < 80; ++trial) {
        ReferenceCase c(random_shape(random), random());
        const std::string options = add_random_options(c);
        SCOPED_TRACE("trial " + std::to_string(trial) + options);
        check(c);
    }
}

TEST(ReferenceGradient, MatchesFiniteDifferencesForPackedSequences)
{
    std::mt19937_64 random(2025);
    for (int trial = 0; trial < 40; ++trial) {
        std::vector<std::int32_t> lengths_q;
        std::vector<std::int32_t> lengths_k;
        for (int b = 0; b < 3; ++b) {
            lengths_q.push_back(static_cast<std::int32_t>(below(random, 5)));
            lengths_k.push_back(static_cast<std::int32_t>(below(random, 6)));
        }
        lengths_q.push_back(2); // so that there is something to attend from, and to
        lengths_k.push_back(3);
        ReferenceCase c(random_shape(random), lengths_q, lengths_k, random());
        const std::string options = add_random_options(c);
        SCOPED_TRACE("trial " + std::to_string(trial) + options);
        check(c);
    }
}

} // namespace
} // namespace flashomp
