#include "shardwise/ops/attention.h"

#include <ATen/ATen.h>

#include "shardwise/base/check.h"

namespace shardwise::ops {

at::Tensor causal_attention(const at::Tensor& rows, const AttentionShape& shape) {
  const std::int64_t q_width = shape.heads * shape.head_dim;
  const std::int64_t kv_width = shape.kv_heads * shape.head_dim;
  SW_CHECK_EQ(rows.size(-1), q_width + 2 * kv_width);
  const std::vector<at::Tensor> parts = rows.split_with_sizes({q_width, kv_width, kv_width}, -1);
  const auto heads_of = [&](const at::Tensor& part) {
    return part.unflatten(-1, {-1, shape.head_dim}).transpose(1, 2);
  };
  const at::Tensor q = heads_of(parts[0]), k = heads_of(parts[1]), v = heads_of(parts[2]);
  const at::Tensor mixed =
      prefers_cudnn(q, k, v, shape.dropout)
          ? std::get<0>(at::_scaled_dot_product_cudnn_attention(
                q, k, v, /*attn_bias=*/{},
                /*compute_log_sumexp=*/at::GradMode::is_enabled() && rows.requires_grad(),
                shape.dropout, /*is_causal=*/true, /*return_debug_mask=*/false, shape.scale))
          : at::scaled_dot_product_attention(q, k, v, /*attn_mask=*/{}, shape.dropout,
                                             /*is_causal=*/true, shape.scale,
                                             /*enable_gqa=*/shape.heads != shape.kv_heads);
  return mixed.transpose(1, 2).flatten(2);
}

}  // namespace shardwise::ops
