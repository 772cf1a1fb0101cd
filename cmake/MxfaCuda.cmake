# Device code without the CUDA language of CMake: each .cu becomes PTX and, from that same PTX, a
# cubin, so that the emulator runs the very text that ptxas compiled. Both are embedded.
find_package(CUDAToolkit 13 QUIET)
set(mxfa_cuda_found OFF)
if(CUDAToolkit_FOUND AND CUDAToolkit_NVCC_EXECUTABLE)
  set(mxfa_cuda_found ON)
else()
  # The compiler alone, from tools/setup --nvcc.
  set(mxfa_toolkit ${PROJECT_SOURCE_DIR}/build/cuda-toolkit/nvidia/cu13)
  if(EXISTS ${mxfa_toolkit}/bin/nvcc AND EXISTS ${mxfa_toolkit}/include/cuda.h)
    set(mxfa_cuda_found ON)
    set(CUDAToolkit_BIN_DIR ${mxfa_toolkit}/bin)
    set(CUDAToolkit_NVCC_EXECUTABLE ${mxfa_toolkit}/bin/nvcc)
    set(CUDAToolkit_INCLUDE_DIRS ${mxfa_toolkit}/include)
  endif()
endif()
option(MXFA_CUDA "Build device code (needs nvcc 13 or newer)" ${mxfa_cuda_found})
if(MXFA_CUDA AND NOT mxfa_cuda_found)
  message(FATAL_ERROR "MXFA_CUDA is on, but no nvcc 13 or newer was found: "
                      "tools/setup --nvcc gets one")
endif()
# Why a build has no device code, for its messages.
set(mxfa_without_cuda "nvcc 13 was not found")
if(mxfa_cuda_found)
  set(mxfa_without_cuda "MXFA_CUDA is off")
endif()

set(MXFA_CUDA_ARCHS sm_90a sm_100a sm_103a CACHE STRING
  "Architectures that device code is built for")

# mxfa_compile_ptx(SOURCE TARGET OUT): PTX for compute_<TARGET>, as 90 or 100a.
function(mxfa_compile_ptx source target out)
  get_filename_component(name ${source} NAME_WE)
  set(base ${CMAKE_CURRENT_BINARY_DIR}/kernels/${name}.sm_${target})
  set(virtual compute_${target})
  add_custom_command(
    OUTPUT ${base}.ptx
    COMMAND ${CUDAToolkit_NVCC_EXECUTABLE} -ptx -std=c++20 -O3 -lineinfo --fmad=true
            -gencode=arch=${virtual},code=${virtual} -I${PROJECT_SOURCE_DIR}/include
            -I${PROJECT_SOURCE_DIR}/src -MD -MF ${base}.d -o ${base}.ptx ${source}
    DEPENDS ${source} DEPFILE ${base}.d VERBATIM
    COMMENT "PTX ${name} for sm_${target}")
  set(${out} ${base}.ptx PARENT_SCOPE)
endfunction()

# mxfa_assemble(PTX NAME ARCH OUT): the cubin of a PTX file for an architecture, as sm_90a.
function(mxfa_assemble ptx name arch out)
  set(cubin ${CMAKE_CURRENT_BINARY_DIR}/kernels/${name}.${arch}.cubin)
  add_custom_command(
    OUTPUT ${cubin}
    COMMAND ${CUDAToolkit_BIN_DIR}/ptxas -arch=${arch} -O3 -o ${cubin} ${ptx}
    DEPENDS ${ptx} VERBATIM
    COMMENT "cubin ${name} for ${arch}")
  set(${out} ${cubin} PARENT_SCOPE)
endfunction()

# mxfa_embed_kernels(TARGET NAMESPACE name [PTX_ONLY] [ALL src.cu ...] [SM90 src.cu ...]
# [SM100 src.cu ...]): adds to TARGET the images of every source for its architectures and their
# table, the function std::span<const driver::KernelImage> mxfa::<name>::kernel_images(). Sources of
# ALL use nothing that one architecture alone has: they are compiled to PTX once, of the plain
# target that runs on all, and assembled for each. PTX_ONLY, for tests: no cubins, which a GPU's
# driver then makes.
function(mxfa_embed_kernels target)
  cmake_parse_arguments(arg "PTX_ONLY" "NAMESPACE" "ALL;SM90;SM100" ${ARGN})
  set(archs_ALL sm_90a sm_100a sm_103a)
  set(archs_SM90 sm_90a)
  set(archs_SM100 sm_100a sm_103a)
  set(symbols "")
  set(table "")
  set(files "")
  foreach(group ALL SM90 SM100)
    foreach(source IN LISTS arg_${group})
      get_filename_component(name ${source} NAME_WE)
      foreach(arch IN LISTS archs_${group})
        if(NOT arch IN_LIST MXFA_CUDA_ARCHS)
          continue()
        endif()
        set(ptx_target 90)
        if(NOT group STREQUAL ALL)
          string(REPLACE sm_ "" ptx_target ${arch})
        endif()
        set(ptx ${CMAKE_CURRENT_BINARY_DIR}/kernels/${name}.sm_${ptx_target}.ptx)
        set(ptx_symbol mxfa_${name}_sm_${ptx_target}_ptx)
        if(NOT ptx IN_LIST files)
          mxfa_compile_ptx(${CMAKE_CURRENT_SOURCE_DIR}/${source} ${ptx_target} ptx)
          list(APPEND files ${ptx})
          string(APPEND symbols "MXFA_EMBED(${ptx_symbol}, \"${ptx}\")\n")
        endif()
        set_property(GLOBAL APPEND PROPERTY MXFA_PTX_${arch} ${ptx})
        set(cubin_bytes "{}")
        if(NOT arg_PTX_ONLY)
          mxfa_assemble(${ptx} ${name} ${arch} cubin)
          set(cubin_symbol mxfa_${name}_${arch}_cubin)
          list(APPEND files ${cubin})
          string(APPEND symbols "MXFA_EMBED(${cubin_symbol}, \"${cubin}\")\n")
          set(cubin_bytes "bytes(${cubin_symbol}, ${cubin_symbol}_end)")
        endif()
        string(APPEND table "    {\"${name}\", \"${arch}\",\n"
                            "     ${cubin_bytes},\n"
                            "     text(${ptx_symbol}, ${ptx_symbol}_end)},\n")
      endforeach()
    endforeach()
  endforeach()
  set(generated ${CMAKE_CURRENT_BINARY_DIR}/kernels/${target}_images.cc)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/kernel_images.cc.in ${generated} @ONLY)
  set_property(SOURCE ${generated} PROPERTY OBJECT_DEPENDS "${files}")
  target_sources(${target} PRIVATE ${generated})
endfunction()
