#include "shardwise/models/model.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <iterator>

#include "shardwise/base/check.h"
#include "shardwise/models/recomputation.h"

namespace shardwise::models {
namespace {

void check_tokens(const ModelConfig& config, const Tokens& tokens) {
  const at::Tensor& ids = tokens.ids;
  SW_USER_CHECK(UsageError, ids.dim() == 2 && ids.scalar_type() == at::kLong,
                "tokens must be int64 of shape [batch, seq]; these are ", ids.scalar_type(),
                " of shape ", ids.sizes());
  std::int64_t longest = ids.size(1);
  if (tokens.documents) {
    ops::check_documents(*tokens.documents, ids.size(0), ids.size(1), ids.device());
    longest = std::min(longest, tokens.documents->longest);
  }
  SW_USER_CHECK(UsageError, config.longest_sequence == 0 || longest <= config.longest_sequence,
                "a sequence of ", longest, " tokens is longer than ", config.source, " allows (",
                config.longest_sequence, "); use shorter sequences");
}

// A copy from pageable memory would wait for all that the GPU has to do before it.
at::Tensor moved(const at::Tensor& tensor, at::Device device) {
  const bool waits = tensor.is_cpu() && !device.is_cpu() && !tensor.is_pinned();
  return waits ? tensor.pin_memory().to(device, /*non_blocking=*/true) : tensor.to(device);
}

std::vector<at::Tensor> tracked(const at::Tensor& tensor) {
  return tensor.requires_grad() ? std::vector<at::Tensor>{tensor} : std::vector<at::Tensor>{};
}

}  // namespace

Tokens Tokens::to(at::Device device) const {
  Tokens there(moved(ids, device), documents);
  if (documents) {
    ops::check_documents(*documents, ids.size(0), ids.size(1), ids.device());
    there.documents->offsets = moved(documents->offsets, device);
  }
  return there;
}

std::int64_t Tokens::predicted() const {
  if (!documents) {
    return ids.numel() - ids.size(0);
  }
  return ids.numel() - documents->offsets.diff().gt(0).sum().item<std::int64_t>();
}

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
  if (context_.fp8 == ops::Float8Recipe::kOff) {
    return {};
  }
  std::vector<std::string> misfits;
  bool some_fit = false;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    for (const NamedParameter& parameter : layers_[i]->parameters()) {
      if (is_block(i) && parameter.tensor.dim() == 2) {
        const bool fits = ops::fits_float8(parameter.tensor);
        some_fit = some_fit || fits;
        if (!fits) {
          misfits.push_back(parameter.name);
        }
      }
    }
  }
  ops::check_some_fit_float8(setting, some_fit);
  return misfits;
}

bool Model::is_block(std::size_t index) const {
  return index >= 1 && index <= static_cast<std::size_t>(config_.layers);
}

at::Tensor Model::compute(std::size_t index, const at::Tensor& input,
                          const PassContext& context) const {
  const std::shared_ptr<const Layer>& layer = layers_[index];
  if (context.recompute != Recompute::kBlocks || !is_block(index)) {
    return layer->forward(input, context);
  }
  std::vector<at::Tensor> leaves;
  for (NamedParameter& parameter : layer->parameters()) {
    leaves.push_back(std::move(parameter.tensor));
  }
  // A differentiation inside of the present one would run these on parts of the gradient.
  if (std::any_of(leaves.begin(), leaves.end(), [](const at::Tensor& leaf) {
        return leaf.requires_grad() && !torch::autograd::impl::hooks(leaf).empty();
      })) {
    return layer->forward(input, context);
  }
  const bool draws =
      context.training && (config_.dropout.attention > 0 || config_.dropout.residual > 0);
  const Computation computation = [layer, context](const auto& inputs) {
    return layer->forward(inputs[0], context);
  };
  return recomputed({input}, leaves, computation, draws).value();
}

at::Tensor Model::pass(const Tokens& tokens, params::UnitEvents* events,
                       const LastStep& last) const {
  check_tokens(config_, tokens);
  PassContext context = context_;
  if (tokens.documents) {
    context.documents = tokens.documents;
    context.positions =
        ops::document_positions(*tokens.documents, tokens.ids.size(0), tokens.ids.size(1));
  }
  if (events != nullptr) {
    events->begin_pass();
  }
  at::Tensor x = tokens.ids;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const int unit = static_cast<int>(i);
    if (events != nullptr) {
      const std::vector<at::Tensor> marked = events->before_forward(unit, tracked(x));
      x = marked.empty() ? x : marked.front();
    }
    x = i + 1 < layers_.size() ? compute(i, x, context) : last(*layers_[i], x);
    if (events != nullptr) {
      events->after_forward(unit, {x});
    }
  }
  return x;
}

at::Tensor Model::logits(const Tokens& tokens, params::UnitEvents* events) const {
  return pass(tokens, events, [this](const Layer& head, const at::Tensor& hidden) {
    return head.forward(hidden, context_);
  });
}

at::Tensor Model::loss(const Tokens& tokens, const at::Tensor& targets, params::UnitEvents* events,
                       const AnnouncedFactor& announced) const {
  SW_USER_CHECK(UsageError, targets.sizes() == tokens.ids.sizes(), "targets of shape ",
                targets.sizes(), " do not fit tokens of shape ", tokens.ids.sizes());
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
  specs.front().backward_reads = false;  // an embedding needs the tokens alone
  if (config_.tied) {
    specs.front().parameters.front().aliases = {"lm_head.weight"};
    specs.back().uses = {0};
  }
  return specs;
}

at::Tensor next_token_targets(const Tokens& tokens) {
  const at::Tensor& ids = tokens.ids;
  const at::Tensor none = at::full({ids.size(0), 1}, kNoTarget, ids.options());
  at::Tensor next = ids.slice(1, 1);
  if (tokens.documents) {
    const at::Tensor positions =
        ops::document_positions(*tokens.documents, ids.size(0), ids.size(1));
    next = next.masked_fill(positions.slice(1, 1) == 0, kNoTarget);
  }
  return at::cat({next, none}, 1);
}

}  // namespace shardwise::models
