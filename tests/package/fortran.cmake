# Script mode: the .tar.gz of cpack serves a Fortran program.
include(${CMAKE_CURRENT_LIST_DIR}/archive.cmake)
if(NOT FORTRAN)
    message("skipped: gfortran is not here")
    return()
endif()
unpack_tar_gz()
run("building" ${FORTRAN} -std=f2008 -Wall -Wextra -Werror -J ${WORK} ${SOURCE}/examples/fortran/attention.f90 -L${prefix}/${LIBDIR}
    -lflashomp -Wl,-rpath,${prefix}/${LIBDIR} -o ${WORK}/attention)
expect_example(${WORK}/attention)
