#include "bench_case.hpp"

#include "flashomp/error.hpp"

#include "host_threads.hpp"
#include "quantized.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>

#include <fmt/format.h>

namespace flashomp::bench {

using io::HostTensor;

PlacedTensor::PlacedTensor(HostTensor tensor, const Space& space) : host_(std::move(tensor)), space_(space)
{
    if (space_.is_host() || host_.bytes() == 0) {
        return;
    }
    copy_ = allocate(host_.bytes(), space_);
    if (copy_ == nullptr) {
        throw RunFailure(fmt::format("out of memory: {} has no {} bytes for a tensor.", space_.name(), host_.bytes()));
    }
    upload();
}

PlacedTensor::~PlacedTensor()
{
    if (copy_ != nullptr) {
        release(copy_, space_);
    }
}

void PlacedTensor::upload() const
{
    if (copy_ != nullptr) {
        copy_in(copy_, space_, host_.data(), host_.bytes());
        wait_for(space_);
    }
}

void PlacedTensor::download()
{
    if (copy_ != nullptr) {
        copy_out(host_.data(), copy_, space_, host_.bytes());
        wait_for(space_);
    }
}

void PlacedTensor::poison()
{
    std::memset(host_.data(), 0xFF, static_cast<std::size_t>(host_.bytes()));
    upload();
}

TensorView PlacedTensor::view()
{
    TensorView view = host_.view();
    if (copy_ != nullptr) {
        view.data = copy_;
        view.memory = Memory::device;
    }
    return view;
}

namespace {

/// Normally distributed values; each piece of them from a generator of its own, so that all threads fill them and the
/// values do not depend on how many there are.
HostTensor random_tensor(std::uint64_t seed, DType dtype, io::Shape shape)
{
    HostTensor tensor(DType::float32, std::move(shape), io::Fill::nothing);
    auto* const values = static_cast<float*>(tensor.data());
    const std::int64_t count = tensor.elements();
    constexpr std::int64_t piece = std::int64_t{1} << 16;
    const int threads = host_threads(0, (count + piece - 1) / piece);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (std::int64_t first = 0; first < count; first += piece) {
        std::seed_seq words{seed, static_cast<std::uint64_t>(first / piece)};
        std::mt19937_64 random(words);
        std::normal_distribution<float> normal;
        for (std::int64_t i = first; i < std::min(count, first + piece); ++i) {
            values[i] = normal(random);
        }
    }
    return dtype == DType::float32 ? std::move(tensor) : io::converted(tensor, dtype);
}

HostTensor offsets(const std::vector<std::int32_t>& starts)
{
    HostTensor tensor(DType::int32, {static_cast<std::int64_t>(starts.size())});
    std::copy(starts.begin(), starts.end(), static_cast<std::int32_t*>(tensor.data()));
    return tensor;
}

/// A block table whose pages follow one another nowhere, as after a long time of serving.
HostTensor shuffled_pages(std::int64_t batch, std::int64_t pages)
{
    HostTensor table(DType::int32, {batch, pages});
    auto* const numbers = static_cast<std::int32_t*>(table.data());
    std::iota(numbers, numbers + table.elements(), 0);
    std::mt19937_64 random(5);
    std::shuffle(numbers, numbers + table.elements(), random);
    return table;
}

} // namespace

BenchCase::BenchCase(const cost::Shape& shape, DType dtype, Options options, const Space& space)
    : shape_(shape), dtype_(dtype), options_(std::move(options)), space_(space)
{
    const auto random = [&](std::uint64_t seed, const io::Shape& extents) {
        return std::make_unique<PlacedTensor>(random_tensor(seed, output_type_of(dtype), extents), space);
    };
    const io::Shape q_shape = rows_shape(false, shape.heads_q, shape.head_dim);
    const io::Shape k_shape = rows_shape(true, shape.heads_kv, shape.head_dim);
    const io::Shape v_shape = rows_shape(true, shape.heads_kv, shape.head_dim_v);
    const auto quantised = [&](const HostTensor& from, DType to, Tensor& scale, ConstTensorView& option) {
        io::Quantized result = io::quantized(from, 2, to);
        scale = std::make_unique<PlacedTensor>(std::move(result.scale), space);
        option = scale->view();
        return std::make_unique<PlacedTensor>(std::move(result.elements), space);
    };
    if (dtype == DType::float8_e4m3) {
        if (shape.latent || shape.cache_dtype) {
            throw NotBuilt("v as a view of k, and a cache of 8 bits, are not there where q is float8_e4m3; shapes "
                           "without _latent, _float8 and _int8 are allowed.");
        }
        unrounded_ = std::make_unique<Unrounded>();
        const auto input = [&](std::uint64_t seed, const io::Shape& extents, HostTensor& from, Tensor& scale,
                               ConstTensorView& option) {
            from = random_tensor(seed, DType::float32, extents);
            return quantised(from, dtype, scale, option);
        };
        q_ = input(1, q_shape, unrounded_->q, q_scale_, options_.q_scale);
        k_ = input(2, k_shape, unrounded_->k, k_scale_, options_.k_scale);
        v_ = input(3, v_shape, unrounded_->v, v_scale_, options_.v_scale);
    } else {
        q_ = random(1, q_shape);
    }
    if (shape.cache_dtype) { // with scales of each page, or sequence, and head
        k_ = quantised(random_tensor(2, DType::float32, k_shape), *shape.cache_dtype, k_scale_, options_.k_scale);
        v_ = quantised(random_tensor(3, DType::float32, v_shape), *shape.cache_dtype, v_scale_, options_.v_scale);
    } else if (dtype != DType::float8_e4m3) {
        k_ = random(2, k_shape);
        if (!shape.latent) {
            v_ = random(3, v_shape);
        }
    }
    dout_ = random(4, rows_shape(false, shape.heads_q, shape.head_dim_v));
    options_.causal = shape.causal;
    options_.window = shape.window;
    if (shape.softcap > 0) {
        options_.softcap = static_cast<double>(shape.softcap);
    }
    if (shape.alibi) {
        const std::vector<float> slopes = cost::alibi_slopes(shape.heads_q);
        HostTensor tensor(DType::float32, {shape.heads_q});
        std::copy(slopes.begin(), slopes.end(), static_cast<float*>(tensor.data()));
        slopes_ = std::make_unique<PlacedTensor>(std::move(tensor), space);
        options_.alibi_slopes = slopes_->view();
    }
    if (shape.bias) {
        bias_ = random(7, {1, shape.heads_q, shape.seqlen_q, shape.seqlen_k});
        options_.bias = bias_->view();
    }
    if (shape.dropout_percent > 0) {
        options_.dropout.probability = shape.dropout_percent / 100.0;
        options_.dropout.seed = 8;
    }
    if (shape.sink) {
        sink_ = std::make_unique<PlacedTensor>(random_tensor(6, DType::float32, {shape.heads_q}), space);
        options_.sink = sink_->view();
    }
    if (shape.page_size > 0) {
        table_ = std::make_unique<PlacedTensor>(shuffled_pages(shape.batch, shape.seqlen_k / shape.page_size), Space{});
        options_.block_table = table_->view();
    }
    options_.block_mask = cost::block_mask_of(shape);
    if (shape.packed) {
        const Problem problem = cost::problem_of(shape, dtype, false, {});
        starts_q_ = std::make_unique<PlacedTensor>(offsets(problem.starts_q), Space{});
        starts_k_ = std::make_unique<PlacedTensor>(offsets(problem.starts_k), Space{});
        options_.cu_seqlens_q = starts_q_->view();
        options_.cu_seqlens_k = starts_k_->view();
    }
}

BenchCase::~BenchCase() = default;

io::Shape BenchCase::rows_shape(bool keys, std::int64_t heads, std::int64_t depth) const
{
    if (keys && shape_.page_size > 0) {
        return {shape_.batch * shape_.seqlen_k / shape_.page_size, shape_.page_size, heads, depth};
    }
    if (!shape_.packed) {
        return {shape_.batch, keys ? shape_.seqlen_k : shape_.seqlen_q, heads, depth};
    }
    std::int64_t total = 0;
    for (const std::int64_t length : keys ? shape_.lengths_k() : shape_.lengths_q()) {
        total += length;
    }
    return {total, heads, depth};
}

ConstTensorView BenchCase::values(ConstTensorView keys, const TensorView& own) const
{
    if (!shape_.latent) {
        return own;
    }
    keys.shape.at(static_cast<std::size_t>(keys.rank - 1)) = shape_.head_dim_v;
    return keys;
}

void BenchCase::drop_outputs(bool backward)
{
    if (backward) {
        dq_.reset();
        dk_.reset();
        dv_.reset();
        dbias_.reset();
    } else {
        o_.reset();
        lse_.reset();
    }
}

void BenchCase::make_outputs(bool backward)
{
    const auto make = [&](Tensor& tensor, DType dtype, io::Shape shape) {
        tensor = std::make_unique<PlacedTensor>(HostTensor(dtype, std::move(shape), io::Fill::poison), space_);
    };
    if (backward) {
        make(dq_, dtype_, q_->host().shape());
        make(dk_, dtype_, k_->host().shape());
        make(dv_, dtype_, rows_shape(true, shape_.heads_kv, shape_.head_dim_v));
        if (shape_.dbias) {
            make(dbias_, bias_->host().dtype(), bias_->host().shape());
        }
    } else {
        const io::Shape o = rows_shape(false, shape_.heads_q, shape_.head_dim_v);
        make(o_, output_type_of(dtype_), o);
        make(lse_, DType::float32,
             shape_.packed ? io::Shape{shape_.heads_q, o[0]}
                           : io::Shape{shape_.batch, shape_.heads_q, shape_.seqlen_q});
    }
}

std::vector<PlacedTensor*> BenchCase::outputs(bool backward) const
{
    std::vector<PlacedTensor*> all;
    for (const Tensor* tensor : backward ? std::vector{&dq_, &dk_, &dv_, &dbias_} : std::vector{&o_, &lse_}) {
        if (*tensor) {
            all.push_back(tensor->get());
        }
    }
    return all;
}

void BenchCase::poison_outputs(bool backward)
{
    for (PlacedTensor* const tensor : outputs(backward)) {
        tensor->poison();
    }
}

std::int64_t BenchCase::output_bytes(bool backward)
{
    std::int64_t bytes = 0;
    for (PlacedTensor* const tensor : outputs(backward)) {
        bytes += tensor->host().bytes();
    }
    return bytes;
}

void BenchCase::choose(Machine machine, const Tiling& tiling)
{
    options_.machine = machine;
    options_.tiling = tiling;
}

Report BenchCase::forward()
{
    return flashomp::forward(forward_arguments(), options_);
}

Report BenchCase::backward()
{
    return flashomp::backward(arguments(), options_);
}

ForwardArgs BenchCase::forward_arguments()
{
    return {q_->view(), k_->view(), values(k_->view(), v_ ? v_->view() : TensorView{}), o_->view(), lse_->view()};
}

BackwardArgs BenchCase::arguments()
{
    BackwardArgs args;
    args.q = q_->view();
    args.k = k_->view();
    args.v = values(k_->view(), v_ ? v_->view() : TensorView{});
    args.dout = dout_->view();
    args.o = o_ ? o_->view() : TensorView{};
    args.lse = lse_ ? lse_->view() : TensorView{};
    args.dq = dq_ ? dq_->view() : TensorView{};
    args.dk = dk_ ? dk_->view() : TensorView{};
    args.dv = dv_ ? dv_->view() : TensorView{};
    args.dbias = dbias_ ? dbias_->view() : TensorView{};
    return args;
}

Options BenchCase::options_on_host()
{
    Options options = options_;
    for (const auto& [tensor, option] :
         {std::pair{&q_scale_, &options.q_scale}, std::pair{&k_scale_, &options.k_scale},
          std::pair{&v_scale_, &options.v_scale}, std::pair{&sink_, &options.sink},
          std::pair{&slopes_, &options.alibi_slopes}, std::pair{&bias_, &options.bias}}) {
        if (*tensor) {
            *option = (*tensor)->host().view();
        }
    }
    return options;
}

BackwardArgs BenchCase::on_host()
{
    BackwardArgs args;
    args.q = q_->host().view();
    args.k = k_->host().view();
    args.v = values(k_->host().view(), v_ ? v_->host().view() : TensorView{});
    args.dout = dout_->host().view();
    for (Tensor* tensor : {&o_, &lse_, &dq_, &dk_, &dv_, &dbias_}) {
        if (*tensor) {
            (*tensor)->download();
        }
    }
    args.o = o_ ? o_->host().view() : TensorView{};
    args.lse = lse_ ? lse_->host().view() : TensorView{};
    args.dq = dq_ ? dq_->host().view() : TensorView{};
    args.dk = dk_ ? dk_->host().view() : TensorView{};
    args.dv = dv_ ? dv_->host().view() : TensorView{};
    args.dbias = dbias_ ? dbias_->host().view() : TensorView{};
    return args;
}

} // namespace flashomp::bench
