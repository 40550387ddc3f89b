// A chunk is updated by several blocks. The groups travel in the kernel's arguments,
// kGroupsPerLaunch at a time.
#include <algorithm>
#include <type_traits>

#include "shardwise/kernels/cuda/cuda_kernels.h"
#include "shardwise/kernels/cuda/launch.cuh"
#include "shardwise/kernels/cuda/vectors.cuh"
#include "shardwise/kernels/formulas.h"

namespace shardwise::kernels::cuda {
namespace {

// Four blocks a multiprocessor of at most 64 registers a thread keep 1024 threads with 100 bytes of
// loads each in flight: several times what latency × bandwidth of an H200 asks for.
constexpr int kThreads = 256;
constexpr int kBlocksPerMultiprocessor = 4;

// Blocks of a chunk. A block has a quarter of the largest chunk, so that multiprocessors end at
// about the same time: one block for a chunk was 4 % slower on an H200 (2^28 elements, Adam in
// bf16).
constexpr int kPieces = 4;

// 48 bytes each: within the 4 KB that every architecture takes as arguments.
constexpr int kGroupsPerLaunch = 32;

template <typename Group>
struct GroupBatch {
  Group groups[kGroupsPerLaunch];
  int first;
  int count;
};

// The arrays of one chunk, at its first element: gradients, masters, states and the parameter copy.
template <typename G, typename M, typename S, typename P>
struct ChunkArrays {
  M* master;
  S* state[2];
  const G* gradient;
  P* parameter;

  __device__ __forceinline__ ChunkArrays(const ShardPointers& shard, std::int64_t offset)
      : master(static_cast<M*>(shard.master) + offset),
        state{static_cast<S*>(shard.state[0]) + offset, static_cast<S*>(shard.state[1]) + offset},
        gradient(static_cast<const G*>(shard.gradient) + offset),
        parameter(static_cast<P*>(shard.parameter) + offset) {}

  template <int kStates>
  __device__ __forceinline__ bool aligned4(int at) const {
    bool aligned = is_aligned4(master + at) && is_aligned4(gradient + at);
    for (int k = 0; k < kStates; ++k) {
      aligned = aligned && is_aligned4(state[k] + at);
    }
    if constexpr (!std::is_same_v<P, Nothing>) {
      aligned = aligned && is_aligned4(parameter + at);
    }
    return aligned;
  }
};

template <typename Scalars, typename G, typename M, typename S, typename P>
__device__ __forceinline__ void update_one(const ChunkArrays<G, M, S, P>& a, const Scalars& s,
                                           int i) {
  float p = to_float32(a.master[i]);
  float state[2] = {};
  for (int k = 0; k < Scalars::kStates; ++k) {
    state[k] = to_float32(a.state[k][i]);
  }
  update_element(s, to_float32(a.gradient[i]), p, state);
  from_float32(p, a.master + i);
  for (int k = 0; k < Scalars::kStates; ++k) {
    from_float32(state[k], a.state[k] + i);
  }
  if constexpr (!std::is_same_v<P, Nothing>) {
    from_float32(p, a.parameter + i);
  }
}

// Four neighbouring elements in registers; loading is apart from the rest so that two quads can be
// in flight.
template <typename Scalars>
struct Quad {
  Floats4 p;
  Floats4 state[2];
  Floats4 g;

  template <typename Arrays>
  __device__ __forceinline__ void load(const Arrays& a, int i) {
    g = load4(a.gradient + i);
    p = load4(a.master + i);
    for (int k = 0; k < Scalars::kStates; ++k) {
      state[k] = load4(a.state[k] + i);
    }
  }

