# Script mode: the program of docs/distributed.md, as it stands there, with an installed flashomp: find_package() finds the
# component mpi, and the MPI that it needs. And the installed library alone, as a program has it that uses nothing else.
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

file(GLOB_RECURSE library ${WORK}/prefix/libflashomp_mpi.so)
file(WRITE ${WORK}/alone.cpp "#include <cstdio>
#include <dlfcn.h>
int main(int, char** words)
{
    if (dlopen(words[1], RTLD_NOW) == nullptr) {
        std::puts(dlerror());
        return 1;
    }
}
")
run("building a program that loads the library" ${COMPILER} ${WORK}/alone.cpp -o ${WORK}/alone -ldl)
run("loading the installed library" ${WORK}/alone ${library})
