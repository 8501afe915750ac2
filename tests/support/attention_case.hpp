// A random attention problem that owns its tensors, runs them through the public API and judges the result by the
// tolerance rule: no further from the float64 reference than 2 times (3 times for gradients) what standard attention
// in the same precision is, plus 1e-5.
#pragma once

#include "flashomp/attention.hpp"
#include "host_tensor.hpp"
#include "reference.hpp"
#include "validate.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <optional>
#include <random>
#include <vector>

namespace flashomp::testing {

using io::Fill;
using io::HostTensor;

struct Shape {
    std::int64_t batch = 1, heads_q = 1, heads_kv = 1, seqlen_q = 1, seqlen_k = 1, head_dim = 1, head_dim_v = 1;
};

inline std::ostream& operator<<(std::ostream& out, const Shape& s)
{
    return out << fmt::format("batch {} heads {}/{} seqlen {}x{} head_dim {}/{}", s.batch, s.heads_q, s.heads_kv,
                              s.seqlen_q, s.seqlen_k, s.head_dim, s.head_dim_v);
}

inline reference::Rounding rounding_of(DType dtype)
{
    switch (dtype) {
    case DType::bfloat16:
        return reference::Rounding::bfloat16;
    case DType::float16:
        return reference::Rounding::float16;
    default:
        return reference::Rounding::float32;
    }
}

/// Standard normal values times `spread`, rounded to `dtype`.
inline HostTensor random_tensor(std::mt19937_64& random, DType dtype, io::Shape shape, float spread = 1.0F)
{
    HostTensor tensor(DType::float32, std::move(shape));
    std::normal_distribution<float> normal(0.0F, spread);
    auto* values = static_cast<float*>(tensor.data());
    for (std::int64_t i = 0; i < tensor.elements(); ++i) {
        values[i] = normal(random);
    }
    return dtype == DType::float32 ? std::move(tensor) : io::converted(tensor, dtype);
}

inline std::vector<double> doubles(const HostTensor& tensor)
{
    const HostTensor wide = io::converted(tensor, DType::float64);
    const auto* data = static_cast<const double*>(wide.data());
    return {data, data + wide.elements()};
}

inline bool same_bits(const HostTensor& a, const HostTensor& b)
{
    return a.bytes() == b.bytes() && std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.bytes())) == 0;
}

/// max |actual - expected|; infinity where one is not finite and they are not the same.
inline double max_error(const std::vector<double>& actual, const std::vector<double>& expected)
{
    double worst = actual.size() == expected.size() ? 0.0 : std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < actual.size() && i < expected.size(); ++i) {
        const bool same = actual[i] == expected[i];
        const double error = std::abs(actual[i] - expected[i]);
        worst = same ? worst : std::max(worst, std::isnan(error) ? std::numeric_limits<double>::infinity() : error);
    }
    return worst;
}

class AttentionCase {
public:
    AttentionCase(const Shape& shape, DType dtype, std::uint64_t seed, float spread = 1.0F)
        : shape_(shape), dtype_(dtype), random_(seed)
    {
        const Shape& s = shape;
        q = random_tensor(random_, dtype, {s.batch, s.seqlen_q, s.heads_q, s.head_dim}, spread);
        k = random_tensor(random_, dtype, {s.batch, s.seqlen_k, s.heads_kv, s.head_dim}, spread);
        v = random_tensor(random_, dtype, {s.batch, s.seqlen_k, s.heads_kv, s.head_dim_v}, spread);
        dout = random_tensor(random_, dtype, {s.batch, s.seqlen_q, s.heads_q, s.head_dim_v});
    }

    HostTensor q, k, v, dout;
    HostTensor o, lse, dq, dk, dv; ///< results of run(); poisoned before
    Options options;

    [[nodiscard]] ForwardArgs forward_args()
    {
        return {std::as_const(q).view(), std::as_const(k).view(), std::as_const(v).view(), o.view(), lse.view()};
    }

    [[nodiscard]] BackwardArgs backward_args()
    {
        BackwardArgs args;
        args.q = q.view();
        args.k = k.view();
        args.v = v.view();
        args.o = o.view();
        args.lse = lse.view();
        args.dout = dout.view();
        args.dq = dq.view();
        args.dk = dk.view();
        args.dv = dv.view();
        return args;
    }

    void poison_outputs()
    {
        const Shape& s = shape_;
        o = HostTensor(dtype_, {s.batch, s.seqlen_q, s.heads_q, s.head_dim_v}, Fill::poison);
        lse = HostTensor(DType::float32, {s.batch, s.heads_q, s.seqlen_q}, Fill::poison);
        dq = HostTensor(dtype_, q.shape(), Fill::poison);
        dk = HostTensor(dtype_, k.shape(), Fill::poison);
        dv = HostTensor(dtype_, v.shape(), Fill::poison);
    }

    /// Forward, then backward. Returns the reports of both.
    std::pair<Report, Report> run(const Options& where)
    {
        poison_outputs();
        const Report first = forward(forward_args(), where);
        const Report second = backward(backward_args(), where);
        return {first, second};
    }

    /// EXPECTs every result of run() within the tolerance rule.
    void expect_close()
    {
        const Problem problem = validate_backward(backward_args(), options);
        const auto exact = reference::forward(problem);
        const auto naive = reference::forward(problem, rounding_of(dtype_));
        // LSE is float32 in every dtype, so it is held to float32's naive error.
        const auto naive_lse =
            dtype_ == DType::float32 ? naive.lse : reference::forward(problem, reference::Rounding::float32).lse;
        expect("o", doubles(o), exact.o, naive.o, 2.0);
        expect("lse", doubles(lse), exact.lse, naive_lse, 2.0);
        const auto gradient = reference::backward(problem);
        const auto naive_gradient = reference::backward(problem, rounding_of(dtype_));
        expect("dq", doubles(dq), gradient.dq, naive_gradient.dq, 3.0);
        expect("dk", doubles(dk), gradient.dk, naive_gradient.dk, 3.0);
        expect("dv", doubles(dv), gradient.dv, naive_gradient.dv, 3.0);
    }

private:
    static void expect(const char* name, const std::vector<double>& actual, const std::vector<double>& exact,
                       const std::vector<double>& naive, double factor)
    {
        const double naive_error = max_error(naive, exact);
        const double bound = std::isfinite(naive_error) ? factor * naive_error + 1e-5 : 0.0;
        EXPECT_LE(max_error(actual, exact), bound) << name << " (naive error " << naive_error << ")";
    }

    Shape shape_;
    DType dtype_;
    std::mt19937_64 random_;
};

} // namespace flashomp::testing
