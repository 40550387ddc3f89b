// Starts the ranks, watches them, and ends them: the launcher's event loop.
//
// Note [How a job ends]
//   running   a rank fails            -> settling (0.1 s: which failures come together?)
//   settling  the time is over        -> ending: SIGTERM to every process group, and SIGCONT, so
//   that
//                                        stopped ranks can act on it
//   running   SIGINT, SIGTERM, SIGHUP -> ending, with the same signal
//   ending    the grace is over, or a second signal -> killing: SIGKILL, which ends stopped ranks
//   too killing   kKillSeconds over       -> leaving: a process in an uninterruptible wait stays
//   behind,
//                                        and is named
// When no rank is left, what the ranks have started and left behind is ended too (sweeping).
#pragma once

#include <signal.h>

#include <string>
#include <vector>

#include "shardwise/launcher/exit_report.h"
#include "shardwise/launcher/keeper.h"
#include "shardwise/launcher/log_router.h"
#include "shardwise/launcher/output_port.h"
#include "shardwise/launcher/rank_process.h"

namespace shardwise::launcher {

// Use once. Blocks signals of the process and becomes the parent of orphans
// (PR_SET_CHILD_SUBREAPER) for its lifetime. Not thread-safe; the process must have a single
// thread.
class Supervisor {
 public:
  // How long other failures are waited for: after a failure that can be the cause, and after one
  // that follows from another. A Python rank that fails closes its connections while it shuts down,
  // so those who lose them end earlier, on a busy machine many seconds; the wait is over as soon as
  // a rank fails that can be the cause, or none is left that could.
  static constexpr double kSettleSeconds = 0.1;
  static constexpr double kLostOthersSeconds = 15;  // after a communication error
  static constexpr double kConsequenceSeconds = 3;  // after SIGTERM or SIGPIPE
  static constexpr double kKillSeconds = 3;

  // `ports` are those that `router` writes to.
  Supervisor(LogRouter& router, std::vector<OutputPort*> ports, double grace_seconds);
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // Runs the ranks to their end. Returns the exit code of the program: 0, that of the rank that
  // failed first, or 128 + signal when a signal ended the job. Throws IoError when a rank cannot be
  // started; the others have been ended then.
  int run(const std::vector<SpawnRequest>& requests);

 private:
  enum class Phase { kRunning, kSettling, kEnding, kKilling, kLeaving, kSweeping };

  void start(const std::vector<SpawnRequest>& requests);
  bool all_ended() const;
  void wait_for_events();
  double seconds_to_wait(double router_wants) const;
  void read_signals();
  void reap();
  void on_rank_end(std::size_t index, int wait_status);
  void settle(const Failure& failure);
  void on_stop_signal(int signal);
  void read_stream(std::size_t index, Stream stream);
  void drain();
  void finish_writing();
  void advance();
  void begin_ending(int signal, const std::string& why);
  void begin_killing();
  int signal_all(int signal);
  void end_leftovers();
  bool leftovers();
  void note_early_ends();
  int report();

  LogRouter& router_;
  std::vector<OutputPort*> ports_;
  double grace_seconds_;
  Keeper keeper_;
  std::vector<pid_t> not_ours_;  // children that no rank has left behind
  std::vector<RankProcess> ranks_;
  std::vector<int> rank_numbers_;  // global
  std::vector<Failure> failures_;
  std::string read_buffer_;
  sigset_t old_mask_;
  int signal_file_ = -1;
  int stop_signal_ = 0;
  bool gave_up_writing_ = false;
  struct {
    Phase phase = Phase::kRunning;
    double deadline = 0;  // of the phase, unless running
  } state_;
};

}  // namespace shardwise::launcher
