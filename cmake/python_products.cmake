# The Python module and the program, their installation into a wheel, and the target `stage`, which
# puts all of them where the source tree's venv finds them.

add_custom_target(stage)

# Target stage_<name>: puts `file`, made by `target`, into `folder` when it differs.
function(sw_stage name file folder)
  add_custom_target(stage_${name}
    COMMAND "${CMAKE_COMMAND}" "-DFILE=${file}" "-DFOLDER=${folder}"
            -P "${PROJECT_SOURCE_DIR}/cmake/stage.cmake"
    COMMENT "Staging ${name}" VERBATIM)
  if(ARGN)
    add_dependencies(stage_${name} ${ARGN})
  endif()
  add_dependencies(stage stage_${name})
endfunction()

set(package_folder "${PROJECT_SOURCE_DIR}/python/shardwise")
sw_stage(library "$<TARGET_FILE:shardwise>" "${package_folder}" shardwise)
install(TARGETS shardwise LIBRARY DESTINATION shardwise)

# The module _C for one Python, named by its headers' folder and the suffix of its extension modules.
function(sw_python_module target include_folder suffix)
  if(NOT EXISTS "${include_folder}/Python.h")
    message(FATAL_ERROR "${include_folder}/Python.h is missing (Debian: python3-dev)")
  endif()
  add_library(${target} MODULE ${binding_sources})
  target_link_libraries(${target} PRIVATE shardwise sw::torch_python)
  target_include_directories(${target} SYSTEM PRIVATE "${include_folder}")
  target_compile_definitions(${target} PRIVATE TORCH_EXTENSION_NAME=_C TORCH_API_INCLUDE_EXTENSION_H)
  target_precompile_headers(${target} PRIVATE "${PROJECT_SOURCE_DIR}/cmake/torch_python_pch.h")
  set_target_properties(${target} PROPERTIES
    OUTPUT_NAME _C PREFIX "" SUFFIX "${suffix}"
    LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/package"
    BUILD_RPATH "${dev_rpath}")
  sw_stage(${target} "$<TARGET_FILE:${target}>" "${package_folder}" ${target})
endfunction()

sw_collect("${PROJECT_SOURCE_DIR}/src/shardwise/bindings" binding_sources binding_tests)
if(SW_PYTHON_MODULE AND binding_sources)
  sw_python_module(sw_python_module "${SW_PYTHON_INCLUDE}" "${SW_PYTHON_EXT_SUFFIX}")
  install(TARGETS sw_python_module LIBRARY DESTINATION shardwise)
  # libshardwise.so does not depend on Python, so one build can serve several versions.
  if(SW_EXTRA_PYTHON)
    sw_probe_python("${SW_EXTRA_PYTHON}" EXTRA)
    sw_python_module(sw_extra_python_module "${EXTRA_SW_PYTHON_INCLUDE}"
                     "${EXTRA_SW_PYTHON_EXT_SUFFIX}")
  endif()
endif()

# The program is native and free of torch, so that `shardwise launch` starts at once; what needs
# torch is loaded from libshardwise.so at run time. Its main file is apart from its subcommands, which
# the tests link too.
sw_collect("${PROJECT_SOURCE_DIR}/src/shardwise/apps" program_sources program_tests)
set(program_main "${PROJECT_SOURCE_DIR}/src/shardwise/apps/shardwise.cpp")
if(program_main IN_LIST program_sources)
  list(REMOVE_ITEM program_sources "${program_main}")
  set(program_targets "")
  foreach(module base config io launcher data)
    if(TARGET sw_${module})
      list(APPEND program_targets sw_${module})
    endif()
  endforeach()
  if(program_sources)
    # The shape of a model is read without torch, so the program has that part of the module models too.
    foreach(part gpt2_config job_model known_keys llama_config model_config rope_config unbuilt_settings)
      list(APPEND program_sources "${PROJECT_SOURCE_DIR}/src/shardwise/models/${part}.cpp")
    endforeach()
    add_library(sw_apps OBJECT ${program_sources})
    sw_configure_target(sw_apps FALSE)
    list(APPEND program_targets sw_apps)
    if(program_tests)
      set_property(GLOBAL APPEND PROPERTY SW_TORCH_FREE_TARGETS sw_apps)
      set_property(GLOBAL APPEND PROPERTY SW_TORCH_FREE_TESTS ${program_tests})
    endif()
  endif()
  add_executable(sw_program "${program_main}")
  target_link_libraries(sw_program PRIVATE sw::options ${program_targets} Threads::Threads ${CMAKE_DL_LIBS})
  set_target_properties(sw_program PROPERTIES OUTPUT_NAME shardwise
                        RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin" INSTALL_RPATH "")
  get_filename_component(venv_bin "${SW_PYTHON}" DIRECTORY)
  sw_stage(program "$<TARGET_FILE:sw_program>" "${venv_bin}" sw_program)
  if(SKBUILD)
    install(TARGETS sw_program RUNTIME DESTINATION "${SKBUILD_SCRIPTS_DIR}")
  endif()
endif()

# .venv imports the package from the source tree through this file.
file(GENERATE OUTPUT "${CMAKE_BINARY_DIR}/pth/shardwise.pth" CONTENT "${PROJECT_SOURCE_DIR}/python\n")
sw_stage(path "${CMAKE_BINARY_DIR}/pth/shardwise.pth" "${SW_SITE_PACKAGES}")
