// The engine's tensors where heads are shared out: the group's rows of the rank's heads.
#include "engine.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace flashomp::mpi {

/// The most that an exchange of heads has on its way to or from this rank. Tensors of 16 bits are counted as float32,
/// which their results may be.
std::int64_t Engine::exchange_bytes() const
{
    const Geometry& g = geometry_;
    if (!g.shares_heads() || site_.memory() == Memory::host) {
        return 0;
    }
    const auto bytes = [&](std::int64_t own_rows, std::int64_t rows, const std::vector<HeadRange>& ranges,
                           std::int64_t row_elements) {
        const auto heads = std::accumulate(ranges.begin(), ranges.end(), std::int64_t{0},
                                           [](std::int64_t sum, const HeadRange& range) { return sum + range.count; });
        const std::int64_t own_heads = ranges[static_cast<std::size_t>(g.member)].count;
        return std::max(own_rows * heads, rows * own_heads) * row_elements * size_of(DType::float32);
    };
    const std::int64_t rows_q = batched(call_.args.q).shape[1], rows_k = batched(call_.args.k).shape[1];
    const std::int64_t depth = g.batch * std::max(g.head_dim, g.head_dim_v);
    std::int64_t most =
        std::max(bytes(rows_q, g.queries.rows(), g.ranges_q, depth), bytes(rows_k, g.keys.rows(), g.ranges_k, depth));
    for (const auto& [view, has_rows] :
         {std::pair{call_.options.bias, bias_has_rows_}, std::pair{call_.options.mask, mask_has_rows_}}) {
        if (view && has_rows) {
            most = std::max(most, bytes(rows_q, g.queries.rows(), pair_ranges(view), view.shape[0] * view.shape[3]));
        }
    }
    return most;
}

std::vector<HeadRange> Engine::pair_ranges(const ConstTensorView& pairs) const
{
    return pairs.shape[1] == 1 ? std::vector<HeadRange>(geometry_.ranges_q.size(), HeadRange{0, 1})
                               : geometry_.ranges_q;
}

std::int64_t Engine::input_bytes(const ConstTensorView& own) const
{
    return geometry_.shares_heads() && own ? Buffer::bytes_of(own.dtype, {own.shape[0], geometry_.queries.rows(),
                                                                          geometry_.heads().count, own.shape[3]})
                                           : 0;
}

ConstTensorView Engine::shared_input(const ConstTensorView& own, Buffer& buffer)
{
    if (!geometry_.shares_heads()) {
        return own;
    }
    const TensorView shared =
        buffer.view(own.dtype, {own.shape[0], geometry_.queries.rows(), geometry_.heads().count, own.shape[3]});
    geometry_.queries.share_out(messages_, own, geometry_.ranges_q, shared, exchange_);
    return shared;
}

std::int64_t Engine::pairs_bytes(const ConstTensorView& own, bool has_rows) const
{
    const std::int64_t heads = own.shape[1] == 1 ? 1 : geometry_.heads().count;
    return own && geometry_.shares_heads() && has_rows
               ? Buffer::bytes_of(own.dtype, {own.shape[0], heads, geometry_.queries.rows(), own.shape[3]})
               : 0;
}

ConstTensorView Engine::shared_pairs(const ConstTensorView& own, bool has_rows, Buffer& buffer)
{
    if (!geometry_.shares_heads()) {
        return own;
    }
    if (!has_rows) {
        return part_unless_one(own, 1, geometry_.heads().first, geometry_.heads().count);
    }
    const bool is_one = own.shape[1] == 1;
    const std::vector<HeadRange> ranges = pair_ranges(own);
    const TensorView shared = buffer.view(
        own.dtype, {own.shape[0], is_one ? 1 : geometry_.heads().count, geometry_.queries.rows(), own.shape[3]});
    geometry_.queries.share_out(messages_, own.transposed(1, 2), ranges, shared.transposed(1, 2), exchange_);
    return shared;
}

} // namespace flashomp::mpi
