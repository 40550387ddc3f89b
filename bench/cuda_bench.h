// For benchmarks of CUDA kernels: microseconds, gigabytes a second of the least memory traffic, and
// the share of a copy measured in the same run. One line a kernel.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "shardwise/kernels/reduce.h"

namespace shardwise::bench {

inline void require(cudaError_t status) {
  if (status != cudaSuccess) {
    throw std::runtime_error(cudaGetErrorString(status));
  }
}

// Freed with the process, unless by the caller.
inline void* device_memory(std::int64_t bytes) {
  void* memory = nullptr;
  require(cudaMalloc(&memory, static_cast<std::size_t>(bytes)));
  require(cudaMemset(memory, 0, static_cast<std::size_t>(bytes)));
  return memory;
}

template <typename T>
T* upload(const T* host, std::size_t count) {
  T* memory = static_cast<T*>(device_memory(static_cast<std::int64_t>(count * sizeof(T))));
  require(cudaMemcpy(memory, host, count * sizeof(T), cudaMemcpyHostToDevice));
  return memory;
}

// Device memory with small random bf16 numbers, freed with the process.
inline void* random_rows(std::int64_t elements) {
  std::mt19937 random(1);
  std::vector<std::uint16_t> host(std::min<std::int64_t>(elements, 1 << 22));
  for (std::uint16_t& bits : host) {
    bits = static_cast<std::uint16_t>(0x3F00 | (random() & 0x80FF));  // ±0.5 … ±2
  }
  void* memory = device_memory(2 * elements);
  for (std::int64_t at = 0; at < elements; at += static_cast<std::int64_t>(host.size())) {
    const auto n = std::min<std::int64_t>(elements - at, static_cast<std::int64_t>(host.size()));
    require(cudaMemcpy(static_cast<char*>(memory) + 2 * at, host.data(),
                       static_cast<std::size_t>(2 * n), cudaMemcpyHostToDevice));
  }
  return memory;
}

class Bench {
 public:
  Bench() {
    require(cudaEventCreate(&start_));
    require(cudaEventCreate(&stop_));
    measure_copy();
  }

  // Mean over a run of launches after a warm-up. `bytes`: the least that memory must move; 0 for
  // kernels whose time is not that of memory.
  double report(const std::string& name, double bytes, const std::function<void()>& launch) {
    constexpr int kRepeats = 50;
    for (int i = 0; i < 5; ++i) {
      launch();
    }
    require(cudaEventRecord(start_));
    for (int i = 0; i < kRepeats; ++i) {
      launch();
    }
    require(cudaEventRecord(stop_));
    require(cudaEventSynchronize(stop_));
    float milliseconds = 0;
    require(cudaEventElapsedTime(&milliseconds, start_, stop_));
    const double microseconds = 1000.0 * milliseconds / kRepeats;
    const double rate = bytes / microseconds / 1e3;
    std::printf("%-44s %9.1f us", name.c_str(), microseconds);
    if (bytes > 0) {
      std::printf(" %8.0f GB/s", rate);
    }
    if (bytes > 0 && copy_rate_ > 0) {
      std::printf(" %5.1f %% of a copy", 100 * rate / copy_rate_);
    }
    std::printf("\n");
    std::fflush(stdout);
    return rate;
  }

  kernels::Place place{.cuda = true};

 private:
  void measure_copy() {
    using kernels::DType;
    constexpr std::int64_t kElements = 1 << 28;
    void* from = random_rows(2 * kElements);
    void* to = random_rows(2 * kElements);
    const double by_engine = report("copy, 1 GiB, cudaMemcpyAsync", 8.0 * kElements, [&] {
      convert(place, to, DType::kFloat32, from, DType::kFloat32, kElements, false);
    });
    const double by_kernel = report("copy, 1 GiB, a kernel", 8.0 * kElements, [&] {
      sum_ranked(place, to, DType::kFloat32, from, DType::kFloat32, 1, kElements, 1.0, false);
    });
    copy_rate_ = std::max(by_engine, by_kernel);
    require(cudaFree(from));
    require(cudaFree(to));
  }

  cudaEvent_t start_ = nullptr;
  cudaEvent_t stop_ = nullptr;
  double copy_rate_ = 0;
};

}  // namespace shardwise::bench
