# Finds out whether this compiler can build code for a GPU: compile AND link, because a missing back end only
# shows when the link step hands over to it. A third probe runs the result and says whether a device answers;
# its outcome is information, never a condition, since the machine that builds may have no GPU.
#
# Result: FLASHOMP_OFFLOAD_TARGET (nvptx or none), FLASHOMP_OFFLOAD_FLAGS, FLASHOMP_OFFLOAD_LINK_FLAGS,
# FLASHOMP_OFFLOAD_FOUND_DEVICE.

set(FLASHOMP_NVPTX_ISA sm_80 CACHE STRING "PTX target of the GPU code; the driver compiles it for newer devices")

# GCC 12 defaults to sm_35, which CUDA 13 no longer assembles: the target is always named. -lm brings device logf.
set(_nvptx_options "-foffload-options=nvptx-none=-O3 -misa=${FLASHOMP_NVPTX_ISA} -mptx=7.0 -lm")
set(_nvptx_flags -foffload=nvptx-none "${_nvptx_options}")

# The linker's flags, where g++ generates code for the GPU: -B has it call cmake/nvptx/as, which gives the kernels entries
# of our own.
set(_nvptx_link_flags -foffload=nvptx-none "${_nvptx_options} -B${PROJECT_SOURCE_DIR}/cmake/nvptx/")

function(flashomp_probe_nvptx)
    if(DEFINED CACHE{FLASHOMP_NVPTX_LINKS})
        return()
    endif()
    set(works OFF)
    set(runs "not run")
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT FLASHOMP_SANITIZE)
        set(dir ${PROJECT_BINARY_DIR}/offload_probe)
        file(WRITE ${dir}/probe.cpp "
#include <omp.h>
int main() {
    int on_host = 1;
#pragma omp target map(from : on_host)
    on_host = omp_is_initial_device();
    return on_host;
}
")
        execute_process(COMMAND ${CMAKE_CXX_COMPILER} -O1 -fopenmp ${_nvptx_flags} ${dir}/probe.cpp -o ${dir}/probe
                        RESULT_VARIABLE failed OUTPUT_VARIABLE log ERROR_VARIABLE log)
        file(WRITE ${dir}/log.txt "${log}")
        if(failed EQUAL 0)
            set(works ON)
            execute_process(COMMAND ${dir}/probe RESULT_VARIABLE on_host OUTPUT_QUIET ERROR_QUIET TIMEOUT 60)
            if(on_host EQUAL 0)
                set(runs "a GPU")
            else()
                set(runs "the host (no GPU answered)")
            endif()
        endif()
    endif()
    set(FLASHOMP_NVPTX_LINKS ${works} CACHE INTERNAL "A target region compiles and links for nvptx")
    set(FLASHOMP_NVPTX_RUNS "${runs}" CACHE INTERNAL "Where the probe ran on the machine that configured")
endfunction()

# The Hopper machine's instructions are of PTX ISA 8.0 and .target sm_90a: cmake/hopper/as says so.
set(FLASHOMP_HOPPER_FLAGS -foffload=nvptx-none "${_nvptx_options} -B${PROJECT_SOURCE_DIR}/cmake/hopper/")

function(flashomp_probe_hopper)
    if(DEFINED CACHE{FLASHOMP_HOPPER_LINKS})
        return()
    endif()
    set(works OFF)
    set(dir ${PROJECT_BINARY_DIR}/offload_probe)
    file(WRITE ${dir}/hopper.cpp "
int main() {
#pragma omp target
    if (__builtin_acc_on_device(5)) {
        asm volatile(\"wgmma.fence.sync.aligned;\" ::);
    }
}
")
    execute_process(COMMAND ${CMAKE_CXX_COMPILER} -O1 -fopenmp ${FLASHOMP_HOPPER_FLAGS} ${dir}/hopper.cpp -o ${dir}/hopper
                    RESULT_VARIABLE failed OUTPUT_VARIABLE log ERROR_VARIABLE log)
    file(WRITE ${dir}/hopper.log "${log}")
    if(failed EQUAL 0)
        file(STRINGS ${dir}/hopper target REGEX "\\.target sm_90a")
        if(target)
            set(works ON)
        endif()
    endif()
    set(FLASHOMP_HOPPER_LINKS ${works} CACHE INTERNAL "PTX for sm_90a comes out of g++ and cmake/hopper/as")
endfunction()

# With an offload compiler installed g++ would build every OpenMP file for the GPU; only offload/ is meant to be.
set(FLASHOMP_NO_OFFLOAD_FLAGS "")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    set(FLASHOMP_NO_OFFLOAD_FLAGS -foffload=disable)
endif()

flashomp_probe_nvptx()
if(FLASHOMP_OFFLOAD STREQUAL "nvptx" AND NOT FLASHOMP_NVPTX_LINKS)
    if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
        message(FATAL_ERROR "FLASHOMP_OFFLOAD=nvptx needs g++; this is ${CMAKE_CXX_COMPILER_ID}, which builds for the host only (FLASHOMP_OFFLOAD=none).")
    elseif(FLASHOMP_SANITIZE)
        message(FATAL_ERROR "FLASHOMP_OFFLOAD=nvptx and FLASHOMP_SANITIZE exclude each other: the sanitizers have no GPU code.")
    else()
        message(FATAL_ERROR "FLASHOMP_OFFLOAD=nvptx, but ${CMAKE_CXX_COMPILER} cannot build for nvptx; install the Debian package gcc-offload-nvptx (log: ${PROJECT_BINARY_DIR}/offload_probe/log.txt).")
    endif()
elseif(FLASHOMP_OFFLOAD STREQUAL "nvptx" OR (FLASHOMP_OFFLOAD STREQUAL "" AND FLASHOMP_NVPTX_LINKS))
    set(FLASHOMP_OFFLOAD_TARGET nvptx)
    set(FLASHOMP_OFFLOAD_FLAGS ${_nvptx_flags})
    set(FLASHOMP_OFFLOAD_LINK_FLAGS ${_nvptx_link_flags})
    flashomp_probe_hopper()
    option(FLASHOMP_HOPPER "Kernels with Hopper's warpgroup products, for GPUs of compute capability 9.0"
           ${FLASHOMP_HOPPER_LINKS})
    if(FLASHOMP_HOPPER AND NOT FLASHOMP_HOPPER_LINKS)
        message(FATAL_ERROR "FLASHOMP_HOPPER=ON, but no code for sm_90a came out of ${CMAKE_CXX_COMPILER}; it needs the Debian package nvptx-tools (log: ${PROJECT_BINARY_DIR}/offload_probe/hopper.log).")
    endif()
elseif(FLASHOMP_OFFLOAD STREQUAL "none" OR FLASHOMP_OFFLOAD STREQUAL "")
    set(FLASHOMP_OFFLOAD_TARGET none)
    set(FLASHOMP_OFFLOAD_FLAGS ${FLASHOMP_NO_OFFLOAD_FLAGS})
    set(FLASHOMP_OFFLOAD_LINK_FLAGS ${FLASHOMP_NO_OFFLOAD_FLAGS})
else()
    message(FATAL_ERROR "FLASHOMP_OFFLOAD was '${FLASHOMP_OFFLOAD}'; allowed are: nvptx, none.")
endif()
