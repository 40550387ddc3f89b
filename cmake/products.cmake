# What the modules are linked into: libshardwise.so, the Python module _C, the program, the tests.

sw_read_layers()

file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/pch.cpp"
     CONTENT "// Carries the precompiled header of the torch modules.\n")
add_library(sw_torch_pch OBJECT "${CMAKE_BINARY_DIR}/pch.cpp")
target_precompile_headers(sw_torch_pch PRIVATE "${PROJECT_SOURCE_DIR}/cmake/torch_pch.h")
sw_configure_target(sw_torch_pch TRUE)

set(programs bindings apps)
foreach(module IN LISTS SW_MODULES)
  if(NOT module IN_LIST programs)
    sw_module(${module})
  endif()
endforeach()
if(TARGET sw_data)
  target_link_libraries(sw_data PUBLIC sw::text)
endif()
get_property(object_targets GLOBAL PROPERTY SW_OBJECT_TARGETS)

# Where libraries look for torch: relative to themselves in a wheel; in the source tree also in the
# venv, relative to python/shardwise where that is possible, so that the tree can be moved.
set(CMAKE_INSTALL_RPATH "$ORIGIN;$ORIGIN/../torch/lib")
cmake_path(IS_PREFIX PROJECT_SOURCE_DIR "${SW_TORCH_DIR}" venv_in_tree)
if(venv_in_tree)
  file(RELATIVE_PATH torch_relative "${PROJECT_SOURCE_DIR}/python/shardwise" "${SW_TORCH_DIR}/lib")
  set(dev_rpath "$ORIGIN;$ORIGIN/../torch/lib;$ORIGIN/${torch_relative}")
else()
  set(dev_rpath "$ORIGIN;$ORIGIN/../torch/lib;${SW_TORCH_DIR}/lib")
endif()

add_library(shardwise SHARED "${CMAKE_BINARY_DIR}/pch.cpp")
target_link_libraries(shardwise PRIVATE ${object_targets} PUBLIC sw::options sw::torch Threads::Threads
                      ${CMAKE_DL_LIBS})
set_target_properties(shardwise PROPERTIES
  LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/package"
  BUILD_RPATH "${dev_rpath}")
# Undefined symbols are found here and not by the first user. libtorch.so has no symbols of its own but
# brings CUDA along, so linkers that drop such libraries are told not to.
target_link_options(shardwise PRIVATE -Wl,--no-undefined -Wl,--no-as-needed)
if(SW_SANITIZE)
  set_target_properties(shardwise PROPERTIES BUILD_RPATH "${SW_TORCH_DIR}/lib")
endif()
if(SW_WITH_CUDA)
  # The static runtime must not be visible to torch, which brings the shared one.
  target_link_libraries(shardwise PRIVATE CUDA::cudart_static)
  target_link_options(shardwise PRIVATE -Wl,--exclude-libs,libcudart_static.a)
  set_target_properties(shardwise PROPERTIES CUDA_RUNTIME_LIBRARY Static)
endif()

include(python_products)
include(tests)
