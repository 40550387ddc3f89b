// SIGTERM and SIGINT as something that a training loop can ask for.
#pragma once

#include <atomic>
#include <csignal>
#include <thread>

namespace shardwise::train {

// Blocks both signals in the calling thread, and in threads that it starts, for its lifetime, and
// receives them in a thread of its own. A second signal ends the process at once. Make it before
// any other thread; one at a time.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // The signal that has come; 0: none.
  int received() const { return received_; }

 private:
  void watch();

  sigset_t watched_{}, old_mask_{};
  std::atomic<int> received_ = 0;
  std::atomic<bool> leaving_ = false;
  std::thread watcher_;
};

}  // namespace shardwise::train
