#include "shardwise/launcher/keeper.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "shardwise/base/check.h"

namespace shardwise::launcher {
namespace {

// The life of the keeper: positive numbers are groups to watch, negative ones to forget; the end of
// the pipe is the death of the launcher. A number is written and read whole (pipes are atomic).
[[noreturn]] void keep(int pipe) {
  std::vector<pid_t> groups;
  pid_t number = 0;
  for (;;) {
    const ssize_t count = ::read(pipe, &number, sizeof(number));
    if (count < 0 && errno == EINTR) continue;
    if (count != sizeof(number)) break;
    if (number > 0) {
      groups.push_back(number);
    } else {
      groups.erase(std::remove(groups.begin(), groups.end(), -number), groups.end());
    }
  }
  for (const pid_t group : groups) ::kill(-group, SIGKILL);
  ::_exit(0);
}

}  // namespace

Keeper::Keeper() {
  int ends[2];
  SW_CHECK(::pipe2(ends, O_CLOEXEC) == 0, "pipe: ", std::strerror(errno));
  pid_ = ::fork();
  if (pid_ == 0) {
    // A session of its own: signals from the terminal do not reach it.
    ::setsid();
    ::prctl(PR_SET_NAME, "shardwise-keep");
    const int pipe = ends[0];
    ::dup2(pipe, STDIN_FILENO);
    ::close_range(STDERR_FILENO - 1, ~0U, 0);
    keep(STDIN_FILENO);
  }
  ::close(ends[0]);
  pipe_ = ends[1];
  SW_CHECK(pid_ > 0, "fork: ", std::strerror(errno));
}

Keeper::~Keeper() {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  ::close(pipe_);
}

void Keeper::watch(pid_t group) { send(group); }

void Keeper::forget(pid_t group) { send(-group); }

void Keeper::send(pid_t number) {
  // Should the keeper be gone, the launcher still works.
  [[maybe_unused]] const ssize_t written = ::write(pipe_, &number, sizeof(number));
}

}  // namespace shardwise::launcher
