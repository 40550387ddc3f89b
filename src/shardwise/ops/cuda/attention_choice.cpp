#include <ATen/Context.h>
#include <ATen/native/transformers/cuda/sdp_utils.h>
#include <cuda_runtime_api.h>

#include "shardwise/ops/attention.h"

namespace shardwise::ops {
namespace {

bool is_hopper_or_newer(const at::Tensor& tensor) {
  int major = 0;
  const cudaError_t status =
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, tensor.get_device());
  return status == cudaSuccess && major >= 9;
}

}  // namespace

// torch has cuDNN's kernels and knows what they take, but from its own choice prefers flash
// attention, which is 1.6 to 1.9 times slower on Hopper. Its check asks for deterministic mode and
// for torch.backends.cuda.enable_cudnn_sdp too. Larger heads than 128 are slower there than flash.
bool prefers_cudnn(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double dropout) {
  if (!q.is_cuda() || dropout > 0.0 || q.size(-1) > 128 || q.size(-1) % 8 != 0 ||
      at::globalContext().deterministicAlgorithms() || !is_hopper_or_newer(q)) {
    return false;
  }
  const sdp::sdp_params params{q,
                               k,
                               v,
                               /*attn_mask=*/std::nullopt,
                               dropout,
                               /*is_causal=*/true,
                               /*enable_gqa=*/q.size(1) != k.size(1)};
  return sdp::can_use_cudnn_attention(params, /*debug=*/false);
}

}  // namespace shardwise::ops
