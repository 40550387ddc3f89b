// Processes that lost their parent and were given to this one (PR_SET_CHILD_SUBREAPER).
#pragma once

#include <sys/types.h>

#include <vector>

namespace shardwise::launcher {

// Children of this process other than those in `except`. Empty where the kernel does not list them.
std::vector<pid_t> orphans(const std::vector<pid_t>& except);

}  // namespace shardwise::launcher
