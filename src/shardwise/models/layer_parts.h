// What the layers of all families are made of.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "shardwise/models/model.h"
#include "shardwise/models/projection.h"
#include "shardwise/models/recomputation.h"

namespace shardwise::models {

// A trainable leaf, fp32, not initialised. On the CPU, or on `meta` for a shape alone.
at::Tensor new_parameter(at::IntArrayRef sizes, at::Device device);

// x times one or more weights in torch's layout [out, in], side by side; biases where they are
// defined.
class Linear {
 public:
  Linear(std::int64_t in, const std::vector<std::int64_t>& out, bool with_bias, at::Device device);

  at::Tensor forward(const Result& x, const PassContext& context) const {
    return projected(x, weights_, context.fp8);
  }
  // In the order in which they lie in memory: the weights side by side, then the biases. `names`:
  // one for each weight, before ".weight" and ".bias".
  void append_parameters(const std::vector<std::string>& names,
                         std::vector<NamedParameter>& all) const;

 private:
  ProjectionWeights weights_;
};

// A norm's output, and the sum of the residual path at that place.
struct Normed {
  Result output;
  at::Tensor residual;
};

// RMSNorm or, with a bias, LayerNorm over the last dimension.
struct Norm {
  at::Tensor weight, bias;
  double epsilon;

  Norm(std::int64_t size, bool centred, double epsilon, at::Device device);

  at::Tensor forward(const at::Tensor& x) const;
  // The norm of x, and x for the residual path: use that one, not x.
  Normed before_branch(const at::Tensor& x, const PassContext& context) const;
  // The norm of residual + branch, and that sum.
  Normed after_branch(const at::Tensor& branch, const at::Tensor& residual,
                      const PassContext& context) const;
  void append_parameters(const std::string& name, std::vector<NamedParameter>& all) const;

 private:
  Result output(const at::Tensor& value, const at::Tensor& of, const PassContext& context) const;
};

// f(x) [..., width] of x [..., width]; gated, f(first half) · second half of x [..., 2 · width].
Result activated(const at::Tensor& x, const std::string& name, bool gated,
                 const PassContext& context);

// The last layer: hidden states to logits, or to the loss without logits. A tied head reads the
// embedding's weight [vocabulary, hidden] and has no parameters of its own.
std::unique_ptr<Layer> make_head(const ModelConfig& config, const at::Tensor& embedding,
                                 at::Device device);

// All layers of a family in order, with uninitialised parameters on `device`.
std::vector<std::unique_ptr<Layer>> make_gpt2_layers(const ModelConfig& config, at::Device device);
std::vector<std::unique_ptr<Layer>> make_llama_layers(const ModelConfig& config, at::Device device);
// The same for whichever family it is.
std::vector<std::unique_ptr<Layer>> make_layers(const ModelConfig& config, at::Device device);

// Throws DataError where the parameters in fp32 would not fit into this machine's memory.
void check_memory(const ModelConfig& config);

}  // namespace shardwise::models
