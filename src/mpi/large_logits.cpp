#include "large_logits.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <span>

namespace flashomp::mpi {

namespace {

constexpr std::int64_t shift_columns = 8, equal_columns = 6;
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

/// Of a buffer that has a stage always.
float* host_floats(const Buffer& buffer)
{
    return reinterpret_cast<float*>(buffer.host_memory().data());
}

/// The same when what the site has written is there.
float* floats_on_host(Buffer& buffer)
{
    return reinterpret_cast<float*>(buffer.on_host().data());
}

/// The elements of a float32 tensor, row-major, on the host.
std::vector<float> floats_of(Site& site, const ConstTensorView& view)
{
    const std::vector<std::byte> bytes = elements_of(site, view);
    std::vector<float> values(bytes.size() / sizeof(float));
    std::copy(bytes.begin(), bytes.end(), std::as_writable_bytes(std::span(values)).begin());
    return values;
}

/// A row-major float32 tensor of the shape of another one, but for the last extent.
TensorView float32_like(Site& site, Buffer& buffer, const ConstTensorView& like, std::int64_t columns, Stage stage)
{
    ConstTensorView shape = like;
    shape.shape.at(static_cast<std::size_t>(like.rank - 1)) = columns;
    buffer = Buffer(site, shape.elements() * size_of(DType::float32), stage);
    return buffer.like(shape, DType::float32);
}

/// One that is also computed with on the host.
TensorView host_float32_like(Site& site, Buffer& buffer, const ConstTensorView& like)
{
    return float32_like(site, buffer, like, last_extent(like), Stage::always);
}

TensorView zeros_like(Site& site, Buffer& buffer, const ConstTensorView& like, std::int64_t columns,
                      Stage stage = Stage::none)
{
    const TensorView zeros = float32_like(site, buffer, like, columns, stage);
    buffer.clear();
    return zeros;
}

/// 1 in the first column, 0 in the others.
TensorView unit_rows_like(Site& site, Buffer& buffer, const ConstTensorView& like)
{
    const TensorView rows = zeros_like(site, buffer, like, last_extent(like));
    site.fill(columns_of(rows, 0, 1), 1.0F);
    return rows;
}

/// x, and behind it room for the columns of the shift, which are 0. GPUs load rows of 16 bytes.
TensorView widened(Site& site, Buffer& buffer, const ConstTensorView& x)
{
    constexpr std::int64_t multiple = 8;
    const std::int64_t depth = last_extent(x);
    const std::int64_t wanted = (depth + shift_columns + multiple - 1) / multiple * multiple;
    const TensorView wide = zeros_like(site, buffer, x, std::min(wanted, most_head_dim));
    site.copy(x, columns_of(wide, 0, depth));
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

/// What cannot be looked at counts as large: the next step, which all ranks take together, says why.
bool is_any_large(Site& site, const ConstTensorView& lse)
{
    try {
        const std::vector<float> values = floats_of(site, lse);
        return std::any_of(values.begin(), values.end(),
                           [](float x) { return std::abs(x) > most_lse && std::isfinite(x); });
    } catch (const std::exception&) {
        return true;
    }
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
    const std::vector<std::int64_t> all = messages.all_numbers({is_any_large(messages.site(), call.args.lse) ? 1 : 0});
    return std::any_of(all.begin(), all.end(), [](std::int64_t is_large) { return is_large != 0; });
}

ShiftedLogits::ShiftedLogits(const Call& call, Site& site)
    : options_(call.options), heads_(batched(call.args.lse, 3).shape[1]), rows_of_head_(last_extent(call.args.lse)),
      head_dim_(last_extent(call.args.q)), scale_(static_cast<double>(scale_of(call)))
{
    options_.scale = scale_; // its default would be that of a longer row
    options_.sink = {};
    if (call.options.sink) {
        sinks_ = floats_of(site, call.options.sink);
    }
    const std::vector<float> lse = floats_of(site, call.args.lse);
    c_.resize(lse.size());
    const TensorView q = widened(site, q_memory_, call.args.q), k = widened(site, k_memory_, call.args.k);
    Buffer columns;
    const TensorView shift = float32_like(site, columns, call.args.q, shift_columns, Stage::always);
    const WaitsAtLast waits{site};
    for (std::int64_t row = 0; row < rows(); ++row) {
        const Columns of_row = columns_of_row(static_cast<double>(lse[static_cast<std::size_t>(row)]));
        float* const to = host_floats(columns) + among_rows_of_q(row) * shift_columns;
        float* const others = std::fill_n(to, equal_columns, static_cast<float>(-of_row.x));
        others[0] = static_cast<float>(-of_row.y);
        others[1] = static_cast<float>(-of_row.z);
        c_[static_cast<std::size_t>(row)] =
            logit_of_k() * (static_cast<double>(equal_columns) * of_row.x + of_row.y + of_row.z);
    }
    columns.from_host();
    site.copy(shift, columns_of(q, head_dim_, shift_columns));
    site.fill(columns_of(k, head_dim_, shift_columns), unit_of_k);
    q_ = q;
    k_ = k;
}

double ShiftedLogits::logit_of_k() const
{
    return scale_ * static_cast<double>(unit_of_k);
}

ShiftedLogits::Columns ShiftedLogits::columns_of_row(double lse) const
{
    // Any c will do. That of rows without keys, or with a NaN, is 0.
    constexpr double most = 0x1p100;
    const double wanted = lse / logit_of_k();
    const double sum = std::isfinite(wanted) ? std::clamp(wanted, -most, most) : 0.0;
    const double x = with_11_bits(sum / static_cast<double>(equal_columns + 1));
    const double left = sum - static_cast<double>(equal_columns) * x;
    const double y = with_11_bits(left);
    return {x, y, with_11_bits(left - y)};
}

ConstTensorView ShiftedLogits::column_of_sums(const ConstTensorView& dq) const
{
    return columns_of(dq, head_dim_, 1);
}

double ShiftedLogits::sum_of(float element) const
{
    return static_cast<double>(element) / logit_of_k();
}

double ShiftedLogits::sink(std::int64_t row) const
{
    return static_cast<double>(sinks_[static_cast<std::size_t>(head_of(row))]) - c_[static_cast<std::size_t>(row)];
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

ShiftedForward::ShiftedForward(const Call& call, Site& site)
    : call_(call), site_(site), logits_(call, site),
      shifted_(ForwardArgs{logits_.q(), logits_.k(), call.args.v, call.o, host_float32_like(site, lse_, call.args.lse)},
               logits_.options())
{
    if (call.options.sink) {
        zeros_like(site, sink_o_, call.o, last_extent(call.o));
        host_float32_like(site, sink_lse_, call.args.lse);
        for (std::int64_t row = 0; row < logits_.rows(); ++row) {
            host_floats(sink_lse_)[row] = static_cast<float>(logits_.sink(row));
        }
        sink_lse_.from_host();
    }
}

void ShiftedForward::finish(const Options& merge_options)
{
    if (call_.options.sink && logits_.rows() > 0) {
        const TensorView o = batched(call_.o, 4), lse = batched(shifted_.lse, 3);
        site_.merge({o, lse}, {sink_o_.like(o, DType::float32), sink_lse_.like(lse, DType::float32)}, o, lse,
                    merge_options);
    }
    float* const all_lse = floats_on_host(lse_);
    for (std::int64_t row = 0; row < logits_.rows(); ++row) {
        all_lse[row] = logits_.whole(row, all_lse[row]);
    }
    lse_.from_host();
    site_.copy(shifted_.lse, call_.lse);
}

std::int64_t ShiftedForward::bytes() const
{
    return logits_.bytes() + lse_.bytes() + sink_o_.bytes() + sink_lse_.bytes();
}

ShiftedBackward::ShiftedBackward(const Call& call, Site& site)
    : call_(call), site_(site), logits_(call, site), without_dropout_(logits_.options()), args_(shifted_args()),
      exponentials_(exponentials_args(), without_dropout_), deltas_(args_, logits_.options()),
      gradients_(args_, logits_.options())
{
    without_dropout_.dropout = {};
    exponentials_.wants_parts = deltas_.wants_parts = gradients_.wants_parts = true;
    gradients_.args.dbias = call.args.dbias;
    if (call.args.dsink) {
        host_float32_like(site, dsink_, call.args.dsink);
        before_.resize(static_cast<std::size_t>(call.args.dsink.shape[0]));
    }
}

/// With D = 0 and LSE' as it was rounded at first. dQ, in a column in which k is 64, is then Σ dS times 64·scale.
BackwardArgs ShiftedBackward::shifted_args()
{
    BackwardArgs args = call_.args;
    args.q = logits_.q();
    args.k = logits_.k();
    args.o = zeros_like(site_, o_, call_.args.o, last_extent(call_.args.o), Stage::always);
    const TensorView lse = host_float32_like(site_, lse_, call_.args.lse);
    site_.copy(call_.args.lse, lse);
    float* const all_lse = floats_on_host(lse_);
    for (std::int64_t row = 0; row < logits_.rows(); ++row) {
        all_lse[row] = logits_.shifted(row, all_lse[row]);
    }
    lse_.from_host();
    args.lse = lse;
    args.dq = float32_like(site_, dq_, args.q, last_extent(args.q), Stage::none);
    args.dk = float32_like(site_, dk_, args.k, last_extent(args.k), Stage::none);
    sums_view_ = float32_like(site_, sums_, args.q, 1, Stage::always);
    args.dbias = args.dsink = {};
    return args;
}

/// dO·v = 1, so that dS = P.
BackwardArgs ShiftedBackward::exponentials_args()
{
    BackwardArgs args = args_;
    args.v = unit_rows_like(site_, unit_v_, call_.args.v);
    args.dout = unit_rows_like(site_, unit_dout_, call_.args.dout);
    return args;
}

const float* ShiftedBackward::sums()
{
    site_.copy(logits_.column_of_sums(args_.dq), sums_view_);
    return floats_on_host(sums_);
}

void ShiftedBackward::take_lse()
{
    const float* const all_sums = sums();
    float* const lse = host_floats(lse_); // as it was given to the calls
    for (std::int64_t row = 0; row < logits_.rows(); ++row) {
        const auto rounded = static_cast<double>(lse[row]);
        const double sum = logits_.sum_of(all_sums[logits_.among_rows_of_q(row)]);
        const double sink = call_.options.sink ? std::exp(logits_.sink(row) - rounded) : 0.0;
        lse[row] = static_cast<float>(rounded + std::log(sum + sink));
    }
    lse_.from_host();
}

/// D is given as o = dO·D/|dO|², and makes dsink = -Σ p_sink·D.
void ShiftedBackward::take_delta()
{
    const float* const all_sums = sums();
    const std::vector<float> dout = floats_of(site_, call_.args.dout);
    const std::int64_t depth = last_extent(call_.args.dout);
    std::vector<double> dsink(before_.size());
    for (std::int64_t row = 0; row < logits_.rows(); ++row) {
        const std::int64_t head = logits_.head_of(row);
        const std::int64_t among_rows = logits_.among_rows_of_q(row);
        const double delta = logits_.sum_of(all_sums[among_rows]);
        const float* const from = dout.data() + among_rows * depth;
        float* const to = host_floats(o_) + among_rows * depth;
        const double square = std::transform_reduce(from, from + depth, 0.0, std::plus<>(), [](float x) {
            return static_cast<double>(x) * static_cast<double>(x);
        });
        const double factor = delta == 0.0 ? 0.0 : delta / square;
        std::transform(from, from + depth, to, [=](float x) {
            return factor == 0.0 ? 0.0F : static_cast<float>(static_cast<double>(x) * factor);
        });
        if (!dsink.empty() && delta != 0.0) {
            dsink[static_cast<std::size_t>(head)] -=
                std::exp(logits_.sink(row) - static_cast<double>(host_floats(lse_)[row])) * delta;
        }
    }
    o_.from_host();
    if (!dsink.empty()) {
        std::transform(dsink.begin(), dsink.end(), host_floats(dsink_),
                       [](double sum) { return static_cast<float>(sum); });
    }
}

void ShiftedBackward::finish(Messages& messages)
{
    site_.copy(columns_of(gradients_.args.dq, 0, last_extent(call_.args.dq)), call_.args.dq);
    site_.copy(columns_of(gradients_.args.dk, 0, last_extent(call_.args.dk)), call_.args.dk);
    if (call_.args.dsink) {
        messages.sum({host_floats(dsink_), before_.size()}, before_);
        dsink_.from_host();
        site_.copy(dsink_.like(call_.args.dsink, DType::float32), call_.args.dsink);
    }
}

std::int64_t ShiftedBackward::bytes() const
{
    std::int64_t bytes = logits_.bytes();
    for (const Buffer* const buffer : {&unit_v_, &unit_dout_, &o_, &lse_, &dq_, &dk_, &sums_}) {
        bytes += buffer->bytes();
    }
    return bytes;
}

} // namespace flashomp::mpi
