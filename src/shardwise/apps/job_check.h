// A job file as `shardwise train` will see it, checked before anything is started and without
// torch.
#pragma once

#include <string>
#include <vector>

#include "shardwise/apps/command.h"
#include "shardwise/config/job.h"

namespace shardwise::apps {

// "path=value" of --set. Throws UsageError, which `command` begins.
std::vector<config::Override> parse_overrides(const std::string& command,
                                              const std::vector<std::string>& assignments);

// What loading takes from the environment. `ranks` is the text that `option` has given, or "" for
// WORLD_SIZE of the environment or 1. Throws UsageError for what is no number of ranks.
config::LoadOptions load_options(const Context& context, const std::string& ranks,
                                 const std::string& option);

struct JobCheck {
  std::vector<std::string> warnings;
  std::string not_looked_at;  // by this check, but by training
};

// Throws what training would throw before its first step, as far as that can be seen without
// reading weights and tokenizing text.
JobCheck check_job(const config::Job& job);

}  // namespace shardwise::apps
