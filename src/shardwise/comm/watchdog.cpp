#include "shardwise/comm/watchdog.h"

#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <utility>

#include "shardwise/base/check.h"
#include "shardwise/base/log.h"

namespace shardwise::comm {
namespace {

using std::chrono::milliseconds;

// Looks in one time-out: a hang is reported at most this fraction late.
constexpr int kLooks = 20;
constexpr milliseconds kLongestPause(1000);

}  // namespace

Watchdog::Watchdog(c10::Device device, milliseconds timeout, std::function<void()> on_timeout)
    : device_(device),
      timeout_(timeout),
      on_timeout_(std::move(on_timeout)),
      thread_([this] { run(); }) {}

Watchdog::~Watchdog() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Watchdog::add(std::string what, std::function<bool()> finished) {
  const std::scoped_lock lock(mutex_);
  entries_.push_back({std::move(what), std::move(finished), std::chrono::steady_clock::now()});
}

void Watchdog::check() const {
  if (failed_) {
    const std::scoped_lock lock(mutex_);
    SW_FAIL(CommunicationError, report_);
  }
}

std::string Watchdog::look() {
  try {
    while (!entries_.empty() && entries_.front().finished()) {
      entries_.pop_front();
    }
  } catch (const std::exception& error) {  // a kernel failed: every query says so from then on
    return concat(entries_.front().what, " cannot finish: ", error.what());
  }
  if (entries_.empty()) {
    return "";
  }
  const auto age = std::chrono::steady_clock::now() - entries_.front().start;
  return age < timeout_
             ? ""
             : concat(entries_.front().what, " has not finished after ", timeout_.count() / 1000.0,
                      " s (shardwise.timeout_seconds). Most often another rank has "
                      "died, is stuck, or runs collectives in another order: look at "
                      "the first error of the other ranks.");
}

void Watchdog::run() {
  const c10::DeviceGuard guard(device_);  // events are asked and ended here
  const milliseconds pause = std::clamp(timeout_ / kLooks, milliseconds(1), kLongestPause);
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, pause, [this] { return stopping_; })) {
    report_ = look();
    if (report_.empty()) {
      continue;
    }
    failed_ = true;
    lock.unlock();
    log_error(report_);
    try {
      on_timeout_();
    } catch (const std::exception& error) {
      log_error(error.what());
    }
    return;
  }
}

}  // namespace shardwise::comm
