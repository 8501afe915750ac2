#include "tensor_maps.hpp"

#include <array>
#include <optional>

namespace flashomp {

namespace {

/// A tensor of 16-bit elements as [batch, head, row, depth].
struct Extent {
    std::int64_t batch, heads, rows, depth;
};

/// The map whose boxes are `box_rows` whole rows, in the order of offload/nvidia/panels.hpp; zeros beyond the tensor's
/// rows and panels.
std::optional<TensorMap> map_of(const offload::Tensor& tensor, const Extent& extent, int box_rows, int box_depth)
{
    constexpr std::int64_t panel = 64; // columns
    const std::int64_t box_panels = box_depth / panel;
    if (box_panels > 1 && extent.depth % panel != 0) {
        return {}; // beyond its end a row would go on with what follows it in memory
    }
    const std::int64_t panels = box_panels > 1 ? extent.depth / panel : 1;
    const std::array<std::int64_t, 5> sizes{extent.depth / panels, extent.rows, panels, extent.heads, extent.batch};
    const std::array<std::int64_t, 4> steps{tensor.row, panel, tensor.head, tensor.batch};
    const std::array<std::uint32_t, 5> box{panel, static_cast<std::uint32_t>(box_rows),
                                           static_cast<std::uint32_t>(box_panels), 1, 1};
    return offload::encode_map(tensor.data, 2, sizes, steps, box);
}

struct Streamed {
    offload::Tensor offload::Params::*tensor;
    const ConstTensorView* view;
};

/// What streams past the resident blocks of a pass.
std::array<Streamed, 2> streamed(offload::Pass pass, const Problem& problem)
{
    if (offload::keys_stay(pass)) {
        return {{{&offload::Params::q, &problem.q}, {&offload::Params::dout, &problem.dout}}};
    }
    return {{{&offload::Params::k, &problem.k}, {&offload::Params::v, &problem.v}}};
}

/// Whether the engine can bring the row statistics, too: any block of them starts at a multiple of 16 bytes.
bool has_whole_statistics(const offload::Params& params)
{
    constexpr std::uintptr_t alignment = 16;
    constexpr std::int64_t floats = 4; // in it
    const auto is_whole = [](const offload::RowTensor& rows) {
        return reinterpret_cast<std::uintptr_t>(rows.data) % alignment == 0 && rows.batch % floats == 0 &&
               rows.head % floats == 0;
    };
    return !params.q.is_packed && is_whole(params.lse) && is_whole(params.delta) && is_whole(params.residual);
}

Extent extent_of(const ConstTensorView& view)
{
    if (view.rank == 3) { // packed: [row, head, depth]
        return {1, view.shape[1], view.shape[0], view.shape[2]};
    }
    return {view.shape[0], view.shape[2], view.shape[1], view.shape[3]};
}

} // namespace

TensorMaps maps_of(const PassPlan& pass, const Problem& problem, const offload::Params& params)
{
    TensorMaps maps;
    const offload::Launch& launch = pass.launch;
    if (pass.machine != Machine::hopper || (offload::keys_stay(launch.pass) && !has_whole_statistics(params))) {
        return maps;
    }
    const auto tensors = streamed(launch.pass, problem);
    for (std::size_t i = 0; i < maps.size(); ++i) {
        const auto& [tensor, view] = tensors.at(i);
        if (const auto map = map_of(params.*tensor, extent_of(*view), launch.stream_rows, launch.depth)) {
            maps.at(i) = {tensor, *map};
        }
    }
    return maps;
}

} // namespace flashomp
