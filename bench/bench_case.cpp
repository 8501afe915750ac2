#include "bench_case.hpp"

#include "accuracy.hpp"
#include "reference.hpp"
#include "validate.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <omp.h>
#include <random>

namespace flashomp::bench {

using io::HostTensor;
using reference::max_error;
using reference::naive_error;

/// A host tensor and, on a device, its copy there.
struct BenchCase::Tensor {
    HostTensor host;
    void* device = nullptr;

    Tensor(HostTensor tensor, bool on_device) : host(std::move(tensor))
    {
        if (on_device) {
            device = omp_target_alloc(static_cast<std::size_t>(host.bytes()), 0);
            if (device == nullptr) {
                throw Error("the device has no memory for this shape; a smaller one is allowed.");
            }
            upload();
        }
    }
    ~Tensor()
    {
        if (device != nullptr) {
            omp_target_free(device, 0);
        }
    }
    Tensor(const Tensor&) = delete;
    Tensor& operator=(const Tensor&) = delete;

    void upload() const
    {
        if (device != nullptr) {
            omp_target_memcpy(device, host.data(), static_cast<std::size_t>(host.bytes()), 0, 0, 0,
                              omp_get_initial_device());
        }
    }
    void download()
    {
        if (device != nullptr) {
            omp_target_memcpy(host.data(), device, static_cast<std::size_t>(host.bytes()), 0, 0,
                              omp_get_initial_device(), 0);
        }
    }
    [[nodiscard]] TensorView view()
    {
        TensorView view = host.view();
        if (device != nullptr) {
            view.data = device;
            view.memory = Memory::device;
        }
        return view;
    }
    void poison()
    {
        std::memset(host.data(), 0xFF, static_cast<std::size_t>(host.bytes()));
        upload();
    }
};

namespace {

HostTensor random_tensor(std::mt19937_64& random, DType dtype, io::Shape shape)
{
    HostTensor tensor(DType::float32, std::move(shape));
    auto* values = static_cast<float*>(tensor.data());
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < tensor.elements(); ++i) {
        values[i] = normal(random);
    }
    return dtype == DType::float32 ? std::move(tensor) : io::converted(tensor, dtype);
}

/// Rows [first, ...) of one head of one batch of a [batch, row, head, depth] tensor, as a batch of one head.
template <class View>
View slice(View view, std::int64_t batch, std::int64_t head, std::int64_t first)
{
    const std::int64_t offset = batch * view.strides[0] + first * view.strides[1] + head * view.strides[2];
    using Byte = std::conditional_t<std::is_same_v<View, ConstTensorView>, const char*, char*>;
    view.data = static_cast<Byte>(view.data) + offset * size_of(view.dtype);
    view.shape[0] = 1;
    view.shape[1] -= first;
    view.shape[2] = 1;
    return view;
}

std::vector<double> doubles(const ConstTensorView& view)
{
    return io::doubles(HostTensor::copy_of(view));
}

/// What the gradients may be off by: the largest of the tensors compared counts for all.
double gradient_bound(double naive_error)
{
    return reference::tolerance(reference::gradient_factor, naive_error);
}

} // namespace

bool Accuracy::is_good() const
{
    const bool gradients =
        !has_gradients || (dq <= bound_gradient && (!has_dkv || (dk <= bound_gradient && dv <= bound_gradient)));
    return o <= bound_o && std::isfinite(lse) && gradients;
}

BenchCase::BenchCase(const Shape& shape, DType dtype, const Options& options, bool on_device)
    : shape_(shape), dtype_(dtype), options_(options)
{
    std::mt19937_64 random(20261120);
    const Shape& s = shape;
    const auto make = [&](HostTensor tensor) { return std::make_unique<Tensor>(std::move(tensor), on_device); };
    q_ = make(random_tensor(random, dtype, {s.batch, s.seqlen_q, s.heads_q, s.head_dim}));
    k_ = make(random_tensor(random, dtype, {s.batch, s.seqlen_k, s.heads_kv, s.head_dim}));
    v_ = make(random_tensor(random, dtype, {s.batch, s.seqlen_k, s.heads_kv, s.head_dim_v}));
    dout_ = make(random_tensor(random, dtype, {s.batch, s.seqlen_q, s.heads_q, s.head_dim_v}));
    o_ = make(HostTensor(dtype, {s.batch, s.seqlen_q, s.heads_q, s.head_dim_v}));
    lse_ = make(HostTensor(DType::float32, {s.batch, s.heads_q, s.seqlen_q}));
    dq_ = make(HostTensor(dtype, q_->host.shape()));
    dk_ = make(HostTensor(dtype, k_->host.shape()));
    dv_ = make(HostTensor(dtype, v_->host.shape()));
    options_.causal = shape.causal;
}

