// What products in fp8 need of the machine and of the model.
#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "shardwise/config/config.h"

namespace shardwise::precision {

// Throws ConfigError where shardwise.fp8 is on and the device has no such products.
void check_fp8_device(const config::Config& config, c10::Device device);

// One line about matrices that are left to bf16 because of their sizes, by name; "" for none.
std::string describe_fp8_misfits(const std::vector<std::string>& matrices);

}  // namespace shardwise::precision
