// Launching a pass as CUDA kernels: mirrors offload/launch/launch.hpp. Nothing here waits for a kernel, allocates or
// throws; the results are cudaError_t, 0 for success.
#pragma once

#include "launch/launch.hpp"

#include <cstdint>

namespace flashomp::cuda {

/// Whether this build has CUDA code.
bool is_built();

/// A pass on the current device; launch.depth and its block sizes as plan() decided. `stream` is a cudaStream_t.
int run_tensor(const offload::Params& params, const offload::Launch& launch, void* stream);
int run_plain(const offload::Params& params, const offload::Launch& launch, void* stream);
/// The table of tiles of a pass whose call has a mask: run_tensor() and run_masked() make it before the pass.
int fill_tiles(const offload::Params& params, const offload::Launch& launch, void* stream);
/// What run_plain() does where the call has a mask.
int run_masked(const offload::Params& params, const offload::Launch& launch, void* stream);
int run_merge(const offload::MergeParams& params, void* stream);

/// A pass on the plain machine whose sums leave out hidden pairs (offload/plain/visible_machine.hpp); kernels that find
/// 0 at `only_if` do nothing.
int run_visible(const offload::Params& params, const offload::Launch& launch, const unsigned* only_if, void* stream);

/// "out of memory", for a result of the above.
const char* error_text(int error);

} // namespace flashomp::cuda
