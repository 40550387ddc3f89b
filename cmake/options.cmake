# Compiler flags shared by all our targets: target sw::options.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

set(SW_SANITIZE "" CACHE STRING "Sanitizers of the C++ tests: \"address,undefined\", thread or empty")
set(CMAKE_CXX_FLAGS_DEV "-O1 -g1 -DNDEBUG" CACHE STRING "Flags of the build type Dev")
set(CMAKE_CUDA_FLAGS_DEV "-O1 -g1 -DNDEBUG" CACHE STRING "CUDA flags of the build type Dev")
# NDEBUG everywhere: torch's wheel is built with it, our own checks (SW_CHECK) do not depend on it.
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG")
set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -DNDEBUG")

add_library(sw_options INTERFACE)
add_library(sw::options ALIAS sw_options)
target_include_directories(sw_options INTERFACE "${PROJECT_SOURCE_DIR}/src")
target_compile_definitions(sw_options INTERFACE SW_VERSION="${PROJECT_VERSION}")
target_compile_options(sw_options INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Werror=return-type>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall;--expt-relaxed-constexpr;-lineinfo>")
if(SKBUILD)
  # Messages of a wheel name files from the root of the project, not of the machine that built it.
  target_compile_options(sw_options INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=>"
    "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=>")
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 warns of std::string + std::string at -O3 (its bug 105651).
  target_compile_options(sw_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>")
endif()
if(SW_WITH_CUDA)
  target_compile_definitions(sw_options INTERFACE SW_WITH_CUDA=1)
endif()
if(SW_WITH_GLOO)
  target_compile_definitions(sw_options INTERFACE SW_WITH_GLOO=1)
endif()
if(SW_SANITIZE)
  target_compile_options(sw_options INTERFACE -fsanitize=${SW_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(sw_options INTERFACE -fsanitize=${SW_SANITIZE})
  if(SW_SANITIZE MATCHES "undefined")
    # torch's objects carry no type information that the vptr check could read.
    target_compile_options(sw_options INTERFACE -fno-sanitize=vptr -fno-sanitize-recover=all)
    target_link_options(sw_options INTERFACE -fno-sanitize=vptr)
  endif()
endif()

find_program(SW_CCACHE ccache)
if(SW_CCACHE)
  # Precompiled headers need these two relaxations (ccache's manual, "Precompiled headers").
  set(launcher "${CMAKE_COMMAND}" -E env "CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime"
      "${SW_CCACHE}")
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${launcher})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(sw_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>")
  endif()
endif()
