// `shardwise launch`: from parsed options to an exit code.
#pragma once

#include <string>

#include "shardwise/launcher/environment.h"
#include "shardwise/launcher/options.h"

namespace shardwise::launcher {

// Runs the job to its end. `program_directory` is where the running program lies. Returns the exit
// code; throws UsageError, IoError or CommunicationError when the job cannot be started.
int launch(LaunchOptions options, const Environment& environment,
           const std::string& program_directory);

}  // namespace shardwise::launcher
