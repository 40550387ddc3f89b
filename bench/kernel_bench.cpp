// CPU kernels against a plain copy: gigabytes a second of memory traffic, on one and on two
// threads. Without arguments 32 Mi elements, otherwise the number of elements in Mi.
//   kernel_bench [Mi elements]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "shardwise/kernels/dispatch.h"
#include "shardwise/kernels/reduce.h"
#include "shardwise/kernels/update.h"

namespace {

using namespace shardwise::kernels;  // a program of its own

constexpr int kRepeats = 5;

// `count` equal ranges on `count` threads.
ParallelFor threads(int count) {
  return [count](std::int64_t n, std::int64_t,
                 const std::function<void(std::int64_t, std::int64_t)>& body) {
    std::vector<std::thread> workers;
    for (int i = 0; i < count; ++i) {
      workers.emplace_back([&body, n, i, count] { body(n * i / count, n * (i + 1) / count); });
    }
    for (std::thread& worker : workers) {
      worker.join();
    }
  };
}

// Best of several runs, in GB/s for `bytes` moved.
double rate(double bytes, const std::function<void()>& work) {
  work();
  double best = 1e30;
  for (int i = 0; i < kRepeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    best = std::min(best, time.count());
  }
  return bytes / best / 1e9;
}

struct Arrays {
  explicit Arrays(std::int64_t n)
      : master(n, 0.5F), m(n, 0.0F), v(n, 0.01F), gradient(n, 0x3C00), parameter(n), n(n) {
    for (std::int64_t offset = 0; offset < n; offset += kMaxChunk) {
      chunks.push_back({offset,
                        static_cast<std::int32_t>(std::min<std::int64_t>(kMaxChunk, n - offset)), 0,
                        0, 0});
    }
    pointers.master = master.data();
    pointers.state[0] = m.data();
    pointers.state[1] = v.data();
    pointers.parameter = parameter.data();
    pointers.parameter_dtype = DType::kBFloat16;
    pointers.gradient = gradient.data();
    pointers.gradient_dtype = DType::kBFloat16;
  }
  ChunkTable table() const {
    return {chunks.data(), static_cast<std::int64_t>(chunks.size()), &pointers, 1};
  }
  std::vector<float> master, m, v;
  std::vector<std::uint16_t> gradient, parameter;
  std::vector<Chunk> chunks;
  ShardPointers pointers;
  std::int64_t n;
};

void measure(Arrays& a, CpuLevel level, int thread_count) {
  const ParallelFor parallel_for = threads(thread_count);
  Place place;
  place.cpu_level = level;
  place.parallel_for = &parallel_for;
  const auto n = static_cast<double>(a.n);
  const StepDecision decision;
  const std::int32_t step = 100;
  const std::vector<AdamGroup> groups(1);
  std::vector<double> partials(a.chunks.size());
  // Adam: bf16 gradient read, three fp32 arrays read and written, bf16 parameter written.
  const double adam =
      rate(28 * n, [&] { update(place, a.table(), groups, &decision, nullptr, &step); });
  const double squares = rate(2 * n, [&] { sum_of_squares(place, a.table(), partials.data()); });
  // Four ranks in bf16 into a bf16 quarter: reads all, writes a quarter.
  const double sum = rate(2.5 * n, [&] {
    sum_ranked(place, a.parameter.data(), DType::kBFloat16, a.gradient.data(), DType::kBFloat16, 4,
               a.n / 4, 0.25, false);
  });
  const double sum_float = rate(5 * n, [&] {
    sum_ranked(place, a.v.data(), DType::kFloat32, a.master.data(), DType::kFloat32, 4, a.n / 4,
               0.25, false);
  });
  const double copy = rate(8 * n, [&] {
    convert(place, a.m.data(), DType::kFloat32, a.master.data(), DType::kFloat32, a.n, false);
  });
  std::printf(
      "%-7s %d thread(s): Adam %6.1f  sum_of_squares bf16 %6.1f  sum_ranked bf16 %6.1f"
      "  fp32 %6.1f  copy %6.1f GB/s\n",
      cpu_level_name(level), thread_count, adam, squares, sum, sum_float, copy);
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t mi = argc > 1 ? std::atoll(argv[1]) : 32;
  Arrays arrays(std::max<std::int64_t>(mi, 1) << 20);
  for (CpuLevel level : available_cpu_levels()) {
    for (int thread_count : {1, 2}) {
      measure(arrays, level, thread_count);
    }
  }
}
