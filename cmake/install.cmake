# Installed by `cmake --install`: the library, its headers, the command, a CMake package with components, pkg-config.
if(NOT TUTTI_INSTALL)
  return()
endif()
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(TUTTI_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/tutti)

install(TARGETS tutti EXPORT tuttiTargets FILE_SET HEADERS)
install(EXPORT tuttiTargets NAMESPACE tutti:: DESTINATION ${TUTTI_CMAKE_DIR})
if(TARGET tutti_cli)
  install(TARGETS tutti_cli)
endif()
# Component -> target, each with an export set of its own so that an absent one fails at find_package.
foreach(component torch test_kit)
  if(TARGET tutti_${component})
    set_target_properties(tutti_${component} PROPERTIES EXPORT_NAME ${component})
    install(TARGETS tutti_${component} EXPORT tutti_${component} FILE_SET HEADERS)
    install(EXPORT tutti_${component} NAMESPACE tutti:: DESTINATION ${TUTTI_CMAKE_DIR})
  endif()
endforeach()
if(TARGET tutti_torch)
  install(FILES cmake/libtorch.cmake DESTINATION ${TUTTI_CMAKE_DIR})
endif()

configure_package_config_file(cmake/tuttiConfig.cmake.in ${PROJECT_BINARY_DIR}/tuttiConfig.cmake
  INSTALL_DESTINATION ${TUTTI_CMAKE_DIR} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tuttiConfig.cmake ${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake
  DESTINATION ${TUTTI_CMAKE_DIR})
file(RELATIVE_PATH TUTTI_PC_TO_PREFIX /p/${CMAKE_INSTALL_LIBDIR}/pkgconfig /p)
string(REGEX REPLACE "/$" "" TUTTI_PC_TO_PREFIX "${TUTTI_PC_TO_PREFIX}")
configure_file(cmake/tutti.pc.in ${PROJECT_BINARY_DIR}/tutti.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tutti.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
