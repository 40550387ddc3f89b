#include "shardwise/launcher/machine.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>

#include "shardwise/base/check.h"

namespace shardwise::launcher {
namespace {

// Two pipes a rank, and at most one log file.
constexpr int kFilesPerRank = 3;
// Standard streams, signals, the keeper's pipe, reopened outputs, and room for a fork in progress.
constexpr int kOwnFiles = 24;

int affinity_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) {
    return std::max(1, CPU_COUNT(&set));
  }
  return std::max(1, static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)));
}

bool port_is_free(int port) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return false;
  const int on = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  const bool free =
      ::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
      ::listen(socket, 1) == 0;
  ::close(socket);
  return free;
}

int lowest_outgoing_port() {
  std::ifstream file("/proc/sys/net/ipv4/ip_local_port_range");
  int low = 32768;
  file >> low;
  return low;
}

}  // namespace

int quota_cores(const std::string& cpu_max) {
  std::istringstream text(cpu_max);
  double quota = 0;
  double period = 0;
  if (!(text >> quota >> period) || quota <= 0 || period <= 0) {
    return 0;
  }
  return static_cast<int>(std::ceil(quota / period));
}

int usable_cores() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string line;
  std::getline(file, line);
  const int quota = quota_cores(line);
  const int cores = affinity_cores();
  return quota > 0 ? std::min(quota, cores) : cores;
}

int free_port() {
  constexpr int kLow = 20000;  // above the ports of usual services
  constexpr int kTries = 200;
  const int outgoing = lowest_outgoing_port();
  const int high = outgoing > kLow + 1000 ? outgoing - 1 : 65535;
  std::random_device random;
  std::uniform_int_distribution<int> any(kLow, high);
  for (int i = 0; i < kTries; ++i) {
    const int port = any(random);
    if (port_is_free(port)) return port;
  }
  SW_FAIL(CommunicationError, "launch: found no free TCP port from ", kLow, " to ", high, " in ",
          kTries, " tries; name one with --master-port");
}

void check_open_files(int ranks) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return;
  }
  const rlim_t needed = static_cast<rlim_t>(ranks) * kFilesPerRank + kOwnFiles;
  const rlim_t fitting =
      limit.rlim_cur <= kOwnFiles ? 0 : (limit.rlim_cur - kOwnFiles) / kFilesPerRank;
  SW_USER_CHECK(UsageError, needed <= limit.rlim_cur, "launch: -n ", ranks, " needs ", needed,
                " open files, and this shell allows ", limit.rlim_cur, "; start at most ", fitting,
                " ranks, or raise the limit: ulimit -n ", needed);
}

}  // namespace shardwise::launcher
