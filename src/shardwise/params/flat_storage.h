// The one storage that all parameters of a segment share, and that can be pointed at a buffer or at
// nothing. See Note [One storage a segment] in flat_storage.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace shardwise::params {

// Owns no memory: the buffer it points at is kept by the caller. Not thread-safe.
class FlatStorage {
 public:
  FlatStorage() = default;
  // `numel` elements of `dtype`. Starts released.
  FlatStorage(std::int64_t numel, at::ScalarType dtype, at::Device device, std::string what);

  // A tensor over the storage that starts at `offset` elements. May be made while released; reading
  // it then throws.
  at::Tensor view(at::IntArrayRef sizes, at::IntArrayRef strides, std::int64_t offset) const;

  // From now on every view reads and writes `buffer` (contiguous, same dtype and device, at least
  // `numel` elements), which must stay alive until the next point_at or release.
  void point_at(const at::Tensor& buffer);

  // From now on reading a view throws an error that names what was released.
  void release();

  bool released() const { return released_; }
  // Whether `tensor` is a view of this storage.
  bool holds(const at::Tensor& tensor) const;

 private:
  at::Tensor flat_;  // [numel] over the storage; keeps it alive
  std::int64_t bytes_ = 0;
  std::string message_;
  bool released_ = true;
};

// Throws InternalError unless the private parts of torch that FlatStorage relies on behave as
// expected: releasing makes reads throw, pointing makes them work again, saved views follow.
void check_flat_storage_works();

}  // namespace shardwise::params
