# Script mode: the program of docs/distributed.md, as it stands there, with an installed flashomp: find_package() finds the
# component mpi, and the MPI that it needs.
include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)

file(REMOVE_RECURSE ${WORK})
extract(cpp ${PAGE} ${WORK}/project/main.cpp)
extract(cmake ${PAGE} ${WORK}/project/CMakeLists.txt)
run("installing" ${CMAKE_COMMAND} --install ${BUILD} --config ${CONFIG} --prefix ${WORK}/prefix)
run("configuring the consumer" ${CMAKE_COMMAND} -G ${GENERATOR} -S ${WORK}/project -B ${WORK}/build -D CMAKE_BUILD_TYPE=${CONFIG}
    -D CMAKE_CXX_COMPILER=${COMPILER} "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror -Wno-missing-field-initializers"
    -D CMAKE_PREFIX_PATH=${WORK}/prefix -D CMAKE_FIND_USE_PACKAGE_REGISTRY=OFF)
run("building the consumer" ${CMAKE_COMMAND} --build ${WORK}/build)
run("the consumer" ${MPIEXEC} 4 ${WORK}/build/example)
if(NOT output MATCHES "last o = 499.5, by [a-z_]+\n")
    message(FATAL_ERROR "the consumer printed\n${output}but was expected to print 'last o = 499.5, by ...'")
endif()
message(STATUS "${output}")
