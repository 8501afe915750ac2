# A program's own scores (flashomp/score_mod.hpp): flashomp::score_mod has the headers of the passes and the flags that
# they want, flashomp_score_mod() what GPU code needs besides.
# FLASHOMP_KERNELS_DIR: the folder of those headers. FLASHOMP_SCORE_MOD_GPU_FLAGS: those of g++ for a GPU.

# flashomp_score_mod(<program or library> [GPU <source>...])
# GPU: sources with FLASHOMP_SCORE_MOD_GPU_CODE (flashomp/score_mod_gpu.hpp). They become the shared library <target>_gpu:
# the plain machine for OpenMP target regions, for GPUs where g++ builds GPU code, and else for the host, where
# Options::machine = plain runs the GPU's directives.
function(flashomp_score_mod target)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "GPU")
    target_link_libraries(${target} PRIVATE flashomp::score_mod)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU") # its passes are this machine's, with types that a GPU's compiler refuses
        target_compile_options(${target} PRIVATE -foffload=disable)
        target_link_options(${target} PRIVATE -foffload=disable)
    endif()
    if(NOT arg_GPU)
        return()
    endif()
    # A library of its own, since the target's passes are not for a GPU's compiler.
    add_library(${target}_gpu SHARED ${arg_GPU} ${FLASHOMP_KERNELS_DIR}/algorithm/team_memory.cpp
                                     ${FLASHOMP_KERNELS_DIR}/launch/team_arena.cpp)
    target_link_libraries(${target}_gpu PRIVATE flashomp::score_mod)
    target_include_directories(${target}_gpu PRIVATE $<TARGET_PROPERTY:${target},INCLUDE_DIRECTORIES>)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
        # GCC does not know that team barriers are convergent: an unswitched loop would part the lanes of a warp.
        target_compile_options(${target}_gpu PRIVATE -fno-unswitch-loops -fno-ivopts)
        if(FLASHOMP_SCORE_MOD_GPU_FLAGS AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
            target_compile_options(${target}_gpu PRIVATE -march=x86-64) # whatever CMAKE_CXX_FLAGS says
        endif()
    endif()
    # Debian builds the reader of the tables of GPU code without -fPIC: -z notext says that this is known. And all libraries
    # have functions of the same names on the device; each keeps to its own.
    target_compile_options(${target}_gpu PRIVATE ${FLASHOMP_SCORE_MOD_GPU_FLAGS})
    target_link_options(${target}_gpu PRIVATE -fopenmp -fPIC ${FLASHOMP_SCORE_MOD_GPU_FLAGS} -Wl,-z,notext -Wl,-Bsymbolic)
    target_compile_definitions(${target} PRIVATE FLASHOMP_SCORE_MOD_GPU=1)
    target_link_libraries(${target} PRIVATE ${target}_gpu)
endfunction()
