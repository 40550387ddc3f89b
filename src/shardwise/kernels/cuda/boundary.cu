// The boundary in two small kernels of one block each: their work is a few thousand numbers.
#include "shardwise/kernels/boundary_logic.h"
#include "shardwise/kernels/cuda/cuda_kernels.h"
#include "shardwise/kernels/cuda/launch.cuh"

namespace shardwise::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr std::int64_t kNone = 0x7FFFFFFFFFFFFFFF;

__global__ __launch_bounds__(kThreads) void fill_kernel(const ChunkTable table,
                                                        const double* partials,
                                                        const BoundaryInput input,
                                                        std::int64_t record_bytes,
                                                        unsigned char* record) {
  const std::int64_t thread = threadIdx.x;
  double sum = 0.0;
  std::int64_t bad = kNone;
  for (std::int64_t i = thread; i < table.chunk_count; i += kThreads) {
    sum += partials[i];
    bad = bad == kNone && !is_finite(partials[i]) ? i : bad;
  }
  __shared__ double sums[kThreads];
  __shared__ std::int64_t first_bad[kThreads];
  sums[thread] = sum;
  first_bad[thread] = bad;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) {
      sums[thread] += sums[thread + half];
      first_bad[thread] = min(first_bad[thread], first_bad[thread + half]);
    }
  }
  if (thread == 0) {
    BoundaryHeader header;
    header.sum_of_squares = sums[0];
    header.order_hash = input.order_hash;
    header.weight = input.weight == nullptr ? 0.0 : *input.weight;
    if (first_bad[0] != kNone) {
      header.non_finite = 1;
      header.bad_parameter = table.chunks[first_bad[0]].parameter;
    }
    *reinterpret_cast<BoundaryHeader*>(record) = header;
  }
  unsigned char* flags = record + sizeof(BoundaryHeader);
  const std::int64_t room = record_bytes - static_cast<std::int64_t>(sizeof(BoundaryHeader));
  for (std::int64_t i = thread; i < room; i += kThreads) {
    flags[i] = i < input.parameters && (input.written == nullptr || input.written[i] != 0) ? 1 : 0;
  }
}

// Where the decision goes.
struct BoundaryOutputs {
  LossScaleState* state;
  std::uint8_t* active;
  std::int32_t* step;
  StepDecision* decision;
  BoundaryResult* result;
};

__global__ __launch_bounds__(kThreads) void finish_kernel(const BoundaryRecords records,
                                                          std::int64_t parameters,
                                                          const BoundaryRule rule,
                                                          const BoundaryOutputs out) {
  __shared__ int apply;
  if (threadIdx.x == 0) {
    decide(records, rule, *out.state, *out.decision, *out.result);
    apply = out.decision->apply;
  }
  __syncthreads();
  for (std::int64_t i = threadIdx.x; i < parameters; i += kThreads) {
    const std::uint8_t active = records.any_wrote(i);
    out.active[i] = active;
    out.step[i] += apply != 0 && active != 0 ? 1 : 0;
  }
}

}  // namespace

std::vector<int> architectures() {
  std::vector<int> result;
  for (int architecture : {__CUDA_ARCH_LIST__}) {
    result.push_back(architecture / 10);
  }
  return result;
}

void fill_boundary_record(const Place& place, const ChunkTable& table, const double* partials,
                          const BoundaryInput& input, void* record) {
  fill_kernel<<<1, kThreads, 0, stream_of(place)>>>(table, partials, input,
                                                    boundary_record_bytes(input.parameters),
                                                    static_cast<unsigned char*>(record));
  check_launch("fill_boundary_record");
}

void finish_boundary(const Place& place, const BoundaryRecords& records, std::int64_t parameters,
                     const BoundaryRule& rule, LossScaleState* state, std::uint8_t* active_out,
                     std::int32_t* step, StepDecision* decision, BoundaryResult* result) {
  finish_kernel<<<1, kThreads, 0, stream_of(place)>>>(
      records, parameters, rule, BoundaryOutputs{state, active_out, step, decision, result});
  check_launch("finish_boundary");
}

}  // namespace shardwise::kernels::cuda
