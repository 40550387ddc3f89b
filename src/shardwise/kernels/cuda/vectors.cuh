// Loads and stores of one and of four elements as floats. The vector forms need addresses that are
// multiples of four elements; a warp's accesses are then whole 128-byte lines.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "shardwise/kernels/float16.h"

namespace shardwise::kernels::cuda {

// Stands for "no parameter copy".
struct Nothing {};

struct Floats4 {
  float at[4];
};

__device__ __forceinline__ float to_float32(float value) { return value; }
__device__ __forceinline__ float to_float32(Half value) {
  return __half2float(__ushort_as_half(value.bits));
}
__device__ __forceinline__ float to_float32(BFloat16 value) {
  return __uint_as_float(static_cast<unsigned>(value.bits) << 16);
}

__device__ __forceinline__ void from_float32(float value, float* out) { *out = value; }
__device__ __forceinline__ void from_float32(float value, Half* out) {
  out->bits = __half_as_ushort(__float2half_rn(value));
}
__device__ __forceinline__ void from_float32(float value, BFloat16* out) {
  out->bits = __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

__device__ __forceinline__ Floats4 load4(const float* from) {
  const float4 v = *reinterpret_cast<const float4*>(from);
  return {{v.x, v.y, v.z, v.w}};
}

template <typename T>
__device__ __forceinline__ Floats4 load4(const T* from) {
  static_assert(sizeof(T) == 2);
  const uint2 bits = *reinterpret_cast<const uint2*>(from);
  T parts[4];
  parts[0].bits = static_cast<unsigned short>(bits.x);
  parts[1].bits = static_cast<unsigned short>(bits.x >> 16);
  parts[2].bits = static_cast<unsigned short>(bits.y);
  parts[3].bits = static_cast<unsigned short>(bits.y >> 16);
  return {{to_float32(parts[0]), to_float32(parts[1]), to_float32(parts[2]), to_float32(parts[3])}};
}

__device__ __forceinline__ void store4(const Floats4& v, float* to) {
  *reinterpret_cast<float4*>(to) = make_float4(v.at[0], v.at[1], v.at[2], v.at[3]);
}

template <typename T>
__device__ __forceinline__ void store4(const Floats4& v, T* to) {
  static_assert(sizeof(T) == 2);
  T parts[4];
  for (int i = 0; i < 4; ++i) {
    from_float32(v.at[i], &parts[i]);
  }
  *reinterpret_cast<uint2*>(to) =
      make_uint2(parts[0].bits | static_cast<unsigned>(parts[1].bits) << 16,
                 parts[2].bits | static_cast<unsigned>(parts[3].bits) << 16);
}

// Whether `pointer` may be used with load4 and store4.
template <typename T>
__host__ __device__ __forceinline__ bool is_aligned4(const T* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % (4 * sizeof(T)) == 0;
}

}  // namespace shardwise::kernels::cuda
