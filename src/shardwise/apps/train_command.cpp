#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <optional>

#include "shardwise/apps/command.h"
#include "shardwise/apps/job_check.h"
#include "shardwise/apps/library.h"
#include "shardwise/base/check.h"
#include "shardwise/base/suggest.h"
#include "shardwise/launcher/launch.h"
#include "shardwise/launcher/options.h"

namespace shardwise::apps {
namespace {

constexpr const char* kHelp =
    "Usage: shardwise train JOB.json [--ranks N] [--set path=value]...\n\n"
    "Trains the model that the job file describes and writes log, report and weights into its\n"
    "output folder. docs/config.md lists the keys; comments are allowed.\n\n"
    "  --ranks N         start N processes on this machine; without it this process is one rank, "
    "of\n"
    "                    the job that torchrun or `shardwise launch` has started, or alone\n"
    "  --set path=value  overrides a key, for example --set optimizer.params.lr=3e-4;\n"
    "                    the value is JSON or a string\n";

struct Request {
  std::string job;
  std::optional<std::string> ranks;
  std::vector<std::string> overrides;
  bool help = false;
};

Request parse(const std::vector<std::string>& words) {
  Request request;
  for (std::size_t at = 0; at < words.size(); ++at) {
    const std::string& word = words[at];
    const auto value_of = [&](const std::string& name) -> const std::string* {
      if (word != name) return nullptr;
      SW_USER_CHECK(UsageError, at + 1 < words.size(), "train: ", name, " needs a value");
      return &words[++at];
    };
    if (word == "--help" || word == "-h") {
      request.help = true;
    } else if (word.starts_with("--ranks=")) {
      request.ranks = word.substr(8);
    } else if (const std::string* ranks = value_of("--ranks")) {
      request.ranks = *ranks;
    } else if (word.starts_with("--set=")) {
      request.overrides.push_back(word.substr(6));
    } else if (const std::string* assignment = value_of("--set")) {
      request.overrides.push_back(*assignment);
    } else if (word.size() > 1 && word[0] == '-') {
      SW_FAIL(UsageError, "train: unknown option ", word,
              suggest(word, {"--ranks", "--set", "--help"}), "; see `shardwise train --help`");
    } else {
      SW_USER_CHECK(UsageError, request.job.empty(), "train: one job file only, not also '", word,
                    "'");
      request.job = word;
    }
  }
  SW_USER_CHECK(UsageError, request.help || !request.job.empty(),
                "train: name the job file: shardwise train JOB.json");
  return request;
}

// Runs the same command once for each rank, without --ranks. What is wrong with the job is said
// here, once and at once.
int launch_ranks(const Request& request, const Context& context) {
  launcher::LaunchOptions options;
  const std::string& text = *request.ranks;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), options.ranks);
  SW_USER_CHECK(UsageError,
                error == std::errc() && end == text.data() + text.size() && options.ranks >= 1,
                "train: --ranks takes a whole number from 1, not '", text, "'");
  SW_USER_CHECK(UsageError, !context.environment.contains("RANK"),
                "train: --ranks starts the ranks, but RANK is set: torchrun or `shardwise launch` "
                "has started this process already; leave --ranks out");
  check_job(config::load_job(request.job, parse_overrides("train", request.overrides),
                             load_options(context, text, "--ranks")));
  options.kind = launcher::ProgramKind::kNative;
  options.program = {context.program, "train", request.job};
  for (const std::string& assignment : request.overrides) {
    options.program.insert(options.program.end(), {"--set", assignment});
  }
  return launcher::launch(options, context.environment, context.program_directory);
}

using Train = int (*)(const char* job, int count, const char* const* overrides);

}  // namespace

int run_train(const Context& context) {
  const Request request = parse(context.arguments);
  if (request.help) {
    print(kHelp);
    return 0;
  }
  parse_overrides("train", request.overrides);
  if (request.ranks) return launch_ranks(request, context);
  const auto train =
      reinterpret_cast<Train>(find_function(context.program_directory, "shardwise_train"));
  std::vector<const char*> overrides;
  for (const std::string& assignment : request.overrides) overrides.push_back(assignment.c_str());
  const int code = train(request.job.c_str(), static_cast<int>(overrides.size()), overrides.data());
  if (code != 0) {
    // Threads of the process group may wait for ranks that are gone; do not wait for them.
    std::fflush(nullptr);
    ::_exit(code);
  }
  return 0;
}

}  // namespace shardwise::apps
