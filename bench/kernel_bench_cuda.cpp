// The CUDA kernels of the end of a step: updates, norms, sums over ranks, the decision.
//   kernel_bench_cuda [Mi elements, default 256]
#include <algorithm>
#include <cstdlib>
#include <vector>

#include "cuda_bench.h"
#include "shardwise/kernels/boundary.h"
#include "shardwise/kernels/reduce.h"
#include "shardwise/kernels/update.h"

namespace {

using namespace shardwise::kernels;  // a program of its own
using shardwise::bench::Bench;
using shardwise::bench::device_memory;
using shardwise::bench::upload;

struct Shard {
  // `narrow`: the parameter is its own master, states are in its dtype too.
  Shard(std::int64_t n, DType gradient_dtype, DType parameter_dtype, bool narrow = false) {
    pointers.master = device_memory(4 * n);
    pointers.state[0] = device_memory(4 * n);
    pointers.state[1] = device_memory(4 * n);
    pointers.gradient = device_memory(4 * n);
    pointers.gradient_dtype = gradient_dtype;
    pointers.parameter_dtype = parameter_dtype;
    pointers.parameter =
        parameter_dtype == DType::kFloat32 || narrow ? pointers.master : device_memory(2 * n);
    if (narrow) {
      pointers.master_dtype = parameter_dtype;
      pointers.state_dtype = parameter_dtype;
    }
    std::vector<Chunk> chunks;
    for (std::int64_t offset = 0; offset < n; offset += kMaxChunk) {
      const std::int64_t length = std::min<std::int64_t>(kMaxChunk, n - offset);
      chunks.push_back({offset, static_cast<std::int32_t>(length), 0, 0, 0});
    }
    table = {upload(chunks.data(), chunks.size()), static_cast<std::int64_t>(chunks.size()),
             upload(&pointers, 1), 1};
  }
  ShardPointers pointers;
  ChunkTable table;
};

void measure_updates(Bench& bench, std::int64_t n) {
  const Place& place = bench.place;
  const StepDecision decision;
  const std::int32_t step = 100;
  const StepDecision* device_decision = upload(&decision, 1);
  const std::int32_t* device_step = upload(&step, 1);
  const auto count = static_cast<double>(n);
  Shard mixed(n, DType::kBFloat16, DType::kBFloat16);
  Shard single(n, DType::kFloat32, DType::kFloat32);
  Shard narrow(n, DType::kBFloat16, DType::kBFloat16, true);
  auto* partials = static_cast<double*>(device_memory(8 * mixed.table.chunk_count));
  bench.report("Adam, bf16 gradient, bf16 parameter", 28 * count, [&] {
    update<AdamGroup>(place, mixed.table, {AdamGroup{}}, device_decision, nullptr, device_step);
  });
  bench.report("Adam, fp32", 28 * count, [&] {
    update<AdamGroup>(place, single.table, {AdamGroup{}}, device_decision, nullptr, device_step);
  });
  bench.report("Adam, all bf16", 14 * count, [&] {
    update<AdamGroup>(place, narrow.table, {AdamGroup{}}, device_decision, nullptr, device_step);
  });
  bench.report("SGD with momentum, bf16", 20 * count, [&] {
    update<SgdGroup>(place, mixed.table, {SgdGroup{1e-3, 0.9}}, device_decision, nullptr,
                     device_step);
  });
  bench.report("sum_of_squares, bf16", 2 * count,
               [&] { sum_of_squares(place, mixed.table, partials); });
  bench.report("sum_of_squares, fp32", 4 * count,
               [&] { sum_of_squares(place, single.table, partials); });
  bench.report("sum_ranked, 4 ranks, bf16", 2.5 * count, [&] {
    sum_ranked(place, mixed.pointers.parameter, DType::kBFloat16, mixed.pointers.gradient,
               DType::kBFloat16, 4, n / 4, 0.25, false);
  });
  bench.report("convert, bf16 added to fp32", 10 * count, [&] {
    convert(place, mixed.pointers.state[0], DType::kFloat32, mixed.pointers.gradient,
            DType::kBFloat16, n, true);
  });

  constexpr std::int64_t kParameters = 1000;
  constexpr int kWorld = 8;
  const std::int64_t bytes = kWorld * boundary_record_bytes(kParameters);
  void* records = device_memory(bytes);
  const LossScaleState state;
  LossScaleState* device_state = upload(&state, 1);
  auto* active = static_cast<std::uint8_t*>(device_memory(kParameters));
  auto* steps = static_cast<std::int32_t*>(device_memory(4 * kParameters));
  auto* made = static_cast<StepDecision*>(device_memory(sizeof(StepDecision)));
  auto* result = static_cast<BoundaryResult*>(device_memory(sizeof(BoundaryResult)));
  bench.report("fill_boundary_record", 0, [&] {
    fill_boundary_record(place, mixed.table, partials, {.parameters = kParameters}, records);
  });
  bench.report("finish_boundary, 8 ranks, 1000 parameters", 0, [&] {
    finish_boundary(place, records, kWorld, kParameters, BoundaryRule{}, device_state, active,
                    steps, made, result);
  });
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t mi = argc > 1 ? std::atoll(argv[1]) : 256;
  Bench bench;
  measure_updates(bench, std::max<std::int64_t>(mi, 1) << 20);
}
