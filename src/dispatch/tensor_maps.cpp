#include "tensor_maps.hpp"

#include <dlfcn.h>
#include <optional>

namespace flashomp {

namespace {

using Encode = int (*)(TensorMap*, int type, std::uint32_t rank, void* address, const std::uint64_t* sizes,
                       const std::uint64_t* strides, const std::uint32_t* box, const std::uint32_t* steps,
                       int interleave, int swizzle, int promotion, int fill);

/// The driver's function, or null.
Encode encode()
{
    static const Encode found = [] {
        void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL); // stays open: libgomp uses it, too
        return driver == nullptr ? nullptr : reinterpret_cast<Encode>(dlsym(driver, "cuTensorMapEncodeTiled"));
    }();
    return found;
}

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
    // Numbers of cuda.h's enums.
    constexpr int uint16 = 1, no_interleave = 0, swizzle_128_bytes = 3, promote_to_256_bytes = 3, fill_zeros = 0;
    constexpr std::int64_t element_bytes = 2, alignment = 16, longest_stride = std::int64_t{1} << 40;
    if (encode() == nullptr || reinterpret_cast<std::uintptr_t>(tensor.data) % alignment != 0) {
        return {};
    }
    const std::array<std::int64_t, 5> sizes{extent.depth / panels, extent.rows, panels, extent.heads, extent.batch};
    const std::array<std::int64_t, 4> steps{tensor.row, panel, tensor.head, tensor.batch};
    std::array<std::uint64_t, 4> strides{};
    for (std::size_t axis = 0; axis < steps.size(); ++axis) {
        // Nobody takes a second step along an axis of one, whatever its stride.
        const std::int64_t bytes = sizes[axis + 1] == 1 ? alignment : steps[axis] * element_bytes;
        if (bytes <= 0 || bytes % alignment != 0 || bytes >= longest_stride) {
            return {};
        }
        strides[axis] = static_cast<std::uint64_t>(bytes);
    }
    std::array<std::uint64_t, 5> counts{};
    for (std::size_t axis = 0; axis < sizes.size(); ++axis) {
        if (sizes[axis] < 1) {
            return {};
        }
        counts[axis] = static_cast<std::uint64_t>(sizes[axis]);
    }
    const std::array<std::uint32_t, 5> box{panel, static_cast<std::uint32_t>(box_rows),
                                           static_cast<std::uint32_t>(box_panels), 1, 1};
    const std::array<std::uint32_t, 5> every{1, 1, 1, 1, 1};
    TensorMap map{};
    const int status = encode()(&map, uint16, 5, tensor.data, counts.data(), strides.data(), box.data(), every.data(),
                                no_interleave, swizzle_128_bytes, promote_to_256_bytes, fill_zeros);
    return status == 0 ? std::optional<TensorMap>(map) : std::nullopt;
}

struct Streamed {
    offload::Tensor offload::Params::*tensor;
    const ConstTensorView* view;
};

/// What streams past the resident blocks of a pass.
std::array<Streamed, 2> streamed(offload::Pass pass, const Problem& problem)
{
    if (pass == offload::Pass::backward_key) {
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

std::vector<MapOfTensor> maps_of(const PassPlan& pass, const Problem& problem, const offload::Params& params)
{
    std::vector<MapOfTensor> maps;
    const offload::Launch& launch = pass.launch;
    if (pass.machine != Machine::hopper ||
        (launch.pass == offload::Pass::backward_key && !has_whole_statistics(params))) {
        return maps;
    }
    for (const auto& [tensor, view] : streamed(launch.pass, problem)) {
        if (const auto map = map_of(params.*tensor, extent_of(*view), launch.stream_rows, launch.depth)) {
            maps.push_back({tensor, *map});
        }
    }
    return maps;
}

} // namespace flashomp
