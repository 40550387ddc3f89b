// Causal self-attention of fused rows, by the fastest of torch's implementations.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "shardwise/ops/documents.h"

namespace shardwise::ops {

// What a token does not see, besides all that comes after it.
struct CausalMask {
  std::int64_t window = 0;  // it sees so many tokens, itself and those right before; 0: all
  std::optional<Documents> documents = std::nullopt;  // it sees its own document
};

struct AttentionShape {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  // each serves heads / kv_heads heads
  std::int64_t head_dim = 0;
  double scale = 1.0;    // of the products
  double dropout = 0.0;  // of the weights; 0 outside of training
};

// rows: [batch, seq, (heads + 2 · kv_heads) · head_dim], the queries, keys and values of a token
// side by side; the result is [batch, seq, heads · head_dim]. Nothing is copied on the way in or
// out, and backward joins the three gradients in one pass. See Note [Choice of attention].
at::Tensor causal_attention(const at::Tensor& rows, const AttentionShape& shape,
                            const CausalMask& mask = {});

// The same of q [batch, heads, seq, head_dim], k and v [batch, kv_heads, seq, head_dim], with any
// strides whose last is 1.
at::Tensor causal_attention_of_heads(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                     double scale, double dropout, const CausalMask& mask = {});

// Whether cuDNN should compute causal attention of q [batch, heads, seq, head_dim] over k and v
// [batch, kv_heads, seq, head_dim].
bool prefers_cudnn(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double dropout);

// Whether torch's flash attention takes queries of this device, dtype and head_dim.
bool takes_flash(const at::Tensor& q);

}  // namespace shardwise::ops
