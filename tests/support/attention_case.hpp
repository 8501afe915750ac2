// A random attention problem that owns its tensors, runs them through the public API and judges the result by the
// tolerance rule of comparison.hpp.
#pragma once

#include "comparison.hpp"
#include "element_as_double.hpp"

#include "flashomp/attention.hpp"
#include "host_tensor.hpp"
#include "validate.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <optional>
#include <random>
#include <utility>
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

/// Rows of each sequence of a packed batch.
struct Lengths {
    std::vector<std::int32_t> q, k;
};

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

/// How the inputs of a case are drawn. `common` takes values that every dtype represents exactly: cases that differ in
/// their dtype alone are then one problem, with one exact solution.
enum class Inputs : std::uint8_t { own, common };

/// Standard normal values that bfloat16 and float16 represent exactly: 8 significant bits, exponents of float16.
inline HostTensor random_common_tensor(std::mt19937_64& random, DType dtype, io::Shape shape)
{
    static const std::vector<float> normal = [] { // a large sample, drawn from 16 bits at a time
        std::vector<float> values(0x10000);
        std::mt19937_64 sampler(20);
        std::normal_distribution<float> distribution;
        for (float& value : values) {
            const float rounded = reference::round_to_bfloat16(distribution(sampler));
            value = std::abs(rounded) < 0x1p-14F ? 0.0F : rounded;
        }
        return values;
    }();
    HostTensor tensor(DType::float32, std::move(shape));
    auto* values = static_cast<float*>(tensor.data());
    std::uint64_t bits = 0;
    for (std::int64_t i = 0; i < tensor.elements(); ++i) {
        bits = i % 4 == 0 ? random() : bits >> 16U;
        values[i] = normal[bits & 0xffffU];
    }
    return dtype == DType::float32 ? std::move(tensor) : io::converted(tensor, dtype);
}

/// An int32 tensor with 0 and the running sums of `lengths`.
inline HostTensor cumulative(const std::vector<std::int32_t>& lengths)
{
    HostTensor tensor(DType::int32, {static_cast<std::int64_t>(lengths.size()) + 1});
    auto* sums = static_cast<std::int32_t*>(tensor.data());
    for (std::size_t b = 0; b < lengths.size(); ++b) {
        sums[b + 1] = sums[b] + lengths[b];
    }
    return tensor;
}

/// The first `count` of the heads of a contiguous [outer, heads, inner] array.
template <class Element>
std::vector<Element> first_heads(const std::vector<Element>& all, std::int64_t heads, std::int64_t inner,
                                 std::int64_t count)
{
    std::vector<Element> some;
    const auto step = static_cast<std::ptrdiff_t>(heads * inner);
    for (auto start = all.begin(); start != all.end(); start += step) {
        some.insert(some.end(), start, start + static_cast<std::ptrdiff_t>(count * inner));
    }
    return some;
}

/// The same of a tensor [batch, rows, heads, width] or [batch, heads].
inline HostTensor first_heads(const HostTensor& all, std::int64_t count)
{
    io::Shape shape = all.shape();
    const std::size_t axis = shape.size() == 4 ? 2 : 1;
    const auto bytes = static_cast<std::int64_t>(size_of(all.dtype()));
    const std::int64_t inner = bytes * (axis == 2 ? shape.back() : 1);
    const auto* data = static_cast<const std::byte*>(all.data());
    const std::vector<std::byte> some =
        first_heads(std::vector<std::byte>(data, data + all.bytes()), shape.at(axis), inner, count);
    shape.at(axis) = count;
    HostTensor tensor(all.dtype(), std::move(shape));
    std::memcpy(tensor.data(), some.data(), some.size());
    return tensor;
}

/// Every result of one forward and backward run.
struct Results {
    HostTensor o, lse, dq, dk, dv, dbias, dsink;
};

