// The decision at the end of a step (accumulation boundary): norm, overflow, clipping, loss scale,
// equal order of operations on all ranks, and which parameters move. It is taken where the
// gradients are, without the host:
//   sum_of_squares -> fill_boundary_record -> all-gather of the records as bytes ->
//   finish_boundary -> the update (update.h)
// Every rank reduces the same bytes in rank order, so all ranks decide the same.
#pragma once

#include <cstdint>

#include "shardwise/kernels/types.h"
#include "shardwise/kernels/update.h"

namespace shardwise::kernels {

// One rank's record: this header, then uint8_t written[parameters], then padding to 16 bytes.
struct BoundaryHeader {
  double sum_of_squares = 0.0;  // of this rank's shard, as the gradients are (scaled)
  double weight = 0.0;          // of this rank's samples, such as their tokens
  std::uint64_t order_hash = 0;
  std::uint32_t non_finite = 0;     // 1 if a partial is NaN or infinite
  std::int32_t bad_parameter = -1;  // parameter of the first such chunk
};

// Bytes of one record, a multiple of 16.
constexpr std::int64_t boundary_record_bytes(std::int64_t parameters) {
  return (static_cast<std::int64_t>(sizeof(BoundaryHeader)) + parameters + 15) / 16 * 16;
}

// What a rank says besides its gradients. The pointers are memory of the place.
struct BoundaryInput {
  std::uint64_t order_hash = 0;
  const double* weight = nullptr;         // one number; null: 0
  const std::uint8_t* written = nullptr;  // [parameters]: which got a gradient here; null: all
  std::int64_t parameters = 0;
};

// Writes this rank's record (16-byte aligned, boundary_record_bytes(parameters) long).
// `partials` [table.chunk_count] comes from sum_of_squares; of the table only the chunks are read.
void fill_boundary_record(const Place& place, const ChunkTable& table, const double* partials,
                          const BoundaryInput& input, void* record);

// The dynamic loss scale of DeepSpeed (deepspeed/runtime/fp16/loss_scaler.py). An overflow lowers
// the scale once `hysteresis` overflows are used up; a distance of a multiple of `window` steps
// from the last overflow raises it.
struct LossScaleRule {
  bool dynamic = false;  // false: the scale stays initial_scale (1 for fp32 and bf16)
  double initial_scale = 1.0;
  double factor = 2.0;
  double min_scale = 1.0;
  std::int32_t window = 1000;
  std::int32_t hysteresis = 1;
  bool consecutive_hysteresis = false;
};

// Lives where the gradients are; saved in checkpoints.
struct LossScaleState {
  float scale = 1.0F;
  std::int32_t iteration = 0;
  std::int32_t last_overflow_iteration = -1;
  std::int32_t hysteresis_left = 1;
};

// The state before the first step.
LossScaleState initial_loss_scale_state(const LossScaleRule& rule);

struct BoundaryRule {
  LossScaleRule loss_scale;
  double clip = 0.0;  // largest norm; 0: no clipping. Coefficient min(1, clip / (norm + 1e-6))
  // Multiplies the gradients besides 1 / loss scale, e.g. 1 / (ranks × micro-batches). 1: nothing.
  double gradient_factor = 1.0;
  // Divide the gradients by the sum of the ranks' weights too. A sum of 0 makes them 0.
  bool divide_by_weight = false;
  // true: a non-finite gradient skips the step. false: it is applied; a dynamic loss scale always
  // skips.
  bool skip_non_finite = true;
  // The first ranks, whose records make up the whole gradient; the others hold copies of theirs
  // (replicas, hybrid sharding). 0: all ranks.
  std::int32_t norm_ranks = 0;
};

// What the host may want to know, one copy away. Norms are of the gradient after unscaling and
// gradient_factor.
struct BoundaryResult {
  double norm = 0.0;          // before clipping; NaN or infinite when the gradient is
  double norm_clipped = 0.0;  // norm × clip coefficient
  float loss_scale = 1.0F;    // used in this step
  float next_loss_scale = 1.0F;
  std::int32_t applied = 0;         // 1: the update writes
  std::int32_t overflow = 0;        // 1: a gradient is NaN or infinite on some rank
  std::int32_t at_min_scale = 0;    // 1: overflow although the dynamic scale is at its minimum
  std::int32_t order_mismatch = 0;  // 1: order hashes differ; nothing is applied, no state changes
  // Order mismatch: the first rank whose hash is not the majority's (without majority: not rank
  // 0's). Otherwise the first rank with a non-finite shard. -1: none.
  std::int32_t bad_rank = -1;
  std::int32_t bad_parameter = -1;  // first non-finite parameter of the first such rank, or -1
};

// Reduces `world` records in rank order and decides.
// records: [world] × boundary_record_bytes(parameters). state: in and out.
// active_out [parameters]: 1 where any rank wrote. step [parameters]: incremented where applied and
// active. decision, result: out. All memory of the place.
void finish_boundary(const Place& place, const void* records, int world, std::int64_t parameters,
                     const BoundaryRule& rule, LossScaleState* state, std::uint8_t* active_out,
                     std::int32_t* step, StepDecision* decision, BoundaryResult* result);

}  // namespace shardwise::kernels
