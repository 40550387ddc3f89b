// The program `shardwise`: finds the sub-command and turns errors into exit codes. It is native and
// loads torch only where a sub-command needs it.
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>

#include "shardwise/apps/command.h"
#include "shardwise/base/check.h"
#include "shardwise/base/log.h"
#include "shardwise/base/suggest.h"

namespace shardwise::apps {
namespace {

constexpr Command kCommands[] = {
    {"launch", "start the ranks of a job on this machine", run_launch},
    {"train", "train a model as a job file says, without Python", run_train},
    {"config", "check or print a configuration file, or print the reference", run_config},
    {"data", "make token files of text files", run_data},
    {"bench", "measure training steps, kernels and collectives", run_bench},
    {"env", "show what was found: torch, CUDA, NCCL, Gloo, CPU features, kernels", run_environment},
};

int help() {
  std::string text = "Usage: shardwise COMMAND [arguments]\n\nCommands:\n";
  for (const Command& command : kCommands) {
    text += concat("  ", command.name, std::string(10 - std::string(command.name).size(), ' '),
                   command.summary, "\n");
  }
  print(text +
        "\n`shardwise COMMAND --help` says more about one; `shardwise --version` the version.\n");
  return 0;
}

int dispatch(Context context, std::vector<std::string> words) {
  SW_USER_CHECK(UsageError, !words.empty(), "name a command; `shardwise --help` lists them");
  std::string name = words.front();
  words.erase(words.begin());
  if (name == "help" && !words.empty()) {
    name = words.front();
    words = {"--help"};
  }
  if (name == "--help" || name == "-h" || name == "help") return help();
  if (name == "--version" || name == "-V" || name == "version") {
    print("shardwise " SW_VERSION "\n");
    return 0;
  }
  context.arguments = std::move(words);
  std::vector<std::string> known;
  for (const Command& command : kCommands) {
    if (name == command.name) return command.run(context);
    known.push_back(command.name);
  }
  SW_FAIL(UsageError, "there is no command '", name, "'", suggest(name, known),
          "; `shardwise --help` lists them");
}

}  // namespace

void print(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  SW_USER_CHECK(IoError, written && std::fflush(stdout) == 0,
                "cannot write to standard output: ", std::strerror(errno));
}

}  // namespace shardwise::apps

int main(int argc, char** argv, char** environment) {
  using namespace shardwise;
  // A file that exceeds a limit is an error of the write, with its name, not a signal.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    std::error_code error;
    const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
    apps::Context context{{},
                          launcher::parse_environment(environment),
                          program.string(),
                          program.parent_path().string()};
    return apps::dispatch(std::move(context),
                          std::vector<std::string>(argv + (argc > 0), argv + argc));
  } catch (const Error& error) {
    log_error(error.what());
    return exit_code(error.kind());
  } catch (const std::exception& error) {
    log_error(concat("internal error: ", error.what()));
    return exit_code(ErrorKind::kInternal);
  }
}
