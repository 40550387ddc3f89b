# Three test programs from the *_test.cpp beside the sources: torch_free_tests for the modules without
# torch, comm_tests for the communication core, torch_tests for the others.

if(NOT SW_TESTS)
  return()
endif()
find_package(GTest QUIET)
if(NOT GTest_FOUND)
  message(STATUS "C++ tests are left out: no GoogleTest (Debian: libgtest-dev)")
  return()
endif()
enable_testing()

function(sw_test_program name torch sources)
  if(NOT sources)
    return()
  endif()
  # An object library, so that the tests share the precompiled header's flags (-fPIC).
  add_library(${name}_objects OBJECT ${sources})
  sw_configure_target(${name}_objects ${torch})
  target_link_libraries(${name}_objects PUBLIC GTest::gtest)
  add_executable(${name})
  target_link_libraries(${name} PRIVATE ${name}_objects GTest::gtest_main ${ARGN} Threads::Threads
                        ${CMAKE_DL_LIBS})
  add_test(NAME ${name} COMMAND ${name})
endfunction()

get_property(torch_free_tests GLOBAL PROPERTY SW_TORCH_FREE_TESTS)
get_property(torch_tests GLOBAL PROPERTY SW_TORCH_TESTS)
get_property(torch_free_targets GLOBAL PROPERTY SW_TORCH_FREE_TARGETS)
if(SW_WITH_CUDA)
  set(cudart CUDA::cudart_static)
endif()
sw_test_program(torch_free_tests FALSE "${torch_free_tests}" ${torch_free_targets} ${cudart})
set(comm_tests "${torch_tests}")
list(FILTER comm_tests INCLUDE REGEX "/shardwise/comm/")
list(FILTER torch_tests EXCLUDE REGEX "/shardwise/comm/")
sw_test_program(comm_tests TRUE "${comm_tests}" sw_comm sw_device ${torch_free_targets} ${cudart})
sw_test_program(torch_tests TRUE "${torch_tests}" shardwise)

# Programs over the C++ front that the Python tests run, in build/programs.
function(sw_front_program name source)
  # An object library for the precompiled header, as above.
  add_library(${name}_objects OBJECT "${PROJECT_SOURCE_DIR}/${source}")
  sw_configure_target(${name}_objects TRUE)
  add_executable(${name})
  target_link_libraries(${name} PRIVATE ${name}_objects shardwise)
  sw_stage(${name} "$<TARGET_FILE:${name}>" "${PROJECT_SOURCE_DIR}/build/programs" ${name})
endfunction()

sw_front_program(parity_native tests/native/parity_main.cpp)
sw_front_program(example_train examples/cpp/train.cpp)
