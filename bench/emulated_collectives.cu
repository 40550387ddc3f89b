// Collectives as they weigh on a GPU that has no other beside it: gathers and reduce-scatters of
// one rank hold as many multiprocessors, for as long, as NCCL's do between GPUs, and copy the
// numbers. To compare ways of launching collectives where there is one GPU:
//
//   nvcc -arch=native -shared -Xcompiler -fPIC bench/emulated_collectives.cu -o emulated.so
//   LD_PRELOAD=$PWD/emulated.so shardwise bench train --shape llama-1b --rows forced --breakdown
#include <cuda_runtime.h>

#include <cstddef>

namespace {

constexpr int kThreads = 640;  // NCCL's, as is the memory: a multiprocessor each
constexpr int kSharedBytes = 100 * 1024;
constexpr int kBlocks = 24;
constexpr double kNanosecondsOfByte = 400e3 / 122e6;  // 400 us for the parameters of a block
constexpr std::size_t kSmall = 1'000'000;             // fewer bytes are one block's
constexpr std::size_t kWidths[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};  // by ncclDataType_t

__device__ unsigned long long now() {
  unsigned long long nanoseconds;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(nanoseconds));
  return nanoseconds;
}

// The name has the beginning of NCCL's, so that breakdowns count it as communication.
__global__ __launch_bounds__(kThreads,
                             1) void ncclDevKernel_Emulated(char* to, const char* from,
                                                            std::size_t bytes,
                                                            unsigned long long nanoseconds) {
  extern __shared__ char held[];
  const unsigned long long begin = now();
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  const std::size_t thread = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::size_t wide = to == from ? 0 : bytes / sizeof(uint4);
  for (std::size_t i = thread; i < wide; i += step) {
    reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
  }
  for (std::size_t i = wide * sizeof(uint4) + thread; to != from && i < bytes; i += step) {
    to[i] = from[i];
  }
  while (now() - begin < nanoseconds) {
    __nanosleep(200);
  }
}

int launch(const void* from, void* to, std::size_t bytes, cudaStream_t stream) {
  static const cudaError_t prepared = cudaFuncSetAttribute(
      ncclDevKernel_Emulated, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  const double nanoseconds = kNanosecondsOfByte * static_cast<double>(bytes);
  const int grid = bytes > kSmall ? kBlocks : 1;
  ncclDevKernel_Emulated<<<grid, kThreads, kSharedBytes, stream>>>(
      static_cast<char*>(to), static_cast<const char*>(from), bytes,
      static_cast<unsigned long long>(nanoseconds));
  return prepared == cudaSuccess && cudaGetLastError() == cudaSuccess ? 0 : 1;
}

}  // namespace

// NCCL's own, of one rank: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/colls.html
extern "C" int ncclAllGather(const void* send, void* receive, std::size_t count, int type, void*,
                             cudaStream_t stream) {
  return launch(send, receive, count * kWidths[type], stream);
}

extern "C" int ncclReduceScatter(const void* send, void* receive, std::size_t count, int type, int,
                                 void*, cudaStream_t stream) {
  return launch(send, receive, count * kWidths[type], stream);
}
