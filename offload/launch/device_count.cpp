#include "launch/device_count.hpp"

#include "launch/launch.hpp"

#include <omp.h>

namespace flashomp::offload {

// A device that libgomp lists may still lack an image in this build, and a region for it would then silently run
// on the host with device pointers. So each is asked.
bool device_answers(int device)
{
    int on_host = 1;
#pragma omp target device(device) map(from : on_host)
    on_host = omp_is_initial_device();
    return on_host == 0;
}

int device_count()
{
    static const int count = [] {
        int found = 0;
        // A build without GPU code asks nobody: where OMP_TARGET_OFFLOAD is MANDATORY, libgomp would end the process.
        while (has_gpu_code() && found < omp_get_num_devices() && device_answers(found)) {
            ++found;
        }
        return found;
    }();
    return count;
}

} // namespace flashomp::offload
