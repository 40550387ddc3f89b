#include "shardwise/apps/command.h"
#include "shardwise/launcher/launch.h"
#include "shardwise/launcher/options.h"

namespace shardwise::apps {

int run_launch(const Context& context) {
  const launcher::LaunchOptions options = launcher::parse_launch_options(context.arguments);
  if (options.help) {
    print(launcher::launch_help());
    return 0;
  }
  return launcher::launch(options, context.environment, context.program_directory);
}

}  // namespace shardwise::apps
