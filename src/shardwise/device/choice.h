// Which device a rank computes on.
#pragma once

#include <c10/core/Device.h>

#include <string>

namespace shardwise::device {

// The GPU number `local_rank` of this machine where there is one, else the CPU; it becomes the
// current device. `accelerator` is "" (choose), "cpu" or "cuda" (DS_ACCELERATOR). Throws
// ConfigError when "cuda" finds no GPU, UsageError when the machine has GPUs but fewer than its
// ranks.
c10::Device choose_device(const std::string& accelerator, int local_rank);

}  // namespace shardwise::device
