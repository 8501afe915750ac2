# Script mode: writes build_info.cpp; the file changes only when its content does, so nothing rebuilds in vain.
set(COMMIT unknown)
execute_process(COMMAND git -C ${SOURCE} rev-parse --short=12 HEAD
                OUTPUT_VARIABLE head OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed EQUAL 0)
    set(COMMIT ${head})
    # A set of results that was just recorded is no change of the code that records the next one.
    execute_process(COMMAND git -C ${SOURCE} status --porcelain --untracked-files=no -- . ":(exclude)bench/results"
                    OUTPUT_VARIABLE changes ERROR_QUIET)
    if(NOT changes STREQUAL "")
        string(APPEND COMMIT -dirty)
    endif()
endif()
configure_file(${TEMPLATE} ${OUTPUT} @ONLY)
