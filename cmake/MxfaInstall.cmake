# Package files of the library mxfa::mxfa: what cmake --install writes, so that find_package(mxfa)
# works elsewhere. The oracle, file formats and the driver seam stay inside.
include(CMakePackageConfigHelpers)

target_compile_features(mxfa_library PUBLIC cxx_std_20)
# Before 1.0 a minor release may change the ABI, so the minor number is part of the soname.
set_target_properties(mxfa_library PROPERTIES VERSION ${PROJECT_VERSION}
  SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/mxfa)
install(TARGETS mxfa_library EXPORT mxfaTargets)
# Optional: after a build of the target mxfa_library alone there are no others to install.
if(TARGET mxfa)
  set_target_properties(mxfa PROPERTIES INSTALL_RPATH "\$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  install(TARGETS mxfa OPTIONAL)
endif()
if(TARGET mxemu_driver)
  install(TARGETS mxemu_driver LIBRARY OPTIONAL)
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/mxfa TYPE INCLUDE FILES_MATCHING PATTERN "*.h")
install(EXPORT mxfaTargets NAMESPACE mxfa:: DESTINATION ${package_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/mxfaConfig.cmake.in
  ${PROJECT_BINARY_DIR}/mxfaConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/mxfaConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/mxfaConfig.cmake ${PROJECT_BINARY_DIR}/mxfaConfigVersion.cmake
  DESTINATION ${package_dir})
