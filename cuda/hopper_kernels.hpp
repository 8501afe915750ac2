// The kernels with Hopper's warpgroup products and copy engine (sm_90a only): called on devices of compute capability
// 9.0, for the passes that they support.
#pragma once

#include "launch/launch.hpp"

#include <cstdint>

namespace flashomp::cuda {

/// Whether the Hopper kernels do this pass: element type, depths, options, strides. The launch of backward_query does
/// the whole of dq, dk and dv: in one kernel up to depth 128 (HopperBlocks::is_one_pass), beyond it in two, the second
/// of which is the pass backward_key, whose own launch does nothing. The pass backward_bias is bias_kernels.hpp's.
bool hopper_supports(offload::Pass pass, const offload::Params& params);

/// Bytes of device workspace that the pass needs.
std::int64_t hopper_workspace_bytes(offload::Pass pass, const offload::Params& params);

/// The blocks of a pass, and the warps of a block of threads.
struct HopperBlocks {
    int resident_rows = 0, stream_rows = 0, warps = 0;
    int depth = 0, depth_v = 0;
    int stages = 0;           ///< places for blocks that stream
    bool is_one_pass = false; ///< backward_query computes all gradients: keys stay
};
HopperBlocks hopper_blocks(offload::Pass pass, const offload::Params& params);

/// Factors of float8_e4m3 tensors, [heads] of each sequence; data null: 1.
struct Float8Scales {
    offload::RowTensor q, k, v; ///< batch: from one sequence to the next; the others are 0
};

/// What the kernels are told of the device: it is the current one.
struct Gpu {
    int device = 0;
    int multiprocessors = 1;
    std::int64_t l2_bytes = 0; ///< 0: unknown
};

/// A pass on a stream.
struct StreamCall {
    const offload::Params& params;
    const offload::Launch& launch;
    Float8Scales scales;       ///< float8_e4m3 only
    void* workspace = nullptr; ///< as many bytes as the kernel says
    void* stream = nullptr;    ///< a cudaStream_t
    Gpu gpu;
};

/// Launches the pass: no allocation, no synchronisation. Throws nothing; the result is a cudaError_t, 0 for success.
int run_hopper(const StreamCall& call);

/// The forward pass where q, k and v are float8_e4m3 and o is params.element, bfloat16. As above: whether there is a
/// kernel for depths, options and strides; bytes of workspace, which hold v transposed; and the launch.
bool float8_supports(const offload::Params& params);
std::int64_t float8_workspace_bytes(const offload::Params& params);
HopperBlocks float8_blocks(const offload::Params& params);
int run_float8(const StreamCall& call);

} // namespace flashomp::cuda
