// Runs kernels and takes their times.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "shardwise/bench/kernel_bench.h"

namespace shardwise::bench {

class KernelTimer {
 public:
  // Measures copies of `options.elements` fp32 numbers.
  explicit KernelTimer(const KernelBenchOptions& options);

  const kernels::Place& place() const { return place_; }
  // Appends the time of `launch` to times(). `bytes`: see KernelTime.
  void time(const std::string& name, double bytes, const std::function<void()>& launch);
  const std::vector<KernelTime>& times() const { return times_; }

  // Memory on the device: normally distributed numbers, zeros, or the bytes of host values.
  at::Tensor random(std::int64_t count, at::ScalarType dtype = at::kBFloat16) const;
  at::Tensor zeros(std::int64_t count, at::ScalarType dtype) const;
  template <typename T>
  at::Tensor upload(const std::vector<T>& values) const {
    return upload_bytes(values.data(), static_cast<std::int64_t>(values.size() * sizeof(T)));
  }

 private:
  void measure_copies(std::int64_t elements);
  double microseconds(const std::function<void()>& launch) const;
  at::Tensor upload_bytes(const void* values, std::int64_t bytes) const;

  at::Device device_;
  kernels::Place place_;
  std::vector<KernelTime> times_;
  double copy_rate_ = 0;  // bytes a microsecond, read and written
};

// Each appends the times of its kernels.
void time_layer_kernels(KernelTimer& timer, const KernelBenchOptions& options);
void time_step_end_kernels(KernelTimer& timer, const KernelBenchOptions& options);

}  // namespace shardwise::bench