BenchCase::~BenchCase() = default;

Report BenchCase::forward()
{
    return flashomp::forward({q_->view(), k_->view(), v_->view(), o_->view(), lse_->view()}, options_);
}

Report BenchCase::backward()
{
    return flashomp::backward({q_->view(),
                               k_->view(),
                               v_->view(),
                               o_->view(),
                               lse_->view(),
                               dout_->view(),
                               dq_->view(),
                               dk_->view(),
                               dv_->view(),
                               {},
                               {}},
                              options_);
}

void BenchCase::poison()
{
    for (Tensor* tensor : {o_.get(), lse_.get(), dq_.get(), dk_.get(), dv_.get()}) {
        tensor->poison();
    }
}

Accuracy BenchCase::check(bool backward)
{
    for (Tensor* tensor : {o_.get(), lse_.get(), dq_.get(), dk_.get(), dv_.get()}) {
        tensor->download();
    }
    const bool whole = std::max(shape_.seqlen_q, shape_.seqlen_k) <= 2048 && shape_.heads_q == shape_.heads_kv;
    const std::int64_t first = whole ? 0 : std::max<std::int64_t>(0, shape_.seqlen_q - 128);
    const std::int64_t batch = shape_.batch - 1;
    const std::int64_t head = shape_.heads_q - 1;
    const std::int64_t head_kv = shape_.heads_kv - 1;

    Options options;
    options.scale = options_.scale;
    // The last rows alone keep their place only when the mask is anchored bottom right.
    options.causal = shape_.causal;
    if (!whole && shape_.causal == Causal::top_left) {
        throw Error("causal was top-left beyond seqlen 2048; allowed there are none and bottom-right.");
    }
    BackwardArgs args;
    args.q = slice(std::as_const(*q_).host.view(), batch, head, first);
    args.k = slice(std::as_const(*k_).host.view(), batch, head_kv, 0);
    args.v = slice(std::as_const(*v_).host.view(), batch, head_kv, 0);
    args.o = slice(std::as_const(*o_).host.view(), batch, head, first);
    args.dout = slice(std::as_const(*dout_).host.view(), batch, head, first);
    args.dq = slice(dq_->host.view(), batch, head, first);
    args.dk = slice(dk_->host.view(), batch, head_kv, 0);
    args.dv = slice(dv_->host.view(), batch, head_kv, 0);
    TensorView lse = lse_->host.view();
    lse.data = static_cast<float*>(lse.data) + batch * lse.strides[0] + head * lse.strides[1] + first;
    lse.shape = {1, 1, shape_.seqlen_q - first};
    args.lse = lse;
    const Problem problem = validate_backward(args, options);

    Accuracy result;
    const auto exact = reference::forward(problem);
    const auto naive = reference::forward(problem, reference::rounding_of(dtype_));
    result.o = max_error(doubles(args.o), exact.o);
    result.lse = max_error(doubles(args.lse), exact.lse);
    result.bound_o = reference::tolerance(reference::output_factor, naive_error(naive.o, exact.o));
    if (backward) {
        const auto gradient = reference::backward(problem);
        const auto naive_gradient = reference::backward(problem, reference::rounding_of(dtype_));
        result.has_gradients = true;
        result.has_dkv = whole;
        result.dq = max_error(doubles(args.dq), gradient.dq);
        result.bound_gradient = gradient_bound(naive_error(naive_gradient.dq, gradient.dq));
        if (whole) {
            result.dk = max_error(doubles(args.dk), gradient.dk);
            result.dv = max_error(doubles(args.dv), gradient.dv);
            result.bound_gradient = gradient_bound(
                std::max({naive_error(naive_gradient.dq, gradient.dq), naive_error(naive_gradient.dk, gradient.dk),
                          naive_error(naive_gradient.dv, gradient.dv)}));
        }
    }
    return result;
}

} // namespace flashomp::bench
