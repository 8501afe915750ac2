# One target a layer. A layer sees its own folder, the public headers and the folders of the layers it names in
# DEPENDS, so including an upper layer does not compile.

add_library(flashomp_settings INTERFACE)
target_compile_features(flashomp_settings INTERFACE cxx_std_20)
target_include_directories(flashomp_settings INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_BINARY_DIR}/include)
target_link_libraries(flashomp_settings INTERFACE OpenMP::OpenMP_CXX)
target_compile_options(flashomp_settings INTERFACE
    -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wnon-virtual-dtor $<$<BOOL:${FLASHOMP_WERROR}>:-Werror>)
# Programs hold no GPU code of their own; without this g++ would hand their declare-target functions to nvptx again.
target_link_options(flashomp_settings INTERFACE ${FLASHOMP_NO_OFFLOAD_FLAGS})
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    # clang 14 calls our alignment of int parameters to vector widths and OpenMP hints it cannot follow warnings. And & and
    # | of conditions are meant: in GPU code && is a branch.
    target_compile_options(flashomp_settings INTERFACE -Wreserved-identifier -Wno-pass-failed -Wno-source-uses-openmp
                                                       -Wno-bitwise-instead-of-logical)
    # LLVM keeps omp_target_alloc() and its like in a library of their own, which -fopenmp alone does not link, in a
    # folder that the loader does not search.
    get_filename_component(_llvm_libraries "${OpenMP_omp_LIBRARY}" DIRECTORY)
    find_library(FLASHOMP_OMPTARGET omptarget HINTS ${_llvm_libraries} REQUIRED)
    target_link_libraries(flashomp_settings INTERFACE ${FLASHOMP_OMPTARGET})
    set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # GCC 12 warns about std::string's own memcpy at -O3 (GCC bug 105329).
    target_compile_options(flashomp_settings INTERFACE -Wno-restrict)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    # Constants whose values alone are used need no `declare target` (offload/plain/slices.hpp).
    target_compile_options(flashomp_settings INTERFACE -Wno-openmp-target)
endif()
if(FLASHOMP_SANITIZE)
    if(FLASHOMP_SANITIZE STREQUAL "thread" AND NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
        message(FATAL_ERROR "FLASHOMP_SANITIZE=thread needs clang: ThreadSanitizer understands LLVM's OpenMP runtime, not GCC's; the compiler is ${CMAKE_CXX_COMPILER_ID}.")
    endif()
    target_compile_options(flashomp_settings INTERFACE ${FLASHOMP_SANITIZER_FLAGS} -fno-sanitize-recover=all
                                                       -fno-omit-frame-pointer)
    target_compile_definitions(flashomp_settings INTERFACE FLASHOMP_IS_SANITIZED)
    target_link_options(flashomp_settings INTERFACE ${FLASHOMP_SANITIZER_FLAGS})
endif()
if(FLASHOMP_FUZZ)
    if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
        message(FATAL_ERROR "FLASHOMP_FUZZ needs clang, which brings libFuzzer; the compiler is ${CMAKE_CXX_COMPILER_ID}.")
    endif()
    target_compile_options(flashomp_settings INTERFACE -fsanitize=fuzzer-no-link) # counts which code an input reaches
endif()

# flashomp_layer(<name> SOURCES ... [DEPENDS layers...] [LIBRARIES targets...] [OFFLOAD])
function(flashomp_layer name)
    cmake_parse_arguments(PARSE_ARGV 1 layer "OFFLOAD" "" "SOURCES;DEPENDS;LIBRARIES")
    add_library(flashomp_${name} OBJECT ${layer_SOURCES})
    target_include_directories(flashomp_${name} PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}>)
    list(TRANSFORM layer_DEPENDS PREPEND flashomp_)
    target_link_libraries(flashomp_${name} PUBLIC flashomp_settings ${layer_DEPENDS} ${layer_LIBRARIES})
    if(layer_OFFLOAD)
        target_compile_options(flashomp_${name} PRIVATE ${FLASHOMP_OFFLOAD_FLAGS})
    else()
        target_compile_options(flashomp_${name} PRIVATE ${FLASHOMP_NO_OFFLOAD_FLAGS})
    endif()
endfunction()

# The library shows what the version script lets it, and nothing else.
function(flashomp_export library script)
    target_link_options(${library} PRIVATE -Wl,--version-script=${script})
    set_property(TARGET ${library} APPEND PROPERTY LINK_DEPENDS ${script})
endfunction()

# What the shared and the static library have in common: the objects of layers, headers, libraries.
function(flashomp_assemble target)
    foreach(layer IN LISTS ARGN)
        target_sources(${target} PRIVATE $<TARGET_OBJECTS:flashomp_${layer}>)
        get_property(extra GLOBAL PROPERTY flashomp_extra_objects_${layer})
        target_sources(${target} PRIVATE ${extra})
    endforeach()
    target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                                $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
                                                $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    target_compile_features(${target} PUBLIC cxx_std_20)
    target_link_libraries(${target} PRIVATE OpenMP::OpenMP_CXX fmt::fmt ${CMAKE_DL_LIBS} ${FLASHOMP_OMPTARGET}
                                            $<$<STREQUAL:${FLASHOMP_BACKEND},cuda>:CUDA::cudart_static>)
    set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
