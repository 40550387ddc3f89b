#include "shardwise/models/rope.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

namespace shardwise::models {
namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;

// Exponents 0, 2/d, 4/d, ... below 1, fp32.
at::Tensor exponents(std::int64_t head_dim) {
  return at::arange(0, head_dim, 2, at::kFloat) / static_cast<double>(head_dim);
}

at::Tensor plain(double theta, std::int64_t head_dim) {
  return at::reciprocal(at::pow(theta, exponents(head_dim)));
}

// "NTK-aware" scaling: the base grows with the sequence. In fp32 beyond max_positions, as
// transformers computes it there.
at::Tensor dynamic(const RopeConfig& rope, std::int64_t head_dim, std::int64_t max_positions,
                   std::int64_t sequence) {
  if (sequence <= max_positions) {
    return plain(rope.theta, head_dim);
  }
  const double power = static_cast<double>(head_dim) / static_cast<double>(head_dim - 2);
  const at::Tensor length = at::scalar_tensor(static_cast<double>(sequence), at::kFloat);
  const at::Tensor stretched = rope.factor * length / static_cast<double>(max_positions);
  const at::Tensor base = rope.theta * at::pow(stretched - (rope.factor - 1), power);
  return at::reciprocal(at::pow(base, exponents(head_dim)));
}

// Bounds of YaRN's ramp, in dimensions.
struct Ramp {
  double low, high;
};

Ramp ramp_of(const RopeConfig& rope, std::int64_t head_dim) {
  const double positions = static_cast<double>(rope.original_max_positions);
  const double dim = static_cast<double>(head_dim);
  const auto dimension_of = [&](double rotations) {
    return dim * std::log(positions / (rotations * kTwoPi)) / (2 * std::log(rope.theta));
  };
  Ramp ramp{dimension_of(rope.beta_fast), dimension_of(rope.beta_slow)};
  if (rope.truncate) {
    ramp = {std::floor(ramp.low), std::ceil(ramp.high)};
  }
  ramp = {std::max(ramp.low, 0.0), std::min(ramp.high, dim - 1)};
  if (ramp.low == ramp.high) {
    ramp.high += 0.001;  // as transformers prevents the division by zero
  }
  return ramp;
}

at::Tensor yarn(const RopeConfig& rope, std::int64_t head_dim) {
  const at::Tensor powers = at::pow(rope.theta, exponents(head_dim));
  const at::Tensor extrapolated = at::reciprocal(powers);
  const at::Tensor interpolated = at::reciprocal(rope.factor * powers);
  const Ramp ramp = ramp_of(rope, head_dim);
  const at::Tensor line =
      (at::arange(head_dim / 2, at::kFloat) - ramp.low) / (ramp.high - ramp.low);
  const at::Tensor share = 1 - at::clamp(line, 0, 1);  // of the extrapolated ones
  return interpolated * (1 - share) + extrapolated * share;
}

at::Tensor longrope(const RopeConfig& rope, std::int64_t head_dim, std::int64_t sequence) {
  const bool is_long = sequence > rope.original_max_positions;
  const std::vector<double>& factors = is_long ? rope.long_factor : rope.short_factor;
  const at::Tensor stretch = at::tensor(factors, at::kFloat);
  return at::reciprocal(stretch * at::pow(rope.theta, exponents(head_dim)));
}

// Llama 3.1: long waves are slowed down, short ones kept, those between blended.
at::Tensor llama3(const RopeConfig& rope, std::int64_t head_dim) {
  const double length = static_cast<double>(rope.original_max_positions);
  const double low = rope.low_freq_factor, high = rope.high_freq_factor;
  const at::Tensor kept = plain(rope.theta, head_dim);
  const at::Tensor waves = at::reciprocal(kept) * kTwoPi;
  const at::Tensor is_long = waves > length / low;
  const at::Tensor scaled = at::where(is_long, kept / rope.factor, kept);
  const at::Tensor share = (at::reciprocal(waves) * length - low) / (high - low);
  const at::Tensor blended = (1 - share) * scaled / rope.factor + share * scaled;
  const at::Tensor between = at::logical_not(at::logical_or(waves < length / high, is_long));
  return at::where(between, blended, scaled);
}

}  // namespace

Rope::Rope(const ModelConfig& config)
    : config_(config.attention.rope),
      head_dim_(config.attention.head_dim),
      max_positions_(config.max_positions) {}

at::Tensor Rope::frequencies(std::int64_t sequence) const {
  switch (config_.scaling) {
    case RopeScaling::kNone: break;
    case RopeScaling::kLinear: return plain(config_.theta, head_dim_) / config_.factor;
    case RopeScaling::kDynamic: return dynamic(config_, head_dim_, max_positions_, sequence);
    case RopeScaling::kYarn: return yarn(config_, head_dim_);
    case RopeScaling::kLongRope: return longrope(config_, head_dim_, sequence);
    case RopeScaling::kLlama3: return llama3(config_, head_dim_);
  }
  return plain(config_.theta, head_dim_);
}

std::int64_t Rope::regime(std::int64_t longest) const {
  switch (config_.scaling) {
    case RopeScaling::kDynamic: return std::max(longest, max_positions_);
    case RopeScaling::kLongRope: return longest > config_.original_max_positions ? 1 : 0;
    default: return 0;
  }
}

RopeTables Rope::compute(std::int64_t sequence, std::int64_t longest, at::Device device) const {
  // Kept for later passes, which may record gradients when this one does not.
  const c10::InferenceMode no_inference(false);
  const at::NoGradGuard no_grad;
  const at::Tensor angles =
      at::arange(sequence, at::kFloat).unsqueeze(1) * frequencies(longest).unsqueeze(0);
  return {(at::cos(angles) * config_.attention_factor).to(device),
          (at::sin(angles) * config_.attention_factor).to(device)};
}

RopeTables Rope::tables(std::int64_t sequence, std::int64_t longest, at::Device device) const {
  const std::scoped_lock lock(mutex_);
  const bool fits = kept_ && kept_->sequence == sequence && kept_->regime == regime(longest) &&
                    kept_->tables.cosines.device() == device;
  if (!fits) {
    kept_ = Kept{sequence, regime(longest), compute(sequence, longest, device)};
  }
  return kept_->tables;
}

}  // namespace shardwise::models
