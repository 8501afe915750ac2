// Whether MPI takes addresses of a device's memory.
#include "messages.hpp"

#include <cstdlib>
#include <fmt/format.h>
#include <string_view>

#if defined(OPEN_MPI) && __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

namespace flashomp::mpi {

namespace {

bool mpi_says_so()
{
#if defined(MPIX_CUDA_AWARE_SUPPORT) // Open MPI; the macro says what its header knows of, the function what runs
    return MPIX_Query_cuda_support() == 1;
#elif defined(MPIX_GPU_SUPPORT_CUDA) // MPICH 4
    int is_there = 0;
    return MPIX_GPU_query_support(MPIX_GPU_SUPPORT_CUDA, &is_there) == MPI_SUCCESS && is_there != 0;
#else
    return false;
#endif
}

} // namespace

bool mpi_takes_device_memory()
{
    const char* const asked = std::getenv("FLASHOMP_MPI_GPU_AWARE"); // NOLINT(concurrency-mt-unsafe)
    const std::string_view word = asked != nullptr ? asked : "";
    if (word.empty()) {
        return mpi_says_so();
    }
    if (word != "0" && word != "1") {
        throw Error(fmt::format("FLASHOMP_MPI_GPU_AWARE was '{}'; allowed are: 0, 1.", word));
    }
    return word == "1";
}

} // namespace flashomp::mpi
