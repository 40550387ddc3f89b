// Note [One storage a segment]
// All parameters of a segment are views of one c10::StorageImpl that owns no memory. Gathering
// points it at a buffer, releasing points it at nothing. Tensors that autograd saved in forward
// (transposes, chunks, detached copies) share the same StorageImpl, so after the gather in backward
// they are valid again, at whatever address the buffer has then. The parameters themselves stay the
// same leaves with the same AccumulateGrad nodes and version counters.
//
// A released storage has a null pointer. Many operators would read it without a check and crash the
// process, so releasing first sets torch's "throw on data pointer access" flag with our message.
// The size stays, so that slices of a released parameter can be made and then throw the same
// message. torch has no call that clears the flag again; this file reaches the private member, and
// check_flat_storage_works() proves at start-up that it still means what we think.
#include "shardwise/params/flat_storage.h"

#include <ATen/ATen.h>
#include <c10/core/StorageImpl.h>

#include <utility>

#include "shardwise/base/check.h"

namespace shardwise::params {
namespace {

// Access to a private member through an explicit template instantiation, which the language allows.
template <bool c10::StorageImpl::* Member>
struct ThrowFlagAccess {
  friend bool c10::StorageImpl::* throw_flag() { return Member; }
};
bool c10::StorageImpl::* throw_flag();
template struct ThrowFlagAccess<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

c10::StorageImpl* storage_of(const at::Tensor& flat) {
  return flat.storage().unsafeGetStorageImpl();
}

}  // namespace

FlatStorage::FlatStorage(std::int64_t numel, at::ScalarType dtype, at::Device device,
                         std::string what)
    : bytes_(numel * static_cast<std::int64_t>(c10::elementSize(dtype))),
      message_(std::move(what)) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), static_cast<size_t>(bytes_),
      at::DataPtr(nullptr, device), /*allocator=*/nullptr, /*resizable=*/false);
  flat_ = at::empty({0}, at::TensorOptions(dtype).device(device));
  flat_.set_(c10::Storage(std::move(storage)), 0, {numel}, {1});
  release();
}

at::Tensor FlatStorage::view(at::IntArrayRef sizes, at::IntArrayRef strides,
                             std::int64_t offset) const {
  return flat_.as_strided(sizes, strides, offset);
}

void FlatStorage::point_at(const at::Tensor& buffer) {
  SW_CHECK(buffer.is_contiguous() && buffer.scalar_type() == flat_.scalar_type());
  SW_CHECK_LE(bytes_, static_cast<std::int64_t>(buffer.nbytes()));
  c10::StorageImpl* storage = storage_of(flat_);
  storage->*throw_flag() = false;
  storage->set_data_ptr_noswap(at::DataPtr(buffer.data_ptr(), flat_.device()));
  released_ = false;
}

void FlatStorage::release() {
  if (!flat_.defined()) {
    return;
  }
  c10::StorageImpl* storage = storage_of(flat_);
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(message_);
  storage->set_data_ptr_noswap(at::DataPtr(nullptr, flat_.device()));
  released_ = true;
}

bool FlatStorage::holds(const at::Tensor& tensor) const {
  return tensor.has_storage() && tensor.storage().unsafeGetStorageImpl() == storage_of(flat_);
}

void check_flat_storage_works() {
  FlatStorage storage(4, at::kFloat, at::kCPU, "start-up check");
  const at::Tensor view = storage.view({2}, {1}, 2);
  const at::Tensor buffer = at::arange(4, at::kFloat);
  bool threw = false;
  try {
    (void)view.data_ptr<float>();
  } catch (const std::exception&) {
    threw = true;
  }
  storage.point_at(buffer);
  const bool follows = view.const_data_ptr<float>() == buffer.const_data_ptr<float>() + 2;
  storage.release();
  SW_CHECK(threw && follows,
           "this build of torch treats storages differently; shardwise needs torch 2.11.0");
}

}  // namespace shardwise::params
