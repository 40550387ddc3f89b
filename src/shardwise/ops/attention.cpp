#include "shardwise/ops/attention.h"

#include <ATen/ATen.h>

#include "shardwise/base/check.h"

namespace shardwise::ops {

at::Tensor causal_attention_of_heads(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                     double scale, double dropout) {
  const bool recorded =
      at::GradMode::is_enabled() && (q.requires_grad() || k.requires_grad() || v.requires_grad());
  const at::Tensor mixed =
      prefers_cudnn(q, k, v, dropout)
          ? std::get<0>(at::_scaled_dot_product_cudnn_attention(
                q, k, v, /*attn_bias=*/{}, /*compute_log_sumexp=*/recorded, dropout,
                /*is_causal=*/true, /*return_debug_mask=*/false, scale))
          : at::scaled_dot_product_attention(q, k, v, /*attn_mask=*/{}, dropout,
                                             /*is_causal=*/true, scale,
                                             /*enable_gqa=*/q.sym_size(1) != k.sym_size(1));
  return mixed.transpose(1, 2).flatten(2);
}

at::Tensor causal_attention(const at::Tensor& rows, const AttentionShape& shape) {
  const std::int64_t q_width = shape.heads * shape.head_dim;
  const std::int64_t kv_width = shape.kv_heads * shape.head_dim;
  SW_CHECK_EQ(rows.size(-1), q_width + 2 * kv_width);
  const std::vector<at::Tensor> parts = rows.split_with_sizes({q_width, kv_width, kv_width}, -1);
  const auto heads_of = [&](const at::Tensor& part) {
    return part.unflatten(-1, {-1, shape.head_dim}).transpose(1, 2);
  };
  return causal_attention_of_heads(heads_of(parts[0]), heads_of(parts[1]), heads_of(parts[2]),
                                   shape.scale, shape.dropout);
}

}  // namespace shardwise::ops
