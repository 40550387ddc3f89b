#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>

#include "shardwise/apps/command.h"
#include "shardwise/base/check.h"
#include "shardwise/base/log.h"
#include "shardwise/base/suggest.h"
#include "shardwise/config/config.h"
#include "shardwise/config/env.h"
#include "shardwise/config/job.h"

namespace shardwise::apps {
namespace {

constexpr const char* kHelp =
    "Usage: shardwise config check FILE [--world-size N]\n"
    "       shardwise config print FILE [--world-size N] [--origins]\n"
    "       shardwise config reference [--check FILE]\n\n"
    "  check      reads FILE and says what is wrong, or how the batch sizes were solved\n"
    "  print      the resolved configuration as JSON; --origins adds where each value came from\n"
    "  reference  the reference page of all keys; --check FILE compares it with FILE instead\n\n"
    "FILE is a JSON file (comments allowed), a job file of `shardwise train`, or a JSON object in\n"
    "base64. N is the number of ranks; without it WORLD_SIZE from the environment, else 1.\n";

struct Request {
  std::string action;
  std::string file;
  std::string world_size;
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
    if (word == "--help" || word == "-h") {
      request.help = true;
    } else if (word == "--origins") {
      request.origins = true;
    } else if (take_value(words, at, "--world-size", request.world_size) ||
               take_value(words, at, "--check", request.compare_with)) {
      continue;
    } else if (word.size() > 1 && word[0] == '-') {
      SW_FAIL(UsageError, "config: unknown option ", word,
              suggest(word, {"--world-size", "--origins", "--check", "--help"}),
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

config::LoadOptions load_options(const Request& request, const Context& context) {
  const config::EnvironmentLookup lookup =
      [&](std::string_view name) -> std::optional<std::string> {
    const auto found = context.environment.find(std::string(name));
    if (found == context.environment.end()) return std::nullopt;
    return found->second;
  };
  config::LoadOptions options;
  options.environment_timeout_seconds = config::read_settings(lookup).timeout_seconds;
  const bool from_environment = request.world_size.empty();
  const std::string text =
      from_environment ? lookup("WORLD_SIZE").value_or("1") : request.world_size;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), options.world_size);
  SW_USER_CHECK(UsageError,
                error == std::errc() && end == text.data() + text.size() && options.world_size >= 1,
                "config: ", from_environment ? "WORLD_SIZE" : "--world-size",
                " takes a whole number from 1, not '", text, "'");
  options.world_size_origin = !from_environment                  ? "--world-size"
                              : lookup("WORLD_SIZE").has_value() ? "WORLD_SIZE"
                                                                 : "default";
  return options;
}

config::Resolved load(const std::string& file, const config::LoadOptions& options) {
  return config::is_job_file(file) ? config::load_job(file, {}, options).engine
                                   : config::load_argument(file, options);
}

int check(const Request& request, const config::Resolved& resolved) {
  const config::BatchConfig& batch = resolved.config().batch;
  for (const std::string& note : resolved.notes()) log_info(note);
  print(concat(request.file, ": valid; train_batch_size ", batch.train_batch_size, " = ",
               batch.train_micro_batch_size_per_gpu, " (micro-batch) x ",
               batch.gradient_accumulation_steps, " (accumulation) x ", resolved.world_size(),
               " (ranks); ZeRO stage ", resolved.config().zero.stage, ", ",
               resolved.config().model_dtype(), "\n"));
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
  if (request.action == "reference") return reference(request);
  SW_USER_CHECK(UsageError, request.action == "check" || request.action == "print",
                "config: there is no '", request.action, "'",
                suggest(request.action, {"check", "print", "reference"}),
                "; see `shardwise config --help`");
  SW_USER_CHECK(UsageError, !request.file.empty(), "config: name the file: shardwise config ",
                request.action, " FILE");
  const config::Resolved resolved = load(request.file, load_options(request, context));
  if (request.action == "check") return check(request, resolved);
  std::string text = resolved.to_json(request.origins);
  if (text.empty() || text.back() != '\n') text += '\n';
  print(text);
  return 0;
}

}  // namespace shardwise::apps
