#include "shardwise/device/memory.h"

#include <ATen/DeviceAccelerator.h>
#include <sys/resource.h>

namespace shardwise::device {

std::int64_t peak_memory(c10::Device device) {
  if (device.is_cpu()) {
    struct rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return std::int64_t{usage.ru_maxrss} * 1024;  // Linux gives KiB
  }
  constexpr auto kAll = static_cast<std::size_t>(at::CachingAllocator::StatType::AGGREGATE);
  return at::accelerator::getDeviceStats(device.index()).allocated_bytes[kAll].peak;
}

}  // namespace shardwise::device
