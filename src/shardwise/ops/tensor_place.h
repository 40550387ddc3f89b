// From tensors to what the kernels take.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceGuard.h>

#include <optional>

#include "shardwise/kernels/types.h"

namespace shardwise::ops {

// Where kernels run for tensors of `device`: its current stream, or torch's threads.
kernels::Place place_on(at::Device device);
inline kernels::Place place_of(const at::Tensor& tensor) { return place_on(tensor.device()); }

// fp32, fp16, bf16; on the CPU fp64 too. Others: UsageError that names the operation.
kernels::DType dtype_of(const at::Tensor& tensor, const char* operation);

// The data of a contiguous tensor, null without one.
inline void* pointer(const at::Tensor& tensor) {
  return tensor.defined() && tensor.numel() > 0 ? tensor.data_ptr() : nullptr;
}
inline void* pointer(const std::optional<at::Tensor>& tensor) {
  return tensor ? pointer(*tensor) : nullptr;
}

// The same, contiguous; none stays none.
std::optional<at::Tensor> contiguous(const std::optional<at::Tensor>& tensor);
inline at::Tensor value_or_undefined(const std::optional<at::Tensor>& tensor) {
  return tensor ? *tensor : at::Tensor();
}
inline std::optional<at::Tensor> optional_of(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

// Through the dispatcher, so that tracing and other modes see the call.
template <typename Function, typename... Arguments>
auto call_op(const char* name, Function* signature, Arguments&&... arguments) {
  (void)signature;
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Function>();
  return op.call(std::forward<Arguments>(arguments)...);
}

// UsageError unless `tensor` is on the device of `like`.
void check_device(const at::Tensor& tensor, const at::Tensor& like, const char* operation,
                  const char* argument);

}  // namespace shardwise::ops
