# Script mode: the .tar.gz of cpack, unpacked at another path, serves C programs by CMake and by pkg-config, that of docs/c.md too,
# and its headers compile as C11 and C++98.
include(${CMAKE_CURRENT_LIST_DIR}/archive.cmake)
unpack_tar_gz()

file(GLOB_RECURSE texts ${prefix}/${LIBDIR}/cmake/* ${prefix}/${LIBDIR}/pkgconfig/*)
foreach(text IN LISTS texts)
    file(READ ${text} content)
    foreach(folder ${SOURCE} ${BUILD} ${WORK})
        string(FIND "${content}" "${folder}" at)
        if(NOT at EQUAL -1)
            message(FATAL_ERROR "${text} names ${folder}, which is not there on another machine")
        endif()
    endforeach()
endforeach()

set(strict -Wall -Wextra -Wpedantic -Werror)
file(WRITE ${WORK}/header.c "#include <flashomp/flashomp.h>\nint main(void) { return FLASHOMP_VERSION_MAJOR != FLASHOMP_ABI_VERSION; }\n")
run("compiling the header as C11" ${CC} -std=c11 ${strict} -I${prefix}/include -fsyntax-only ${WORK}/header.c)
run("compiling the header as C++98" ${CXX} -x c++ -std=c++98 ${strict} -I${prefix}/include -fsyntax-only ${WORK}/header.c)

run("configuring" ${CMAKE_COMMAND} -G ${GENERATOR} -S ${SOURCE}/examples/c -B ${WORK}/build -D CMAKE_BUILD_TYPE=Release
    -D CMAKE_C_COMPILER=${CC} -D CMAKE_PREFIX_PATH=${prefix} "-DCMAKE_C_FLAGS=-Wall -Wextra -Wpedantic -Werror"
    -D CMAKE_FIND_USE_PACKAGE_REGISTRY=OFF)
run("building" ${CMAKE_COMMAND} --build ${WORK}/build)
expect_example(${WORK}/build/attention)
run("configuring the example of an own score" ${CMAKE_COMMAND} -G ${GENERATOR} -S ${SOURCE}/examples/score_mod -B ${WORK}/score_build
    -D CMAKE_CXX_COMPILER=${CXX} -D CMAKE_PREFIX_PATH=${prefix} -D CMAKE_FIND_USE_PACKAGE_REGISTRY=OFF)
run("building the example of an own score" ${CMAKE_COMMAND} --build ${WORK}/score_build)
expect_example(${WORK}/score_build/own_score)
run("the tool" ${prefix}/bin/flashomp info)

if(PKG_CONFIG)
    set(ENV{PKG_CONFIG_PATH} ${prefix}/${LIBDIR}/pkgconfig)
    run("pkg-config" ${PKG_CONFIG} --cflags --libs flashomp)
    if(output MATCHES "-std")
        message(FATAL_ERROR "pkg-config names a language's standard, which a C program has no use for: ${output}")
    endif()
    separate_arguments(words UNIX_COMMAND "${output}")
    run("building by pkg-config" ${CC} -std=c11 ${strict} ${SOURCE}/examples/c/attention.c ${words} -lm
        -Wl,-rpath,${prefix}/${LIBDIR} -o ${WORK}/by_pkg_config)
    expect_example(${WORK}/by_pkg_config)

    # The program of docs/c.md, as it stands there, prints what the page says.
    extract(c ${SOURCE}/docs/c.md ${WORK}/first.c)
    extract(text ${SOURCE}/docs/c.md ${WORK}/first.txt)
    run("building the program of docs/c.md" ${CC} -std=c11 ${strict} ${WORK}/first.c ${words} -Wl,-rpath,${prefix}/${LIBDIR}
        -o ${WORK}/first)
    run("the program of docs/c.md" ${WORK}/first)
    file(READ ${WORK}/first.txt expected)
    if(NOT output STREQUAL expected)
        message(FATAL_ERROR "the program of docs/c.md printed\n${output}but the page says\n${expected}")
    endif()
endif()

if(HAS_STATIC)
    file(WRITE ${WORK}/static_project/CMakeLists.txt "cmake_minimum_required(VERSION 3.25)
project(attention LANGUAGES C CXX)
find_package(flashomp 0.1 REQUIRED COMPONENTS static)
add_executable(attention ${SOURCE}/examples/c/attention.c)
target_link_libraries(attention PRIVATE flashomp::static m)
")
    run("configuring with the static library" ${CMAKE_COMMAND} -G ${GENERATOR} -S ${WORK}/static_project -B ${WORK}/static_build
        -D CMAKE_C_COMPILER=${CC} -D CMAKE_CXX_COMPILER=${CXX} -D CMAKE_PREFIX_PATH=${prefix})
    run("building with the static library" ${CMAKE_COMMAND} --build ${WORK}/static_build)
    file(GLOB links ${prefix}/${LIBDIR}/libflashomp.so*)
    file(REMOVE ${links}) # nothing but the static library is left
    expect_example(${WORK}/static_build/attention)
    if(PKG_CONFIG)
        run("pkg-config --static" ${PKG_CONFIG} --static --cflags --libs flashomp)
        separate_arguments(words UNIX_COMMAND "${output}")
        run("building by pkg-config --static" ${CC} -std=c11 ${SOURCE}/examples/c/attention.c ${words} -lm -o ${WORK}/static)
        expect_example(${WORK}/static)
    endif()
endif()
