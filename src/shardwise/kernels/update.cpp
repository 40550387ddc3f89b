#include "shardwise/kernels/update.h"

#include "shardwise/base/check.h"
#include "shardwise/kernels/cpu/loops_choice.h"
#include "shardwise/kernels/cuda/cuda_kernels.h"
#include "shardwise/kernels/scalars.h"

namespace shardwise::kernels {
namespace {

const char* at_element(const void* base, std::int64_t element, DType dtype) {
  return static_cast<const char*>(base) + element * element_size(dtype);
}

// Whether the update also writes a parameter copy, as an index into LoopsTable.
int parameter_index(const ShardPointers& shard) {
  const bool copies = shard.parameter != nullptr && shard.parameter != shard.master;
  return copies ? static_cast<int>(shard.parameter_dtype) : cpu::kNoParameter;
}

cpu::UpdateRun make_run(const ShardPointers& shard, const Chunk& chunk) {
  cpu::UpdateRun run;
  run.master = shard.master + chunk.offset;
  run.state0 = shard.state[0] == nullptr ? nullptr : shard.state[0] + chunk.offset;
  run.state1 = shard.state[1] == nullptr ? nullptr : shard.state[1] + chunk.offset;
  run.gradient = at_element(shard.gradient, chunk.offset, shard.gradient_dtype);
  run.parameter =
      shard.parameter == nullptr
          ? nullptr
          : const_cast<char*>(at_element(shard.parameter, chunk.offset, shard.parameter_dtype));
  run.n = chunk.length;
  return run;
}

// What decides whether and how a chunk moves.
struct StepInputs {
  const StepDecision* decision;
  const std::uint8_t* active;
  const std::int32_t* step;

  bool moves(const Chunk& chunk) const {
    return chunk.group >= 0 && (active == nullptr || active[chunk.parameter] != 0);
  }
};

// Scalars and loops of one rule.
template <typename Group, typename Scalars>
struct Rule {
  Scalars (*scalars)(const Group&, std::int32_t step, float multiplier);
  const cpu::UpdateLoop<Scalars> (&loops)[cpu::kDTypes][cpu::kDTypes + 1];
};

// Updates every chunk that moves. Consecutive chunks go to one thread.
template <typename Group, typename Scalars>
void update_chunks(const Place& place, const ChunkTable& table, const std::vector<Group>& groups,
                   const StepInputs& inputs, const Rule<Group, Scalars>& rule) {
  if (inputs.decision->apply == 0) {
    return;
  }
  for (std::int64_t i = 0; i < table.chunk_count; ++i) {
    const Chunk& chunk = table.chunks[i];
    SW_CHECK(chunk.group >= -1 && chunk.group < static_cast<std::int64_t>(groups.size()), "chunk ",
             i, " names group ", chunk.group, " of ", groups.size());
    SW_CHECK(!inputs.moves(chunk) || inputs.step[chunk.parameter] >= 1, "parameter ",
             chunk.parameter, " moves with step count ", inputs.step[chunk.parameter]);
  }
  cpu::for_ranges(place, table.chunk_count, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Chunk& chunk = table.chunks[i];
      if (inputs.moves(chunk)) {
        const ShardPointers& shard = table.segments[chunk.segment];
        const Scalars scalars = rule.scalars(groups[chunk.group], inputs.step[chunk.parameter],
                                             inputs.decision->gradient_multiplier);
        rule.loops[static_cast<int>(shard.gradient_dtype)][parameter_index(shard)](
            make_run(shard, chunk), scalars);
      }
    }
  });
}

}  // namespace

void adam_update(const Place& place, const ChunkTable& table, const std::vector<AdamGroup>& groups,
                 const StepDecision* decision, const std::uint8_t* active,
                 const std::int32_t* step) {
  if (place.cuda) {
    cuda::adam_update(place, table, groups, decision, active, step);
    return;
  }
  update_chunks(
      place, table, groups, {decision, active, step},
      Rule<AdamGroup, AdamScalars>{adam_scalars, cpu::choose_loops(place.cpu_level).adam});
}

void sgd_update(const Place& place, const ChunkTable& table, const std::vector<SgdGroup>& groups,
                const StepDecision* decision, const std::uint8_t* active,
                const std::int32_t* step) {
  if (place.cuda) {
    cuda::sgd_update(place, table, groups, decision, active, step);
    return;
  }
  update_chunks(place, table, groups, {decision, active, step},
                Rule<SgdGroup, SgdScalars>{sgd_scalars, cpu::choose_loops(place.cpu_level).sgd});
}

void lion_update(const Place& place, const ChunkTable& table, const std::vector<LionGroup>& groups,
                 const StepDecision* decision, const std::uint8_t* active,
                 const std::int32_t* step) {
  if (place.cuda) {
    cuda::lion_update(place, table, groups, decision, active, step);
    return;
  }
  update_chunks(
      place, table, groups, {decision, active, step},
      Rule<LionGroup, LionScalars>{lion_scalars, cpu::choose_loops(place.cpu_level).lion});
}

void adagrad_update(const Place& place, const ChunkTable& table,
                    const std::vector<AdagradGroup>& groups, const StepDecision* decision,
                    const std::uint8_t* active, const std::int32_t* step) {
  if (place.cuda) {
    cuda::adagrad_update(place, table, groups, decision, active, step);
    return;
  }
  update_chunks(place, table, groups, {decision, active, step},
                Rule<AdagradGroup, AdagradScalars>{adagrad_scalars,
                                                   cpu::choose_loops(place.cpu_level).adagrad});
}

void sum_of_squares(const Place& place, const ChunkTable& table, double* partials) {
  if (place.cuda) {
    cuda::sum_of_squares(place, table, partials);
    return;
  }
  const cpu::LoopsTable& loops = cpu::choose_loops(place.cpu_level);
  cpu::for_ranges(place, table.chunk_count, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Chunk& chunk = table.chunks[i];
      const ShardPointers& shard = table.segments[chunk.segment];
      partials[i] = loops.sum_of_squares[static_cast<int>(shard.gradient_dtype)](
          at_element(shard.gradient, chunk.offset, shard.gradient_dtype), chunk.length);
    }
  });
}

}  // namespace shardwise::kernels
