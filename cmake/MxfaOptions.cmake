include(GNUInstallDirs)

option(MXFA_BUILD_TOOLS "Build the mxfa command" ${PROJECT_IS_TOP_LEVEL})
option(MXFA_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(MXFA_BUILD_EMULATOR "Build the PTX emulator" ${PROJECT_IS_TOP_LEVEL})
option(MXFA_WERROR "Treat warnings as errors" OFF)
set(MXFA_SANITIZE "" CACHE STRING
  "Sanitizers for every target, as in -fsanitize= (address,undefined or thread)")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
set(CMAKE_BUILD_RPATH ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})  # libmxemu.so is opened by name
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)

add_library(mxfa_options INTERFACE)
# Contraction off: the same source gives the same bits whatever the compiler and instruction set.
target_compile_options(mxfa_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -ffp-contract=off)
if(MXFA_WERROR)
  # GCC 12 sees overlapping copies in any "text" + string (its bug 105651).
  target_compile_options(mxfa_options INTERFACE -Werror
    $<$<CXX_COMPILER_ID:GNU>:-Wno-error=restrict>)
endif()
if(MXFA_SANITIZE)
  target_compile_options(mxfa_options INTERFACE -fsanitize=${MXFA_SANITIZE} -fno-omit-frame-pointer
                                                -fno-sanitize-recover=all)
  target_link_options(mxfa_options INTERFACE -fsanitize=${MXFA_SANITIZE})
endif()

# mxfa_add_module(NAME [LIBS ...]): a static library of every .cc in the current folder's NAME/.
function(mxfa_add_module name)
  cmake_parse_arguments(arg "" "" "LIBS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${name}/*.cc)
  add_library(mxfa_${name} STATIC ${sources})
  target_include_directories(mxfa_${name} PUBLIC ${PROJECT_SOURCE_DIR}/include
                                                 ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(mxfa_${name} PUBLIC mxfa_options ${arg_LIBS})
  mxfa_use_headers(mxfa_${name} mxfa_library_headers)
endfunction()
