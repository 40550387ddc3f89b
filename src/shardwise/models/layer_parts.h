// What the layers of all families are made of.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "shardwise/models/model.h"
#include "shardwise/models/recomputation.h"

namespace shardwise::models {

// A trainable leaf, fp32, not initialised. On the CPU, or on `meta` for a shape alone.
at::Tensor new_parameter(at::IntArrayRef sizes, at::Device device);

// x times a weight in torch's layout [out, in] plus a bias where one is defined.
struct Linear {
  at::Tensor weight, bias;

  Linear(std::int64_t in, std::int64_t out, bool with_bias, at::Device device);
  at::Tensor forward(const Result& x) const;
};

// computation(inputs), cheap beside matrix products and attention: computed again in backward where
// the context says Recompute::kCheapResults. See recomputed().
Result cheap(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& leaves,
             const PassContext& context, const Computation& computation);

// Causal attention of q [batch, heads, seq, head_dim] over k and v [batch, kv_heads, seq,
// head_dim], where each key head serves heads / kv_heads query heads. Returns [batch, seq, heads ×
// head_dim].
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            double scale, double dropout);

// [batch, seq, heads × head_dim] to [batch, heads, seq, head_dim], a view.
at::Tensor split_heads(const at::Tensor& x, std::int64_t head_dim);

// The last layer: hidden states to logits. A tied head reads the embedding's weight
// [vocabulary, hidden] and has no parameters of its own.
std::unique_ptr<Layer> make_head(const ModelConfig& config, const at::Tensor& embedding,
                                 at::Device device);

// All layers of a family in order, with uninitialised parameters on `device`.
std::vector<std::unique_ptr<Layer>> make_gpt2_layers(const ModelConfig& config, at::Device device);
std::vector<std::unique_ptr<Layer>> make_llama_layers(const ModelConfig& config, at::Device device);
// The same for whichever family it is. Throws DataError where the parameters would not fit into
// this machine's memory.
std::vector<std::unique_ptr<Layer>> make_layers(const ModelConfig& config, at::Device device);

}  // namespace shardwise::models
