// The one entry of a library of kernels (kernel_libraries.cpp): to those of the launch's depth, of
// FLASHOMP_LIBRARY_DEPTHS. FLASHOMP_MASKED=1: to those of calls with a mask, and the table of tiles before.
#include "launch/direct.hpp"
#include "launch/fill_tiles.hpp"
#include "launch/tensor_shapes.hpp"

namespace flashomp::offload {

template <int... depths>
static Ran run_one_of(const Call& call, Call* there)
{
    Ran ran;
    static_cast<void>(((call.launch.depth == depths &&
                        (ran = run_tensor_depth<Operands::FLASHOMP_TENSOR_OPERANDS, depths>(call, there), true)) ||
                       ...));
    return ran;
}

extern "C" __attribute__((visibility("default"))) Ran flashomp_run(const Call& call, Call* there)
{
#if FLASHOMP_MASKED
    const Ran filled = fill_tiles_there(call, there);
    Ran ran = run_one_of<FLASHOMP_LIBRARY_DEPTHS>(call, there);
    ran.on_device = ran.on_device && filled.on_device;
    return ran;
#else
    return run_one_of<FLASHOMP_LIBRARY_DEPTHS>(call, there);
#endif
}

extern "C" __attribute__((visibility("default"))) bool flashomp_launches_directly(int device)
{
    return launches_directly(device);
}

} // namespace flashomp::offload
