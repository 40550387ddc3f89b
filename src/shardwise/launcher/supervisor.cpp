#include "shardwise/launcher/supervisor.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "shardwise/base/check.h"
#include "shardwise/launcher/clock.h"
#include "shardwise/launcher/orphans.h"

namespace shardwise::launcher {
namespace {

constexpr std::size_t kReadBytes = std::size_t{1} << 16;
constexpr double kLingerSeconds = 0.5;      // for processes left behind, before SIGTERM
constexpr double kLeftoverSeconds = 1;      // from SIGTERM to SIGKILL, and for SIGKILL to act
constexpr double kSweepPollSeconds = 0.05;  // not every process left behind tells us its end
constexpr double kStoppedWriteSeconds = 2;  // for the reader of our output, after a signal

bool ignored(int signal) {
  struct sigaction action{};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

// What the launcher handles. Interrupt and hang-up stay ignored where they came ignored (nohup).
sigset_t handled_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGCHLD, SIGTERM}) sigaddset(&set, signal);
  for (const int signal : {SIGINT, SIGHUP}) {
    if (!ignored(signal)) sigaddset(&set, signal);
  }
  return set;
}

}  // namespace

Supervisor::Supervisor(LogRouter& router, std::vector<OutputPort*> ports, double grace_seconds)
    : router_(router),
      ports_(std::move(ports)),
      grace_seconds_(grace_seconds),
      not_ours_(orphans({})),  // the keeper, and children of a shell that became this program
      read_buffer_(kReadBytes, '\0') {
  const sigset_t signals = handled_signals();
  ::sigprocmask(SIG_BLOCK, &signals, &old_mask_);
  ::signal(SIGPIPE, SIG_IGN);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  signal_file_ = ::signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
  SW_CHECK(signal_file_ >= 0, "signalfd: ", std::strerror(errno));
}

Supervisor::~Supervisor() {
  for (RankProcess& rank : ranks_) rank.signal_group(SIGKILL);
  for (const RankProcess& rank : ranks_) {
    if (!rank.ended() && state_.phase != Phase::kLeaving) ::waitpid(rank.pid(), nullptr, 0);
  }
  ::close(signal_file_);
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  ::sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
}

int Supervisor::run(const std::vector<SpawnRequest>& requests) {
  start(requests);
  while (!all_ended() && state_.phase != Phase::kLeaving) {
    wait_for_events();
    advance();
  }
  end_leftovers();
  drain();
  return report();
}

void Supervisor::start(const std::vector<SpawnRequest>& requests) {
  ranks_.reserve(requests.size());
  for (const SpawnRequest& request : requests) {
    ranks_.emplace_back(request);
    rank_numbers_.push_back(request.rank);
    keeper_.watch(ranks_.back().pid());
  }
}

bool Supervisor::all_ended() const {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [](const RankProcess& rank) { return rank.ended(); });
}

// One round: sleeps until something happens or a deadline comes, then takes what is there.
void Supervisor::wait_for_events() {
  const double router_wants = router_.flush(now_seconds());
  std::vector<pollfd> files = {{signal_file_, POLLIN, 0}};
  for (const OutputPort* port : ports_) {
    if (port->waiting()) files.push_back({port->fd(), POLLOUT, 0});
  }
  const std::size_t first_stream = files.size();
  std::vector<std::pair<std::size_t, Stream>> streams;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    for (const Stream stream : {Stream::kOut, Stream::kErr}) {
      if (ranks_[i].pipe(stream) < 0 || !router_.accepts(stream)) continue;
      files.push_back({ranks_[i].pipe(stream), POLLIN, 0});
      streams.emplace_back(i, stream);
    }
  }
  const double seconds = seconds_to_wait(router_wants);
  const int timeout = seconds < 0 ? -1 : static_cast<int>(std::ceil(seconds * 1000));
  if (::poll(files.data(), files.size(), timeout) < 0) return;
  if (files[0].revents != 0) read_signals();
  for (std::size_t i = 0; i < streams.size(); ++i) {
    if (files[first_stream + i].revents != 0 && router_.accepts(streams[i].second)) {
      read_stream(streams[i].first, streams[i].second);
    }
  }
}

// A negative number means: until something happens.
double Supervisor::seconds_to_wait(double router_wants) const {
  double seconds = router_wants;
  if (state_.phase != Phase::kRunning) {
    const double left = std::max(0.0, state_.deadline - now_seconds());
    seconds = seconds < 0 ? left : std::min(seconds, left);
    if (state_.phase == Phase::kSweeping) seconds = std::min(seconds, kSweepPollSeconds);
  }
  return seconds;
}

