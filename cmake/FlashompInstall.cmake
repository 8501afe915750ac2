# `cmake --install`, find_package(flashomp) and pkg-config: the library, its headers and the tool.
include(CMakePackageConfigHelpers)

install(TARGETS flashomp flashomp_score_mod EXPORT flashompTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
get_property(kernel_libraries GLOBAL PROPERTY flashomp_kernel_libraries)
if(kernel_libraries)
    install(TARGETS ${kernel_libraries} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} NAMELINK_SKIP)
endif()
install(TARGETS flashomp_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/flashomp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/offload/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/flashomp/kernels
        FILES_MATCHING PATTERN "*.hpp" PATTERN "team_memory.cpp" PATTERN "team_arena.cpp" PATTERN nvidia EXCLUDE)
install(FILES ${PROJECT_SOURCE_DIR}/cmake/FlashompScoreMod.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/flashomp)
install(FILES ${PROJECT_BINARY_DIR}/include/flashomp/version.h ${PROJECT_BINARY_DIR}/include/flashomp/version.hpp
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/flashomp)
install(EXPORT flashompTargets NAMESPACE flashomp:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/flashomp)
if(FLASHOMP_STATIC) # a set of its own: find_package() looks for the libraries below only where this one is asked for
    install(TARGETS flashomp_static EXPORT flashompStaticTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
    install(EXPORT flashompStaticTargets NAMESPACE flashomp:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/flashomp)
endif()
if(FLASHOMP_HAS_MPI) # a set of its own, as MPI is asked for only by those who name the component
    # Programs that use nothing else of flashomp name this library alone, which then has to find libflashomp by itself.
    set_target_properties(flashomp_mpi PROPERTIES INSTALL_RPATH "$ORIGIN")
    install(TARGETS flashomp_mpi EXPORT flashompMpiTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
    install(TARGETS flashomp_cli_mpi RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
    install(EXPORT flashompMpiTargets NAMESPACE flashomp:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/flashomp)
endif()
# All of that, for those who install it.
add_custom_target(flashomp_installed DEPENDS flashomp ${kernel_libraries} flashomp_cli)
foreach(target flashomp_static flashomp_mpi flashomp_cli_mpi)
    if(TARGET ${target})
        add_dependencies(flashomp_installed ${target})
    endif()
endforeach()
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/flashompConfig.cmake.in
    ${PROJECT_BINARY_DIR}/flashompConfig.cmake INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/flashomp
    PATH_VARS CMAKE_INSTALL_INCLUDEDIR)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/flashompConfigVersion.cmake COMPATIBILITY SameMinorVersion)
# For pkg-config. The file finds the prefix from its own place, so that `cmake --install --prefix` may choose another.
set(FLASHOMP_PC_PRIVATE "")
if(FLASHOMP_STATIC) # pkg-config --static
    list(TRANSFORM OpenMP_CXX_LIB_NAMES PREPEND -l OUTPUT_VARIABLE _libraries)
    if(FLASHOMP_OMPTARGET)
        get_filename_component(_folder ${FLASHOMP_OMPTARGET} DIRECTORY)
        list(APPEND _libraries -L${_folder} -Wl,-rpath,${_folder} -lomptarget)
    endif()
    list(JOIN _libraries " " _libraries)
    set(FLASHOMP_PC_PRIVATE "Libs.private: -lfmt -lstdc++ ${_libraries} -ldl -lm")
endif()
file(RELATIVE_PATH FLASHOMP_PREFIX_OF_PC /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(${PROJECT_SOURCE_DIR}/cmake/flashomp.pc.in ${PROJECT_BINARY_DIR}/flashomp.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/flashomp.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES ${PROJECT_BINARY_DIR}/flashompConfig.cmake ${PROJECT_BINARY_DIR}/flashompConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/flashomp)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples DESTINATION ${CMAKE_INSTALL_DOCDIR})
