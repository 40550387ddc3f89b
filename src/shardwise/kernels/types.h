// What every kernel takes: where it runs, and which memory it works on. No torch here: pointers,
// shapes, a stream.
//
// Contract of all functions in this module
// - CUDA: they launch on `Place::stream` of the current device, never wait for the host, never
//   allocate; every pointer is device memory (pinned host memory also works) unless its comment
//   says "host". A launch that fails throws InternalError with CUDA's text. Without CUDA in the
//   build a call with `cuda == true` throws InternalError.
// - CPU: they return when the work is done. Thread-safe for calls on disjoint memory.
// - Results have the same bits for every CPU level, every number of threads and, except for sums of
//   squares, on CUDA (NaN payloads aside). The layers' functions keep their bits for every number
//   of threads and from run to run, but differ between the CPU and CUDA by roundings of fp32: they
//   sum in another order and use other exponentials.
#pragma once

#include <cstdint>
#include <functional>

namespace shardwise::kernels {

// kFloat64 is taken by the layers' functions on the CPU only (norm.h, rope.h, activation.h,
// cross_entropy.h, embedding.h), so that their gradients can be checked by finite differences.
enum class DType : std::uint8_t { kFloat32, kFloat16, kBFloat16, kFloat64 };

// Bytes of one element.
constexpr std::int64_t element_size(DType dtype) {
  return dtype == DType::kFloat64 ? 8 : dtype == DType::kFloat32 ? 4 : 2;
}

// parallel_for(n, grain, body) calls body(begin, end) on disjoint ranges that cover [0, n), each of
// `grain` items or more except the last, from any threads, and returns when all are done.
using ParallelFor =
    std::function<void(std::int64_t n, std::int64_t grain,
                       const std::function<void(std::int64_t begin, std::int64_t end)>& body)>;

// Instruction set of the CPU kernels; kAuto takes the best that the machine has (see dispatch.h).
enum class CpuLevel : std::uint8_t { kAuto, kScalar, kAvx2, kAvx512 };

// Where a kernel runs.
struct Place {
  bool cuda = false;
  void* stream = nullptr;                     // a cudaStream_t; unused on the CPU
  const ParallelFor* parallel_for = nullptr;  // CPU only; null or empty: the calling thread alone
  CpuLevel cpu_level = CpuLevel::kAuto;       // CPU only; the machine must have it
};

// Most elements of one chunk, or about 1.8 MB of update traffic. Large enough to spread the cost of
// starting its CUDA blocks, small enough to balance 132 multiprocessors.
inline constexpr std::int32_t kMaxChunk = 65536;

// One run of one parameter inside this rank's shard of one segment. A parameter longer than
// kMaxChunk has several chunks; padding belongs to none and is never read or written. Chunks that
// begin at a multiple of 8 elements run fastest.
struct Chunk {
  std::int64_t offset = 0;     // elements from the shard's start
  std::int32_t length = 0;     // elements, 0 … kMaxChunk
  std::int32_t segment = 0;    // index into ChunkTable::segments
  std::int32_t group = 0;      // index into the groups of the update rule; -1: does not move
  std::int32_t parameter = 0;  // index into `active`, `step` and `written`
};

// The shard of one segment. All pointers point at the shard's first element.
struct ShardPointers {
  void* parameter = nullptr;  // may equal `master` or be null: then only master is written
  void* master = nullptr;
  void* state[2] = {nullptr, nullptr};  // see the rules in update.h; unused ones may be null
  const void* gradient = nullptr;
  DType parameter_dtype = DType::kFloat32;
  DType gradient_dtype = DType::kFloat32;
  DType master_dtype = DType::kFloat32;
  DType state_dtype = DType::kFloat32;  // of both
};

// Whether the update serves these dtypes. With fp32 masters: fp32 states, any gradient and any copy
// of the parameter. With 16-bit masters: no copy besides, states and gradient in fp32 or the
// master's dtype.
constexpr bool is_served(const ShardPointers& shard) {
  if (shard.master_dtype == DType::kFloat32) {
    return shard.state_dtype == DType::kFloat32;
  }
  const auto fits = [&](DType dtype) {
    return dtype == DType::kFloat32 || dtype == shard.master_dtype;
  };
  return fits(shard.state_dtype) && fits(shard.gradient_dtype) &&
         (shard.parameter == nullptr || shard.parameter == shard.master);
}

// On CUDA both arrays lie in device memory; the table itself is passed by value.
struct ChunkTable {
  const Chunk* chunks = nullptr;
  std::int64_t chunk_count = 0;
  const ShardPointers* segments = nullptr;
  std::int64_t segment_count = 0;
};

}  // namespace shardwise::kernels
