// The sub-commands of the program `shardwise`.
#pragma once

#include <string>
#include <vector>

#include "shardwise/launcher/environment.h"

namespace shardwise::apps {

// What every sub-command gets.
struct Context {
  std::vector<std::string> arguments;  // behind the sub-command's name
  launcher::Environment environment;   // as the program received it
  std::string program;                 // path of the running program
  std::string program_directory;
};

struct Command {
  const char* name;
  const char* summary;
  // Returns the exit code; throws shardwise::Error.
  int (*run)(const Context& context);
};

int run_launch(const Context& context);
int run_config(const Context& context);
int run_train(const Context& context);
int run_data(const Context& context);
int run_bench(const Context& context);
int run_environment(const Context& context);

// Writes text to standard output as it is, at once. Throws IoError where it cannot (full disk).
void print(const std::string& text);

}  // namespace shardwise::apps