void Supervisor::read_signals() {
  signalfd_siginfo info{};
  while (::read(signal_file_, &info, sizeof(info)) == sizeof(info)) {
    if (static_cast<int>(info.ssi_signo) == SIGCHLD) {
      reap();
    } else {
      on_stop_signal(static_cast<int>(info.ssi_signo));
    }
  }
}

// Takes all children that have ended: ranks, and orphans of ranks, which nobody else would bury.
void Supervisor::reap() {
  int wait_status = 0;
  pid_t pid = 0;
  while ((pid = ::waitpid(-1, &wait_status, WNOHANG)) > 0) {
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (ranks_[i].pid() == pid && !ranks_[i].ended()) on_rank_end(i, wait_status);
    }
  }
  for (RankProcess& rank : ranks_) {
    if (rank.ended() && !rank.group_known_empty() && !rank.group_alive())
      keeper_.forget(rank.pid());
  }
}

void Supervisor::on_rank_end(std::size_t index, int wait_status) {
  RankProcess& rank = ranks_[index];
  rank.set_ended(wait_status, now_seconds());
  const bool asked = state_.phase != Phase::kRunning && state_.phase != Phase::kSettling;
  if (asked || exit_code_of(wait_status) == 0) return;
  failures_.push_back(
      {rank_numbers_[index], rank.pid(), wait_status, rank.seconds(), rank.ended_at()});
  settle(failures_.back());
}

void Supervisor::settle(const Failure& failure) {
  const bool first = state_.phase == Phase::kRunning;
  const bool consequence = follows_from_another(failure.wait_status);
  if (first) {
    const double patience = lost_others(failure.wait_status) ? kLostOthersSeconds
                            : consequence                    ? kConsequenceSeconds
                                                             : kSettleSeconds;
    state_.deadline = now_seconds() + patience;
  }
  const bool others_may_tell =
      std::any_of(ranks_.begin(), ranks_.end(),
                  [](const RankProcess& rank) { return !rank.ended() && !rank.stopped(); });
  if (!consequence || !others_may_tell) {
    state_.deadline = std::min(state_.deadline, now_seconds() + kSettleSeconds);
  }
  state_.phase = Phase::kSettling;
}

void Supervisor::on_stop_signal(int signal) {
  if (state_.phase == Phase::kEnding) {
    router_.note(concat("SIG", ::sigabbrev_np(signal), " again: killing all ranks"));
    begin_killing();
  } else if (state_.phase == Phase::kRunning || state_.phase == Phase::kSettling) {
    if (failures_.empty()) stop_signal_ = signal;
    begin_ending(signal == SIGHUP ? SIGTERM : signal, concat("SIG", ::sigabbrev_np(signal)));
  } else if (stop_signal_ == 0) {
    stop_signal_ = signal;
  }
}

void Supervisor::read_stream(std::size_t index, Stream stream) {
  RankProcess& rank = ranks_[index];
  const ssize_t count = ::read(rank.pipe(stream), read_buffer_.data(), read_buffer_.size());
  if (count > 0) {
    router_.bytes(static_cast<int>(index), stream,
                  std::string_view(read_buffer_.data(), static_cast<std::size_t>(count)),
                  now_seconds());
  } else if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
    router_.end(static_cast<int>(index), stream);
    rank.close_pipe(stream);
  }
}

// Takes what is still in the pipes of dead ranks. A process that could not be ended may hold a pipe
// open or go on writing: what is there now is taken, and no more.
void Supervisor::drain() {
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    for (const Stream stream : {Stream::kOut, Stream::kErr}) {
      int waiting = 0;
      if (ranks_[i].pipe(stream) >= 0) ::ioctl(ranks_[i].pipe(stream), FIONREAD, &waiting);
      for (; waiting > 0; waiting -= static_cast<int>(kReadBytes)) {
        read_stream(i, stream);
        router_.flush(now_seconds());
        if (!router_.accepts(stream)) finish_writing();
        if (gave_up_writing_) return;
      }
      if (ranks_[i].pipe(stream) >= 0) router_.end(static_cast<int>(i), stream);
      ranks_[i].close_pipe(stream);
    }
  }
}

// Waits for readers that are slow or paused, like any program does. A signal ends the wait.
void Supervisor::finish_writing() {
  const double give_up_at = now_seconds() + kStoppedWriteSeconds;
  router_.flush(now_seconds());
  for (;;) {
    std::vector<pollfd> files = {{signal_file_, POLLIN, 0}};
    for (const OutputPort* port : ports_) {
      if (port->waiting()) files.push_back({port->fd(), POLLOUT, 0});
    }
    gave_up_writing_ |= stop_signal_ != 0 && now_seconds() > give_up_at;
    if (files.size() == 1 || gave_up_writing_) return;
    ::poll(files.data(), files.size(), 100);
    read_signals();
    router_.flush(now_seconds());
  }
}

