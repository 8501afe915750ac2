# The consumers: README's as it stands, whose project says nothing of C++20; the same for a project that asks for C++17,
# which the package raises; and one by pkg-config, where that is installed. A compiler at C++17 says what is missing.
#
# Script mode: installs BUILD below WORK, takes the C++ and CMake blocks out of README, and the C++ program of DECODING,
# builds and runs them against the installed package, and compares what they print. Nothing of the source or build tree is
# on the search paths.
set(expected "o = 7.20 8.20 9.20 10.20, LSE = 2.49")

include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)

file(REMOVE_RECURSE ${WORK})
extract(cpp ${README} ${WORK}/project/main.cpp)
extract(cmake ${README} ${WORK}/project/CMakeLists.txt)
extract(cpp ${DECODING} ${WORK}/decoding/main.cpp)
extract(cmake ${README} ${WORK}/decoding/CMakeLists.txt)
run("installing" ${CMAKE_COMMAND} --install ${BUILD} --config ${CONFIG} --prefix ${WORK}/prefix)
function(build_and_run project folder)
    run("configuring the consumer" ${CMAKE_COMMAND} -G ${GENERATOR} -S ${WORK}/${project} -B ${WORK}/${folder} ${ARGN}
        -D CMAKE_BUILD_TYPE=${CONFIG} -D CMAKE_CXX_COMPILER=${COMPILER} "-DCMAKE_CXX_FLAGS=${FLAGS} -Wall -Wextra -Werror"
        -D CMAKE_PREFIX_PATH=${WORK}/prefix -D CMAKE_FIND_USE_PACKAGE_REGISTRY=OFF)
    run("building the consumer" ${CMAKE_COMMAND} --build ${WORK}/${folder})
    expect_result(${WORK}/${folder}/example)
endfunction()

function(expect_result program)
    run("the consumer" ${program})
    string(FIND "${output}" "${expected}" at)
    if(at EQUAL -1)
        message(FATAL_ERROR "the consumer printed\n${output}but was expected to print '${expected}'")
    endif()
    message(STATUS "${output}")
endfunction()

build_and_run(project build)
build_and_run(project build17 -D CMAKE_CXX_STANDARD=17)
set(expected_of_readme "${expected}")
set(expected "5 keys, o = 3.00")
build_and_run(decoding build_decoding)
set(expected "${expected_of_readme}")

execute_process(COMMAND ${COMPILER} -std=c++17 -fsyntax-only -I${WORK}/prefix/include ${WORK}/project/main.cpp
                RESULT_VARIABLE failed OUTPUT_VARIABLE log ERROR_VARIABLE log)
if(failed EQUAL 0 OR NOT log MATCHES "flashomp needs C\\+\\+20")
    message(FATAL_ERROR "a compiler at C++17 says nothing of C++20:\n${log}")
endif()

if(PKG_CONFIG)
    set(ENV{PKG_CONFIG_PATH} ${WORK}/prefix/${LIBDIR}/pkgconfig)
    run("pkg-config" ${PKG_CONFIG} --cflags --libs flashomp)
    separate_arguments(words UNIX_COMMAND "${FLAGS} ${output}")
    run("building by pkg-config" ${COMPILER} -std=c++20 ${WORK}/project/main.cpp -o ${WORK}/by_pkg_config ${words}
        -Wl,-rpath,${WORK}/prefix/${LIBDIR})
    expect_result(${WORK}/by_pkg_config)
endif()
run("the installed tool" ${WORK}/prefix/bin/flashomp info)
message(STATUS "${output}")
