#include "shardwise/device/buffer_pool.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <utility>

namespace shardwise::device {

at::Tensor BufferPool::take(std::int64_t numel, at::ScalarType dtype) {
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->numel() == numel && it->scalar_type() == dtype) {
      at::Tensor buffer = std::move(*it);
      free_.erase(it);
      return buffer;
    }
  }
  // A buffer outlives the inference_mode() in which it may be needed first.
  const c10::InferenceMode no_inference(false);
  allocated_bytes_ += numel * static_cast<std::int64_t>(c10::elementSize(dtype));
  return at::zeros({numel}, at::TensorOptions(dtype).device(device_));
}

void BufferPool::clear() {
  for (const at::Tensor& buffer : free_) {
    allocated_bytes_ -= static_cast<std::int64_t>(buffer.nbytes());
  }
  free_.clear();
}

void BufferPool::give_back(at::Tensor buffer) { free_.push_back(std::move(buffer)); }

}  // namespace shardwise::device
