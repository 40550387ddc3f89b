#include "shardwise/ops/tensor_place.h"

#include <ATen/Parallel.h>

#include "shardwise/base/check.h"
#include "shardwise/device/stream.h"

namespace shardwise::ops {
namespace {

const kernels::ParallelFor& torch_parallel_for() {
  static const kernels::ParallelFor parallel =
      [](std::int64_t n, std::int64_t grain,
         const std::function<void(std::int64_t, std::int64_t)>& body) {
        at::parallel_for(0, n, grain, body);
      };
  return parallel;
}

}  // namespace

kernels::Place place_on(at::Device device) {
  return {.cuda = !device.is_cpu(),
          .stream = device::current_stream_handle(device),
          .parallel_for = &torch_parallel_for()};
}

kernels::DType dtype_of(const at::Tensor& tensor, const char* operation) {
  switch (tensor.scalar_type()) {
    case at::kFloat: return kernels::DType::kFloat32;
    case at::kHalf: return kernels::DType::kFloat16;
    case at::kBFloat16: return kernels::DType::kBFloat16;
    case at::kDouble:
      if (tensor.device().is_cpu()) {
        return kernels::DType::kFloat64;
      }
      break;
    default: break;
  }
  SW_FAIL(UsageError, operation, ": tensors must be float32, float16 or bfloat16",
          tensor.device().is_cpu() ? " or float64" : "", "; this one is ", tensor.scalar_type());
}

std::optional<at::Tensor> contiguous(const std::optional<at::Tensor>& tensor) {
  return tensor ? std::optional(tensor->contiguous()) : std::nullopt;
}

void check_device(const at::Tensor& tensor, const at::Tensor& like, const char* operation,
                  const char* argument) {
  SW_USER_CHECK(UsageError, tensor.device() == like.device(), operation, ": ", argument, " is on ",
                tensor.device(), ", the other tensors are on ", like.device(),
                "; move it there with .to(device)");
}

}  // namespace shardwise::ops
