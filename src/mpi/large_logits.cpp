#include "large_logits.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <span>

namespace flashomp::mpi {

namespace {

constexpr std::int64_t shift_columns = 2;
constexpr double unit_of_k = 64.0; ///< keeps q's columns in the range of float16

/// The largest |LSE| whose rounding, by up to 2^-24 of it, does not show. In float32, whose results have 2^-24 of
/// themselves, it is 32, as in a single call (docs/algorithm.md): 2^-19. Results of 16 bits are rounded by 2^-12 or
/// more: 2^-14.
float most_lse(DType dtype)
{
    return dtype == DType::float32 ? 32.0F : 1024.0F;
}

/// Finite ones.
double largest(const ConstTensorView& lse)
{
    const ConstTensorView all = lse.rank == 2 ? with_batch(lse) : lse;
    double largest = 0.0;
    for (std::int64_t b = 0; b < all.shape[0]; ++b) {
        for (std::int64_t head = 0; head < all.shape[1]; ++head) {
            const float* const rows = static_cast<const float*>(all.data) + b * all.strides[0] + head * all.strides[1];
            for (std::int64_t row = 0; row < all.shape[2]; ++row) {
                const double size = std::abs(static_cast<double>(rows[row * all.strides[2]]));
                largest = std::isfinite(size) ? std::max(largest, size) : largest;
            }
        }
    }
    return largest;
}

std::int64_t last_extent(const ConstTensorView& view)
{
    return view.shape.at(static_cast<std::size_t>(view.rank - 1));
}

/// Row-major, of the shape of another tensor but with so many columns.
TensorView view_like(Buffer& buffer, const ConstTensorView& like, std::int64_t columns, DType dtype)
{
    ConstTensorView shape = like;
    shape.shape.at(static_cast<std::size_t>(like.rank - 1)) = columns;
    return TensorView::contiguous(buffer.data(), dtype,
                                  std::span(shape.shape).first(static_cast<std::size_t>(shape.rank)));
}

TensorView make_like(Buffer& buffer, const ConstTensorView& like, std::int64_t columns, DType dtype)
{
    buffer = Buffer(like.elements() / std::max<std::int64_t>(last_extent(like), 1) * columns * size_of(dtype));
    return view_like(buffer, like, columns, dtype);
}

template <class Pointer>
BasicTensorView<Pointer> columns_of(const BasicTensorView<Pointer>& view, std::int64_t first, std::int64_t count)
{
    return part_of(view, view.rank - 1, first, count);
}

/// With room for the columns of the shift: GPUs load rows of 16 bytes.
std::int64_t shifted_depth(std::int64_t head_dim)
{
    constexpr std::int64_t multiple = 8;
    const std::int64_t whole = (head_dim + shift_columns + multiple - 1) / multiple * multiple;
    return std::min(whole, most_head_dim);
}

/// x with columns behind it, f(batch, row, head, column) of the shift and zeros.
template <class F>
ConstTensorView with_columns(Buffer& buffer, const ConstTensorView& x, F f)
{
    const std::int64_t depth = last_extent(x), more = shifted_depth(depth) - depth;
    const TensorView wide = make_like(buffer, x, depth + more, x.dtype);
    copy(x, columns_of(wide, 0, depth));
    Buffer memory;
    const TensorView columns = make_like(memory, x, more, DType::float32);
    memory.clear();
    const TensorView each = x.rank == 3 ? with_batch(columns) : columns;
    float* column = static_cast<float*>(each.data);
    for (std::int64_t b = 0; b < each.shape[0]; ++b) {
        for (std::int64_t row = 0; row < each.shape[1]; ++row) {
            for (std::int64_t head = 0; head < each.shape[2]; ++head, column += more) {
                for (std::int64_t i = 0; i < shift_columns; ++i) {
                    column[i] = static_cast<float>(f(b, row, head, i));
                }
            }
        }
    }
    round_into(columns, columns_of(wide, depth, more));
    return wide;
}

TensorView float32_like(Buffer& buffer, const ConstTensorView& like)
{
    return make_like(buffer, like, last_extent(like), DType::float32);
}

/// Where a call writes o that will be merged with the sink, and rounded then.
TensorView part_o(Buffer& buffer, const Call& call)
{
    const bool is_merged = bool(call.options.sink) && call.o.dtype != DType::float32;
    return is_merged ? float32_like(buffer, call.o) : call.o;
}

float* floats(Buffer& buffer)
{
    return reinterpret_cast<float*>(buffer.data());
}

/// x, rounded to 8 bits.
double with_8_bits(double x)
{
    int exponent = 0;
    const double fraction = std::frexp(x, &exponent);
    return std::ldexp(std::nearbyint(std::ldexp(fraction, 8)), exponent - 8);
}

} // namespace

bool wants_shift(const Messages& messages, const Call& call)
{
    const Options& o = call.options;
    if (o.softcap > 0.0 || o.score_mod || last_extent(call.args.q) + shift_columns > most_head_dim) {
        return false; // a shift of q·k is not one of logits; there is no room
    }
    const std::vector<std::int64_t> all =
        messages.all_numbers({largest(call.args.lse) > most_lse(call.args.q.dtype) ? 1 : 0});
    return std::any_of(all.begin(), all.end(), [](std::int64_t is_large) { return is_large != 0; });
}

ShiftedLogits::ShiftedLogits(const Call& call)
    : options_(call.options), sink_(call.options.sink),
      heads_(call.args.lse.shape.at(static_cast<std::size_t>(call.args.lse.rank - 2))),
      rows_of_head_(last_extent(call.args.lse)),
      scale_(call.options.scale.value_or(1.0 / std::sqrt(static_cast<double>(last_extent(call.args.q)))))
{
    options_.scale = scale_;
    options_.sink = {};
    Buffer memory;
    const TensorView lse = make_like(memory, call.args.lse, rows_of_head_, DType::float32);
    copy(call.args.lse, lse);
    std::vector<std::array<double, 2>> cuts;
    for (std::int64_t row = 0; row < lse.elements(); ++row) {
        cuts.push_back(cut(static_cast<double>(floats(memory)[row]), call.args.q.dtype));
        // Kernels have the scale in float32.
        c_.push_back(static_cast<double>(static_cast<float>(scale_)) * unit_of_k * (cuts.back()[0] + cuts.back()[1]));
    }
    q_ = with_columns(q_memory_, call.args.q, [&](auto b, auto row, auto head, auto i) {
        return -cuts[at((b * heads_ + head) * rows_of_head_ + row)].at(static_cast<std::size_t>(i));
    });
    k_ = with_columns(k_memory_, call.args.k, [](auto, auto, auto, auto) { return unit_of_k; });
}

std::array<double, 2> ShiftedLogits::cut(double lse, DType dtype) const
{
    // Any c will do. That of rows without keys, or with a NaN, is 0. Multiples of a unit are exact in float16.
    constexpr double unit = 0x1p-12;
    const double most = dtype == DType::float16 ? 0x1p15 : 0x1p63;
    const double wanted = lse / scale_ / unit_of_k;
    if (!std::isfinite(lse) || !std::isfinite(wanted)) {
        return {0.0, 0.0};
    }
    const double x = std::nearbyint(std::clamp(wanted, -most, most) / unit) * unit;
    const double high = with_8_bits(x);
    return {high, with_8_bits(x - high)};
}

double ShiftedLogits::sink(std::int64_t row) const
{
    return static_cast<double>(static_cast<const float*>(sink_.data)[head_of(row)]) - c_[at(row)];
}

std::int64_t ShiftedLogits::bytes() const
{
    return q_memory_.bytes() + k_memory_.bytes() + static_cast<std::int64_t>(c_.size() * sizeof(double));
}

ShiftedForward::ShiftedForward(const Call& call)
    : call_(call), logits_(call),
      shifted_(ForwardArgs{logits_.q(), logits_.k(), call.args.v, part_o(o_, call), float32_like(lse_, call.args.lse)},
               logits_.options())
{
    if (call.options.sink) {
        float32_like(sink_o_, call.o);
        float32_like(sink_lse_, call.args.lse);
        sink_o_.clear();
        for (std::int64_t row = 0; row < logits_.rows(); ++row) {
            floats(sink_lse_)[row] = static_cast<float>(logits_.sink(row));
        }
    }
}

void ShiftedForward::finish(const Options& merge_options)
{
    const auto batched = [&](const TensorView& view) { return call_.is_packed() ? with_batch(view) : view; };
    if (call_.options.sink && logits_.rows() > 0) {
        const Partial keys{batched(shifted_.o), batched(shifted_.lse)};
        const Partial sink{batched(view_like(sink_o_, call_.o, last_extent(call_.o), DType::float32)),
                           batched(view_like(sink_lse_, call_.lse, last_extent(call_.lse), DType::float32))};
        merge(keys, sink, batched(call_.o), batched(shifted_.lse), merge_options);
    }
    for (std::int64_t row = 0; row < logits_.rows(); ++row) {
        floats(lse_)[row] = logits_.whole(row, floats(lse_)[row]);
    }
    copy(shifted_.lse, call_.lse);
}

std::int64_t ShiftedForward::bytes() const
{
    return logits_.bytes() + o_.bytes() + lse_.bytes() + sink_o_.bytes() + sink_lse_.bytes();
}

ShiftedBackward::ShiftedBackward(const Call& call)
    : call_(call), logits_(call), sees_keys_(static_cast<std::size_t>(logits_.rows())),
      first_(ForwardArgs{logits_.q(), logits_.k(), call.args.v, float32_like(o_, call.args.o),
                         float32_like(lse_, call.args.lse)},
             logits_.options()),
      second_(shifted_args(), logits_.options())
{
    if (call.args.dsink) {
        dsink_.resize(static_cast<std::size_t>(call.args.dsink.shape[0]));
        before_.resize(dsink_.size());
        const std::int64_t bytes =
            Buffer::bytes_of(DType::float32, {call.args.dsink.shape[0], last_extent(call.args.o)});
        row_o_ = Buffer(bytes);
        row_dout_ = Buffer(bytes);
    }
}

BackwardArgs ShiftedBackward::shifted_args()
{
    BackwardArgs args = call_.args;
    args.q = logits_.q();
    args.k = logits_.k();
    args.lse = first_.lse;
    args.dq = float32_like(dq_, args.q);
    args.dk = float32_like(dk_, args.k);
    args.dsink = {};
    return args;
}

void ShiftedBackward::take_lse()
{
    for (std::int64_t row = 0; row < logits_.rows(); ++row) {
        float& lse = floats(lse_)[row];
        sees_keys_[static_cast<std::size_t>(row)] = lse != -std::numeric_limits<float>::infinity();
        if (call_.options.sink) {
            const double keys = static_cast<double>(lse), sink = logits_.sink(row);
            const double largest = std::max(keys, sink);
            lse = std::isfinite(largest)
                      ? static_cast<float>(largest + std::log(std::exp(keys - largest) + std::exp(sink - largest)))
                      : lse;
        }
    }
}

void ShiftedBackward::finish(Messages& messages)
{
    round_into(columns_of(second_.args.dq, 0, last_extent(call_.args.dq)), call_.args.dq);
    round_into(columns_of(second_.args.dk, 0, last_extent(call_.args.dk)), call_.args.dk);
    if (call_.args.dsink) {
        add_dsink();
        messages.sum(dsink_, before_);
        copy(ConstTensorView::contiguous(std::span<const float>(dsink_), {call_.args.dsink.shape[0]}),
             call_.args.dsink);
    }
}

/// -Σ p_sink·D over this rank's rows.
void ShiftedBackward::add_dsink()
{
    const ConstTensorView o = call_.is_packed() ? with_batch(call_.args.o) : call_.args.o;
    const ConstTensorView dout = call_.is_packed() ? with_batch(call_.args.dout) : call_.args.dout;
    const std::int64_t rows = o.shape[1], heads = o.shape[2], depth = o.shape[3];
    std::vector<double> sums(dsink_.size());
    for (std::int64_t b = 0; b < o.shape[0]; ++b) {
        for (std::int64_t i = 0; i < rows; ++i) {
            const auto widen = [&](const ConstTensorView& from, Buffer& to) {
                widen_into(part_of(part_of(from, 0, b, 1), 1, i, 1), to.view(DType::float32, {1, 1, heads, depth}));
            };
            widen(o, row_o_);
            widen(dout, row_dout_);
            for (std::int64_t head = 0; head < heads; ++head) {
                const std::int64_t row = (b * heads + head) * rows + i;
                if (!sees_keys_[static_cast<std::size_t>(row)]) {
                    continue; // o is 0, whatever dO holds
                }
                const float* const o_row = floats(row_o_) + head * depth;
                const double delta = std::transform_reduce(o_row, o_row + depth, floats(row_dout_) + head * depth, 0.0,
                                                           std::plus<>(), [](double x, double y) { return x * y; });
                sums[static_cast<std::size_t>(head)] -=
                    std::exp(logits_.sink(row) - static_cast<double>(floats(lse_)[row])) * delta;
            }
        }
    }
    std::transform(sums.begin(), sums.end(), dsink_.begin(), [](double sum) { return static_cast<float>(sum); });
}

std::int64_t ShiftedBackward::bytes() const
{
    return logits_.bytes() + o_.bytes() + lse_.bytes() + dq_.bytes() + dk_.bytes() + row_o_.bytes() + row_dout_.bytes();
}

} // namespace flashomp::mpi
