// Sums over ranks and copies between dtypes.
#pragma once

#include <cstdint>

#include "shardwise/kernels/types.h"

namespace shardwise::kernels {

// out[i] = (accumulate ? out[i] : 0) + scale · (in[0·n + i] + in[1·n + i] + … + in[(world−1)·n +
// i]) The ranks are added in fp32 in rank order, and the result is rounded once to out_dtype
// (nearest even), so it does not depend on how a tensor is cut into pieces. `in` is [world, n],
// `out` [n]; they must not overlap, except that with equal dtypes out may be in, the slice of rank
// 0.
void sum_ranked(const Place& place, void* out, DType out_dtype, const void* in, DType in_dtype,
                int world, std::int64_t n, double scale, bool accumulate);

// As sum_ranked, but slice r of the input begins `stride` ≥ n elements after slice r−1: a piece of
// a larger [world, stride] buffer.
void sum_ranked_strided(const Place& place, void* out, DType out_dtype, const void* in,
                        DType in_dtype, int world, std::int64_t n, std::int64_t stride,
                        double scale, bool accumulate);

// out[i] = (accumulate ? out[i] : 0) + in[i], added in fp32, rounded once to nearest even.
// Contiguous [n] each; the same dtype without accumulate is a plain copy.
void convert(const Place& place, void* out, DType out_dtype, const void* in, DType in_dtype,
             std::int64_t n, bool accumulate);

}  // namespace shardwise::kernels
