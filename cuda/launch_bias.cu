// Choosing and launching the Hopper kernels of dbias.
#include "bias_hopper.cuh"
#include "bias_kernels.hpp"
#include "hopper_launch.cuh"

namespace flashomp::cuda {

namespace {

template <class Shape>
int launch_bias(const Params& p, cudaStream_t stream, const Gpu& gpu)
{
    const auto maps = backward_maps<Shape>(p);
    if (!maps) {
        return cudaErrorInvalidValue;
    }
    using Memory = BiasMemory<Shape>;
    constexpr auto kernel = &hopper_bias_kernel<Shape>;
    if (const cudaError_t status = allow_memory<Memory, kernel>(gpu.device); status != cudaSuccess) {
        return status;
    }
    const std::int64_t items = offload::BiasBlocks(p, Shape::block_m, Shape::block_n).items();
    const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(items, gpu.multiprocessors));
    kernel<<<blocks, Shape::threads, shared_bytes<Memory>, stream>>>(p, *maps);
    return cudaGetLastError();
}

/// Calls f(Shape{}) for the shape that the pass takes.
template <class Math, class F>
auto for_bias_shape(const Params& p, const F& f)
{
    const int depth = std::max(p.head_dim, p.head_dim_v);
    if (depth <= 64) {
        return f(Modified<BiasShape<Math, 64, 64>>{});
    }
    if (depth <= 128) {
        return f(Modified<BiasShape<Math, 128, 128>>{});
    }
    return p.head_dim <= 192 && p.head_dim_v <= 128 ? f(Modified<BiasShape<Math, 192, 128>>{})
                                                    : f(Modified<BiasShape<Math, 256, 256>>{});
}

} // namespace

bool bias_supports(const Params& p)
{
    const bool is_16_bit = p.element == offload::Element::bfloat16 || p.element == offload::Element::float16;
    return is_16_bit && can_bring(p, 2) && can_modify(p) && is_whole(p.dout, extent_q(p, p.head_dim_v));
}

HopperBlocks bias_blocks(const Params& p)
{
    return for_bias_shape<ptx::BFloat16Math>(p, [](auto shape) {
        using Shape = decltype(shape);
        return HopperBlocks{Shape::block_m, Shape::block_n, Shape::threads / 32,
                            Shape::depth,   Shape::depth_v, Shape::stages};
    });
}

int run_bias(const StreamCall& call)
{
    const auto launch = [&](auto shape) {
        return launch_bias<decltype(shape)>(call.params, static_cast<cudaStream_t>(call.stream), call.gpu);
    };
    return call.params.element == offload::Element::bfloat16 ? for_bias_shape<ptx::BFloat16Math>(call.params, launch)
                                                             : for_bias_shape<ptx::Float16Math>(call.params, launch);
}

} // namespace flashomp::cuda
