#include "shardwise/kernels/update.h"

#include <algorithm>

#include "shardwise/base/check.h"
#include "shardwise/kernels/cpu/loops_choice.h"
#include "shardwise/kernels/cuda/cuda_kernels.h"
#include "shardwise/kernels/scalars.h"

namespace shardwise::kernels {
namespace {

// Elements of 16-bit masters and states that are widened at one time: three fp32 copies stay in the
// first-level cache (12 KB).
constexpr std::int64_t kBlock = 1024;

const char* at_element(const void* base, std::int64_t element, DType dtype) {
  return static_cast<const char*>(base) + element * element_size(dtype);
}

// Whether the update also writes a parameter copy, as an index into UpdateLoops.
int parameter_index(const ShardPointers& shard) {
  const bool copies = shard.parameter != nullptr && shard.parameter != shard.master;
  return copies ? static_cast<int>(shard.parameter_dtype) : cpu::kNoParameter;
}

// A run of elements that the loops see as fp32: the memory itself, or a copy of 16-bit numbers.
class Widened {
 public:
  void read(const cpu::LoopsTable& loops, void* from, DType dtype, std::int64_t n) {
    loops_ = &loops;
    from_ = from;
    dtype_ = dtype;
    n_ = n;
    if (is_copy()) {
      convert(copy_, DType::kFloat32, from_, dtype_);
    }
  }
  float* data() { return is_copy() ? copy_ : static_cast<float*>(from_); }
  void write() {
    if (is_copy()) {
      convert(from_, dtype_, copy_, DType::kFloat32);
    }
  }

 private:
  bool is_copy() const { return from_ != nullptr && dtype_ != DType::kFloat32; }
  void convert(void* out, DType out_dtype, const void* in, DType in_dtype) const {
    loops_->sum_ranked[static_cast<int>(out_dtype)][static_cast<int>(in_dtype)](
        {out, in, /*world=*/1, n_, /*stride=*/n_, /*scale=*/1.0F, /*accumulate=*/false});
  }

  const cpu::LoopsTable* loops_ = nullptr;
  void* from_ = nullptr;
  DType dtype_ = DType::kFloat32;
  std::int64_t n_ = 0;
  alignas(64) float copy_[kBlock];
};

template <typename Scalars>
void update_chunk(const cpu::LoopsTable& loops, const ShardPointers& shard, const Chunk& chunk,
                  const Scalars& scalars) {
  const cpu::UpdateLoops<Scalars>& of_rule = loops;
  const auto loop = of_rule.update[static_cast<int>(shard.gradient_dtype)][parameter_index(shard)];
  const auto at = [](const void* base, std::int64_t element, DType dtype) -> void* {
    return base == nullptr ? nullptr : const_cast<char*>(at_element(base, element, dtype));
  };
  // The master, then the states.
  Widened arrays[3];
  const std::int64_t most = shard.master_dtype == DType::kFloat32 ? chunk.length : kBlock;
  for (std::int64_t done = 0; done < chunk.length; done += most) {
    const std::int64_t n = std::min(most, chunk.length - done);
    const std::int64_t first = chunk.offset + done;
    arrays[0].read(loops, at(shard.master, first, shard.master_dtype), shard.master_dtype, n);
    for (int k = 0; k < Scalars::kStates; ++k) {
      arrays[1 + k].read(loops, at(shard.state[k], first, shard.state_dtype), shard.state_dtype, n);
    }
    loop({.master = arrays[0].data(),
          .state = {arrays[1].data(), arrays[2].data()},
          .gradient = at(shard.gradient, first, shard.gradient_dtype),
          .parameter = at(shard.parameter, first, shard.parameter_dtype),
          .n = n},
         scalars);
    for (int k = 0; k <= Scalars::kStates; ++k) {
      arrays[k].write();
    }
  }
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

}  // namespace

// Consecutive chunks go to one thread.
template <typename Group>
void update(const Place& place, const ChunkTable& table, const std::vector<Group>& groups,
            const StepDecision* decision, const std::uint8_t* active, const std::int32_t* step) {
  if (place.cuda) {
    cuda::update(place, table, groups, decision, active, step);
    return;
  }
  if (decision->apply == 0) {
    return;
  }
  const StepInputs inputs{decision, active, step};
  for (std::int64_t i = 0; i < table.chunk_count; ++i) {
    const Chunk& chunk = table.chunks[i];
    SW_CHECK(chunk.group >= -1 && chunk.group < static_cast<std::int64_t>(groups.size()), "chunk ",
             i, " names group ", chunk.group, " of ", groups.size());
    SW_CHECK(!inputs.moves(chunk) || step[chunk.parameter] >= 1, "parameter ", chunk.parameter,
             " moves with step count ", step[chunk.parameter]);
    SW_CHECK(is_served(table.segments[chunk.segment]), "segment ", chunk.segment,
             " has dtypes that no update serves");
  }
  const cpu::LoopsTable& loops = cpu::choose_loops(place.cpu_level);
  cpu::for_ranges(place, table.chunk_count, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Chunk& chunk = table.chunks[i];
      if (inputs.moves(chunk)) {
        update_chunk(loops, table.segments[chunk.segment], chunk,
                     make_scalars(groups[chunk.group], step[chunk.parameter],
                                  decision->gradient_multiplier));
      }
    }
  });
}

SW_DEFINE_UPDATES

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
