#include <fstream>
#include <sstream>

#include "shardwise/apps/command.h"
#include "shardwise/apps/job_check.h"
#include "shardwise/base/check.h"
#include "shardwise/base/log.h"
#include "shardwise/base/suggest.h"
#include "shardwise/config/config.h"
#include "shardwise/config/job.h"

namespace shardwise::apps {
namespace {

constexpr const char* kHelp =
    "Usage: shardwise config check FILE [--ranks N] [--set path=value]...\n"
    "       shardwise config print FILE [--ranks N] [--set path=value]... [--origins]\n"
    "       shardwise config reference [--check FILE]\n\n"
    "  check      reads FILE and says what is wrong, or how the batch sizes were solved; of a job\n"
    "             file also model, tokenizer and data files\n"
    "  print      the resolved configuration as JSON; --origins adds where each value came from\n"
    "  reference  the reference page of all keys; --check FILE compares it with FILE instead\n\n"
    "FILE is a JSON file (comments allowed), a job file of `shardwise train`, or a JSON object in\n"
    "base64. N is the number of ranks (--world-size is the same); without it WORLD_SIZE from the\n"
    "environment, else 1. --set overrides a key of a job file, as in `shardwise train`.\n";

struct Request {
  std::string action;
  std::string file;
  std::string ranks;
  std::string ranks_option = "--ranks";
  std::vector<std::string> overrides;
  std::string compare_with;
  bool origins = false;
  bool help = false;
};

// Takes "--name VALUE" or "--name=VALUE" at `at`; leaves `at` on its last word.
bool take_value(const std::vector<std::string>& words, std::size_t& at, const std::string& name,
                std::string& value) {
  if (words[at].starts_with(name + "=")) {
    value = words[at].substr(name.size() + 1);
    return true;
  }
  if (words[at] != name) return false;
  SW_USER_CHECK(UsageError, at + 1 < words.size(), "config: ", name, " needs a value");
  value = words[++at];
  return true;
}

Request parse(const std::vector<std::string>& words) {
  Request request;
  for (std::size_t at = 0; at < words.size(); ++at) {
    const std::string& word = words[at];
    std::string assignment;
    if (word == "--help" || word == "-h") {
      request.help = true;
    } else if (word == "--origins") {
      request.origins = true;
    } else if (take_value(words, at, "--set", assignment)) {
      request.overrides.push_back(assignment);
    } else if (take_value(words, at, "--world-size", request.ranks)) {
      request.ranks_option = "--world-size";
    } else if (take_value(words, at, "--ranks", request.ranks) ||
               take_value(words, at, "--check", request.compare_with)) {
      continue;
    } else if (word.size() > 1 && word[0] == '-') {
      SW_FAIL(UsageError, "config: unknown option ", word,
              suggest(word, {"--ranks", "--set", "--world-size", "--origins", "--check", "--help"}),
              "; see `shardwise config --help`");
    } else if (request.action.empty()) {
      request.action = word;
    } else {
      SW_USER_CHECK(UsageError, request.file.empty(), "config: one FILE only, not also '", word,
                    "'");
      request.file = word;
    }
  }
  return request;
}

// A configuration or a job, with what the check of a job adds.
struct Loaded {
  config::Resolved resolved;
  JobCheck job;
};

Loaded load(const Request& request, const config::LoadOptions& options) {
  const std::vector<config::Override> overrides = parse_overrides("config", request.overrides);
  if (!config::is_job_file(request.file)) {
    SW_USER_CHECK(UsageError, overrides.empty(), "config: --set goes with job files, and '",
                  request.file, "' has no section model, data or training");
    return {config::load_argument(request.file, options), {}};
  }
  const config::Job job = config::load_job(request.file, overrides, options);
  return {job.engine, request.action == "check" ? check_job(job) : JobCheck()};
}

int check(const Request& request, const Loaded& loaded) {
  const config::Config& config = loaded.resolved.config();
  const config::BatchConfig& batch = config.batch;
  for (const std::string& note : loaded.resolved.notes()) log_info(note);
  for (const std::string& warning : loaded.job.warnings) log_warning(warning);
  print(concat(request.file, ": valid; train_batch_size ", batch.train_batch_size, " = ",
               batch.train_micro_batch_size_per_gpu, " (micro-batch) x ",
               batch.gradient_accumulation_steps, " (accumulation) x ",
               loaded.resolved.world_size(), " (ranks); ZeRO stage ", config.zero.stage, ", ",
               config.model_dtype(), "\n"));
  if (!loaded.job.not_looked_at.empty()) {
    print(concat("not looked at: ", loaded.job.not_looked_at, "\n"));
  }
  return 0;
}

int reference(const Request& request) {
  const std::string page = config::reference_markdown();
  if (request.compare_with.empty()) {
    print(page);
    return 0;
  }
  std::ifstream file(request.compare_with, std::ios::binary);
  SW_USER_CHECK(IoError, file.good(), "config: cannot read '", request.compare_with, "'");
  std::ostringstream text;
  text << file.rdbuf();
  if (text.str() == page) return 0;
  log_error(concat("'", request.compare_with, "' differs from the field list; write it anew: ",
                   "shardwise config reference > ", request.compare_with));
  return 1;
}

}  // namespace

int run_config(const Context& context) {
  const Request request = parse(context.arguments);
  if (request.help) {
    print(kHelp);
    return 0;
  }
  SW_USER_CHECK(UsageError, !request.action.empty(),
                "config: say check, print or reference; see `shardwise config --help`");
  if (request.action == "reference") {
    SW_USER_CHECK(UsageError, request.file.empty(),
                  "config: reference prints all keys and takes no ", "argument; not '",
                  request.file, "'");
    return reference(request);
  }
  SW_USER_CHECK(UsageError, request.action == "check" || request.action == "print",
                "config: there is no '", request.action, "'",
                suggest(request.action, {"check", "print", "reference"}),
                "; see `shardwise config --help`");
  SW_USER_CHECK(UsageError, !request.file.empty(), "config: name the file: shardwise config ",
                request.action, " FILE");
  const Loaded loaded = load(request, load_options(context, request.ranks, request.ranks_option));
  if (request.action == "check") return check(request, loaded);
  std::string text = loaded.resolved.to_json(request.origins);
  if (text.empty() || text.back() != '\n') text += '\n';
  print(text);
  return 0;
}

}  // namespace shardwise::apps
