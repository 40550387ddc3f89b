// The one place that reads environment variables. What is read is passed on as plain values.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace shardwise::config {

// Returns the value of a variable, or nothing when it is not set.
using EnvironmentLookup = std::function<std::optional<std::string>(std::string_view name)>;

// The environment of this process. Read once per call: keep the result, do not call it in a step.
std::optional<std::string> environment_variable(std::string_view name);

// What torchrun, DeepSpeed's launcher and `shardwise launch` set for each process.
struct LaunchEnvironment {
  int rank = 0;              // RANK
  int local_rank = 0;        // LOCAL_RANK; without it 0, or RANK when all ranks are on this machine
  int world_size = 1;        // WORLD_SIZE
  int local_world_size = 1;  // LOCAL_WORLD_SIZE or LOCAL_SIZE; without them WORLD_SIZE
  std::string master_addr = "127.0.0.1";  // MASTER_ADDR
  int master_port = 29500;                // MASTER_PORT
  bool present = false;                   // whether RANK and WORLD_SIZE are set
  // torchrun's agent has opened the store at the master address: TORCHELASTIC_USE_AGENT_STORE
  bool agent_store = false;
  int restart_count = 0;  // TORCHELASTIC_RESTART_COUNT
};

// Throws ConfigError that names the variable when a value is no number, out of range, contradicts
// another one, or when only one of RANK and WORLD_SIZE is set.
LaunchEnvironment read_launch_environment(const EnvironmentLookup& lookup = environment_variable);

// Other variables that change behaviour.
struct Settings {
  double timeout_seconds = 0;  // DEEPSPEED_TIMEOUT, given in minutes; 0: not set
  std::string accelerator;     // DS_ACCELERATOR: "cpu", "cuda", or "" (choose)
};

Settings read_settings(const EnvironmentLookup& lookup = environment_variable);

// One line for the log: "rank 1 of 4 (local 1 of 4), master 127.0.0.1:29500".
std::string describe(const LaunchEnvironment& environment);

}  // namespace shardwise::config
