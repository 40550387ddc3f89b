// Finds libshardwise.so, the library with torch, from the place of the program.
#pragma once

#include <string>
#include <vector>

namespace shardwise::apps {

// Files that exist, best first: beside an installed package
// (../lib/python3*/site-packages/shardwise), where a *.pth file of that folder leads to, and in the
// build tree.
std::vector<std::string> find_libraries(const std::string& program_directory);

}  // namespace shardwise::apps
