# A program's own scores (flashomp/score_mod.hpp): flashomp::score_mod has the headers of the passes and the flags that
# they want, flashomp_score_mod() what GPU code needs besides.
# FLASHOMP_KERNELS_DIR: the folder of those headers. FLASHOMP_SCORE_MOD_GPU_FLAGS: those of g++ for a GPU.

# flashomp_score_mod(<program or shared library> [GPU])
# GPU: the plain machine is compiled, too, for OpenMP target regions: for GPUs where g++ builds GPU code, and else for the
# host, where Options::machine = plain runs the GPU's directives.
function(flashomp_score_mod target)
    cmake_parse_arguments(PARSE_ARGV 1 arg "GPU" "" "")
    target_link_libraries(${target} PRIVATE flashomp::score_mod)
    if(NOT arg_GPU)
        return()
    endif()
    target_compile_definitions(${target} PRIVATE FLASHOMP_SCORE_MOD_GPU=1)
    target_sources(${target} PRIVATE ${FLASHOMP_KERNELS_DIR}/algorithm/team_memory.cpp
                                     ${FLASHOMP_KERNELS_DIR}/launch/team_arena.cpp)
    # GCC does not know that team barriers are convergent: an unswitched loop would part the lanes of a warp.
    target_compile_options(${target} PRIVATE ${FLASHOMP_SCORE_MOD_GPU_FLAGS}
                           $<$<CXX_COMPILER_ID:GNU>:-fno-unswitch-loops -fno-ivopts>)
    # Debian builds the reader of the tables of GPU code without -fPIC: -z notext says that this is known.
    target_link_options(${target} PRIVATE -fopenmp ${FLASHOMP_SCORE_MOD_GPU_FLAGS} -Wl,-z,notext)
endfunction()
