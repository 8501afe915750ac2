# Runs a command, which must succeed, and sets `output` to what the command printed.
function(run what)
    execute_process(COMMAND ${ARGN} RESULT_VARIABLE failed OUTPUT_VARIABLE log ERROR_VARIABLE log)
    if(NOT failed EQUAL 0)
        message(FATAL_ERROR "${what} failed (${failed}):\n${log}")
    endif()
    set(output "${log}" PARENT_SCOPE)
endfunction()
