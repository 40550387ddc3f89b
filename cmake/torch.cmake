# Asks the Python in SW_PYTHON where torch is and makes these targets:
#   sw::torch          libtorch without Python (headers are system headers)
#   sw::torch_python   the above and libtorch_python, for bindings only
# find_package(Torch) is not used: it demands a whole CUDA toolkit and takes seconds.

# Sets <prefix>_SW_... to what probe_python.py prints for `python`.
function(sw_probe_python python prefix)
  execute_process(
    COMMAND "${python}" "${PROJECT_SOURCE_DIR}/cmake/probe_python.py"
    OUTPUT_VARIABLE probe OUTPUT_STRIP_TRAILING_WHITESPACE
    RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "${python} could not be asked about itself and torch")
  endif()
  string(REPLACE "\n" ";" probe "${probe}")
  foreach(line IN LISTS probe)
    if(line MATCHES "^(SW_[A-Z_]+)=(.*)$")
      set(${prefix}_${CMAKE_MATCH_1} "${CMAKE_MATCH_2}" PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

sw_probe_python("${SW_PYTHON}" MAIN)
foreach(name PYTHON_VERSION PYTHON_INCLUDE PYTHON_EXT_SUFFIX SITE_PACKAGES TORCH_DIR TORCH_VERSION
             NVIDIA_DIR)
  set(SW_${name} "${MAIN_SW_${name}}")
endforeach()

set(SW_TORCH_PIN 2.11.0)
if(NOT SW_TORCH_DIR)
  message(FATAL_ERROR "${SW_PYTHON} has no torch; install torch==${SW_TORCH_PIN} or run `make build`")
endif()
if(NOT SW_TORCH_VERSION MATCHES "^${SW_TORCH_PIN}([+].*)?$")
  message(FATAL_ERROR "torch ${SW_TORCH_VERSION} found in ${SW_TORCH_DIR}; "
                      "this version of shardwise is built for torch==${SW_TORCH_PIN}")
endif()
message(STATUS "torch ${SW_TORCH_VERSION} in ${SW_TORCH_DIR}")

add_library(sw_torch_interface INTERFACE)
add_library(sw::torch ALIAS sw_torch_interface)
target_include_directories(sw_torch_interface SYSTEM INTERFACE
  "${SW_TORCH_DIR}/include" "${SW_TORCH_DIR}/include/torch/csrc/api/include")
target_compile_definitions(sw_torch_interface INTERFACE _GLIBCXX_USE_CXX11_ABI=1 USE_DISTRIBUTED)
set(torch_lib "${SW_TORCH_DIR}/lib")
target_link_libraries(sw_torch_interface INTERFACE
  "${torch_lib}/libtorch.so" "${torch_lib}/libtorch_cpu.so" "${torch_lib}/libc10.so")
if(SW_WITH_GLOO)
  target_compile_definitions(sw_torch_interface INTERFACE USE_C10D_GLOO)
endif()
if(SW_WITH_CUDA)
  if(NOT SW_NVIDIA_DIR)
    message(FATAL_ERROR "torch's NCCL package brings nccl.h, but nvidia/nccl/include is not in "
                        "${SW_SITE_PACKAGES}; install nvidia-nccl-cu13 or set SW_CUDA=OFF")
  endif()
  target_compile_definitions(sw_torch_interface INTERFACE USE_C10D_NCCL)
  target_include_directories(sw_torch_interface SYSTEM INTERFACE
    "${SW_NVIDIA_DIR}/nccl/include" ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(sw_torch_interface INTERFACE
    "${torch_lib}/libtorch_cuda.so" "${torch_lib}/libc10_cuda.so")
endif()

add_library(sw_torch_python_interface INTERFACE)
add_library(sw::torch_python ALIAS sw_torch_python_interface)
target_link_libraries(sw_torch_python_interface INTERFACE
  sw::torch "${torch_lib}/libtorch_python.so")
