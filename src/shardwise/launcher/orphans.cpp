#include "shardwise/launcher/orphans.h"

#include <algorithm>
#include <fstream>

namespace shardwise::launcher {

std::vector<pid_t> orphans(const std::vector<pid_t>& except) {
  std::ifstream file("/proc/thread-self/children");
  std::vector<pid_t> children;
  pid_t child = 0;
  while (file >> child) {
    if (std::find(except.begin(), except.end(), child) == except.end()) children.push_back(child);
  }
  return children;
}

}  // namespace shardwise::launcher
