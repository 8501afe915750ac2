#include "large_logits.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <span>

namespace flashomp::mpi {

namespace {

constexpr std::int64_t shift_columns = 8, equal_columns = shift_columns - 1;
constexpr float unit_of_k = 64.0F;

/// The largest |LSE| whose rounding does not show: by 2^-19 at most. A single call begins to repair it there, too.
constexpr float most_lse = 32.0F;

std::int64_t last_extent(const ConstTensorView& view)
{
    return view.shape.at(static_cast<std::size_t>(view.rank - 1));
}

template <class Pointer>
BasicTensorView<Pointer> columns_of(const BasicTensorView<Pointer>& view, std::int64_t first, std::int64_t count)
{
    return part_of(view, view.rank - 1, first, count);
}

/// With the sequences' axis, which packed tensors have not.
template <class Pointer>
BasicTensorView<Pointer> batched(const BasicTensorView<Pointer>& view, int rank)
{
    return view.rank < rank ? with_batch(view) : view;
}

float* floats(Buffer& buffer)
{
    return reinterpret_cast<float*>(buffer.data());
}

/// A row-major float32 tensor of the shape of another one, but for the last extent.
TensorView float32_like(Buffer& buffer, const ConstTensorView& like, std::int64_t columns)
{
    ConstTensorView shape = like;
    shape.shape.at(static_cast<std::size_t>(like.rank - 1)) = columns;
    buffer = Buffer(shape.elements() * size_of(DType::float32));
    return TensorView::contiguous(buffer.data(), DType::float32,
                                  std::span(shape.shape).first(static_cast<std::size_t>(shape.rank)));
}

TensorView float32_like(Buffer& buffer, const ConstTensorView& like)
{
    return float32_like(buffer, like, last_extent(like));
}

TensorView zeros_like(Buffer& buffer, const ConstTensorView& like, std::int64_t columns)
{
    const TensorView zeros = float32_like(buffer, like, columns);
    buffer.clear();
    return zeros;
}

/// 1 in the first column, 0 in the others.
TensorView unit_rows_like(Buffer& buffer, const ConstTensorView& like)
{
    const TensorView rows = zeros_like(buffer, like, last_extent(like));
    fill(columns_of(rows, 0, 1), 1.0F);
    return rows;
}

/// x, and behind it room for the columns of the shift, which are 0. GPUs load rows of 16 bytes.
TensorView widened(Buffer& buffer, const ConstTensorView& x)
{
    constexpr std::int64_t multiple = 8;
    const std::int64_t depth = last_extent(x);
    const std::int64_t wanted = (depth + shift_columns + multiple - 1) / multiple * multiple;
    const TensorView wide = zeros_like(buffer, x, std::min(wanted, most_head_dim));
    copy(x, columns_of(wide, 0, depth));
    return wide;
}

/// x in the bits of a TF32 number.
double with_11_bits(double x)
{
    int exponent = 0;
    const double fraction = std::frexp(x, &exponent);
    return std::ldexp(std::nearbyint(std::ldexp(fraction, 11)), exponent - 11);
}

float scale_of(const Call& call)
{
    return static_cast<float>(
        call.options.scale.value_or(1.0 / std::sqrt(static_cast<double>(last_extent(call.args.q)))));
}

bool is_any_large(const ConstTensorView& given)
{
    const ConstTensorView lse = batched(given, 3);
    for (std::int64_t b = 0; b < lse.shape[0]; ++b) {
        for (std::int64_t head = 0; head < lse.shape[1]; ++head) {
            const float* const rows = static_cast<const float*>(lse.data) + b * lse.strides[0] + head * lse.strides[1];
            if (std::any_of(rows, rows + lse.shape[2],
                            [](float x) { return std::abs(x) > most_lse && std::isfinite(x); })) {
                return true;
            }
        }
    }
    return false;
}

} // namespace

bool wants_shift(const Messages& messages, const Call& call, const Whole& whole, int heads_ranks)
{
    // Where all ranks share out heads, there are no parts. Results of 16 bits are rounded more. Behind a softcap or
    // score_mod a shift of q·k is not one of logits. Where the scale is next to nothing, so are dot products. There may
    // be no room for more columns, nor for a longer sequence (Call::wants_parts).
    constexpr float least_scale = 1e-30F;
    constexpr std::int64_t most_rows = std::int64_t{1} << 30;
    const Options& o = call.options;
    if (heads_ranks == messages.ranks() || call.args.q.dtype != DType::float32 || o.softcap > 0.0 || o.score_mod ||
        std::abs(scale_of(call)) < least_scale || last_extent(call.args.q) + shift_columns > most_head_dim ||
        std::max(whole.length_q, whole.length_k) >= most_rows) {
        return false;
    }
    const std::vector<std::int64_t> all = messages.all_numbers({is_any_large(call.args.lse) ? 1 : 0});
    return std::any_of(all.begin(), all.end(), [](std::int64_t is_large) { return is_large != 0; });
}

ShiftedLogits::ShiftedLogits(const Call& call)
    : options_(call.options), sink_(call.options.sink), heads_(batched(call.args.lse, 3).shape[1]),
      rows_of_head_(last_extent(call.args.lse)), head_dim_(last_extent(call.args.q)),
      scale_(static_cast<double>(scale_of(call)))
{
    options_.scale = scale_; // its default would be that of a longer row
    options_.sink = {};
    Buffer memory;
    copy(call.args.lse, float32_like(memory, call.args.lse));
    c_.resize(static_cast<std::size_t>(call.args.lse.elements()));
    const TensorView q = widened(q_memory_, call.args.q), k = widened(k_memory_, call.args.k);
    for (std::int64_t row = 0; row < rows(); ++row) {
        const auto [x, y] = columns_of_row(static_cast<double>(floats(memory)[row]));
        float* const columns = floats(q_memory_) + among_rows_of_q(row) * last_extent(q) + head_dim_;
        *std::fill_n(columns, equal_columns, static_cast<float>(-x)) = static_cast<float>(-y);
        c_[static_cast<std::size_t>(row)] = logit_of_k() * (static_cast<double>(equal_columns) * x + y);
    }
    fill(columns_of(k, head_dim_, shift_columns), unit_of_k);
    q_ = q;
    k_ = k;
}

double ShiftedLogits::logit_of_k() const
{
    return scale_ * static_cast<double>(unit_of_k);
}

std::pair<double, double> ShiftedLogits::columns_of_row(double lse) const
{
    // Any c will do. That of rows without keys, or with a NaN, is 0.
    constexpr double most = 0x1p100;
    const double wanted = lse / logit_of_k();
    const double sum = std::isfinite(wanted) ? std::clamp(wanted, -most, most) : 0.0;
    const double x = with_11_bits(sum / static_cast<double>(shift_columns));
    return {x, with_11_bits(sum - static_cast<double>(equal_columns) * x)};
}

double ShiftedLogits::sum_of(const float* dq_row) const
{
    return static_cast<double>(dq_row[head_dim_]) / logit_of_k();
}

double ShiftedLogits::sink(std::int64_t row) const
{
    return static_cast<double>(static_cast<const float*>(sink_.data)[head_of(row)]) - c_[static_cast<std::size_t>(row)];
}

std::int64_t ShiftedLogits::among_rows_of_q(std::int64_t row) const
{
    const std::int64_t batch = row / rows_of_head_ / heads_;
    return (batch * rows_of_head_ + row % rows_of_head_) * heads_ + head_of(row);
}

std::int64_t ShiftedLogits::bytes() const
{
    return q_memory_.bytes() + k_memory_.bytes() + static_cast<std::int64_t>(c_.size() * sizeof(double));
}

ShiftedForward::ShiftedForward(const Call& call)
    : call_(call), logits_(call),
      shifted_(ForwardArgs{logits_.q(), logits_.k(), call.args.v, call.o, float32_like(lse_, call.args.lse)},
               logits_.options())
{
    if (call.options.sink) {
        zeros_like(sink_o_, call.o, last_extent(call.o));
        float32_like(sink_lse_, call.args.lse);
        for (std::int64_t row = 0; row < logits_.rows(); ++row) {
            floats(sink_lse_)[row] = static_cast<float>(logits_.sink(row));
        }
    }
}

void ShiftedForward::finish(const Options& merge_options)
{
    if (call_.options.sink && logits_.rows() > 0) {
        const TensorView o = batched(call_.o, 4), lse = batched(shifted_.lse, 3);
        const auto like = [](Buffer& buffer, const TensorView& view) {
            return TensorView::contiguous(buffer.data(), DType::float32,
                                          std::span(view.shape).first(static_cast<std::size_t>(view.rank)));
        };
        merge({o, lse}, {like(sink_o_, o), like(sink_lse_, lse)}, o, lse, merge_options);
    }
    for (std::int64_t row = 0; row < logits_.rows(); ++row) {
        floats(lse_)[row] = logits_.whole(row, floats(lse_)[row]);
    }
    copy(shifted_.lse, call_.lse);
}

std::int64_t ShiftedForward::bytes() const
{
    return logits_.bytes() + lse_.bytes() + sink_o_.bytes() + sink_lse_.bytes();
}

ShiftedBackward::ShiftedBackward(const Call& call)
    : call_(call), logits_(call), without_dropout_(logits_.options()), args_(shifted_args()),
      exponentials_(exponentials_args(), without_dropout_), deltas_(args_, logits_.options()),
      gradients_(args_, logits_.options())
{
    without_dropout_.dropout = {};
    exponentials_.wants_parts = deltas_.wants_parts = gradients_.wants_parts = true;
    gradients_.args.dbias = call.args.dbias;
    if (call.args.dsink) {
        dsink_.resize(static_cast<std::size_t>(call.args.dsink.shape[0]));
        before_.resize(dsink_.size());
    }
}

/// With D = 0 and LSE' as it was rounded at first. dQ, in a column in which k is 64, is then Σ dS times 64·scale.
BackwardArgs ShiftedBackward::shifted_args()
{
    BackwardArgs args = call_.args;
    args.q = logits_.q();
    args.k = logits_.k();
    args.o = zeros_like(o_, call_.args.o, last_extent(call_.args.o));
    const TensorView lse = float32_like(lse_, call_.args.lse);
    copy(call_.args.lse, lse);
    for (std::int64_t row = 0; row < logits_.rows(); ++row) {
        floats(lse_)[row] = logits_.shifted(row, floats(lse_)[row]);
    }
    args.lse = lse;
    args.dq = float32_like(dq_, args.q);
    args.dk = float32_like(dk_, args.k);
    args.dbias = args.dsink = {};
    return args;
}

/// dO·v = 1, so that dS = P.
BackwardArgs ShiftedBackward::exponentials_args()
{
    BackwardArgs args = args_;
    args.v = unit_rows_like(unit_v_, call_.args.v);
    args.dout = unit_rows_like(unit_dout_, call_.args.dout);
    return args;
}

double ShiftedBackward::sum_of(std::int64_t row)
{
    return logits_.sum_of(floats(dq_) + logits_.among_rows_of_q(row) * last_extent(args_.dq));
}

void ShiftedBackward::take_lse()
{
    for (std::int64_t row = 0; row < logits_.rows(); ++row) {
        const auto rounded = static_cast<double>(floats(lse_)[row]);
        const double sink = call_.options.sink ? std::exp(logits_.sink(row) - rounded) : 0.0;
        floats(lse_)[row] = static_cast<float>(rounded + std::log(sum_of(row) + sink));
    }
}

/// D is given as o = dO·D/|dO|², and makes dsink = -Σ p_sink·D.
void ShiftedBackward::take_delta()
{
    const ConstTensorView dout = batched(call_.args.dout, 4);
    const std::int64_t rows = dout.shape[1], heads = dout.shape[2], depth = dout.shape[3];
    std::vector<double> dsink(dsink_.size());
    for (std::int64_t row = 0; row < logits_.rows(); ++row) {
        const std::int64_t head = logits_.head_of(row);
        const double delta = sum_of(row);
        const float* const from = static_cast<const float*>(dout.data) + row / rows / heads * dout.strides[0] +
                                  row % rows * dout.strides[1] + head * dout.strides[2];
        float* const to = floats(o_) + logits_.among_rows_of_q(row) * depth;
        const double square = std::transform_reduce(from, from + depth, 0.0, std::plus<>(), [](float x) {
            return static_cast<double>(x) * static_cast<double>(x);
        });
        const double factor = delta == 0.0 ? 0.0 : delta / square;
        std::transform(from, from + depth, to, [=](float x) {
            return factor == 0.0 ? 0.0F : static_cast<float>(static_cast<double>(x) * factor);
        });
        if (!dsink.empty() && delta != 0.0) {
            dsink[static_cast<std::size_t>(head)] -=
                std::exp(logits_.sink(row) - static_cast<double>(floats(lse_)[row])) * delta;
        }
    }
    std::transform(dsink.begin(), dsink.end(), dsink_.begin(), [](double sum) { return static_cast<float>(sum); });
}

void ShiftedBackward::finish(Messages& messages)
{
    copy(columns_of(gradients_.args.dq, 0, last_extent(call_.args.dq)), call_.args.dq);
    copy(columns_of(gradients_.args.dk, 0, last_extent(call_.args.dk)), call_.args.dk);
    if (call_.args.dsink) {
        messages.sum(dsink_, before_);
        std::copy(dsink_.begin(), dsink_.end(), static_cast<float*>(call_.args.dsink.data));
    }
}

std::int64_t ShiftedBackward::bytes() const
{
    std::int64_t bytes = logits_.bytes();
    for (const Buffer* const buffer : {&unit_v_, &unit_dout_, &o_, &lse_, &dq_, &dk_}) {
        bytes += buffer->bytes();
    }
    return bytes;
}

} // namespace flashomp::mpi
