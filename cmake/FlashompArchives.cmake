# `cpack`: a .tar.gz to be unpacked anywhere and, where dpkg's tools are there, a .deb. Both have what `cmake --install` has.
set(CPACK_GENERATOR TGZ)
set(CPACK_PACKAGE_NAME flashomp)
set(CPACK_PACKAGE_CONTACT "the authors of flashomp <flashomp@localhost>")
set(CPACK_PACKAGE_VENDOR flashomp)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGE_FILE_NAME flashomp-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES OFF) # Debian's strip knows nothing of the GPU's sections
set(CPACK_VERBATIM_VARIABLES ON)

find_program(FLASHOMP_SHLIBDEPS dpkg-shlibdeps)
mark_as_advanced(FLASHOMP_SHLIBDEPS)
if(FLASHOMP_SHLIBDEPS)
    list(APPEND CPACK_GENERATOR DEB)
    set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
    set(CPACK_DEBIAN_PACKAGE_SECTION libs)
    # libgomp1, libfmt9 and so on, in the versions that the code needs.
    set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
    set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/lib)
    set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
    if(FLASHOMP_OFFLOAD_TARGET STREQUAL "nvptx")
        set(CPACK_DEBIAN_PACKAGE_SUGGESTS libgomp-plugin-nvptx1) # GPUs of the openmp backend; without it calls run on the host
    endif()
endif()
include(CPack)