  template <typename G, typename M, typename S, typename P>
  __device__ __forceinline__ void update_and_store(const ChunkArrays<G, M, S, P>& a,
                                                   const Scalars& s, int i) {
#pragma unroll
    for (int lane = 0; lane < 4; ++lane) {
      float one[2] = {};
      for (int k = 0; k < Scalars::kStates; ++k) {
        one[k] = state[k].at[lane];
      }
      update_element(s, g.at[lane], p.at[lane], one);
      for (int k = 0; k < Scalars::kStates; ++k) {
        state[k].at[lane] = one[k];
      }
    }
    store4(p, a.master + i);
    for (int k = 0; k < Scalars::kStates; ++k) {
      store4(state[k], a.state[k] + i);
    }
    if constexpr (!std::is_same_v<P, Nothing>) {
      store4(p, a.parameter + i);
    }
  }
};

template <typename G, typename M, typename S, typename P, typename Scalars>
__device__ __forceinline__ void update_chunk(const ShardPointers& shard, const Chunk& chunk,
                                             const Scalars& s) {
  const ChunkArrays<G, M, S, P> a(shard, chunk.offset);
  const int n = chunk.length;
  const int thread = static_cast<int>(threadIdx.x);
  // Chunks of packed parameters may begin anywhere: up to three elements come first, one by one.
  int head = static_cast<int>(-chunk.offset & 3);
  head = head < n ? head : n;
  const int end = a.template aligned4<Scalars::kStates>(head) ? head + (n - head) / 4 * 4 : head;
  constexpr int kQuadsApart = 4 * kThreads;
  int i = head + 4 * thread;
  for (; i + kQuadsApart < end; i += 2 * kQuadsApart) {
    Quad<Scalars> first;
    Quad<Scalars> second;
    first.load(a, i);
    second.load(a, i + kQuadsApart);
    first.update_and_store(a, s, i);
    second.update_and_store(a, s, i + kQuadsApart);
  }
  if (i < end) {
    Quad<Scalars> quad;
    quad.load(a, i);
    quad.update_and_store(a, s, i);
  }
  if (thread < head) {
    update_one(a, s, thread);
  }
  for (int k = end + thread; k < n; k += kThreads) {
    update_one(a, s, k);
  }
}

// A 16-bit master without a copy; see is_served.
template <typename G, typename M, typename Scalars>
__device__ __forceinline__ void choose_state(const ShardPointers& shard, const Chunk& chunk,
                                             const Scalars& s) {
  if constexpr (std::is_same_v<G, float> || std::is_same_v<G, M>) {
    if (Scalars::kStates == 0 || shard.state_dtype == DType::kFloat32) {
      update_chunk<G, M, float, Nothing>(shard, chunk, s);
    } else {
      update_chunk<G, M, M, Nothing>(shard, chunk, s);
    }
  }
}

template <typename G, typename Scalars>
__device__ __forceinline__ void choose_weights(const ShardPointers& shard, const Chunk& chunk,
                                               const Scalars& s) {
  if (shard.master_dtype == DType::kFloat16) {
    choose_state<G, Half>(shard, chunk, s);
  } else if (shard.master_dtype == DType::kBFloat16) {
    choose_state<G, BFloat16>(shard, chunk, s);
  } else if (shard.parameter == nullptr || shard.parameter == shard.master) {
    update_chunk<G, float, float, Nothing>(shard, chunk, s);
  } else if (shard.parameter_dtype == DType::kFloat32) {
    update_chunk<G, float, float, float>(shard, chunk, s);
  } else if (shard.parameter_dtype == DType::kFloat16) {
    update_chunk<G, float, float, Half>(shard, chunk, s);
  } else {
    update_chunk<G, float, float, BFloat16>(shard, chunk, s);
  }
}

template <typename Scalars>
__device__ __forceinline__ void choose_gradient(const ShardPointers& shard, const Chunk& chunk,
                                                const Scalars& s) {
  if constexpr (!std::is_void_v<typename Scalars::Stateless>) {
    if (!s.keeps_state) {
      choose_gradient(shard, chunk, typename Scalars::Stateless{s});
      return;
    }
  }
  if (shard.gradient_dtype == DType::kFloat32) {
    choose_weights<float>(shard, chunk, s);
  } else if (shard.gradient_dtype == DType::kFloat16) {
    choose_weights<Half>(shard, chunk, s);
  } else {
    choose_weights<BFloat16>(shard, chunk, s);
  }
}

// What the blocks of a launch share besides the groups.
struct UpdateArguments {
  ChunkTable table;
  const StepDecision* decision;
  const std::uint8_t* active;
  const std::int32_t* step;
};

// The block's index into the batch, or −1 if its chunk does not move in this launch.
template <typename Group>
__device__ __forceinline__ int index_in_batch(const UpdateArguments& arguments, const Chunk& chunk,
                                              const GroupBatch<Group>& batch) {
  const bool active = arguments.active == nullptr || arguments.active[chunk.parameter] != 0;
  const int index = chunk.group - batch.first;
  return active && arguments.decision->apply != 0 && index >= 0 && index < batch.count ? index : -1;
}

// Pieces begin at multiples of eight elements of the chunk. Those of a short chunk may be empty.
__device__ __forceinline__ Chunk piece_of(Chunk chunk, int piece) {
  constexpr int kEight = 8;
  const int most = (chunk.length + kPieces * kEight - 1) / (kPieces * kEight) * kEight;
  const int begin = piece * most;
  chunk.offset += begin;
  chunk.length = std::min(most, chunk.length - begin);
  return chunk;
}

// One thread prepares the scalars, since powers in double are slow. Dtypes that no update serves
// stop the program: the host cannot see them.
template <typename Group>
__global__ __launch_bounds__(kThreads, kBlocksPerMultiprocessor) void update_kernel(
    const UpdateArguments arguments, const __grid_constant__ GroupBatch<Group> batch) {
  using Scalars = decltype(make_scalars(Group{}, 0, 0.0F));
  const Chunk chunk = piece_of(arguments.table.chunks[blockIdx.x / kPieces],
                               static_cast<int>(blockIdx.x % kPieces));
  const int index = index_in_batch(arguments, chunk, batch);
  if (index < 0 || chunk.length <= 0) {
    return;
  }
  __shared__ Scalars scalars;
  if (threadIdx.x == 0) {
    scalars = make_scalars(batch.groups[index], arguments.step[chunk.parameter],
                           arguments.decision->gradient_multiplier);
  }
  __syncthreads();
  const Scalars s = scalars;
  const ShardPointers shard = arguments.table.segments[chunk.segment];
  if (!is_served(shard)) {
    __trap();
  }
  choose_gradient(shard, chunk, s);
}

// Elements come in eights, thread by thread, wherever the chunk begins: the order of the sum
// depends on the length only.
template <typename G>
__device__ __forceinline__ double thread_square_sum(const G* gradient, int n) {
  constexpr int kEight = 8;
  double sums[2] = {0.0, 0.0};
  const bool aligned = is_aligned4(gradient);
  for (int i = kEight * static_cast<int>(threadIdx.x); i < n; i += kEight * kThreads) {
    float values[kEight] = {};
    if (aligned && i + kEight <= n) {
      *reinterpret_cast<Floats4*>(values) = load4(gradient + i);
      *reinterpret_cast<Floats4*>(values + 4) = load4(gradient + i + 4);
    } else {
#pragma unroll
      for (int k = 0; k < kEight; ++k) {
        values[k] = i + k < n ? to_float32(gradient[i + k]) : 0.0F;
      }
    }
#pragma unroll
    for (int k = 0; k < kEight; ++k) {
      const double value = values[k];
      sums[k & 1] = fma(value, value, sums[k & 1]);
    }
  }
  return sums[0] + sums[1];
}

__global__ __launch_bounds__(kThreads) void sum_of_squares_kernel(const ChunkTable table,
                                                                  double* partials) {
  const Chunk chunk = table.chunks[blockIdx.x];
  const ShardPointers shard = table.segments[chunk.segment];
  double sum = 0.0;
  if (shard.gradient_dtype == DType::kFloat32) {
    sum = thread_square_sum(static_cast<const float*>(shard.gradient) + chunk.offset, chunk.length);
  } else if (shard.gradient_dtype == DType::kFloat16) {
    sum = thread_square_sum(static_cast<const Half*>(shard.gradient) + chunk.offset, chunk.length);
  } else {
    sum = thread_square_sum(static_cast<const BFloat16*>(shard.gradient) + chunk.offset,
                            chunk.length);
  }
  __shared__ double lanes[kThreads];
  lanes[threadIdx.x] = sum;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) {
      lanes[threadIdx.x] += lanes[threadIdx.x + half];
    }
  }
  if (threadIdx.x == 0) {
    partials[blockIdx.x] = lanes[0];
  }
}

}  // namespace

// One launch for each batch of groups.
template <typename Group>
void update(const Place& place, const ChunkTable& table, const std::vector<Group>& groups,
            const StepDecision* decision, const std::uint8_t* active, const std::int32_t* step) {
  if (table.chunk_count == 0) {
    return;
  }
  const auto count = static_cast<int>(groups.size());
  for (int first = 0; first < count; first += kGroupsPerLaunch) {
    GroupBatch<Group> batch = {};
    batch.first = first;
    batch.count = std::min(kGroupsPerLaunch, count - first);
    std::copy_n(groups.begin() + first, batch.count, batch.groups);
    update_kernel<<<grid_size(table.chunk_count * kPieces), kThreads, 0, stream_of(place)>>>(
        UpdateArguments{table, decision, active, step}, batch);
    check_launch("update");
  }
}

SW_DEFINE_UPDATES

void sum_of_squares(const Place& place, const ChunkTable& table, double* partials) {
  if (table.chunk_count == 0) {
    return;
  }
  sum_of_squares_kernel<<<grid_size(table.chunk_count), kThreads, 0, stream_of(place)>>>(table,
                                                                                         partials);
  check_launch("sum_of_squares");
}

}  // namespace shardwise::kernels::cuda
