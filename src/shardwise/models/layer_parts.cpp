#include "shardwise/models/layer_parts.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include "shardwise/base/check.h"
#include "shardwise/models/activation.h"
#include "shardwise/ops/activation.h"
#include "shardwise/ops/linear_cross_entropy.h"
#include "shardwise/ops/norm.h"

namespace shardwise::models {
namespace {

class Head : public Layer {
 public:
  Head(at::Tensor weight, bool tied) : weight_(std::move(weight)), tied_(tied) {}
  std::string name() const override { return "lm_head"; }
  std::vector<NamedParameter> parameters() const override {
    return tied_ ? std::vector<NamedParameter>{}
                 : std::vector<NamedParameter>{{"lm_head.weight", weight_}};
  }
  at::Tensor forward(const at::Tensor& input, const PassContext&) const override {
    return at::linear(input, weight_);
  }
  at::Tensor loss(const at::Tensor& input, const at::Tensor& targets,
                  const AnnouncedFactor& announced) const override {
    return ops::linear_cross_entropy(input, weight_, targets,
                                     {.ignore_index = kNoTarget,
                                      .announced_factor = announced.factor,
                                      .announced_scale = announced.scale});
  }

 private:
  at::Tensor weight_;  // [vocabulary, hidden]
  bool tied_;
};

}  // namespace

at::Tensor new_parameter(at::IntArrayRef sizes, at::Device device) {
  return at::empty(sizes, at::TensorOptions(at::kFloat).device(device)).requires_grad_();
}

Linear::Linear(std::int64_t in, const std::vector<std::int64_t>& out, bool with_bias,
               at::Device device) {
  for (const std::int64_t width : out) {
    weights_.matrices.push_back(new_parameter({width, in}, device));
    if (with_bias) {
      weights_.biases.push_back(new_parameter({width}, device));
    }
  }
}

void Linear::append_parameters(const std::vector<std::string>& names,
                               std::vector<NamedParameter>& all) const {
  for (std::size_t i = 0; i < names.size(); ++i) {
    all.push_back({names[i] + ".weight", weights_.matrices[i]});
  }
  for (std::size_t i = 0; i < weights_.biases.size(); ++i) {
    all.push_back({names[i] + ".bias", weights_.biases[i]});
  }
}

Norm::Norm(std::int64_t size, bool centred, double epsilon, at::Device device)
    : weight(new_parameter({size}, device)), epsilon(epsilon) {
  if (centred) {
    bias = new_parameter({size}, device);
  }
}

at::Tensor Norm::forward(const at::Tensor& x) const {
  return bias.defined() ? ops::layer_norm(x, weight, bias, epsilon)
                        : ops::rms_norm(x, weight, epsilon);
}

// What the norm of `of` is: kept for the product that follows, or made again from `of`, which
// the norm keeps anyway.
Result Norm::output(const at::Tensor& value, const at::Tensor& of,
                    const PassContext& context) const {
  if (context.recompute != Recompute::kCheapResults) {
    return value;
  }
  std::vector<at::Tensor> inputs{of, weight};
  if (bias.defined()) {
    inputs.push_back(bias);
  }
  return remade(value, inputs, [epsilon = epsilon](const std::vector<at::Tensor>& all) {
    return all.size() > 2 ? ops::layer_norm(all[0], all[1], all[2], epsilon)
                          : ops::rms_norm(all[0], all[1], epsilon);
  });
}

Normed Norm::before_branch(const at::Tensor& x, const PassContext& context) const {
  const auto [value, same] = bias.defined() ? ops::layer_norm_beside(x, weight, bias, epsilon)
                                            : ops::rms_norm_beside(x, weight, epsilon);
  return {output(value, x, context), same};
}

Normed Norm::after_branch(const at::Tensor& branch, const at::Tensor& residual,
                          const PassContext& context) const {
  const auto [value, sum] = bias.defined()
                                ? ops::add_layer_norm(branch, residual, weight, bias, epsilon)
                                : ops::add_rms_norm(branch, residual, weight, epsilon);
  return {output(value, sum, context), sum};
}

void Norm::append_parameters(const std::string& name, std::vector<NamedParameter>& all) const {
  all.push_back({name + ".weight", weight});
  if (bias.defined()) {
    all.push_back({name + ".bias", bias});
  }
}

Result activated(const at::Tensor& x, const std::string& name, bool gated,
                 const PassContext& context) {
  const bool cheaply = context.recompute == Recompute::kCheapResults;
  if (const std::string op{fused_activation(name)}; !op.empty()) {
    const Computation compute = [op, gated](const std::vector<at::Tensor>& inputs) {
      return ops::activation(inputs[0], op, gated);
    };
    const at::Tensor value = compute({x});
    return cheaply ? remade(value, {x}, compute) : Result(value);
  }
  const Computation compute = [function = find_activation(name),
                               gated](const std::vector<at::Tensor>& inputs) {
    if (!gated) {
      return function(inputs[0]);
    }
    const std::vector<at::Tensor> halves = inputs[0].chunk(2, -1);
    return function(halves[0]) * halves[1];
  };
  return cheaply ? recomputed({x}, {}, compute) : Result(compute({x}));
}

std::unique_ptr<Layer> make_head(const ModelConfig& config, const at::Tensor& embedding,
                                 at::Device device) {
  at::Tensor weight =
      config.tied ? embedding : new_parameter({config.vocabulary, config.hidden}, device);
  return std::make_unique<Head>(std::move(weight), config.tied);
}

std::vector<std::unique_ptr<Layer>> make_layers(const ModelConfig& config, at::Device device) {
  return config.family() == Family::kGpt2 ? make_gpt2_layers(config, device)
                                          : make_llama_layers(config, device);
}

void check_memory(const ModelConfig& config) {
  const double needed = 4.0 * static_cast<double>(parameter_count(config));
  const double present =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  SW_USER_CHECK(DataError, needed <= present, config.source,
                ": vocab_size, hidden_size, layers and inner size: in fp32 the ",
                parameter_count(config), " parameters need ", needed / kGiB,
                " GiB and this machine has ", present / kGiB,
                " GiB of memory; use a smaller model or a larger machine");
}

}  // namespace shardwise::models
