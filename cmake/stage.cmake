# cmake -DFILE=file -DFOLDER=folder -P stage.cmake: copies the file when it differs. It is renamed into
# place, because processes that run may have the old one mapped.
cmake_path(GET FILE FILENAME name)
file(MAKE_DIRECTORY "${FOLDER}")
execute_process(COMMAND "${CMAKE_COMMAND}" -E compare_files "${FILE}" "${FOLDER}/${name}"
                RESULT_VARIABLE differs OUTPUT_QUIET ERROR_QUIET)
if(differs)
  file(COPY_FILE "${FILE}" "${FOLDER}/.${name}.new")
  file(RENAME "${FOLDER}/.${name}.new" "${FOLDER}/${name}")
  message(STATUS "${FOLDER}/${name}")
endif()
