// Instructions that CUDA C++ has no name for, one function each.
#pragma once

#include <cstdint>

namespace shardwise::kernels::cuda {

// 2^x in one instruction: relative error at most 2^-22.5, results below 2^-126 are 0.
__device__ __forceinline__ float exp2_of(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// Barrier 1 … 15 of a block, for `threads` of its threads in whole warps (0 is __syncthreads). The
// instruction asks for warps whose threads are together.
__device__ __forceinline__ void wait_for_threads(int barrier, int threads) {
  __syncwarp();
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Copies 16 bytes to shared memory in the background; of the source only `bytes` are read, the rest
// becomes 0. Both are at multiples of 16 bytes.
__device__ __forceinline__ void copy16_async(void* shared, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   static_cast<std::uint32_t>(__cvta_generic_to_shared(shared))),
               "l"(global), "r"(bytes)
               : "memory");
}
// Ends a group of copies: all that this thread began since the last one, or none.
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Until all groups of this thread but the last kPending are there, for this thread to read.
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Loads 16 bytes where `there` says so, and leaves `to` else. Nothing may write them while the
// kernel runs: stores before need not be done.
__device__ __forceinline__ void load16_constant(uint4& to, const void* global, bool there) {
  asm volatile(
      "{\n"
      ".reg .pred there;\n"
      "setp.ne.s32 there, %5, 0;\n"
      "@there ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];\n"
      "}"
      : "+r"(to.x), "+r"(to.y), "+r"(to.z), "+r"(to.w)
      : "l"(global), "r"(static_cast<int>(there)));
}

// Stores 16 bytes where `there` says so, as __stcs(), without a branch that loads would wait at.
__device__ __forceinline__ void store16_streaming(const uint4& from, void* global, bool there) {
  asm volatile(
      "{\n"
      ".reg .pred there;\n"
      "setp.ne.s32 there, %5, 0;\n"
      "@there st.global.cs.v4.u32 [%4], {%0, %1, %2, %3};\n"
      "}" ::"r"(from.x),
      "r"(from.y), "r"(from.z), "r"(from.w), "l"(global), "r"(static_cast<int>(there))
      : "memory");
}

// The optimizer may not know the value any longer: what was computed from it is computed again
// rather than kept in registers.
__device__ __forceinline__ void forget(unsigned& value) { asm volatile("" : "+r"(value)); }

// Blocks of a kernel launched with launch_behind() wait here for all work before it; the kernel
// before it may let them begin early.
__device__ __forceinline__ void wait_for_kernel_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void let_kernel_behind_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

__device__ __forceinline__ int rank_in_cluster() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}
__device__ __forceinline__ int blocks_of_cluster() {
  unsigned blocks;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  return static_cast<int>(blocks);
}
// All threads of all blocks of the cluster.
__device__ __forceinline__ void cluster_barrier() {
  asm volatile(
      "barrier.cluster.arrive.aligned;\n"
      "barrier.cluster.wait.aligned;" ::
          : "memory");
}

// Counts the bytes that other blocks sent to this one. A phase ends when one thread has called
// expect() and all the bytes that it named have come, which may be before or after.
class Mailbox {
 public:
  // By one thread, and a cluster_barrier() by all before anything is sent.
  __device__ __forceinline__ void initialize() {
    asm volatile(
        "mbarrier.init.shared::cta.b64 [%0], 1;\n"
        "fence.mbarrier_init.release.cluster;" ::"r"(address(&state_))
        : "memory");
  }
  __device__ __forceinline__ void expect(int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(&state_)),
                 "r"(bytes)
                 : "memory");
  }
  // Until phase 0, 1, 2, … has ended; `parity` is its lowest bit.
  __device__ __forceinline__ void wait(unsigned parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}" ::"r"(address(&state_)),
        "r"(parity)
        : "memory");
  }
  // Writes `value` where the block of that rank keeps `to`, and counts 16 bytes in its mailbox.
  __device__ __forceinline__ void send(const float4& value, float4* to, int rank) {
    asm volatile(
        "{\n"
        ".reg .b32 there, box;\n"
        "mapa.shared::cluster.u32 there, %0, %2;\n"
        "mapa.shared::cluster.u32 box, %1, %2;\n"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {%3, %4, %5, %6}, "
        "[box];\n"
        "}" ::"r"(address(to)),
        "r"(address(&state_)), "r"(rank), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
        : "memory");
  }

 private:
  static __device__ __forceinline__ std::uint32_t address(void* shared) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  }
  std::uint64_t state_;
};

#endif

}  // namespace shardwise::kernels::cuda
