// What the engine communicates through: a transport with counters, hooks and errors that name the
// rank, the unit and the collective.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardwise/comm/collective.h"
#include "shardwise/comm/transport.h"

namespace shardwise::comm {

// Removes its hook when destroyed.
class HookHandle {
 public:
  HookHandle() = default;
  explicit HookHandle(std::shared_ptr<CollectiveHook> hook) : hook_(std::move(hook)) {}
  void remove() { hook_.reset(); }

 private:
  std::shared_ptr<CollectiveHook> hook_;  // the channel holds a weak reference
};

// One ordered sequence of collectives. `who` must outlive the returned work. Not thread-safe.
class Channel {
 public:
  // `label` names the channel in errors ("gather", "reduce").
  Channel(std::shared_ptr<Transport> transport, std::string label);

  int rank() const { return transport_->rank(); }
  int size() const { return transport_->size(); }
  std::string transport_name() const { return transport_->name(); }

  WorkPtr all_gather(const at::Tensor& out, const at::Tensor& in, std::string_view who,
                     device::Event* ready = nullptr);
  WorkPtr reduce_scatter(const at::Tensor& out, const at::Tensor& in, const Reduction& reduction,
                         std::string_view who);
  WorkPtr all_reduce(const at::Tensor& tensor, double scale, std::string_view who);
  WorkPtr broadcast(const at::Tensor& tensor, int root, std::string_view who);
  // See Transport::all_to_all. `elements`: of all ranks together; every rank says the same.
  WorkPtr all_to_all(const std::vector<at::Tensor>& out, const std::vector<at::Tensor>& in,
                     std::int64_t elements, std::string_view who);
  std::int64_t scratch_bytes() const { return transport_->scratch_bytes(); }
  // Whether a collective of this channel has thrown.
  bool failed() const { return failed_; }

  HookHandle add_hook(CollectiveHook hook);
  // On a device, the time of collectives that still run is missing.
  const Traffic& traffic(Collective collective) {
    count_spans();
    return traffic_[static_cast<int>(collective)];
  }
  void reset_traffic() {
    spans_.clear();
    traffic_ = {};
  }
  // Whether the time of later collectives is taken on the device.
  void measure(bool on) { transport_->measure(on); }
  // Seconds that the host spent inside launches and waits of this channel.
  double host_seconds() const { return host_seconds_; }

 private:
  class CountedWork;
  template <typename Launch>
  WorkPtr run(Collective collective, const at::Tensor& payload, std::string_view who,
              Launch&& launch);
  // `share`: the part of the event's payload that counts for this rank.
  template <typename Launch>
  WorkPtr run(const CollectiveEvent& event, double share, Launch&& launch);
  std::vector<std::shared_ptr<CollectiveHook>> live_hooks();
  void count_spans();

  std::shared_ptr<Transport> transport_;
  std::string label_;
  std::vector<std::weak_ptr<CollectiveHook>> hooks_;
  std::array<Traffic, kCollectiveCount> traffic_{};
  std::deque<std::pair<Collective, std::shared_ptr<const device::Span>>> spans_;
  double host_seconds_ = 0;
  bool failed_ = false;
};

}  // namespace shardwise::comm
