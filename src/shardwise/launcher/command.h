// Which file is executed for each rank, with which arguments. Looks at files, starts nothing.
#pragma once

#include <string>
#include <vector>

#include "shardwise/launcher/environment.h"
#include "shardwise/launcher/options.h"

namespace shardwise::launcher {

struct Command {
  std::string file;                    // path of what is executed
  std::vector<std::string> arguments;  // from argument 0 on
  std::size_t program_arguments = 0;   // index of the first argument of the user's program
};

// `program_directory` is where the running program lies: its python3 is tried first for scripts.
// Throws IoError where a file is missing or cannot be executed; the message says where was looked.
Command resolve_command(const LaunchOptions& options, const Environment& environment,
                        const std::string& program_directory);

// The arguments of one rank: with --local_rank=K where the options ask for it.
std::vector<std::string> rank_arguments(const Command& command, const LaunchOptions& options,
                                        int local_rank);

// The interpreter for scripts: options.python, else python3 or python in `program_directory`, else
// python3 of PATH.
std::string find_python(const LaunchOptions& options, const Environment& environment,
                        const std::string& program_directory);

}  // namespace shardwise::launcher
