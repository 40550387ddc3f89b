#include "shardwise/kernels/reduce.h"

#include <cstring>

#include "shardwise/base/check.h"
#include "shardwise/kernels/cpu/loops_choice.h"
#include "shardwise/kernels/cuda/cuda_kernels.h"

namespace shardwise::kernels {
namespace {

// Elements a thread takes at least: 128 KB of fp32 output, far above the cost of waking it, and a
// multiple of the loops' blocks.
constexpr std::int64_t kGrain = 32768;

}  // namespace

void sum_ranked_strided(const Place& place, void* out, DType out_dtype, const void* in,
                        DType in_dtype, int world, std::int64_t n, std::int64_t stride,
                        double scale, bool accumulate) {
  SW_CHECK_GE(world, 1);
  SW_CHECK_GE(n, 0);
  SW_CHECK_GE(stride, n);
  SW_CHECK(out_dtype != DType::kFloat64 && in_dtype != DType::kFloat64,
           "sums are of fp32 and less");
  if (n == 0) {
    return;
  }
  if (place.cuda) {
    cuda::sum_ranked(place, out, out_dtype, in, in_dtype, world, n, stride, scale, accumulate);
    return;
  }
  const cpu::LoopsTable& loops = cpu::choose_loops(place.cpu_level);
  const auto loop = loops.sum_ranked[static_cast<int>(out_dtype)][static_cast<int>(in_dtype)];
  const auto factor = static_cast<float>(scale);
  cpu::for_ranges(place, n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    loop(cpu::RankedSum{static_cast<char*>(out) + begin * element_size(out_dtype),
                        static_cast<const char*>(in) + begin * element_size(in_dtype), world,
                        end - begin, stride, factor, accumulate});
  });
}

void sum_ranked(const Place& place, void* out, DType out_dtype, const void* in, DType in_dtype,
                int world, std::int64_t n, double scale, bool accumulate) {
  sum_ranked_strided(place, out, out_dtype, in, in_dtype, world, n, n, scale, accumulate);
}

void convert(const Place& place, void* out, DType out_dtype, const void* in, DType in_dtype,
             std::int64_t n, bool accumulate) {
  if (out_dtype != in_dtype || accumulate) {
    // One rank with factor 1: multiplying by 1 and adding to nothing are exact.
    sum_ranked_strided(place, out, out_dtype, in, in_dtype, 1, n, n, 1.0, accumulate);
    return;
  }
  if (n == 0 || out == in) {
    return;
  }
  if (place.cuda) {
    cuda::copy(place, out, in, n * element_size(in_dtype));
    return;
  }
  const std::int64_t size = element_size(in_dtype);
  cpu::for_ranges(place, n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    std::memcpy(static_cast<char*>(out) + begin * size, static_cast<const char*>(in) + begin * size,
                (end - begin) * size);
  });
}

}  // namespace shardwise::kernels
