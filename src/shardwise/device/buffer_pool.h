// Buffers that are allocated once and handed out again, so that a steady step allocates nothing and
// sees the same addresses every time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace shardwise::device {

// Flat buffers on one device, by exact size and dtype. Not thread-safe: one pool belongs to one
// engine thread. A buffer that is given back must not be in use by another stream than the one that
// takes it next; the owner waits for its own asynchronous work first.
class BufferPool {
 public:
  explicit BufferPool(at::Device device) : device_(device) {}

  // A tensor [numel]: a free one of that size and dtype, else a new one of zeros.
  at::Tensor take(std::int64_t numel, at::ScalarType dtype);
  void give_back(at::Tensor buffer);

  // Lets go of the free buffers.
  void clear();

  // All bytes that the pool has allocated and not let go of, handed out or not.
  std::int64_t allocated_bytes() const { return allocated_bytes_; }
  at::Device device() const { return device_; }

 private:
  at::Device device_;
  std::vector<at::Tensor> free_;
  std::int64_t allocated_bytes_ = 0;
};

}  // namespace shardwise::device
