// From largest magnitudes to factors and scales, shared by the CPU and CUDA: divisions of fp32 and
// bits, so that both get the same.
#pragma once

#include <bit>
#include <cstdint>

#include "shardwise/kernels/float8.h"
#include "shardwise/kernels/inline.h"

namespace shardwise::kernels {

// Smaller magnitudes get the factor of this one, which is finite like its scale: a product with
// such an operand is below 2^-80 for any other that bf16 training has.
inline constexpr float kSmallestAmax = 0x1p-100F;

// NaN stays NaN; infinity gives 0, and by that infinite numbers become NaN.
SW_SHARED_INLINE float float8_factor(float amax, const Float8Shape& shape) {
  const float largest = shape.format == Float8::kE4m3 ? 448.0F : 57344.0F;
  const float factor = largest / (amax < kSmallestAmax ? kSmallestAmax : amax);
  if (!shape.rowwise || factor != factor) {
    return factor;
  }
  // Down to a power of two: without the mantissa.
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(factor) & 0x7F800000U);
}

// Infinite for infinity: times 0 that is NaN.
SW_SHARED_INLINE float float8_scale(float amax, const Float8Shape& shape) {
  return 1.0F / float8_factor(amax, shape);
}

}  // namespace shardwise::kernels
