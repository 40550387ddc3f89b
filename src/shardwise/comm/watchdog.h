// Watches collectives that run on a device, where a hang would show nowhere.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace shardwise::comm {

// One thread that looks at the oldest collective in flight a few times within the time-out. When it
// has not finished in time, the report is logged, `on_timeout` is called once, and check() throws
// from then on. It comes before NCCL's own watchdog, which kills the process. Thread-safe.
class Watchdog {
 public:
  // `device`: that of the collectives. The thread makes no context on another one.
  Watchdog(c10::Device device, std::chrono::milliseconds timeout, std::function<void()> on_timeout);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // `finished` is polled from the watchdog's thread. Collectives finish in the order of the calls.
  void add(std::string what, std::function<bool()> finished);
  // Throws CommunicationError with the report after a time-out.
  void check() const;

 private:
  struct Entry {
    std::string what;
    std::function<bool()> finished;
    std::chrono::steady_clock::time_point start;
  };

  void run();
  // The report if the oldest collective is late; drops those that have finished.
  std::string look();

  c10::Device device_;
  std::chrono::milliseconds timeout_;
  std::function<void()> on_timeout_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Entry> entries_;
  std::string report_;
  std::atomic<bool> failed_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace shardwise::comm
