// Random weights. Source: transformers, PreTrainedModel._init_weights and
// GPT2PreTrainedModel._init_weights.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <cmath>

#include "shardwise/models/layer_parts.h"
#include "shardwise/models/model.h"

namespace shardwise::models {
namespace {

bool ends_with(const std::string& name, std::string_view end) { return name.ends_with(end); }

// Of a matrix. Where transformers sees initializer_range 0 it takes 0.02, except for GPT-2's own
// projections.
double deviation(const ModelConfig& config, const std::string& name) {
  const bool projection = config.family() == Family::kGpt2 && name.find(".h.") != std::string::npos;
  if (!projection) {
    return config.initializer_range == 0 ? 0.02 : config.initializer_range;
  }
  // The residual paths, two a layer, are scaled down by the square root of their number.
  return ends_with(name, "c_proj.weight")
             ? config.initializer_range / std::sqrt(2.0 * static_cast<double>(config.layers))
             : config.initializer_range;
}

void initialize(const ModelConfig& config, const NamedParameter& parameter,
                const at::Generator& generator) {
  at::Tensor tensor = parameter.tensor;
  if (tensor.dim() == 1) {
    tensor.fill_(ends_with(parameter.name, ".bias") ? 0 : 1);  // a bias or the weight of a norm
    return;
  }
  tensor.normal_(0, deviation(config, parameter.name), generator);
  if (ends_with(parameter.name, "embed_tokens.weight") && config.padding_row >= 0) {
    tensor.select(0, config.padding_row).zero_();
  }
}

}  // namespace

Model make_model(const ModelConfig& config, std::uint64_t seed) {
  Model model(config, make_layers(config, at::kCPU));
  const at::NoGradGuard no_grad;
  // A Mersenne twister, which takes 32 bits of seed: fold the upper half in.
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed ^ (seed >> 32));
  for (const NamedParameter& parameter : model.parameters()) {
    initialize(config, parameter, generator);
  }
  return model;
}

}  // namespace shardwise::models
