// 16-bit floating-point numbers as bits, and their scalar conversions. Rounding is to nearest even,
// subnormals are kept, NaNs stay NaN (quiet). The vector levels convert to the same bits; CUDA has
// its own instructions for this (cuda/vectors.cuh).
#pragma once

#include <bit>
#include <cstdint>

#include "shardwise/kernels/inline.h"

namespace shardwise::kernels {

struct Half {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};

SW_HOST_INLINE float to_float(float value) { return value; }

SW_HOST_INLINE float to_float(BFloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

SW_HOST_INLINE float to_float(Half value) {
  const std::uint32_t sign = (value.bits & 0x8000U) << 16;
  const std::uint32_t magnitude = value.bits & 0x7FFFU;
  const std::uint32_t shifted = magnitude << 13;
  if (magnitude > 0x7C00U) {  // NaN: quiet bit set, payload kept
    return std::bit_cast<float>(sign | 0x7FC00000U | shifted);
  }
  if (magnitude == 0x7C00U) {
    return std::bit_cast<float>(sign | 0x7F800000U);
  }
  if (magnitude < 0x400U) {  // zero and subnormals count units of 2^-24
    const float units = static_cast<float>(magnitude) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(units));
  }
  return std::bit_cast<float>(sign | (shifted + (112U << 23)));  // exponent bias 127 − 15
}

SW_HOST_INLINE void from_float(float value, float* out) { *out = value; }

SW_HOST_INLINE void from_float(float value, BFloat16* out) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const bool nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
  const std::uint32_t rounded = bits + 0x7FFFU + ((bits >> 16) & 1U);
  out->bits = static_cast<std::uint16_t>((nan ? bits | 0x400000U : rounded) >> 16);
}

SW_HOST_INLINE void from_float(float value, Half* out) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  std::uint32_t result = 0;
  if (magnitude > 0x7F800000U) {
    result = 0x7E00U | ((magnitude >> 13) & 0x3FFU);
  } else if (magnitude >= 0x477FF000U) {  // 65520 and more round to infinity
    result = 0x7C00U;
  } else if (magnitude < 0x38800000U) {
    // Below 2^-14. One unit in the last place of 0.5 is 2^-24, a half's smallest step: the adder
    // rounds.
    result = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3F000000U;
  } else {
    result = (magnitude - (112U << 23) + 0xFFFU + ((magnitude >> 13) & 1U)) >> 13;
  }
  out->bits = static_cast<std::uint16_t>(sign | result);
}

}  // namespace shardwise::kernels
