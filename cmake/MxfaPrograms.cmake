# How sources are compiled. What takes time in a run is in the libraries; most of a build's time are
# headers and, in programs and tests, full optimisation.
set(precompile ON)
if(CMAKE_CXX_COMPILER_LAUNCHER)
  set(precompile OFF)  # a compiler cache keeps nothing that was made with precompiled headers
endif()
option(MXFA_PRECOMPILE "Precompile the headers that sources share" ${precompile})
# None of the project's: a change of one compiles what includes it and no more.
set(mxfa_common_headers <algorithm> <array> <bit> <cmath> <functional> <limits> <map> <memory>
                        <optional> <span> <string> <unordered_map> <vector> <fmt/format.h>)

add_library(mxfa_light_options INTERFACE)
# At -O1 GCC 12 warns of std::optional without a value and of std::string's short form, wrongly.
target_compile_options(mxfa_light_options INTERFACE
  $<$<AND:$<CONFIG:Release>,$<CXX_COMPILER_ID:GNU>>:-O1>)
foreach(warning maybe-uninitialized array-bounds stringop-overflow stringop-overread)
  target_compile_options(mxfa_light_options INTERFACE
    $<$<CXX_COMPILER_ID:GNU>:-Wno-error=${warning}>)
endforeach()

# mxfa_shared_headers(NAME LIBS l ... [HEADERS h ...]): the common headers and HEADERS, precompiled
# for targets that link LIBS.
function(mxfa_shared_headers name)
  cmake_parse_arguments(arg "" "" "LIBS;HEADERS" ${ARGN})
  if(NOT MXFA_PRECOMPILE)
    return()
  endif()
  set(source ${PROJECT_BINARY_DIR}/${name}.cc)
  if(NOT EXISTS ${source})
    file(WRITE ${source} "// Generated: only its precompiled headers count.\n")
  endif()
  add_library(${name} OBJECT ${source})
  target_link_libraries(${name} PRIVATE ${arg_LIBS})
  target_precompile_headers(${name} PRIVATE ${mxfa_common_headers} ${arg_HEADERS})
endfunction()

# mxfa_use_headers(TARGET NAME): the headers of mxfa_shared_headers(NAME ...).
function(mxfa_use_headers target name)
  if(NOT MXFA_PRECOMPILE)
    return()
  endif()
  target_precompile_headers(${target} REUSE_FROM ${name})
  get_target_property(type ${target} TYPE)
  if(type STREQUAL EXECUTABLE)
    # As libraries are compiled (PIC, not PIE): it is the same headers.
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
endfunction()

mxfa_shared_headers(mxfa_library_headers LIBS mxfa_options fmt::fmt)
if(MXFA_BUILD_TOOLS)
  # CLI11 has no place here: it has global objects, which every file would make anew.
  find_package(nlohmann_json REQUIRED)
  mxfa_shared_headers(mxfa_program_headers HEADERS <nlohmann/json.hpp>
    LIBS mxfa_options mxfa_light_options fmt::fmt nlohmann_json::nlohmann_json)
endif()
if(MXFA_BUILD_TESTS)
  find_package(GTest REQUIRED)
  add_library(mxfa_test_options INTERFACE)
  target_link_libraries(mxfa_test_options INTERFACE mxfa_options mxfa_light_options fmt::fmt
                                                    GTest::gtest GTest::gtest_main)
  mxfa_shared_headers(mxfa_test_headers LIBS mxfa_test_options HEADERS <gtest/gtest.h>)
endif()

# mxfa_test_program(TARGET): an executable of tests.
function(mxfa_test_program target)
  target_link_libraries(${target} PRIVATE mxfa_test_options)
  mxfa_use_headers(${target} mxfa_test_headers)
endfunction()
