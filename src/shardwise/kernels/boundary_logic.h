// The decision of boundary.h, shared by CPU and CUDA: plain code on plain memory.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "shardwise/kernels/boundary.h"
#include "shardwise/kernels/inline.h"

namespace shardwise::kernels {

SW_SHARED_INLINE bool is_finite(double value) {
  return value - value == 0.0;  // NaN for infinities and NaN
}

// The records of all ranks.
struct BoundaryRecords {
  const unsigned char* bytes;
  std::int64_t stride;
  int world;

  SW_SHARED_INLINE const BoundaryHeader& header(int rank) const {
    return *reinterpret_cast<const BoundaryHeader*>(bytes + rank * stride);
  }
  SW_SHARED_INLINE std::uint8_t any_wrote(std::int64_t parameter) const {
    std::uint8_t any = 0;
    for (int rank = 0; rank < world; ++rank) {
      any |= bytes[rank * stride + static_cast<std::int64_t>(sizeof(BoundaryHeader)) + parameter];
    }
    return any != 0 ? 1 : 0;
  }
};

// First rank whose order hash differs from the majority's (Boyer, Moore 1981: one candidate
// survives pairing off), or from rank 0's when no hash has a majority; −1 when all agree.
SW_SHARED_INLINE std::int32_t first_rank_out_of_order(const BoundaryRecords& records) {
  std::uint64_t candidate = 0;
  int lead = 0;
  for (int rank = 0; rank < records.world; ++rank) {
    const std::uint64_t hash = records.header(rank).order_hash;
    candidate = lead == 0 ? hash : candidate;
    lead += hash == candidate ? 1 : -1;
  }
  int votes = 0;
  for (int rank = 0; rank < records.world; ++rank) {
    votes += records.header(rank).order_hash == candidate ? 1 : 0;
  }
  if (votes == records.world) {
    return -1;
  }
  const std::uint64_t expected =
      2 * votes > records.world ? candidate : records.header(0).order_hash;
  for (int rank = 0; rank < records.world; ++rank) {
    if (records.header(rank).order_hash != expected) {
      return rank;
    }
  }
  return -1;
}

// One step of the dynamic loss scale; returns whether the overflow met a scale at its minimum.
SW_SHARED_INLINE bool update_loss_scale(const LossScaleRule& rule, bool overflow,
                                        LossScaleState& state) {
  bool at_minimum = false;
  if (overflow) {
    if (rule.hysteresis == 1 || state.hysteresis_left == 1) {
      at_minimum = static_cast<double>(state.scale) <= rule.min_scale;
      const double lowered = static_cast<double>(state.scale) / rule.factor;
      state.scale = static_cast<float>(lowered > rule.min_scale ? lowered : rule.min_scale);
    } else {
      state.hysteresis_left -= 1;
    }
    state.last_overflow_iteration = state.iteration;
  } else {
    const bool window_over = (state.iteration - state.last_overflow_iteration) % rule.window == 0;
    if (rule.consecutive_hysteresis || window_over) {
      state.hysteresis_left = rule.hysteresis;
    }
    if (window_over) {
      const double raised = static_cast<double>(state.scale) * rule.factor;
      state.scale = raised <= 3.4e38 ? static_cast<float>(raised) : state.scale;
    }
  }
  state.iteration += 1;
  return at_minimum;
}

// Everything but the per-parameter part. Writes state, decision and result.
SW_SHARED_INLINE void decide(const BoundaryRecords& records, const BoundaryRule& rule,
                             LossScaleState& state, StepDecision& decision,
                             BoundaryResult& result) {
  const bool dynamic = rule.loss_scale.dynamic;
  double total = 0.0;
  double weight = 0.0;
  BoundaryResult r;
  for (int rank = 0; rank < records.world; ++rank) {
    const BoundaryHeader& header = records.header(rank);
    total += rule.norm_ranks == 0 || rank < rule.norm_ranks ? header.sum_of_squares : 0.0;
    weight += header.weight;
    if (header.non_finite != 0 && r.overflow == 0) {
      r.overflow = 1;
      r.bad_rank = rank;
      r.bad_parameter = header.bad_parameter;
    }
  }
  const std::int32_t out_of_order = first_rank_out_of_order(records);
  if (out_of_order >= 0) {
    r.order_mismatch = 1;
    r.bad_rank = out_of_order;
  }
  r.loss_scale = state.scale;
  double factor = rule.gradient_factor;
  if (rule.divide_by_weight) {
    factor = weight > 0.0 ? factor / weight : 0.0;
  }
  const double divisor = static_cast<double>(state.scale) / factor;  // infinite without weight
  r.norm = ::sqrt(total) / divisor;
  double coefficient = 1.0;
  if (rule.clip > 0.0) {
    coefficient = rule.clip / (r.norm + 1e-6);
    coefficient = coefficient > 1.0 ? 1.0 : coefficient;  // NaN stays NaN, as in torch
  }
  r.norm_clipped = r.norm * coefficient;
  const bool skip = r.overflow != 0 && (dynamic || rule.skip_non_finite);
  r.applied = r.order_mismatch == 0 && !skip ? 1 : 0;
  if (dynamic && r.order_mismatch == 0) {
    r.at_min_scale = update_loss_scale(rule.loss_scale, r.overflow != 0, state) ? 1 : 0;
  }
  r.next_loss_scale = state.scale;
  decision.gradient_multiplier = static_cast<float>(coefficient / divisor);
  decision.apply = r.applied;
  result = r;
}

}  // namespace shardwise::kernels
