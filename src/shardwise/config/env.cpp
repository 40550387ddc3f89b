#include "shardwise/config/env.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "shardwise/base/check.h"

namespace shardwise::config {
namespace {

std::optional<long> read_integer(const EnvironmentLookup& lookup, const char* name, long least,
                                 long most) {
  const std::optional<std::string> text = lookup(name);
  if (!text || text->empty()) {
    return std::nullopt;
  }
  long value = 0;
  const char* end = text->data() + text->size();
  const auto result = std::from_chars(text->data(), end, value);
  SW_USER_CHECK(ConfigError,
                result.ec == std::errc() && result.ptr == end && value >= least && value <= most,
                "environment variable ", name, "=\"", *text,
                "\" is not usable; allowed: an integer", " from ", least, " to ", most);
  return value;
}

// The first of two variables that is set.
std::optional<long> read_either(const EnvironmentLookup& lookup, const char* first,
                                const char* second, long least, long most) {
  const auto value = read_integer(lookup, first, least, most);
  return value ? value : read_integer(lookup, second, least, most);
}

void check_below(const char* small_name, long small, const char* large_name, long large) {
  SW_USER_CHECK(ConfigError, small < large, "environment variable ", small_name, "=", small,
                " must be below ", large_name, "=", large, "; check how the processes are started");
}

}  // namespace

std::optional<std::string> environment_variable(std::string_view name) {
  const char* value = std::getenv(std::string(name).c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

LaunchEnvironment read_launch_environment(const EnvironmentLookup& lookup) {
  constexpr long kMost = std::numeric_limits<int>::max();
  const auto rank = read_integer(lookup, "RANK", 0, kMost);
  const auto world = read_integer(lookup, "WORLD_SIZE", 1, kMost);
  SW_USER_CHECK(ConfigError, rank.has_value() == world.has_value(), "environment variable ",
                rank ? "RANK" : "WORLD_SIZE", " is set and ", rank ? "WORLD_SIZE" : "RANK",
                " is not; start the processes with torchrun or \"shardwise launch\", or unset it");
  LaunchEnvironment result;
  result.present = rank.has_value();
  if (result.present) {
    check_below("RANK", *rank, "WORLD_SIZE", *world);
    result.rank = static_cast<int>(*rank);
    result.world_size = static_cast<int>(*world);
    const auto local_world = read_either(lookup, "LOCAL_WORLD_SIZE", "LOCAL_SIZE", 1, kMost);
    result.local_world_size = static_cast<int>(local_world.value_or(*world));
    SW_USER_CHECK(ConfigError, result.local_world_size <= result.world_size,
                  "environment variable LOCAL_WORLD_SIZE=", result.local_world_size,
                  " is larger than WORLD_SIZE=", result.world_size);
    const bool one_machine = result.local_world_size == result.world_size;
    const auto local_rank = read_integer(lookup, "LOCAL_RANK", 0, kMost);
    result.local_rank = static_cast<int>(local_rank.value_or(one_machine ? *rank : 0));
    check_below("LOCAL_RANK", result.local_rank, "LOCAL_WORLD_SIZE", result.local_world_size);
  }
  const std::optional<std::string> address = lookup("MASTER_ADDR");
  if (address && !address->empty()) {
    result.master_addr = *address;
  }
  const auto port = read_integer(lookup, "MASTER_PORT", 1, 65535);
  result.master_port = static_cast<int>(port.value_or(result.master_port));
  result.agent_store = lookup("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
  const auto restarts = read_integer(lookup, "TORCHELASTIC_RESTART_COUNT", 0, kMost);
  result.restart_count = static_cast<int>(restarts.value_or(0));
  return result;
}

Settings read_settings(const EnvironmentLookup& lookup) {
  Settings settings;
  if (const auto text = lookup("DEEPSPEED_TIMEOUT"); text && !text->empty()) {
    char* end = nullptr;
    const double minutes = std::strtod(text->c_str(), &end);
    SW_USER_CHECK(ConfigError, *end == '\0' && std::isfinite(minutes) && minutes > 0,
                  "environment variable DEEPSPEED_TIMEOUT=\"", *text,
                  "\" is not usable; allowed: minutes as a number > 0");
    settings.timeout_seconds = minutes * 60;
  }
  settings.accelerator = lookup("DS_ACCELERATOR").value_or("");
  SW_USER_CHECK(ConfigError,
                settings.accelerator.empty() || settings.accelerator == "cpu" ||
                    settings.accelerator == "cuda",
                "environment variable DS_ACCELERATOR=\"", settings.accelerator,
                "\" is not usable; allowed: cpu or cuda");
  return settings;
}

std::string describe(const LaunchEnvironment& environment) {
  return concat("rank ", environment.rank, " of ", environment.world_size, " (local ",
                environment.local_rank, " of ", environment.local_world_size, "), master ",
                environment.master_addr, ":", environment.master_port);
}

}  // namespace shardwise::config
