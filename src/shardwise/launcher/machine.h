// What the launcher asks this machine: cores, limits, a free port.
#pragma once

#include <string>

namespace shardwise::launcher {

// Cores this process may use: its affinity mask, cut by the CPU quota of its control group.
int usable_cores();

// The quota in `cpu_max`, the text of a cgroup v2 file cpu.max ("200000 100000" or "max 100000"),
// in whole cores, rounded up; 0 for none.
int quota_cores(const std::string& cpu_max);

// A TCP port that nobody listens on at the loopback address. Taken at random below the range from
// which the kernel serves outgoing connections, so that nobody else gets it by chance before rank 0
// opens it. Throws CommunicationError when there is none.
int free_port();

// Throws UsageError when this many ranks need more open files than this process may have.
void check_open_files(int ranks);

}  // namespace shardwise::launcher
