#include "shardwise/device/launch_point.h"

#include <utility>

namespace shardwise::device {
namespace {

thread_local std::weak_ptr<LaunchWaiter> waiter_of_thread;

}  // namespace

void set_launch_waiter(std::weak_ptr<LaunchWaiter> waiter) { waiter_of_thread = std::move(waiter); }

void reach_launch_point() {
  if (const auto waiter = waiter_of_thread.lock()) {
    waiter->launch_point();
  }
}

}  // namespace shardwise::device
