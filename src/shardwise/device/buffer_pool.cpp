#include "shardwise/device/buffer_pool.h"

#include <ATen/ATen.h>

#include <utility>

namespace shardwise::device {

at::Tensor BufferPool::take(std::int64_t bytes) {
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->numel() == bytes) {
      at::Tensor buffer = std::move(*it);
      free_.erase(it);
      return buffer;
    }
  }
  allocated_bytes_ += bytes;
  return at::zeros({bytes}, at::TensorOptions(at::kByte).device(device_));
}

void BufferPool::give_back(at::Tensor buffer) { free_.push_back(std::move(buffer)); }

}  // namespace shardwise::device
