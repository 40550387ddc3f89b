// The environment as data: the program passes the block that `main` received, ranks get a copy with
// the variables that torchrun and DeepSpeed set.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "shardwise/launcher/options.h"

namespace shardwise::launcher {

using Environment = std::map<std::string, std::string>;

// From a block of "NAME=value" strings that ends with a null pointer.
Environment parse_environment(const char* const* block);

// "NAME=value" strings, in the order of the names.
std::vector<std::string> environment_strings(const Environment& environment);

// `fallback` when the name is not set or its value is empty.
std::string lookup(const Environment& environment, const std::string& name,
                   const std::string& fallback = "");

// What the rank with this local number sees: `base` plus
//   torchrun   RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_NAME
//              ROLE_RANK ROLE_WORLD_SIZE NODE_RANK MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID
//              TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS
//   DeepSpeed  LOCAL_SIZE CROSS_RANK CROSS_SIZE
// TORCHELASTIC_USE_AGENT_STORE is removed: rank 0 itself opens the store at MASTER_ADDR. Variables
// about devices (CUDA_VISIBLE_DEVICES) stay as they are.
Environment rank_environment(const Environment& base, const LaunchOptions& options, int local_rank);

}  // namespace shardwise::launcher
