#include "shardwise/zero/tensor_access.h"

#include <ATen/ATen.h>

#include <utility>

#include "shardwise/base/check.h"

namespace shardwise::zero {

TensorAccess::TensorAccess(const Holders& holders, const comm::ShardChannels& channels,
                           ZeroPlan plan, GradientFactor factor)
    : holders_(holders),
      factor_(std::move(factor)),
      full_state_(holders.registry, channels, plan),
      open_units_(holders.registry, holders.gatherer, channels, plan) {}

at::Tensor TensorAccess::full(int parameter, const std::string& kind) {
  if (kind != "gradient") {
    return full_state_.get(parameter, kind, holders_.optimizer.get());
  }
  const at::Tensor gradient = full_state_.gradient(parameter, holders_.reducer);
  const at::Tensor factor = gradient.defined() ? factor_() : at::Tensor();
  return factor.defined() ? gradient.to(at::kFloat).div_(factor) : gradient;
}

bool TensorAccess::set_full(int parameter, const std::string& kind, const at::Tensor& value) {
  check_none_open();
  if (kind == "gradient") {
    return full_state_.set_gradient(parameter, held(kind, value), holders_.reducer);
  }
  return full_state_.set_state(parameter, kind, value, holders_.optimizer.get());
}

void TensorAccess::set_parameter(int parameter, const at::Tensor& value) {
  check_none_open();
  full_state_.set(parameter, value, holders_.optimizer.get());
}

at::Tensor TensorAccess::local(int parameter, const std::string& kind) {
  const at::Tensor part =
      full_state_.local(parameter, kind, holders_.optimizer.get(), holders_.reducer);
  const at::Tensor factor = kind == "gradient" && part.defined() ? factor_() : at::Tensor();
  if (factor.defined()) {
    return part.to(at::kFloat).div_(factor);
  }
  if (!part.defined() || kind == "gradient") {
    return part.defined() ? part.clone() : part;
  }
  return part.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
}

bool TensorAccess::set_local(int parameter, const std::string& kind, const at::Tensor& value) {
  check_none_open();
  return full_state_.set_local(parameter, kind, held(kind, value), holders_.optimizer.get(),
                               holders_.reducer);
}

// Gathered copies of a unit would hide what is set.
void TensorAccess::check_none_open() const {
  SW_USER_CHECK(UsageError, !holders_.gatherer.any_open(),
                "weights, gradients and states cannot be set one by one inside GatheredParameters; "
                "leave the context first");
  holders_.gatherer.release_all();
}

// A user's gradient as the reducer holds it; other kinds as they are.
at::Tensor TensorAccess::held(const std::string& kind, const at::Tensor& value) const {
  const at::Tensor factor =
      kind == "gradient" && value.is_floating_point() ? factor_() : at::Tensor();
  return factor.defined() ? value.to(factor.device(), at::kFloat) * factor : value;
}

}  // namespace shardwise::zero