// Moves to the next phase when it is time.
void Supervisor::advance() {
  const bool lost_output = std::any_of(ports_.begin(), ports_.end(),
                                       [](const OutputPort* port) { return port->failed(); });
  if (lost_output && state_.phase == Phase::kRunning) {
    stop_signal_ = SIGPIPE;
    begin_ending(SIGTERM, "the reader of this output has gone");
  }
  if (state_.phase == Phase::kRunning || now_seconds() < state_.deadline || all_ended()) return;
  if (state_.phase == Phase::kSettling) {
    const Failure& cause = failures_[find_cause(failures_)];
    begin_ending(SIGTERM, concat("rank ", cause.rank, " ", describe_end(cause.wait_status)));
  } else if (state_.phase == Phase::kEnding) {
    router_.note(concat("still running ", grace_seconds_, " s later: killing all ranks"));
    begin_killing();
  } else if (state_.phase == Phase::kKilling) {
    state_.phase = Phase::kLeaving;
  }
}

void Supervisor::begin_ending(int signal, const std::string& why) {
  const auto running = std::count_if(ranks_.begin(), ranks_.end(),
                                     [](const RankProcess& rank) { return !rank.ended(); });
  if (running > 0) {
    router_.note(concat(why, ": ending ", running, running == 1 ? " rank" : " ranks", " (SIG",
                        ::sigabbrev_np(signal), ", SIGKILL after ", grace_seconds_, " s)"));
  }
  signal_all(signal);
  signal_all(SIGCONT);
  state_.phase = Phase::kEnding;
  state_.deadline = now_seconds() + grace_seconds_;
}

void Supervisor::begin_killing() {
  signal_all(SIGKILL);
  state_.phase = Phase::kKilling;
  state_.deadline = now_seconds() + kKillSeconds;
}

// Returns the number of groups that had a process.
int Supervisor::signal_all(int signal) {
  int reached = 0;
  for (RankProcess& rank : ranks_) reached += rank.signal_group(signal) ? 1 : 0;
  return reached;
}

// Whether anything that ranks have started is still there.
bool Supervisor::leftovers() {
  reap();
  return signal_all(0) > 0 || !orphans(not_ours_).empty();
}

// Ends what ranks have left behind. First it gets a moment to end by itself: a `tee` behind a rank
// still has lines to pass on.
void Supervisor::end_leftovers() {
  if (state_.phase == Phase::kLeaving) return;
  state_.phase = Phase::kSweeping;
  for (const int signal : {0, SIGTERM, SIGKILL}) {
    if (!leftovers()) return;
    if (signal != 0) {
      signal_all(signal);
      signal_all(SIGCONT);
      for (const pid_t orphan : orphans(not_ours_)) ::kill(orphan, signal);
    }
    state_.deadline = now_seconds() + (signal == 0 ? kLingerSeconds : kLeftoverSeconds);
    while (leftovers() && now_seconds() < state_.deadline) wait_for_events();
  }
}

// Ranks that others may have waited for.
void Supervisor::note_early_ends() {
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i].ended() && exit_code_of(ranks_[i].wait_status()) == 0 &&
        ranks_[i].ended_at() <= failures_.front().ended_at) {
      router_.note(
          concat("rank ", rank_numbers_[i],
                 " had ended normally before: all ranks must run the same number of steps"));
    }
  }
}

// Says why the job ended, the first cause last, and returns the exit code.
int Supervisor::report() {
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i].ended()) continue;
    router_.note(concat("rank ", rank_numbers_[i], " (pid ", ranks_[i].pid(),
                        ") did not end on SIGKILL: it waits in the kernel, for a device or disk"));
  }
  int code = 0;
  if (!failures_.empty()) {
    const std::size_t cause = find_cause(failures_);
    for (std::size_t i = 0; i < failures_.size(); ++i) {
      if (i == cause) continue;
      const Failure& other = failures_[i];
      router_.note(concat("rank ", other.rank, " (pid ", other.pid, ") ",
                          describe_end(other.wait_status), " at nearly the same time"));
    }
    if (follows_from_another(failures_[cause].wait_status)) note_early_ends();
    const std::size_t index = static_cast<std::size_t>(failures_[cause].rank - rank_numbers_[0]);
    for (const std::string& line :
         failure_report(failures_[cause], router_.tail(static_cast<int>(index)).lines())) {
      router_.note(line);
    }
    code = exit_code_of(failures_[cause].wait_status);
  } else if (stop_signal_ != 0) {
    router_.note(concat("ended by SIG", ::sigabbrev_np(stop_signal_)));
    code = 128 + stop_signal_;
  }
  finish_writing();
  return code;
}

}  // namespace shardwise::launcher
