// Makes the parameters of sharded units readable around each use, and gathers ahead.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "shardwise/comm/channel.h"
#include "shardwise/device/buffer_pool.h"
#include "shardwise/device/stream.h"
#include "shardwise/params/registry.h"
#include "shardwise/zero/order.h"

namespace shardwise::zero {

struct GathererOptions {
  int prefetch_depth = 2;  // units gathered ahead of the one in use
  std::int64_t max_live_elements = std::numeric_limits<std::int64_t>::max();
  // A unit that is needed again right after its release (the last block between forward and
  // backward) stays gathered.
  bool keep_last = true;
  // So does one that is needed again after other units of less than this many elements, while no
  // more than max_live_elements are gathered.
  std::int64_t max_reuse_elements = 0;
  bool poison = false;  // fill buffers with NaN on release
};

// Units that are not sharded pass through untouched. Gathers run on the channel; acquire() makes
// the current stream (on the CPU: the caller) wait. Buffers come from a pool with one size class
// for each segment size, so steady steps allocate nothing. Not thread-safe.
class Gatherer {
 public:
  Gatherer(const params::Registry& registry, comm::Channel& channel, OrderHash& hash,
           at::Device device, GathererOptions options);
  ~Gatherer();

  // The root's forward begins outside of backward: leftovers of an earlier pass are released.
  void begin_pass(bool training);
  // After return the parameters of the unit, and of the units it uses, can be read. `ahead`: units
  // after it are gathered ahead now, not when prefetch() is called.
  void acquire(int unit, bool ahead = true);
  // Whether acquire() of the unit would have to begin a gather first.
  bool must_gather(int unit) const;
  void release(int unit);
  // Begins to gather units ahead of the one acquired last.
  void prefetch();
  // As acquire and release, but outside of the recorded order and as often as wanted: for reading
  // weights between steps. Never rounded to a dtype of travel.
  void open(int unit);
  void close(int unit);
  // Lets go of the ring's free buffers: segments have got other sizes.
  void forget_buffers() {
    pool_.clear();
    ready_shards_.clear();
  }
  bool any_open() const { return open_count_ > 0; }
  // Changes in place since the unit was gathered are no error: they were taken care of, or dropped.
  void forget_changes(int unit);
  // How often each unit was acquired in the present forward pass, or the last one.
  const std::vector<int>& calls() const { return calls_; }
  // Releases everything that is not open and forgets who holds what. Before an update, and after
  // errors.
  void release_all() {
    ready_.reset();
    drop_all();
  }
  // At the end of backward: the same, unless told to keep.
  void release_leftovers() {
    if (!keeping_) {
      release_all();
    }
  }
  // Units that a pass with gradients like the last one gathers at its begin.
  std::vector<int> first() const;
  // The shards of these units keep the values that they have at `ready`, whatever is launched
  // behind it: gathers of the next pass need not wait for that.
  void note_ready(const std::vector<int>& units, std::shared_ptr<device::Event> ready);
  // From now until the next pass release() does nothing: a backward records a graph of its own.
  void keep_until_next_pass() { keeping_ = true; }

  bool gathered(int unit) const { return entries_[unit].state == State::kReady; }
  std::int64_t ring_bytes() const { return pool_.allocated_bytes(); }

 private:
  enum class State { kReleased, kInFlight, kReady };
  struct Entry {
    State state = State::kReleased;
    bool in_use = false;
    int holders = 0;    // units in use that read these parameters, itself included
    int opened = 0;     // open() calls not closed yet; release_all() leaves such units alone
    bool exact = true;  // no parameter was rounded to a dtype of travel
    std::vector<at::Tensor> buffers;  // while in flight in the dtype of travel
    std::vector<at::Tensor> sent;
    std::vector<comm::WorkPtr> work;
  };

  void start(int unit, bool exact = false);
  void finish(int unit);
  void drop(int unit);
  void drop_all();
  void give_back(at::Tensor buffer);
  void hold(int unit);
  void let_go(int unit);
  device::Event* ready(const params::Segment& segment) const;
  bool uses(int user, int unit) const;
  bool released(int unit) const {
    return registry_.unit(unit).sharded && entries_[unit].state == State::kReleased;
  }
  bool needed_next(int unit) const;
  bool needed_soon(int unit) const;

  const params::Registry& registry_;
  comm::Channel& channel_;
  OrderHash& hash_;
  GathererOptions options_;
  device::BufferPool pool_;
  AcquireOrder order_;
  std::vector<Entry> entries_;
  std::vector<int> calls_;  // by unit
  // See note_ready; none once a buffer was given back, which must not be written before that.
  std::shared_ptr<device::Event> ready_;
  std::vector<std::pair<at::Tensor, std::uint32_t>> ready_shards_;  // and their versions
  std::int64_t live_elements_ = 0;
  int open_count_ = 0;
  bool keeping_ = false;
};

}  // namespace shardwise::zero
