#include <ATen/Context.h>
#include <ATen/native/transformers/cuda/sdp_utils.h>
#include <cuda_runtime_api.h>

#include "shardwise/ops/attention.h"

namespace shardwise::ops {
namespace {

// Hopper's is 9, Ampere's 8.
int compute_capability(const at::Tensor& tensor) {
  int major = 0;
  const cudaError_t status =
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, tensor.get_device());
  return status == cudaSuccess ? major : 0;
}

}  // namespace

// torch has cuDNN's kernels and knows what they take, but from its own choice prefers flash
// attention, which is 1.6 to 1.9 times slower on Hopper. Its check asks for deterministic mode and
// for torch.backends.cuda.enable_cudnn_sdp too. Larger heads than 128 are slower there than flash.
bool prefers_cudnn(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double dropout) {
  if (!q.is_cuda() || dropout > 0.0 || q.size(-1) > 128 || q.size(-1) % 8 != 0 ||
      at::globalContext().deterministicAlgorithms() || compute_capability(q) < 9) {
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

// What the kernels behind at::_flash_attention_forward demand; torch's own check is of whole rows.
bool takes_flash(const at::Tensor& q) {
  const bool in_16_bits = q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf;
  return q.is_cuda() && in_16_bits && q.size(-1) <= 256 && q.size(-1) % 8 == 0 &&
         at::globalContext().userEnabledFlashSDP() && compute_capability(q) >= 8;
}

}  // namespace shardwise::ops
