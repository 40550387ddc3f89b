// SIGTERM and SIGINT as something that a training loop can ask for.
#pragma once

#include <atomic>
#include <csignal>
#include <thread>

namespace shardwise::train {

// Blocks both signals in the calling thread, and in threads that it starts, for its lifetime, and
// receives them in a thread of its own. A second signal ends the process at once, and the first one
// does where nobody asks for it within kPatienceSeconds: in a long step, or while ranks meet. Make
// it before any other thread; one at a time.
class StopSignal {
 public:
  static constexpr int kPatienceSeconds = 3;

  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // The signal that has come; 0: none. Who asks ends the program itself.
  int received() const {
    asked_ = received_ != 0;
    return received_;
  }

 private:
  void watch();

  sigset_t watched_{}, old_mask_{};
  std::atomic<int> received_ = 0;
  mutable std::atomic<bool> asked_ = false;
  std::atomic<bool> leaving_ = false;
  std::thread watcher_;
};

}  // namespace shardwise::train
