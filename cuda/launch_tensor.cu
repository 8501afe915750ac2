// The passes on the tensor-core machines (offload/nvidia/tensor_machine.hpp and tf32_machine.hpp), from sm_80. Compiled
// once for every depth, pass and kind of operands, FLASHOMP_CUDA_DEPTH, _PASS and _OPERANDS, and with
// FLASHOMP_CUDA_MASKED for calls with a mask: mirrors offload/launch/launch_tensor.cpp.
#include "block_shapes.hpp"
#include "grid.cuh"
#include "launch/keys.hpp"
#include "launch/tile_config.hpp"
#include "nvidia/latent_machine.hpp"
#include "nvidia/masked_tensor_machine.hpp"
#include "nvidia/tf32_machine.hpp"
#include "tensor_depths.hpp"

#include <type_traits>

namespace flashomp::cuda {

namespace {

namespace ptx = offload::ptx;
using offload::KeySums;

constexpr Operands operands = Operands::FLASHOMP_CUDA_OPERANDS;

/// Kinds of kernels, in whose names tools/cuda_report finds them.
struct Usual {
    static constexpr TensorShape of(Pass pass, int depth, bool modified)
    {
        return kernel_shape(operands, pass, depth, modified);
    }
};
struct Masked : Usual {};

template <class Config>
using OfAllKeys =
    std::conditional_t<(operands == Operands::tf32), offload::Tf32Machine<Config>,
                       std::conditional_t<(int{Config::depth_v} < int{Config::depth}), offload::LatentMachine<Config>,
                                          offload::TensorMachine<Config>>>;
template <class Kind, class Config>
using MachineOf =
    std::conditional_t<std::is_same_v<Kind, Masked>, offload::MaskedTensorMachine<Config>, OfAllKeys<Config>>;
template <class Kind, int depth, class Math, Pass pass, bool modified>
using Machine = MachineOf<Kind, offload::TileConfig<Kind, depth, Math, pass, modified>>;

/// Shared memory of a block.
template <class Kind>
constexpr int shared_bytes(Pass pass, int depth, bool modified)
{
    const TensorShape shape = Kind::of(pass, depth, modified);
    return offload::tensor_bytes(shape, operands, pass, depth) +
           (std::is_same_v<Kind, Masked> ? offload::kept_bytes(shape.resident_rows(), shape.stream_rows) : 0);
}

template <class Kind, int depth, Pass pass, bool modified, class Math, KeySums sums, class Keys>
__global__ void __launch_bounds__(32 * Kind::of(pass, depth, modified).warps)
    tensor_kernel(const __grid_constant__ Params params, const __grid_constant__ Launch launch)
{
    const Work work(params, launch);
    const std::int64_t index = item_index();
    if (index < work.items) {
        using OneMachine = Machine<Kind, depth, Math, pass, modified>;
        if constexpr (offload::value_depth(depth) < depth) {
            offload::latent_block<OneMachine, modified, Keys>(block_memory(), params, work.item(index));
        } else {
            OneMachine tile(block_memory());
            if constexpr (pass == Pass::backward_key) {
                offload::backward_key_block<modified, sums>(tile, params, work.item(index));
            } else {
                offload::run_item<pass, modified, Keys>(tile, params, work, index);
            }
        }
    }
}

template <class Kind, int depth, Pass pass, bool modified, class Math, class Keys = offload::StridedKeys,
          KeySums sums = KeySums::both>
cudaError_t run(const Params& params, const Launch& launch, cudaStream_t stream)
{
    if constexpr (sums_apart(pass, depth) && sums == KeySums::both) {
        const cudaError_t status =
            run<Kind, depth, pass, modified, Math, Keys, KeySums::values>(params, launch, stream);
        return status != cudaSuccess
                   ? status
                   : run<Kind, depth, pass, modified, Math, Keys, KeySums::keys>(params, launch, stream);
    } else {
        return launch_items<tensor_kernel<Kind, depth, pass, modified, Math, sums, Keys>>(
            Work(params, launch).items, Kind::of(pass, depth, modified).warps,
            shared_bytes<Kind>(pass, depth, modified), stream, params, launch);
    }
}

#ifdef FLASHOMP_CUDA_MASKED
template <int depth, Pass pass, class Math>
cudaError_t run_kind(const Params& params, const Launch& launch, cudaStream_t stream)
{
    return offload::with_keys<pass>(params.cache, [&]<class Keys>() {
        return run<Masked, depth, pass, false, Math, Keys>(params, launch, stream);
    });
}
#else
template <int depth, Pass pass, bool modified, class Math>
cudaError_t run_usual(const Params& params, const Launch& launch, cudaStream_t stream)
{
    return offload::with_keys<pass>(params.cache, [&]<class Keys>() {
        return run<Usual, depth, pass, modified, Math, Keys>(params, launch, stream);
    });
}

template <int depth, Pass pass, class Math>
cudaError_t run_kind(const Params& params, const Launch& launch, cudaStream_t stream)
{
    return params.is_modified ? run_usual<depth, pass, true, Math>(params, launch, stream)
                              : run_usual<depth, pass, false, Math>(params, launch, stream);
}
#endif

int run_elements(const Params& params, const Launch& launch, void* stream)
{
    constexpr int depth = FLASHOMP_CUDA_DEPTH;
    constexpr Pass pass = Pass::FLASHOMP_CUDA_PASS;
    const auto on = static_cast<cudaStream_t>(stream);
    if constexpr (operands == Operands::tf32) {
        return run_kind<depth, pass, ptx::Tf32Math>(params, launch, on);
    } else {
        return params.element == offload::Element::bfloat16
                   ? run_kind<depth, pass, ptx::BFloat16Math>(params, launch, on)
                   : run_kind<depth, pass, ptx::Float16Math>(params, launch, on);
    }
}

} // namespace

template <>
#ifdef FLASHOMP_CUDA_MASKED
int run_masked_tensor_pass<FLASHOMP_CUDA_DEPTH, Pass::FLASHOMP_CUDA_PASS>(const Params& params, const Launch& launch,
                                                                          void* stream)
#else
int run_tensor_pass<operands, FLASHOMP_CUDA_DEPTH, Pass::FLASHOMP_CUDA_PASS>(const Params& params, const Launch& launch,
                                                                             void* stream)
#endif
{
    return run_elements(params, launch, stream);
}

} // namespace flashomp::cuda