inline void expect_same_bits(const Results& a, const Results& b)
{
    EXPECT_TRUE(same_bits(a.o, b.o)) << "o";
    EXPECT_TRUE(same_bits(a.lse, b.lse)) << "lse";
    EXPECT_TRUE(same_bits(a.dq, b.dq)) << "dq";
    EXPECT_TRUE(same_bits(a.dk, b.dk)) << "dk";
    EXPECT_TRUE(same_bits(a.dv, b.dv)) << "dv";
    EXPECT_TRUE(same_bits(a.dbias, b.dbias)) << "dbias";
    EXPECT_TRUE(same_bits(a.dsink, b.dsink)) << "dsink";
}

/// Moves, does not copy: `options` views the tensors, whose memory stays where it is when they move.
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

    AttentionCase(const Shape& shape, DType dtype, std::uint64_t seed, Inputs inputs)
        : shape_(shape), dtype_(dtype), random_(seed)
    {
        const auto draw = inputs == Inputs::common ? random_common_tensor
                                                   : [](std::mt19937_64& random, DType type, io::Shape extents) {
                                                         return random_tensor(random, type, std::move(extents));
                                                     };
        const Shape& s = shape;
        q = draw(random_, dtype, {s.batch, s.seqlen_q, s.heads_q, s.head_dim});
        k = draw(random_, dtype, {s.batch, s.seqlen_k, s.heads_kv, s.head_dim});
        v = draw(random_, dtype, {s.batch, s.seqlen_k, s.heads_kv, s.head_dim_v});
        dout = draw(random_, dtype, {s.batch, s.seqlen_q, s.heads_q, s.head_dim_v});
    }

    /// Packed sequences; batch and the seqlens of `s` are taken from the lengths.
    AttentionCase(Shape s, const Lengths& lengths, DType dtype, std::uint64_t seed) : dtype_(dtype), random_(seed)
    {
        const auto longest = [](const std::vector<std::int32_t>& of) {
            return of.empty() ? 0 : *std::max_element(of.begin(), of.end());
        };
        s.batch = static_cast<std::int64_t>(lengths.q.size());
        s.seqlen_q = longest(lengths.q);
        s.seqlen_k = longest(lengths.k);
        shape_ = s;
        cu_seqlens_q = cumulative(lengths.q);
        cu_seqlens_k = cumulative(lengths.k);
        const std::int64_t total_q = static_cast<const std::int32_t*>(cu_seqlens_q.data())[s.batch];
        const std::int64_t total_k = static_cast<const std::int32_t*>(cu_seqlens_k.data())[s.batch];
        q = random_tensor(random_, dtype, {total_q, s.heads_q, s.head_dim});
        k = random_tensor(random_, dtype, {total_k, s.heads_kv, s.head_dim});
        v = random_tensor(random_, dtype, {total_k, s.heads_kv, s.head_dim_v});
        dout = random_tensor(random_, dtype, {total_q, s.heads_q, s.head_dim_v});
        options.cu_seqlens_q = cu_seqlens_q.view();
        options.cu_seqlens_k = cu_seqlens_k.view();
    }

    /// The queries that share the first key head, with it: a problem of its own, of the same masks and dropout.
    [[nodiscard]] AttentionCase first_group() const
    {
        Shape shape = shape_;
        shape.heads_q = shape_.heads_q / shape_.heads_kv;
        shape.heads_kv = 1;
        AttentionCase group(shape, dtype_);
        group.q = first_heads(q, shape.heads_q);
        group.k = first_heads(k, 1);
        group.v = first_heads(v, 1);
        group.dout = first_heads(dout, shape.heads_q);
        group.options = options;
        if (alibi_slopes.rank() == 2) {
            group.alibi_slopes = first_heads(alibi_slopes, shape.heads_q);
            group.options.alibi_slopes = std::as_const(group.alibi_slopes).view();
        }
        return group;
    }

    /// What is expected of first_group(), given what is expected of this case.
    [[nodiscard]] Expected expected_of_first_group(const Expected& all) const
    {
        const Shape& s = shape_;
        const std::int64_t group = s.heads_q / s.heads_kv;
        const auto outputs = [&](const reference::ForwardResult& of) {
            return reference::ForwardResult{first_heads(of.o, s.heads_q, s.head_dim_v, group),
                                            first_heads(of.lse, s.heads_q, s.seqlen_q, group)};
        };
        const auto gradients = [&](const reference::BackwardResult& of) {
            return reference::BackwardResult{first_heads(of.dq, s.heads_q, s.head_dim, group),
                                             first_heads(of.dk, s.heads_kv, s.head_dim, 1),
                                             first_heads(of.dv, s.heads_kv, s.head_dim_v, 1),
                                             {},
                                             {}};
        };
        return {outputs(all.exact),
                outputs(all.naive),
                first_heads(all.naive_lse, s.heads_q, s.seqlen_q, group),
                gradients(all.gradients),
                gradients(all.naive_gradients),
                {},
                {},
                all.few_keys};
    }

    HostTensor q, k, v, dout;
    HostTensor alibi_slopes, bias, key_padding_mask, mask, sink, cu_seqlens_q, cu_seqlens_k; ///< empty when off
    HostTensor o, lse, dq, dk, dv, dbias, dsink; ///< results of run(); poisoned before
    bool wants_option_gradients = true;          ///< dbias and dsink, which are kernels of their own
    Options options;

    [[nodiscard]] const Shape& shape() const { return shape_; }
    [[nodiscard]] DType dtype() const { return dtype_; }
    [[nodiscard]] bool packed() const { return q.rank() == 3; }
    [[nodiscard]] std::mt19937_64& random() { return random_; }

    /// Slopes between 0 and a half, [Hq] or [B, Hq].
    void add_alibi(bool per_batch = false)
    {
        alibi_slopes =
            HostTensor(DType::float32, per_batch ? io::Shape{shape_.batch, shape_.heads_q} : io::Shape{shape_.heads_q});
        std::uniform_real_distribution<float> uniform(0.0F, 0.5F);
        auto* slopes = static_cast<float*>(alibi_slopes.data());
        std::generate(slopes, slopes + alibi_slopes.elements(), [&] { return uniform(random_); });
        options.alibi_slopes = std::as_const(alibi_slopes).view();
    }

    /// A bias that broadcasts along the axes (batch, head, i, j) that are marked, in the dtype of q if none is given.
    void add_bias(const std::array<bool, 4>& broadcast = {}, std::optional<DType> dtype = {})
    {
        bias = random_tensor(random_, dtype.value_or(dtype_),
                             {broadcast[0] ? 1 : shape_.batch, broadcast[1] ? 1 : shape_.heads_q,
                              broadcast[2] ? 1 : shape_.seqlen_q, broadcast[3] ? 1 : shape_.seqlen_k});
        options.bias = std::as_const(bias).view();
    }

    /// Hides about the given fraction of the keys: 1 leaves rows with nothing to attend to.
    void add_key_padding(double hidden = 0.3)
    {
        key_padding_mask = HostTensor(DType::boolean, {shape_.batch, shape_.seqlen_k});
        std::uniform_real_distribution<double> uniform(0.0, 1.0);
        auto* keys = static_cast<std::uint8_t*>(key_padding_mask.data());
        std::generate(keys, keys + key_padding_mask.elements(),
                      [&] { return static_cast<std::uint8_t>(uniform(random_) >= hidden ? 1 : 0); });
        options.key_padding_mask = std::as_const(key_padding_mask).view();
    }

    void add_sink()
    {
        sink = random_tensor(random_, DType::float32, {shape_.heads_q});
        options.sink = std::as_const(sink).view();
    }

    void add_dropout(double probability)
    {
        options.dropout.probability = probability;
        options.dropout.seed = random_();
        options.dropout.offset = random_();
    }

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
        args.dbias = dbias.view();
        args.dsink = dsink.view();
        return args;
    }

    void poison_outputs()
    {
        io::Shape o_shape = q.shape();
        o_shape.back() = shape_.head_dim_v;
        o = HostTensor(dtype_, o_shape, Fill::poison);
        lse = HostTensor(DType::float32,
                         packed() ? io::Shape{shape_.heads_q, q.shape().front()}
                                  : io::Shape{shape_.batch, shape_.heads_q, shape_.seqlen_q},
                         Fill::poison);
        dq = HostTensor(dtype_, q.shape(), Fill::poison);
        dk = HostTensor(dtype_, k.shape(), Fill::poison);
        dv = HostTensor(dtype_, v.shape(), Fill::poison);
        dbias = bias.rank() > 0 && wants_option_gradients ? HostTensor(bias.dtype(), bias.shape(), Fill::poison)
                                                          : HostTensor();
        dsink = sink.rank() > 0 && wants_option_gradients ? HostTensor(DType::float32, sink.shape(), Fill::poison)
                                                          : HostTensor();
    }

    /// Forward, then backward. Returns the reports of both.
    std::pair<Report, Report> run(const Options& where)
    {
        poison_outputs();
        const Report first = forward(forward_args(), where);
        const Report second = backward(backward_args(), where);
        return {first, second};
    }

    /// The results of run(), which this case then no longer has.
    [[nodiscard]] Results take_results()
    {
        return {std::move(o),  std::move(lse),   std::move(dq),   std::move(dk),
                std::move(dv), std::move(dbias), std::move(dsink)};
    }

    /// What the reference takes. The outputs must have been made.
    [[nodiscard]] Problem problem()
    {
        Problem valid = validate_backward(backward_args(), options);
        valid.options.threads = 1; // tests run side by side, so that the cores are busy anyway
        return valid;
    }

    /// The oracle and the naive baseline. The outputs must have been made.
    [[nodiscard]] Expected expected() { return expected_of(problem()); }

    /// Every result of run() against what is expected.
    [[nodiscard]] std::vector<Comparison> compare(const Expected& expected) const
    {
        using reference::Result;
        const reference::BackwardResult& exact = expected.gradients;
        const reference::BackwardResult& naive = expected.naive_gradients;
        const double largest_lse = reference::largest_of(expected.exact.lse);
        const auto judged = [&](Result result, const HostTensor& tensor) {
            return reference::judged_as(result, tensor.dtype(), tensor.shape(), expected.few_keys, largest_lse);
        };
        std::vector<Comparison> all{
            compared("o", judged(Result::o, o), doubles(o), expected.exact.o, expected.naive.o),
            compared("lse", judged(Result::lse, lse), doubles(lse), expected.exact.lse, expected.naive_lse),
            compared("dq", judged(Result::dq, dq), doubles(dq), exact.dq, naive.dq),
            compared("dk", judged(Result::dk, dk), doubles(dk), exact.dk, naive.dk),
            compared("dv", judged(Result::dv, dv), doubles(dv), exact.dv, naive.dv)};
        if (bias.rank() > 0 && wants_option_gradients) {
            all.push_back(compared("dbias", judged(Result::dbias, dbias), doubles(dbias), exact.dbias,
                                   dbias.dtype() == DType::float32 ? expected.float32_dbias : naive.dbias));
        }
        if (sink.rank() > 0 && wants_option_gradients) {
            all.push_back(
                compared("dsink", judged(Result::dsink, dsink), doubles(dsink), exact.dsink, expected.float32_dsink));
        }
        return all;
    }

    /// EXPECTs every result of run() within the tolerance rule.
    void expect_close() { expect_passed(compare(expected())); }

private:
    /// Without inputs.
    AttentionCase(const Shape& shape, DType dtype) : shape_(shape), dtype_(dtype) {}

    Shape shape_;
    DType dtype_;
    std::mt19937_64 random_;
};

} // namespace flashomp::testing
