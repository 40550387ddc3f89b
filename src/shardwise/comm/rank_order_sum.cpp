#include "shardwise/comm/rank_order_sum.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "shardwise/base/check.h"
#include "shardwise/kernels/reduce.h"

namespace shardwise::comm {
namespace {

kernels::DType kernel_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat: return kernels::DType::kFloat32;
    case at::kHalf: return kernels::DType::kFloat16;
    case at::kBFloat16: return kernels::DType::kBFloat16;
    default: SW_FAIL(InternalError, "no reduction kernel for dtype ", c10::toString(dtype));
  }
}

void sum_doubles(const at::Tensor& out, const at::Tensor& pieces, int world,
                 const Reduction& reduction) {
  const at::Tensor sum = at::zeros_like(out);
  for (int rank = 0; rank < world; ++rank) {
    sum.add_(pieces.narrow(0, rank * out.numel(), out.numel()));
  }
  sum.mul_(reduction.scale);
  if (reduction.accumulate) {
    out.add_(sum);
  } else {
    out.copy_(sum);
  }
}

}  // namespace

void sum_in_rank_order(const at::Tensor& out, const at::Tensor& pieces, int world,
                       const Reduction& reduction) {
  if (out.scalar_type() == at::kDouble) {
    sum_doubles(out, pieces, world, reduction);
    return;
  }
  const kernels::ParallelFor parallel =
      [](std::int64_t n, std::int64_t grain,
         const std::function<void(std::int64_t, std::int64_t)>& body) {
        at::parallel_for(0, n, grain, body);
      };
  const kernels::Place place{.parallel_for = &parallel};
  kernels::sum_ranked(place, out.data_ptr(), kernel_dtype(out.scalar_type()),
                      pieces.const_data_ptr(), kernel_dtype(pieces.scalar_type()), world,
                      out.numel(), reduction.scale, reduction.accumulate);
}

at::Tensor as_bytes(const at::Tensor& tensor) { return tensor.view({-1}).view(at::kByte); }

}  // namespace shardwise::comm
