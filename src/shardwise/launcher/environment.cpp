#include "shardwise/launcher/environment.h"

#include <string_view>

namespace shardwise::launcher {

Environment parse_environment(const char* const* block) {
  Environment environment;
  for (; block != nullptr && *block != nullptr; ++block) {
    const std::string_view entry(*block);
    const std::size_t equals = entry.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      continue;
    }
    environment.emplace(entry.substr(0, equals), entry.substr(equals + 1));
  }
  return environment;
}

std::vector<std::string> environment_strings(const Environment& environment) {
  std::vector<std::string> strings;
  strings.reserve(environment.size());
  for (const auto& [name, value] : environment) {
    strings.push_back(name + "=" + value);
  }
  return strings;
}

std::string lookup(const Environment& environment, const std::string& name,
                   const std::string& fallback) {
  const auto found = environment.find(name);
  return found == environment.end() || found->second.empty() ? fallback : found->second;
}

Environment rank_environment(const Environment& base, const LaunchOptions& options,
                             int local_rank) {
  Environment environment = base;
  const auto set = [&](const char* name, int value) { environment[name] = std::to_string(value); };
  const int rank = options.node_rank * options.ranks + local_rank;
  const int world_size = options.nodes * options.ranks;
  set("RANK", rank);
  set("LOCAL_RANK", local_rank);
  set("WORLD_SIZE", world_size);
  set("LOCAL_WORLD_SIZE", options.ranks);
  set("GROUP_RANK", options.node_rank);
  set("GROUP_WORLD_SIZE", options.nodes);
  set("ROLE_RANK", rank);
  set("ROLE_WORLD_SIZE", world_size);
  set("NODE_RANK", options.node_rank);
  set("MASTER_PORT", options.master_port);
  set("TORCHELASTIC_RESTART_COUNT", 0);
  set("TORCHELASTIC_MAX_RESTARTS", 0);
  set("LOCAL_SIZE", options.ranks);
  set("CROSS_RANK", options.node_rank);
  set("CROSS_SIZE", options.nodes);
  environment["MASTER_ADDR"] = options.master_address;
  environment["ROLE_NAME"] = "default";
  environment["TORCHELASTIC_RUN_ID"] = "shardwise_" + std::to_string(options.master_port);
  environment.erase("TORCHELASTIC_USE_AGENT_STORE");
  return environment;
}

}  // namespace shardwise::launcher
