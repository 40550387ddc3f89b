// Finds libshardwise.so, the library with torch, from the place of the program.
#pragma once

#include <string>
#include <vector>

namespace shardwise::apps {

// Files that exist, best first: beside an installed package
// (../lib/python3*/site-packages/shardwise), where a *.pth file of that folder leads to, and in the
// build tree.
std::vector<std::string> find_libraries(const std::string& program_directory);

// A C function of the library; loads it with torch. Throws IoError that says what to install.
void* load_function(const std::string& library, const std::string& name);

// The same from the first library found.
void* find_function(const std::string& program_directory, const std::string& name);

}  // namespace shardwise::apps
