// How much memory this process uses.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace shardwise::device {

// The most bytes so far: of tensors on a GPU (torch's allocator), or of the process's resident
// memory on the CPU. Never waits for the device.
std::int64_t peak_memory(c10::Device device);

}  // namespace shardwise::device
