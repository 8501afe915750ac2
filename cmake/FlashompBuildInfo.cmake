# flashomp/version.h and version.hpp, and the build's own description (commit, compiler, flags), refreshed on every build.
foreach(header version.h version.hpp)
    configure_file(${PROJECT_SOURCE_DIR}/cmake/${header}.in ${PROJECT_BINARY_DIR}/include/flashomp/${header} @ONLY)
endforeach()

string(TOUPPER "${CMAKE_BUILD_TYPE}" _type)
string(JOIN " " _flags ${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${_type}} ${FLASHOMP_OFFLOAD_FLAGS})
add_custom_target(flashomp_build_info
    COMMAND ${CMAKE_COMMAND} -D SOURCE=${PROJECT_SOURCE_DIR} -D OUTPUT=${PROJECT_BINARY_DIR}/build_info.cpp
            -D TEMPLATE=${PROJECT_SOURCE_DIR}/cmake/build_info.cpp.in -D "VERSION=${PROJECT_VERSION}"
            -D "COMPILER=${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}" -D "FLAGS=${_flags}"
            -D "OFFLOAD=${FLASHOMP_OFFLOAD_TARGET}" -D "BACKENDS=${FLASHOMP_BACKENDS}"
            -P ${PROJECT_SOURCE_DIR}/cmake/write_build_info.cmake
    BYPRODUCTS ${PROJECT_BINARY_DIR}/build_info.cpp
    COMMENT "Recording commit and flags" VERBATIM)
