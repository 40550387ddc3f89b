#include "shardwise/device/buffer_pool.h"

#include <ATen/ATen.h>

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
  allocated_bytes_ += numel * static_cast<std::int64_t>(c10::elementSize(dtype));
  return at::zeros({numel}, at::TensorOptions(dtype).device(device_));
}

void BufferPool::give_back(at::Tensor buffer) { free_.push_back(std::move(buffer)); }

}  // namespace shardwise::device
