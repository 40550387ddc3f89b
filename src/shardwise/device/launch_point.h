// Points at which work of other streams is best launched. A product whose blocks stay to its end,
// one a multiprocessor, waits as a whole while a collective holds a few of them; a kernel of many
// short blocks loses only their share.
#pragma once

#include <memory>

namespace shardwise::device {

// Keeps launches back until such a point, or until they are needed.
class LaunchWaiter {
 public:
  virtual ~LaunchWaiter() = default;
  virtual void launch_point() = 0;
};

// From now on the waiter is told of the points that this thread reaches, and no other.
void set_launch_waiter(std::weak_ptr<LaunchWaiter> waiter);

// By operations, right before they launch kernels of many short blocks.
void reach_launch_point();

}  // namespace shardwise::device
