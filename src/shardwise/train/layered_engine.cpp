#include "shardwise/train/layered_engine.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "shardwise/base/check.h"
#include "shardwise/base/log.h"
#include "shardwise/optim/muon_rule.h"
#include "shardwise/precision/fp8.h"
#include "shardwise/precision/loss_scale.h"

namespace shardwise::train {
namespace {

// What all ranks must agree on.
std::string settings_of(const config::Resolved& config, const models::Model& model) {
  return concat(config.to_json(/*with_origins=*/false), "\nmodel = ", model.config().document);
}

// Group 0 is for matrices where the rule treats them apart, and group 1 for the rest.
std::vector<params::UnitSpec> grouped(std::vector<params::UnitSpec> units,
                                      const optim::ConfiguredRule& rule) {
  for (params::UnitSpec& unit : units) {
    for (params::ParameterSpec& parameter : unit.parameters) {
      if (!rule.matrix_values.empty()) {
        parameter.whole_matrix = optim::muon_takes(parameter.name, parameter.tensor.dim());
        parameter.group = parameter.whole_matrix ? 0 : 1;
      }
    }
  }
  return units;
}

const config::Config& without_python(const config::Resolved& config) {
  config.require_no_python();
  return config.config();
}

}  // namespace

LayeredEngine::LayeredEngine(models::Model model, const config::Resolved& config, const Rank& rank,
                             const std::string& settings)
    : model_(std::move(model)),
      config_(without_python(config)),
      rank_(rank),
      rule_(optim::configured_rule(config_.optimizer)),
      schedule_(optim::make_schedule(config_.scheduler)) {
  model_.set_training(true);
  model_.set_activation_checkpointing(config_.own.activation_checkpointing);
  const std::vector<std::string> misfits = model_.set_fp8(config_.own.fp8);
  if (config_.own.fp8 != "off" && rank_.rank == 0) {
    log_info(precision::describe_fp8(config_.own.fp8, misfits));
  }
  const EngineOptions options{.config = config_,
                              .device = rank_.device,
                              .rule = rule_.rule,
                              .settings = settings_of(config, model_) + "\n" + settings};
  core_ = std::make_unique<Engine>(
      options, rank_.channels,
      grouped(model_.units(precision::dtype_of(config_.model_dtype())), rule_));
}

at::Tensor LayeredEngine::loss(const models::Tokens& tokens) {
  const models::Tokens there = tokens.to(rank_.device);
  return model_.loss(there, models::next_token_targets(there), &core_->driver(),
                     announced_factor(tokens));
}

at::Tensor LayeredEngine::loss(const models::Tokens& tokens, const at::Tensor& targets) {
  return model_.loss(tokens.to(rank_.device), targets.to(rank_.device), &core_->driver(),
                     announced_factor(tokens));
}

// As backward() will scale a loss of these tokens.
models::AnnouncedFactor LayeredEngine::announced_factor(const models::Tokens& tokens) const {
  models::AnnouncedFactor announced;
  if (core_->window().token_weighted()) {
    const std::int64_t predicted = tokens.ids.dim() == 2 ? tokens.predicted() : 1;
    announced.factor = static_cast<double>(std::max<std::int64_t>(predicted, 1));
  } else {
    announced.factor = 1.0 / static_cast<double>(core_->window().size());
  }
  if (const at::Tensor scale = core_->loss_scale(); scale.defined()) {
    announced.scale = scale.clone();  // the step will change it, and backward compares
  }
  return announced;
}

at::Tensor LayeredEngine::logits(const models::Tokens& tokens) {
  return model_.logits(tokens.to(rank_.device), &core_->driver());
}

template <typename Work>
void LayeredEngine::dropping_the_window_on_failure(const Work& work) {
  try {
    work();
  } catch (...) {
    if (!core_->communication_failed()) {
      core_->zero_grad();
      core_->window().drop();
    }
    throw;
  }
}

void LayeredEngine::backward(const at::Tensor& loss, const at::Tensor& tokens) {
  SW_USER_CHECK(UsageError, loss.numel() == 1 && loss.requires_grad(),
                "backward() needs a scalar loss that was computed with gradients, not under "
                "NoGradGuard");
  dropping_the_window_on_failure(
      [&] { core_->backward(loss, /*retain_graph=*/false, /*divide=*/true, tokens); });
}

bool LayeredEngine::step() {
  if (!core_->window().at_boundary()) {
    dropping_the_window_on_failure([&] { core_->end_micro_batch(); });
    return false;
  }
  update();
  return true;
}

bool LayeredEngine::flush_accumulation() {
  const std::int64_t held_by_all = core_->held_by_all();
  if (held_by_all > 0) {
    update(held_by_all);
  }
  return held_by_all > 0;
}

void LayeredEngine::update(std::int64_t partial_of) {
  dropping_the_window_on_failure([&] {
    const std::vector<optim::GroupValues> groups = scheduled_values();
    core_->step(groups, partial_of);
    last_lr_ = groups.front().at("lr");
  });
  ++global_steps_;
  unsettled_ = true;
}

void LayeredEngine::settle() {
  if (unsettled_) {
    unsettled_ = false;
    skipped_steps_ += core_->last_result()->applied != 0 ? 0 : 1;
  }
}

std::int64_t LayeredEngine::skipped_steps() {
  settle();
  return skipped_steps_;
}

std::vector<optim::GroupValues> LayeredEngine::scheduled_values() {
  settle();
  std::vector<optim::GroupValues> groups{rule_.values};
  if (!rule_.matrix_values.empty()) {
    groups.insert(groups.begin(), rule_.matrix_values);
  }
  if (schedule_) {
    const std::int64_t iteration =
        config_.scheduler.params.last_batch_iteration + global_steps_ - skipped_steps_;
    std::vector<double> base_lr;
    for (const optim::GroupValues& values : groups) {
      base_lr.push_back(values.at("lr"));
    }
    const optim::ScheduleValues now = schedule_->values(iteration, base_lr);
    for (std::size_t i = 0; i < groups.size(); ++i) {
      groups[i]["lr"] = now.lr[i];
      // As with DeepSpeed, Muon's optimizer has no betas for a schedule to move.
      if (groups.size() == 1 && !now.momenta.empty() && groups[i].count("beta1") > 0) {
        groups[i]["beta1"] = now.momenta[i];
        groups[i]["beta2"] = optim::kOneCycleSecondBeta;
      }
    }
  }
  return groups;
}

void LayeredEngine::sum_over_ranks(const at::Tensor& values) {
  if (rank_.world_size > 1) {
    const at::Tensor all = at::empty({rank_.world_size, values.numel()}, values.options());
    rank_.channels.everybody().all_gather(all, values, "a sum over ranks")->wait();
    values.copy_(all.sum(0));
  }
}

void LayeredEngine::wait_for_ranks() {
  const at::Tensor one = at::ones({1}, rank_.device);
  sum_over_ranks(one);
  SW_CHECK_EQ(one.item<float>(), static_cast<float>(rank_.world_size));
}

std::vector<models::NamedParameter> LayeredEngine::weights() {
  const at::NoGradGuard no_grad;
  std::vector<models::NamedParameter> all;
  for (const auto& unit : core_->registry().units()) {
    core_->tensors().open(unit->id);
    if (rank_.rank == 0) {
      for (const auto& segment : unit->segments) {
        for (const params::Parameter& parameter : segment->parameters) {
          all.push_back({parameter.name,
                         parameter.tensor.detach().to(at::kCPU, parameter.tensor.scalar_type(),
                                                      /*non_blocking=*/false, /*copy=*/true)});
        }
      }
    }
    core_->tensors().close(unit->id);
  }
  return all;
}

}  // namespace shardwise::train
