# How tests and programs are compiled. What takes time in a run is in the libraries; compiling the
# rest is most of a build, and most of that are headers and full optimisation.
set(precompile ON)
if(CMAKE_CXX_COMPILER_LAUNCHER)
  set(precompile OFF)  # a compiler cache keeps nothing that was made with precompiled headers
endif()
option(MXFA_PRECOMPILE "Precompile the headers that tests and programs share" ${precompile})
set(mxfa_common_headers <algorithm> <array> <cmath> <functional> <limits> <map> <memory> <optional>
                        <span> <string> <vector> <fmt/format.h>)

add_library(mxfa_light_options INTERFACE)
# At -O1 GCC 12 warns of std::optional without a value and of std::string's short form, wrongly.
target_compile_options(mxfa_light_options INTERFACE $<$<CONFIG:Release>:-O1>)
foreach(warning maybe-uninitialized array-bounds stringop-overflow stringop-overread)
  target_compile_options(mxfa_light_options INTERFACE
    $<$<CXX_COMPILER_ID:GNU>:-Wno-error=${warning}>)
endforeach()

# mxfa_precompile(TARGET HEADERS ...)
function(mxfa_precompile target)
  if(MXFA_PRECOMPILE)
    target_precompile_headers(${target} PRIVATE ${mxfa_common_headers} ${ARGN})
  endif()
endfunction()

if(MXFA_BUILD_TESTS)
  find_package(GTest REQUIRED)
  add_library(mxfa_test_options INTERFACE)
  target_link_libraries(mxfa_test_options INTERFACE mxfa_options mxfa_light_options fmt::fmt
                                                    GTest::gtest GTest::gtest_main)
  # The headers of all test programs. They are executables (PIE), this is not (PIC).
  set(source ${PROJECT_BINARY_DIR}/test_headers.cc)
  if(NOT EXISTS ${source})
    file(WRITE ${source} "// Generated: only its precompiled headers count.\n")
  endif()
  add_library(mxfa_test_headers OBJECT ${source})
  set_target_properties(mxfa_test_headers PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(mxfa_test_headers PRIVATE -fPIE)
  target_link_libraries(mxfa_test_headers PRIVATE mxfa_test_options)
  mxfa_precompile(mxfa_test_headers <gtest/gtest.h>)
endif()

# mxfa_test_program(TARGET): an executable of tests.
function(mxfa_test_program target)
  target_link_libraries(${target} PRIVATE mxfa_test_options)
  if(MXFA_PRECOMPILE)
    target_precompile_headers(${target} REUSE_FROM mxfa_test_headers)
  endif()
endfunction()
