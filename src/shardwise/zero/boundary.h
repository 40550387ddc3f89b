// The decision at the end of an accumulation window: norm, overflow, clipping, order check, and
// which parameters move. Taken on the device; the host learns it one copy later.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "shardwise/comm/channel.h"
#include "shardwise/device/stream.h"
#include "shardwise/kernels/boundary.h"

namespace shardwise::zero {

// Memory of one kind for kernels: a tensor of bytes on the device.
class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(std::int64_t bytes, at::Device device);
  template <typename T>
  T* as() const {
    return static_cast<T*>(tensor_.data_ptr());
  }
  const at::Tensor& tensor() const { return tensor_; }
  // Asynchronous upload; `source` is pinned on CUDA and must not change until it is done.
  void upload(const at::Tensor& source) { tensor_.copy_(source, /*non_blocking=*/true); }

 private:
  at::Tensor tensor_;
};

// What a rank brings to the end of its accumulation window besides gradients.
struct WindowSums {
  const std::vector<std::uint8_t>& written;  // one byte a trainable parameter
  std::uint64_t order_hash = 0;
  at::Tensor weight;  // fp64 scalar on the device, or undefined
};

class Boundary {
 public:
  Boundary(comm::Channel& channel, at::Device device, std::int64_t trainable_count,
           std::int64_t chunk_count, kernels::BoundaryRule rule);

  // Every rank's record for everybody, in one all-gather. `table` covers this rank's shards.
  void exchange(const kernels::Place& place, const kernels::ChunkTable& table,
                const WindowSums& window);
  // Whether the records that were exchanged have one order hash. The host waits for them.
  bool ranks_agree() const;
  // Enqueues the decision over the records. `gradient_factor`: see kernels::BoundaryRule.
  void decide(const kernels::Place& place, double gradient_factor);
  // The last decision, waiting for it if need be; nothing before the first decide().
  const std::optional<kernels::BoundaryResult>& result();

  // More trainable parameters, behind those known, and another number of chunks. Step counts, loss
  // scale and the last result stay.
  void grow(std::int64_t trainable_count, std::int64_t chunk_count);
  // The parameter's own step count becomes 0.
  void restart_steps(int trainable);

  // For the update kernels, memory of the device.
  const kernels::StepDecision* decision() const {
    return memory_.decision.as<kernels::StepDecision>();
  }
  const std::uint8_t* active() const { return memory_.active.as<std::uint8_t>(); }
  const std::int32_t* steps() const { return memory_.steps.as<std::int32_t>(); }
  // fp32 scalar on the device: the loss scale of the coming step.
  const at::Tensor& loss_scale() const { return loss_scale_; }

 private:
  // What the kernels work on, on the device.
  struct Memory {
    DeviceArray partials, records, written, active, steps, decision, result, scale_state;
  };

  at::Tensor records() const;
  void allocate(std::int64_t chunk_count);

  comm::Channel& channel_;
  at::Device device_;
  std::int64_t trainable_count_;
  kernels::BoundaryRule rule_;
  Memory memory_;
  at::Tensor loss_scale_;                  // a view of memory_.scale_state
  at::Tensor written_host_, result_host_;  // pinned on CUDA
  device::Event copied_;
  std::optional<kernels::BoundaryResult> last_;
  bool pending_ = false;
};

}  // namespace shardwise::zero
