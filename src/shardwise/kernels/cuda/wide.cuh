// Eight elements at a time: one 16-byte access for 16-bit types, two for fp32. Where a row does not
// begin at a multiple of 16 bytes or ends inside of the eight, elements are accessed one by one.
#pragma once

#include <cstdint>
#include <type_traits>

#include "shardwise/base/check.h"
#include "shardwise/kernels/cuda/ptx.cuh"
#include "shardwise/kernels/cuda/vectors.cuh"
#include "shardwise/kernels/types.h"

namespace shardwise::kernels::cuda {

inline constexpr int kWide = 8;

// Eight elements as they lie in memory.
template <typename T>
struct Packed {
  uint4 part[sizeof(T) / 2];
};

struct Floats8 {
  float at[kWide];
};

// Eight elements at a multiple of 16 bytes.
template <typename T>
__device__ __forceinline__ Packed<T> load8(const T* from) {
  Packed<T> packed;
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T) / 2); ++i) {
    packed.part[i] = reinterpret_cast<const uint4*>(from)[i];
  }
  return packed;
}

// Results are read by later kernels only, when the cache holds others: they make room for inputs.
template <typename T>
__device__ __forceinline__ void store8(const Packed<T>& packed, T* to) {
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T) / 2); ++i) {
    __stcs(reinterpret_cast<uint4*>(to) + i, packed.part[i]);
  }
}

// The first `valid` elements; the others are 0. `aligned`: `from` is a multiple of 16 bytes.
template <typename T>
__device__ __forceinline__ Packed<T> load8(const T* from, std::int64_t valid, bool aligned) {
  if (aligned && valid >= kWide) {
    return load8(from);
  }
  Packed<T> packed;
  T* elements = reinterpret_cast<T*>(&packed);
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
    elements[i] = i < valid ? from[i] : T{};
  }
  return packed;
}

template <typename T>
__device__ __forceinline__ void store8(const Packed<T>& packed, T* to, std::int64_t valid,
                                       bool aligned) {
  if (aligned && valid >= kWide) {
    store8(packed, to);
    return;
  }
  const T* elements = reinterpret_cast<const T*>(&packed);
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
    if (i < valid) {
      to[i] = elements[i];
    }
  }
}

template <typename T>
__device__ __forceinline__ Floats8 unpack(const Packed<T>& packed) {
  Floats8 values;
  if constexpr (std::is_same_v<T, BFloat16>) {  // one instruction each
    const unsigned* words = reinterpret_cast<const unsigned*>(&packed);
#pragma unroll
    for (int i = 0; i < kWide / 2; ++i) {
      values.at[2 * i] = __uint_as_float(words[i] << 16);
      values.at[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000U);
    }
  } else {
    const T* elements = reinterpret_cast<const T*>(&packed);
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      values.at[i] = to_float32(elements[i]);
    }
  }
  return values;
}

template <typename T>
__device__ __forceinline__ Packed<T> pack(const Floats8& values) {
  Packed<T> packed;
  T* elements = reinterpret_cast<T*>(&packed);
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
    from_float32(values.at[i], elements + i);
  }
  return packed;
}

// See ptx.cuh.
template <typename T>
__device__ __forceinline__ void forget(Packed<T>& packed) {
#pragma unroll
  for (uint4& part : packed.part) {
    forget(part.x);
    forget(part.y);
    forget(part.z);
    forget(part.w);
  }
}

inline constexpr float kLog2E = 1.4426950408889634F;

// Whether rows `stride` bytes apart all begin at a multiple of 16 bytes. Null pointers do.
inline bool is_aligned16(const void* rows, std::int64_t stride) {
  return reinterpret_cast<std::uintptr_t>(rows) % 16 == 0 && stride % 16 == 0;
}

// body.template operator()<T>() for the type of the dtype.
template <typename Body>
void with_type(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kFloat32: return body.template operator()<float>();
    case DType::kFloat16: return body.template operator()<Half>();
    case DType::kBFloat16: return body.template operator()<BFloat16>();
    case DType::kFloat64: break;
  }
  SW_FAIL(InternalError, "fp64 is computed on the CPU only");
}

}  // namespace shardwise::kernels::cuda
