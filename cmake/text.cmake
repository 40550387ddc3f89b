# sw::text: PCRE2 (regular expressions) and utf8proc (Unicode), for the module data. Their static
# archives are taken where they exist, so that a wheel stands alone; their symbols stay hidden, because
# the process may have other versions loaded. Debian's archives can be linked into shared libraries.

function(sw_find_text_library variable header library package)
  find_path(${variable}_INCLUDE ${header})
  find_library(${variable}_LIBRARY NAMES lib${library}.a ${library})
  if(NOT ${variable}_INCLUDE OR NOT ${variable}_LIBRARY)
    message(FATAL_ERROR "${header} or lib${library} is missing (Debian: ${package}); "
                        "tools/bootstrap.sh, which `make` runs, installs it")
  endif()
  mark_as_advanced(${variable}_INCLUDE ${variable}_LIBRARY)
  target_include_directories(sw_text INTERFACE "${${variable}_INCLUDE}")
  target_link_libraries(sw_text INTERFACE "${${variable}_LIBRARY}")
endfunction()

add_library(sw_text INTERFACE)
add_library(sw::text ALIAS sw_text)
sw_find_text_library(SW_PCRE2 pcre2.h pcre2-8 libpcre2-dev)
sw_find_text_library(SW_UTF8PROC utf8proc.h utf8proc libutf8proc-dev)
target_link_options(sw_text INTERFACE -Wl,--exclude-libs,libpcre2-8.a:libutf8proc.a)
