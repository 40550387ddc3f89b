// Markers for code that the CPU levels and CUDA share (formulas.h, boundary_logic.h, float16.h).
#pragma once

// Always inlined, host only.
#define SW_HOST_INLINE inline __attribute__((always_inline))

// Always inlined, host and device: a shared function must take the instruction set of the loop that
// calls it, and must never leave an out-of-line copy that the linker could pick for another loop.
#if defined(__CUDACC__)
#define SW_SHARED_INLINE __host__ __device__ __forceinline__
#else
#define SW_SHARED_INLINE inline __attribute__((always_inline))
#endif
