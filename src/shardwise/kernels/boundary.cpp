#include "shardwise/kernels/boundary.h"

#include <cstring>

#include "shardwise/base/check.h"
#include "shardwise/kernels/boundary_logic.h"
#include "shardwise/kernels/cuda/cuda_kernels.h"

namespace shardwise::kernels {

LossScaleState initial_loss_scale_state(const LossScaleRule& rule) {
  LossScaleState state;
  state.scale = static_cast<float>(rule.initial_scale);
  state.hysteresis_left = rule.hysteresis;
  return state;
}

void fill_boundary_record(const Place& place, const ChunkTable& table, const double* partials,
                          const BoundaryInput& input, void* record) {
  if (place.cuda) {
    cuda::fill_boundary_record(place, table, partials, input, record);
    return;
  }
  BoundaryHeader header;
  header.order_hash = input.order_hash;
  header.weight = input.weight == nullptr ? 0.0 : *input.weight;
  for (std::int64_t i = 0; i < table.chunk_count; ++i) {
    header.sum_of_squares += partials[i];
    if (header.non_finite == 0 && !is_finite(partials[i])) {
      header.non_finite = 1;
      header.bad_parameter = table.chunks[i].parameter;
    }
  }
  auto* bytes = static_cast<std::uint8_t*>(record);
  std::memset(bytes, 0, boundary_record_bytes(input.parameters));
  std::memcpy(bytes, &header, sizeof(header));
  std::uint8_t* flags = bytes + sizeof(header);
  for (std::int64_t i = 0; i < input.parameters; ++i) {
    flags[i] = input.written == nullptr || input.written[i] != 0 ? 1 : 0;
  }
}

void finish_boundary(const Place& place, const void* records, int world, std::int64_t parameters,
                     const BoundaryRule& rule, LossScaleState* state, std::uint8_t* active_out,
                     std::int32_t* step, StepDecision* decision, BoundaryResult* result) {
  SW_CHECK_GE(world, 1);
  const BoundaryRecords all{static_cast<const unsigned char*>(records),
                            boundary_record_bytes(parameters), world};
  if (place.cuda) {
    cuda::finish_boundary(place, all, parameters, rule, state, active_out, step, decision, result);
    return;
  }
  decide(all, rule, *state, *decision, *result);
  for (std::int64_t i = 0; i < parameters; ++i) {
    active_out[i] = all.any_wrote(i);
    step[i] += decision->apply != 0 && active_out[i] != 0 ? 1 : 0;
  }
}

}  // namespace shardwise::kernels
