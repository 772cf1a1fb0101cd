# mxfa_check_headers(TARGET NAME ROOT DIR HEADERS ... LIBS ...): an object library that compiles
# each header alone, twice in one unit, so that none leans on what another includes before it.
function(mxfa_check_headers)
  cmake_parse_arguments(arg "" "TARGET;ROOT" "HEADERS;LIBS" ${ARGN})
  set(units "")
  foreach(header IN LISTS arg_HEADERS)
    file(RELATIVE_PATH name ${arg_ROOT} ${header})
    set(unit ${CMAKE_CURRENT_BINARY_DIR}/${arg_TARGET}/${name}.cc)
    set(text "#include \"${name}\"\n#include \"${name}\"  // a second time: the guard holds\n")
    set(old "")
    if(EXISTS ${unit})
      file(READ ${unit} old)
    endif()
    if(NOT old STREQUAL text)
      file(WRITE ${unit} "${text}")
    endif()
    list(APPEND units ${unit})
  endforeach()
  add_library(${arg_TARGET} OBJECT ${units})
  target_include_directories(${arg_TARGET} PRIVATE ${arg_ROOT})
  target_link_libraries(${arg_TARGET} PRIVATE ${arg_LIBS})
endfunction()

# mxfa_first_includes(OUT SOURCES ...): the headers that a source includes before anything else,
# from src/. Whoever compiles that source compiles that header alone.
function(mxfa_first_includes out)
  set(first "")
  foreach(source IN LISTS ARGN)
    file(STRINGS ${source} line REGEX "^#include" LIMIT_COUNT 1)
    if(line MATCHES "\"(.+)\"")
      list(APPEND first ${PROJECT_SOURCE_DIR}/src/${CMAKE_MATCH_1})
    endif()
  endforeach()
  set(${out} ${first} PARENT_SCOPE)
endfunction()

# mxfa_check_project_headers(): the headers of include/ without any library, and those of each
# module of src/ with what that module links, but for those that a source of the module includes
# first. A module that this build leaves out is left out here.
function(mxfa_check_project_headers)
  file(GLOB_RECURSE public CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/*.h)
  mxfa_check_headers(TARGET mxfa_public_headers ROOT ${PROJECT_SOURCE_DIR}/include
                     HEADERS ${public})
  target_compile_options(mxfa_public_headers PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Werror)
  file(GLOB modules LIST_DIRECTORIES true RELATIVE ${PROJECT_SOURCE_DIR}/src
       ${PROJECT_SOURCE_DIR}/src/*)
  foreach(module IN LISTS modules)
    set(dir ${PROJECT_SOURCE_DIR}/src/${module})
    file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${dir}/*.h)
    list(FILTER headers EXCLUDE REGEX "_inl\\.h$")  # parts of sources, no headers of their own
    if(NOT TARGET mxfa_device)
      list(FILTER headers EXCLUDE REGEX "/gpu/")  # they need cuda.h
    endif()
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${dir}/*.cc)
    mxfa_first_includes(compiled ${sources})
    if(compiled)
      list(REMOVE_ITEM headers ${compiled})
    endif()
    if(TARGET mxfa_${module})
      set(library mxfa_${module})
    elseif(NOT sources)
      set(library mxfa_mx)  # headers only
    else()
      continue()
    endif()
    if(headers)
      mxfa_check_headers(TARGET mxfa_${module}_headers ROOT ${PROJECT_SOURCE_DIR}/src
                         HEADERS ${headers} LIBS ${library})
      mxfa_use_headers(mxfa_${module}_headers mxfa_library_headers)
    endif()
  endforeach()
endfunction()
