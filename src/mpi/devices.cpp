#include "devices.hpp"

#include "device_work.hpp"

#include "flashomp/device.hpp"
#include "flashomp/error.hpp"

namespace flashomp::mpi {

Options with_device_of_rank(const Options& options, int rank_on_node, int devices)
{
    Options placed = options;
    if (options.device.kind == Device::Kind::automatic && devices > 1) {
        placed.device = {Device::Kind::gpu, rank_on_node % devices};
    }
    return placed;
}

Options with_device_of_rank(const Options& options, int rank_on_node)
{
    if (options.device.kind != Device::Kind::automatic || options.backend == Backend::reference) {
        return options;
    }
    try {
        const bool is_on_gpu = device_of_calls(options) >= 0;
        return with_device_of_rank(options, rank_on_node,
                                   is_on_gpu ? static_cast<int>(devices(options.backend).size()) : 0);
    } catch (const Error&) {
        return options; // validation says it on all ranks
    }
}

} // namespace flashomp::mpi
