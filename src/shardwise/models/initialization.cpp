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

// Gives parameters their values in the order in which a model lists them, whoever asks first: all
// numbers come from one generator.
class RandomValues {
 public:
  RandomValues(ModelConfig config, std::vector<NamedParameter> parameters, std::uint64_t seed)
      : config_(std::move(config)),
        parameters_(std::move(parameters)),
        // A Mersenne twister, which takes 32 bits of seed: fold the upper half in.
        generator_(at::make_generator<at::CPUGeneratorImpl>(seed ^ (seed >> 32))) {}

  // The parameter of this number; it and those before it have their values.
  const at::Tensor& filled(std::size_t index) {
    const at::NoGradGuard no_grad;
    for (; next_ <= index; ++next_) {
      initialize(config_, parameters_.at(next_), generator_);
    }
    return parameters_[index].tensor;
  }

 private:
  ModelConfig config_;
  std::vector<NamedParameter> parameters_;
  at::Generator generator_;
  std::size_t next_ = 0;
};

class RandomSource : public params::ValueSource {
 public:
  RandomSource(std::shared_ptr<RandomValues> values, std::size_t index)
      : values_(std::move(values)), index_(index) {}
  at::Tensor take() override { return values_->filled(index_).detach(); }
  // Machines may differ in a last bit.
  bool same_on_all_ranks() const override { return false; }

 private:
  std::shared_ptr<RandomValues> values_;
  std::size_t index_;
};

}  // namespace

Model make_model(const ModelConfig& config, std::uint64_t seed) {
  check_memory(config);
  Model model(config, make_layers(config, at::kCPU));
  const std::vector<NamedParameter> parameters = model.parameters();
  RandomValues(config, parameters, seed).filled(parameters.size() - 1);
  return model;
}

// Memory that nobody has written takes no room, so the layers can be made as they are.
Model make_model_for(at::Device device, const ModelConfig& config, std::uint64_t seed) {
  if (device.is_cpu()) {
    check_memory(config);
  }
  Model model(config, make_layers(config, at::kCPU));
  const auto values = std::make_shared<RandomValues>(config, model.parameters(), seed);
  model.give_values_later(
      [values](std::size_t index) { return std::make_shared<RandomSource>(values, index); });
  return model;
}

}  // namespace shardwise::models
