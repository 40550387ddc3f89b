#include "shardwise/train/stop_signal.h"

#include <pthread.h>
#include <unistd.h>

namespace shardwise::train {

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
  for (;;) {
    int signal = 0;
    ::sigwait(&watched_, &signal);
    if (leaving_) return;
    if (received_ != 0) ::_exit(128 + signal);
    received_ = signal;
  }
}

}  // namespace shardwise::train
