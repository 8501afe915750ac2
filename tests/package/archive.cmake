# Included by scripts that test an archive of cpack.
include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)

function(expect what text pattern)
    if(NOT text MATCHES "${pattern}")
        message(FATAL_ERROR "${what}: expected '${pattern}' in\n${text}")
    endif()
endfunction()

# Makes the archive of a generator of cpack below WORK, and sets `archive`. The prefix of cmake --install has no part in this.
function(make_archive generator pattern)
    file(REMOVE_RECURSE ${WORK})
    file(MAKE_DIRECTORY ${WORK})
    run("cpack" ${CPACK} -G ${generator} -C ${CONFIG} --config ${BUILD}/CPackConfig.cmake -B ${WORK}/cpack)
    file(GLOB found ${WORK}/cpack/${pattern})
    list(LENGTH found count)
    if(NOT count EQUAL 1)
        message(FATAL_ERROR "cpack -G ${generator} made '${found}'; one file like ${pattern} was expected")
    endif()
    set(archive ${found} PARENT_SCOPE)
endfunction()

# Unpacks a .tar.gz at a path that its makers did not know, and sets `prefix`.
function(unpack_tar_gz)
    make_archive(TGZ flashomp-*.tar.gz)
    file(ARCHIVE_EXTRACT INPUT ${archive} DESTINATION ${WORK}/elsewhere)
    file(GLOB found ${WORK}/elsewhere/*)
    set(prefix ${found} PARENT_SCOPE)
endfunction()

# An example must check its values, and say so.
function(expect_example program)
    run("the example" ${ARGN} ${program})
    expect("the example" "${output}" "largest error +[0-9.]+[eE]-0[5-9].*refused: [^\n]+\\.")
    message(STATUS "${output}")
endfunction()
