#include <ATen/ATen.h>

#include <algorithm>

#include "shardwise/bench/kernel_timer.h"
#include "shardwise/kernels/boundary.h"
#include "shardwise/kernels/reduce.h"
#include "shardwise/kernels/update.h"

namespace shardwise::bench {
namespace {

using kernels::DType;

template <typename T>
T* as(const at::Tensor& bytes) {
  return reinterpret_cast<T*>(bytes.data_ptr());
}

// One parameter of `n` elements with masters and states, of sizes as in training: of zeros, root
// and division take another way.
struct Shard {
  // Of fp32 or bf16. `narrow`: the parameter is its own master, states are in its dtype too.
  Shard(const KernelTimer& timer, std::int64_t n, DType dtype, bool narrow = false) {
    const at::ScalarType type = dtype == DType::kFloat32 ? at::kFloat : at::kBFloat16;
    const at::ScalarType wide = narrow ? type : at::kFloat;
    arrays[0] = timer.random(n, wide).mul_(0.02);
    arrays[1] = timer.random(n, wide).mul_(1e-3);
    arrays[2] = timer.random(n, wide).mul_(1e-6).abs_();
    arrays[3] = timer.random(n, type).mul_(1e-3);
    arrays[4] = timer.zeros(n, type);
    pointers.master = arrays[0].data_ptr();
    pointers.state[0] = arrays[1].data_ptr();
    pointers.state[1] = arrays[2].data_ptr();
    pointers.gradient = arrays[3].data_ptr();
    pointers.gradient_dtype = pointers.parameter_dtype = dtype;
    pointers.parameter =
        dtype == DType::kFloat32 || narrow ? pointers.master : arrays[4].data_ptr();
    if (narrow) {
      pointers.master_dtype = pointers.state_dtype = dtype;
    }
    std::vector<kernels::Chunk> list;
    for (std::int64_t offset = 0; offset < n; offset += kernels::kMaxChunk) {
      const std::int64_t length = std::min<std::int64_t>(kernels::kMaxChunk, n - offset);
      list.push_back({.offset = offset, .length = static_cast<std::int32_t>(length)});
    }
    chunks = timer.upload(list);
    segments = timer.upload(std::vector{pointers});
    table = {.chunks = as<kernels::Chunk>(chunks),
             .chunk_count = static_cast<std::int64_t>(list.size()),
             .segments = as<kernels::ShardPointers>(segments),
             .segment_count = 1};
  }

  at::Tensor arrays[5];  // master, two states, gradient, 16-bit parameter
  at::Tensor chunks, segments;
  kernels::ShardPointers pointers;
  kernels::ChunkTable table;
};

template <typename Group>
void time_update(KernelTimer& timer, const std::string& name, double bytes, const Shard& shard,
                 const Group& group) {
  const at::Tensor decision = timer.upload(std::vector{kernels::StepDecision{}});
  const at::Tensor step = timer.upload(std::vector<std::int32_t>{100});
  timer.time(name, bytes, [&] {
    kernels::update<Group>(timer.place(), shard.table, {group}, as<kernels::StepDecision>(decision),
                           nullptr, as<std::int32_t>(step));
  });
}

void time_updates(KernelTimer& timer, std::int64_t n) {
  const auto count = static_cast<double>(n);
  const Shard mixed(timer, n, DType::kBFloat16);
  time_update(timer, "Adam, bf16 gradient, bf16 parameter", 28 * count, mixed,
              kernels::AdamGroup{});
  time_update(timer, "Adam, fp32", 28 * count, Shard(timer, n, DType::kFloat32),
              kernels::AdamGroup{});
  time_update(timer, "Adam, all bf16", 14 * count, Shard(timer, n, DType::kBFloat16, true),
              kernels::AdamGroup{});
  time_update(timer, "SGD with momentum, bf16", 20 * count, mixed,
              kernels::SgdGroup{.momentum = 0.9});
}

void time_sums(KernelTimer& timer, std::int64_t n) {
  const auto count = static_cast<double>(n);
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    const Shard shard(timer, n, dtype);
    const at::Tensor partials = timer.zeros(shard.table.chunk_count, at::kDouble);
    timer.time(dtype == DType::kFloat32 ? "sum of squares, fp32" : "sum of squares, bf16",
               static_cast<double>(kernels::element_size(dtype)) * count,
               [&] { sum_of_squares(timer.place(), shard.table, partials.data_ptr<double>()); });
  }
  const at::Tensor narrow = timer.random(n);
  const at::Tensor quarter = timer.random(n / 4);
  const at::Tensor wide = timer.zeros(n, at::kFloat);
  timer.time("sum over 4 ranks, bf16", 2.5 * count, [&] {
    sum_ranked(timer.place(), quarter.data_ptr(), DType::kBFloat16, narrow.data_ptr(),
               DType::kBFloat16, 4, n / 4, 0.25, /*accumulate=*/false);
  });
  timer.time("bf16 added to fp32", 10 * count, [&] {
    convert(timer.place(), wide.data_ptr(), DType::kFloat32, narrow.data_ptr(), DType::kBFloat16, n,
            /*accumulate=*/true);
  });
}

void time_boundary(KernelTimer& timer, std::int64_t n) {
  constexpr std::int64_t kParameters = 1000;
  constexpr int kWorld = 8;
  const Shard shard(timer, n, DType::kBFloat16);
  const at::Tensor partials = timer.zeros(shard.table.chunk_count, at::kDouble);
  const at::Tensor records =
      timer.zeros(kWorld * kernels::boundary_record_bytes(kParameters), at::kByte);
  const at::Tensor state = timer.upload(std::vector{kernels::LossScaleState{}});
  const at::Tensor active = timer.zeros(kParameters, at::kByte);
  const at::Tensor steps = timer.zeros(kParameters, at::kInt);
  const at::Tensor decision = timer.upload(std::vector{kernels::StepDecision{}});
  const at::Tensor result = timer.upload(std::vector{kernels::BoundaryResult{}});
  timer.time("record of a rank, 1000 parameters", 0, [&] {
    fill_boundary_record(timer.place(), shard.table, partials.data_ptr<double>(),
                         {.parameters = kParameters}, records.data_ptr());
  });
  timer.time("decision, 8 ranks, 1000 parameters", 0, [&] {
    finish_boundary(timer.place(), records.data_ptr(), kWorld, kParameters, {},
                    as<kernels::LossScaleState>(state), active.data_ptr<std::uint8_t>(),
                    steps.data_ptr<std::int32_t>(), as<kernels::StepDecision>(decision),
                    as<kernels::BoundaryResult>(result));
  });
}

}  // namespace

void time_step_end_kernels(KernelTimer& timer, const KernelBenchOptions& options) {
  time_updates(timer, options.elements);
  time_sums(timer, options.elements);
  time_boundary(timer, options.elements);
}

}  // namespace shardwise::bench
