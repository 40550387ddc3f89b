#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "shardwise/apps/command.h"
#include "shardwise/base/check.h"
#include "shardwise/launcher/command.h"

namespace shardwise::apps {

// The peers that it measures are Python's, so the module shardwise.bench does the work.
int run_bench(const Context& context) {
  launcher::LaunchOptions options;
  options.kind = launcher::ProgramKind::kModule;
  options.program = {"shardwise.bench"};
  options.program.insert(options.program.end(), context.arguments.begin(), context.arguments.end());
  const launcher::Command command =
      launcher::resolve_command(options, context.environment, context.program_directory);
  std::vector<char*> arguments;
  for (const std::string& argument : command.arguments) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  ::execv(command.file.c_str(), arguments.data());
  SW_FAIL(IoError, "bench: cannot run ", command.file, " (", std::strerror(errno), ")");
}

}  // namespace shardwise::apps
