// What products in fp8 need of the machine and of the model.
#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "shardwise/config/config.h"

namespace shardwise::precision {

// Throws ConfigError where shardwise.fp8 is on and the device has no such products.
void check_fp8_device(const config::Config& config, c10::Device device);

// One line: which products run in fp8 as `setting` says, and those with which `misfits`, matrices
// by name, are left to bf16 because of their sizes.
std::string describe_fp8(const std::string& setting, const std::vector<std::string>& misfits);

}  // namespace shardwise::precision
