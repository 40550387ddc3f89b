#include "shardwise/models/model.h"

#include <ATen/ATen.h>

#include <iterator>

#include "shardwise/base/check.h"
#include "shardwise/models/recomputation.h"

namespace shardwise::models {
namespace {

void check_tokens(const ModelConfig& config, const at::Tensor& tokens) {
  SW_USER_CHECK(UsageError, tokens.dim() == 2 && tokens.scalar_type() == at::kLong,
                "tokens must be int64 of shape [batch, seq]; these are ", tokens.scalar_type(),
                " of shape ", tokens.sizes());
  const std::int64_t sequence = tokens.size(1);
  SW_USER_CHECK(UsageError, config.longest_sequence == 0 || sequence <= config.longest_sequence,
                "a sequence of ", sequence, " tokens is longer than ", config.source, " allows (",
                config.longest_sequence, "); use shorter sequences");
}

std::vector<at::Tensor> tracked(const at::Tensor& tensor) {
  return tensor.requires_grad() ? std::vector<at::Tensor>{tensor} : std::vector<at::Tensor>{};
}

}  // namespace

at::Tensor Layer::loss(const at::Tensor&, const at::Tensor&, const AnnouncedFactor&) const {
  SW_FAIL(InternalError, name(), " is no head");
}

Model::Model(ModelConfig config, std::vector<std::unique_ptr<Layer>> layers)
    : config_(std::move(config)),
      layers_(std::make_move_iterator(layers.begin()), std::make_move_iterator(layers.end())) {}

void Model::set_activation_checkpointing(const std::string& setting) {
  SW_USER_CHECK(UsageError, setting == "off" || setting == "selective" || setting == "full",
                "activation checkpointing can be \"off\", \"selective\" or \"full\", not \"",
                setting, "\"");
  context_.recompute = setting == "off"    ? Recompute::kNothing
                       : setting == "full" ? Recompute::kBlocks
                                           : Recompute::kCheapResults;
}

std::vector<std::string> Model::set_fp8(const std::string& setting) {
  context_.fp8 = ops::float8_recipe(setting);
  std::vector<std::string> misfits;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    for (const NamedParameter& parameter : layers_[i]->parameters()) {
      if (is_block(i) && parameter.tensor.dim() == 2 && !ops::fits_float8(parameter.tensor)) {
        misfits.push_back(parameter.name);
      }
    }
  }
  return context_.fp8 == ops::Float8Recipe::kOff ? std::vector<std::string>{} : misfits;
}

bool Model::is_block(std::size_t index) const {
  return index >= 1 && index <= static_cast<std::size_t>(config_.layers);
}

at::Tensor Model::compute(std::size_t index, const at::Tensor& input) const {
  const std::shared_ptr<const Layer>& layer = layers_[index];
  if (context_.recompute != Recompute::kBlocks || !is_block(index)) {
    return layer->forward(input, context_);
  }
  std::vector<at::Tensor> leaves;
  for (NamedParameter& parameter : layer->parameters()) {
    leaves.push_back(std::move(parameter.tensor));
  }
  const bool draws =
      context_.training && (config_.dropout.attention > 0 || config_.dropout.residual > 0);
  const Computation computation = [layer, context = context_](const auto& inputs) {
    return layer->forward(inputs[0], context);
  };
  return recomputed({input}, leaves, computation, draws).value();
}

at::Tensor Model::pass(const at::Tensor& tokens, params::UnitEvents* events,
                       const LastStep& last) const {
  check_tokens(config_, tokens);
  if (events != nullptr) {
    events->begin_pass();
  }
  at::Tensor x = tokens;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const int unit = static_cast<int>(i);
    if (events != nullptr) {
      const std::vector<at::Tensor> marked = events->before_forward(unit, tracked(x));
      x = marked.empty() ? x : marked.front();
    }
    x = i + 1 < layers_.size() ? compute(i, x) : last(*layers_[i], x);
    if (events != nullptr) {
      events->after_forward(unit, {x});
    }
  }
  return x;
}

at::Tensor Model::logits(const at::Tensor& tokens, params::UnitEvents* events) const {
  return pass(tokens, events, [this](const Layer& head, const at::Tensor& hidden) {
    return head.forward(hidden, context_);
  });
}

at::Tensor Model::loss(const at::Tensor& tokens, const at::Tensor& targets,
                       params::UnitEvents* events, const AnnouncedFactor& announced) const {
  SW_USER_CHECK(UsageError, targets.sizes() == tokens.sizes(), "targets of shape ", targets.sizes(),
                " do not fit tokens of shape ", tokens.sizes());
  return pass(tokens, events, [&](const Layer& head, const at::Tensor& hidden) {
    return head.loss(hidden, targets, announced);
  });
}

std::vector<NamedParameter> Model::parameters() const {
  std::vector<NamedParameter> all;
  for (const auto& layer : layers_) {
    for (NamedParameter& parameter : layer->parameters()) {
      all.push_back(std::move(parameter));
    }
  }
  return all;
}

std::int64_t Model::parameter_count() const { return models::parameter_count(config_); }

std::vector<params::UnitSpec> Model::units(at::ScalarType dtype) const {
  std::vector<params::UnitSpec> specs;
  std::size_t index = 0;
  for (const auto& layer : layers_) {
    params::UnitSpec& spec = specs.emplace_back();
    spec.name = layer->name();
    for (NamedParameter& parameter : layer->parameters()) {
      spec.parameters.push_back({.name = std::move(parameter.name),
                                 .aliases = {},
                                 .tensor = std::move(parameter.tensor),
                                 .dtype = dtype,
                                 .group = 0,
                                 .source = sources_ ? sources_(index) : nullptr,
                                 .travel = std::nullopt});
      ++index;
    }
  }
  if (config_.tied) {
    specs.front().parameters.front().aliases = {"lm_head.weight"};
    specs.back().uses = {0};
  }
  return specs;
}

at::Tensor next_token_targets(const at::Tensor& tokens) {
  const at::Tensor none = at::full({tokens.size(0), 1}, kNoTarget, tokens.options());
  return at::cat({tokens.slice(1, 1), none}, 1);
}

}  // namespace shardwise::models