endfunction()

# libflashomp.a, on request. g++ makes a GPU's code and its tables when a program or shared library is linked, with flags
# that the program's build would have to know, and kernels for Hopper are in libraries of their own: so host only.
function(flashomp_static_library)
    if(NOT FLASHOMP_OFFLOAD_TARGET STREQUAL "none" OR NOT FLASHOMP_BACKEND STREQUAL "openmp")
        message(FATAL_ERROR "FLASHOMP_STATIC is for the host only: a GPU's code is linked into a shared library. Set FLASHOMP_OFFLOAD=none and FLASHOMP_BACKEND=openmp, or leave out FLASHOMP_STATIC.")
    endif()
    add_library(flashomp_static STATIC)
    add_library(flashomp::static ALIAS flashomp_static)
    flashomp_assemble(flashomp_static ${ARGN})
    set_target_properties(flashomp_static PROPERTIES OUTPUT_NAME flashomp EXPORT_NAME static
                                                     ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU") # -foffload=disable leaves in objects what g++ then hands to a GPU's compiler
        add_custom_command(TARGET flashomp_static POST_BUILD COMMENT "Removing what is meant for a GPU" VERBATIM
            COMMAND ${CMAKE_OBJCOPY} --wildcard --remove-section=.gnu.offload_* --remove-section=.rela.gnu.offload_*
                    $<TARGET_FILE:flashomp_static>)
    endif()
endfunction()

# flashomp::score_mod: what programs with scores of their own compile (FlashompScoreMod.cmake).
function(flashomp_own_scores)
    add_library(flashomp_score_mod INTERFACE)
    add_library(flashomp::score_mod ALIAS flashomp_score_mod)
    set_target_properties(flashomp_score_mod PROPERTIES EXPORT_NAME score_mod)
    target_include_directories(flashomp_score_mod INTERFACE
        $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/offload> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/flashomp/kernels>)
    # As the library's host machine: fused multiply-add is more accurate, not less; nothing else about IEEE arithmetic is
    # relaxed.
    target_compile_options(flashomp_score_mod INTERFACE -fopenmp -ffp-contract=fast -fno-math-errno -fno-trapping-math)
    target_link_options(flashomp_score_mod INTERFACE -fopenmp)
    target_link_libraries(flashomp_score_mod INTERFACE flashomp)
    set(FLASHOMP_KERNELS_DIR ${PROJECT_SOURCE_DIR}/offload PARENT_SCOPE)
    set(FLASHOMP_SCORE_MOD_GPU_FLAGS ${FLASHOMP_OFFLOAD_FLAGS} PARENT_SCOPE)
endfunction()

# The one library users link: all layers, with the GPU code linked in, so that they need no offload flags.
function(flashomp_library)
    add_library(flashomp SHARED)
    add_library(flashomp::flashomp ALIAS flashomp)
    flashomp_assemble(flashomp ${ARGN})
    if(FLASHOMP_STATIC)
        flashomp_static_library(${ARGN})
    endif()
    # -fopenmp brings the tables of GPU functions (crtoffloadbegin.o). Debian builds their reader without -fPIC, so its
    # two addresses are relocated at load time; -z notext says that this is known.
    target_link_options(flashomp PRIVATE -fopenmp -fPIC ${FLASHOMP_OFFLOAD_LINK_FLAGS}
                                         $<$<STREQUAL:${FLASHOMP_OFFLOAD_TARGET},nvptx>:-Wl,-z,notext>)
    if(FLASHOMP_SANITIZE)
        target_link_options(flashomp PRIVATE ${FLASHOMP_SANITIZER_FLAGS})
    else()
        target_link_options(flashomp PRIVATE -Wl,--no-undefined)
    endif()
    set_target_properties(flashomp PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
    configure_file(${PROJECT_SOURCE_DIR}/cmake/flashomp.map.in ${PROJECT_BINARY_DIR}/flashomp.map @ONLY)
    flashomp_export(flashomp ${PROJECT_BINARY_DIR}/flashomp.map)
    # Opened at run time (offload/launch/kernel_libraries.cpp), so the linker does not ask for them: whoever builds one target
    # that uses the library is to have them all the same.
    get_property(kernel_libraries GLOBAL PROPERTY flashomp_kernel_libraries)
    foreach(library IN LISTS kernel_libraries)
        add_dependencies(flashomp ${library})
        flashomp_export(${library} ${PROJECT_SOURCE_DIR}/cmake/kernels.map)
        target_sources(${library} PRIVATE ${PROJECT_SOURCE_DIR}/src/core/host_teams.cpp) # they have target regions, too
    endforeach()
endfunction()
