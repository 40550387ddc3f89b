// One rank: a child process that leads its own process group, with two pipes.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "shardwise/launcher/log_router.h"

namespace shardwise::launcher {

struct SpawnRequest {
  int rank = 0;  // global, for messages
  std::string file;
  std::vector<std::string> arguments;
  std::vector<std::string> environment;  // "NAME=value"
  bool keep_input = false;               // else standard input is /dev/null
};

// Move-only; closes its pipes. Does not end or wait for the process: the supervisor does.
class RankProcess {
 public:
  // Starts the process. Returns when the program has been executed; throws IoError when it cannot
  // be.
  explicit RankProcess(const SpawnRequest& request);
  ~RankProcess();
  RankProcess(RankProcess&& other) noexcept;
  RankProcess& operator=(RankProcess&&) = delete;

  pid_t pid() const { return pid_; }
  double started() const { return started_; }

  // Read end of a stream; -1 when it has ended. Non-blocking.
  int pipe(Stream stream) const { return pipes_[static_cast<int>(stream)]; }
  void close_pipe(Stream stream);

  // The leader's end, told by the supervisor that has reaped it.
  void set_ended(int wait_status, double when);
  bool ended() const { return ended_; }
  // Whether the leader is stopped by a signal (or a debugger) just now.
  bool stopped() const;
  int wait_status() const { return wait_status_; }
  double seconds() const { return ended_at_ - started_; }
  double ended_at() const { return ended_at_; }

  // Sends a signal to the whole process group. Returns whether the group still had a process.
  bool signal_group(int signal);
  // False once the leader has been reaped and the group was seen empty; never true again.
  bool group_alive();
  bool group_known_empty() const { return group_gone_; }

 private:
  pid_t pid_ = -1;
  int pipes_[2] = {-1, -1};
  double started_ = 0;
  double ended_at_ = 0;
  int wait_status_ = 0;
  bool ended_ = false;
  bool group_gone_ = false;
};

}  // namespace shardwise::launcher
