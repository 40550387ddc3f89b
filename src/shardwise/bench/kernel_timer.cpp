#include "shardwise/bench/kernel_timer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "shardwise/device/stream.h"
#include "shardwise/kernels/reduce.h"
#include "shardwise/ops/tensor_place.h"

namespace shardwise::bench {

KernelTimer::KernelTimer(const KernelBenchOptions& options)
    : device_(options.device), place_(ops::place_on(options.device)) {
  place_.cpu_level = options.cpu_level;
  measure_copies(options.elements);
}

// A copy engine and a kernel differ, and either may be the faster one.
void KernelTimer::measure_copies(std::int64_t elements) {
  using kernels::DType;
  const double bytes = 8.0 * static_cast<double>(elements);
  const at::Tensor from = zeros(elements, at::kFloat);
  const at::Tensor to = zeros(elements, at::kFloat);
  time("copy, fp32", bytes, [&] {
    kernels::convert(place_, to.data_ptr(), DType::kFloat32, from.data_ptr(), DType::kFloat32,
                     elements, /*accumulate=*/false);
  });
  time("copy, fp32, as a sum over one rank", bytes, [&] {
    kernels::sum_ranked(place_, to.data_ptr(), DType::kFloat32, from.data_ptr(), DType::kFloat32,
                        /*world=*/1, elements, /*scale=*/1.0, /*accumulate=*/false);
  });
  for (const KernelTime& copy : times_) {
    copy_rate_ = std::max(copy_rate_, copy.bytes / copy.microseconds);
  }
  for (KernelTime& copy : times_) {
    copy.of_copy = copy.bytes / copy.microseconds / copy_rate_;
  }
}

void KernelTimer::time(const std::string& name, double bytes, const std::function<void()>& launch) {
  const double taken = microseconds(launch);
  times_.push_back({.name = name,
                    .microseconds = taken,
                    .bytes = bytes,
                    .of_copy = copy_rate_ > 0 ? bytes / taken / copy_rate_ : 0});
}

double KernelTimer::microseconds(const std::function<void()>& launch) const {
  if (device_.is_cpu()) {
    constexpr int kCalls = 5;
    launch();
    std::chrono::duration<double, std::micro> best(std::numeric_limits<double>::max());
    for (int i = 0; i < kCalls; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      launch();
      best = std::min(best, decltype(best)(std::chrono::steady_clock::now() - begin));
    }
    return best.count();
  }
  constexpr int kWarmup = 5;
  constexpr int kLaunches = 50;
  for (int i = 0; i < kWarmup; ++i) {
    launch();
  }
  device::Span span(device_);
  span.begin.record();
  for (int i = 0; i < kLaunches; ++i) {
    launch();
  }
  span.end.record();
  span.end.synchronize();
  return span.end.seconds_since(span.begin) * 1e6 / kLaunches;
}

at::Tensor KernelTimer::random(std::int64_t count, at::ScalarType dtype) const {
  return at::randn({count}, at::TensorOptions(dtype).device(device_));
}

at::Tensor KernelTimer::zeros(std::int64_t count, at::ScalarType dtype) const {
  return at::zeros({count}, at::TensorOptions(dtype).device(device_));
}

at::Tensor KernelTimer::upload_bytes(const void* values, std::int64_t bytes) const {
  return at::from_blob(const_cast<void*>(values), {bytes}, at::kByte)
      .to(device_, /*non_blocking=*/false, /*copy=*/true);
}

std::vector<KernelTime> time_kernels(const KernelBenchOptions& options) {
  const at::NoGradGuard no_grad;
  const c10::OptionalDeviceGuard guard(options.device);
  KernelTimer timer(options);
  time_layer_kernels(timer, options);
  time_step_end_kernels(timer, options);
  return timer.times();
}

}  // namespace shardwise::bench
