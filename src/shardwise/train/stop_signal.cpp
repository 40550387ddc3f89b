#include "shardwise/train/stop_signal.h"

#include <pthread.h>
#include <unistd.h>

#include <ctime>

#include "shardwise/io/live_files.h"

namespace shardwise::train {
namespace {

[[noreturn]] void end_at_once(int signal) {
  io::remove_unfinished_files();
  ::_exit(128 + signal);
}

}  // namespace

StopSignal::StopSignal() {
  sigemptyset(&watched_);
  sigaddset(&watched_, SIGTERM);
  sigaddset(&watched_, SIGINT);
  ::pthread_sigmask(SIG_BLOCK, &watched_, &old_mask_);
  watcher_ = std::thread([this] { watch(); });
}

StopSignal::~StopSignal() {
  leaving_ = true;
  ::pthread_kill(watcher_.native_handle(), SIGTERM);
  watcher_.join();
  ::pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
}

void StopSignal::watch() {
  int signal = 0;
  ::sigwait(&watched_, &signal);
  if (leaving_) return;
  received_ = signal;
  const timespec patience{kPatienceSeconds, 0};
  while (::sigtimedwait(&watched_, nullptr, &patience) < 0) {
    if (!asked_) end_at_once(signal);
  }
  if (!leaving_) end_at_once(signal);
}

}  // namespace shardwise::train
