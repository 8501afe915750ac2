// The passes on the tensor-core machines (offload/nvidia/tensor_machine.hpp and tf32_machine.hpp), from sm_80. Compiled
// once for every depth, pass and kind of operands, FLASHOMP_CUDA_DEPTH, _PASS and _OPERANDS, and with
// FLASHOMP_CUDA_MASKED for calls with a mask: mirrors offload/launch/launch_tensor.cpp.
#include "block_shapes.hpp"
#include "grid.cuh"
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

struct Shapes {
    static constexpr TensorShape of(Pass pass, int depth, bool modified)
    {
        return kernel_shape(operands, pass, depth, modified);
    }
};

#ifdef FLASHOMP_CUDA_MASKED
using Mask = offload::PairMask;
#else
using Mask = offload::NoMask;
#endif
constexpr bool masked = std::is_same_v<Mask, offload::PairMask>;

template <class Config>
using UnmaskedMachineOf = std::conditional_t < operands == Operands::tf32,
      offload::Tf32Machine<Config>,
      std::conditional_t<int{
          Config::depth_v}<int{Config::depth}, offload::LatentMachine<Config>, offload::TensorMachine<Config>>>;
template <class Config>
using MachineOf = std::conditional_t<masked, offload::MaskedTensorMachine<Config>, UnmaskedMachineOf<Config>>;
template <int depth, class Math, Pass pass, bool modified>
using Machine = MachineOf<offload::TileConfig<Shapes, depth, Math, pass, modified>>;

/// HereMask: in the kernel's name, by which tools/cuda_report knows it.
template <int depth, Pass pass, bool modified, class Math, KeySums sums, class Keys, class HereMask>
__global__ void __launch_bounds__(32 * Shapes::of(pass, depth, modified).warps)
    tensor_kernel(const __grid_constant__ Params params, const __grid_constant__ Launch launch)
{
    const Work work(params, launch);
    const std::int64_t index = item_index();
    if (index < work.items) {
        using OneMachine = Machine<depth, Math, pass, modified>;
        if constexpr (offload::value_depth(depth) < depth) {
            offload::latent_block<OneMachine, modified>(block_memory(), params, work.item(index));
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

/// Shared memory of a block.
constexpr int shared_bytes(Pass pass, int depth, bool modified)
{
    const TensorShape shape = Shapes::of(pass, depth, modified);
    return tensor_shared_bytes(operands, pass, depth, modified) +
           (masked ? offload::kept_bytes(shape.resident_rows(), shape.stream_rows) : 0);
}

template <int depth, Pass pass, bool modified, class Math, KeySums sums = KeySums::both,
          class Keys = offload::StridedKeys>
cudaError_t run(const Params& params, const Launch& launch, cudaStream_t stream)
{
    if constexpr (sums_apart(pass, depth) && sums == KeySums::both) {
        const cudaError_t status = run<depth, pass, modified, Math, KeySums::values>(params, launch, stream);
        return status != cudaSuccess ? status : run<depth, pass, modified, Math, KeySums::keys>(params, launch, stream);
    } else {
        return launch_items<tensor_kernel<depth, pass, modified, Math, sums, Keys, Mask>>(
            Work(params, launch).items, Shapes::of(pass, depth, modified).warps, shared_bytes(pass, depth, modified),
            stream, params, launch);
    }
}

template <int depth, Pass pass, class Math>
cudaError_t run(const Params& params, const Launch& launch, cudaStream_t stream)
{
    if constexpr (masked) {
        return run<depth, pass, false, Math>(params, launch, stream);
    } else {
        if constexpr (pass == Pass::forward && offload::value_depth(depth) == depth) {
            if (params.cache.is_there()) {
                using Keys = offload::PagedKeys;
                return params.is_modified ? run<depth, pass, true, Math, KeySums::both, Keys>(params, launch, stream)
                                          : run<depth, pass, false, Math, KeySums::both, Keys>(params, launch, stream);
            }
        }
        return params.is_modified ? run<depth, pass, true, Math>(params, launch, stream)
                                  : run<depth, pass, false, Math>(params, launch, stream);
    }
}

int run_elements(const Params& params, const Launch& launch, void* stream)
{
    constexpr int depth = FLASHOMP_CUDA_DEPTH;
    constexpr Pass pass = Pass::FLASHOMP_CUDA_PASS;
    const auto on = static_cast<cudaStream_t>(stream);
    if constexpr (operands == Operands::tf32) {
        return run<depth, pass, ptx::Tf32Math>(params, launch, on);
    } else {
        return params.element == offload::Element::bfloat16 ? run<depth, pass, ptx::BFloat16Math>(params, launch, on)
                                                            : run<depth, pass, ptx::Float16Math>(params, launch, on);
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
