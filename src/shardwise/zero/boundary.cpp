#include "shardwise/zero/boundary.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "shardwise/base/check.h"

namespace shardwise::zero {
namespace {

using kernels::BoundaryResult;

// The loss scale is multiplied with the loss as a tensor, straight from the scaler's state.
static_assert(offsetof(kernels::LossScaleState, scale) == 0);

at::Tensor host_bytes(std::int64_t bytes, at::Device device) {
  return at::zeros({bytes}, at::TensorOptions(at::kByte).pinned_memory(!device.is_cpu()));
}

}  // namespace

DeviceArray::DeviceArray(std::int64_t bytes, at::Device device)
    : tensor_(at::zeros({std::max<std::int64_t>(bytes, 16)},
                        at::TensorOptions(at::kByte).device(device))) {}

Boundary::Boundary(comm::Channel& channel, at::Device device, std::int64_t trainable_count,
                   std::int64_t chunk_count, kernels::BoundaryRule rule)
    : channel_(channel),
      device_(device),
      trainable_count_(trainable_count),
      rule_(rule),
      memory_{.partials = {},
              .records = {},
              .written = {},
              .active = {},
              .steps = {},
              .decision = DeviceArray(sizeof(kernels::StepDecision), device),
              .result = DeviceArray(sizeof(BoundaryResult), device),
              .scale_state = DeviceArray(sizeof(kernels::LossScaleState), device)},
      result_host_(host_bytes(memory_.result.tensor().numel(), device)),
      copied_(device) {
  allocate(chunk_count);
  const kernels::LossScaleState start = kernels::initial_loss_scale_state(rule.loss_scale);
  at::Tensor host = at::empty({static_cast<std::int64_t>(sizeof(start))}, at::kByte);
  std::memcpy(host.data_ptr(), &start, sizeof(start));
  memory_.scale_state.tensor().narrow(0, 0, host.numel()).copy_(host);
  loss_scale_ =
      memory_.scale_state.tensor().narrow(0, 0, sizeof(float)).view(at::kFloat).squeeze(0);
}

// What depends on the number of parameters and chunks.
void Boundary::allocate(std::int64_t chunk_count) {
  memory_.partials = DeviceArray(chunk_count * sizeof(double), device_);
  memory_.records =
      DeviceArray(kernels::boundary_record_bytes(trainable_count_) * channel_.size(), device_);
  memory_.written = DeviceArray(trainable_count_, device_);
  memory_.active = DeviceArray(trainable_count_, device_);
  memory_.steps = DeviceArray(trainable_count_ * sizeof(std::int32_t), device_);
  written_host_ = host_bytes(memory_.written.tensor().numel(), device_);
}

void Boundary::grow(std::int64_t trainable_count, std::int64_t chunk_count) {
  result();
  const DeviceArray steps = memory_.steps;
  const auto known = trainable_count_ * static_cast<std::int64_t>(sizeof(std::int32_t));
  trainable_count_ = trainable_count;
  allocate(chunk_count);
  memory_.steps.tensor().narrow(0, 0, known).copy_(steps.tensor().narrow(0, 0, known));
}

at::Tensor Boundary::records() const {
  return memory_.records.tensor().narrow(
      0, 0, kernels::boundary_record_bytes(trainable_count_) * channel_.size());
}

void Boundary::exchange(const kernels::Place& place, const kernels::ChunkTable& table,
                        const WindowSums& window) {
  result();  // the pinned buffers of the step before are free from here on
  SW_CHECK_EQ(static_cast<std::int64_t>(window.written.size()), trainable_count_);
  std::copy(window.written.begin(), window.written.end(), written_host_.data_ptr<std::uint8_t>());
  memory_.written.upload(written_host_);
  kernels::sum_of_squares(place, table, memory_.partials.as<double>());
  const std::int64_t bytes = kernels::boundary_record_bytes(trainable_count_);
  const at::Tensor mine = memory_.records.tensor().narrow(0, bytes * channel_.rank(), bytes);
  kernels::fill_boundary_record(
      place, table, memory_.partials.as<double>(),
      {.order_hash = window.order_hash,
       .weight = window.weight.defined() ? window.weight.data_ptr<double>() : nullptr,
       .written = memory_.written.as<std::uint8_t>(),
       .parameters = trainable_count_},
      mine.data_ptr());
  channel_.all_gather(records(), mine, "the boundary")->wait();
}

bool Boundary::ranks_agree() const {
  const at::Tensor all = records().cpu();
  const std::int64_t bytes = kernels::boundary_record_bytes(trainable_count_);
  const auto hash = [&](int rank) {
    kernels::BoundaryHeader header;
    std::memcpy(&header, all.const_data_ptr<std::uint8_t>() + rank * bytes, sizeof(header));
    return header.order_hash;
  };
  for (int rank = 1; rank < channel_.size(); ++rank) {
    if (hash(rank) != hash(0)) {
      return false;
    }
  }
  return true;
}

void Boundary::decide(const kernels::Place& place, double gradient_factor) {
  kernels::BoundaryRule rule = rule_;
  rule.gradient_factor *= gradient_factor;
  kernels::finish_boundary(place, records().data_ptr(), channel_.size(), trainable_count_, rule,
                           memory_.scale_state.as<kernels::LossScaleState>(),
                           memory_.active.as<std::uint8_t>(), memory_.steps.as<std::int32_t>(),
                           memory_.decision.as<kernels::StepDecision>(),
                           memory_.result.as<BoundaryResult>());
  result_host_.copy_(memory_.result.tensor(), /*non_blocking=*/true);
  copied_.record();
  pending_ = true;
}

void Boundary::restart_steps(int trainable) {
  constexpr std::int64_t kBytes = sizeof(std::int32_t);
  memory_.steps.tensor().narrow(0, kBytes * trainable, kBytes).zero_();
}

const std::optional<BoundaryResult>& Boundary::result() {
  if (pending_) {
    copied_.synchronize();
    BoundaryResult result;
    std::memcpy(&result, result_host_.data_ptr(), sizeof(result));
    last_ = result;
    pending_ = false;
  }
  return last_;
}

}  // namespace shardwise::zero
