#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "shardwise/apps/command.h"
#include "shardwise/base/check.h"
#include "shardwise/base/log.h"
#include "shardwise/base/suggest.h"
#include "shardwise/data/tokenize_files.h"
#include "shardwise/data/tokenizer.h"
#include "shardwise/io/live_files.h"

namespace shardwise::apps {
namespace {

constexpr const char* kHelp =
    "Usage: shardwise data tokenize --tokenizer T --output FILE [options] FILES...\n\n"
    "Writes the token ids of text files into one token file, which `shardwise train` reads as it\n"
    "reads text. FILES may hold *, ? and [...].\n\n"
    "  --tokenizer T          bytes, a tokenizer.json with a BPE model, or a folder with one\n"
    "  --output FILE          the token file\n"
    "  --document-per UNIT    what a document is: file (default), line, or jsonl (a line is a "
    "JSON\n"
    "                         object)\n"
    "  --jsonl-field NAME     the member of the object that holds the text (default text)\n"
    "  --quiet                no progress on standard error\n"
    "  -h, --help             this text\n\n"
    "No end of text is written: training puts the tokenizer's between documents.\n";

struct Request {
  std::vector<std::string> words;  // that are no options: the action, then files
  std::string tokenizer;
  std::string output;
  std::string unit = "file";
  std::string field;
  bool quiet = false;
  bool help = false;
};

// Takes "--name VALUE" or "--name=VALUE" at `at`; leaves `at` on its last word.
bool take_value(const std::vector<std::string>& words, std::size_t& at, const std::string& name,
                std::string& value) {
  if (words[at].starts_with(name + "=")) {
    value = words[at].substr(name.size() + 1);
  } else if (words[at] == name) {
    SW_USER_CHECK(UsageError, at + 1 < words.size(), "data: ", name, " needs a value");
    value = words[++at];
  } else {
    return false;
  }
  SW_USER_CHECK(UsageError, !value.empty(), "data: ", name, " needs a value, not an empty one");
  return true;
}

Request parse(const std::vector<std::string>& words) {
  Request request;
  bool options = true;  // until --
  for (std::size_t at = 0; at < words.size(); ++at) {
    const std::string& word = words[at];
    if (!options || word.size() < 2 || word[0] != '-') {
      request.words.push_back(word);
    } else if (word == "--") {
      options = false;
    } else if (word == "--help" || word == "-h") {
      request.help = true;
    } else if (word == "--quiet") {
      request.quiet = true;
    } else if (!take_value(words, at, "--tokenizer", request.tokenizer) &&
               !take_value(words, at, "--output", request.output) &&
               !take_value(words, at, "--document-per", request.unit) &&
               !take_value(words, at, "--jsonl-field", request.field)) {
      SW_FAIL(UsageError, "data: unknown option ", word,
              suggest(word.substr(0, word.find('=')), {"--tokenizer", "--output", "--document-per",
                                                       "--jsonl-field", "--quiet", "--help"}),
              "; see `shardwise data --help`");
    }
  }
  return request;
}

data::DocumentUnit to_unit(const std::string& name) {
  if (name == "file") return data::DocumentUnit::kFile;
  if (name == "line") return data::DocumentUnit::kLine;
  if (name == "jsonl") return data::DocumentUnit::kJsonLines;
  SW_FAIL(UsageError, "data tokenize: --document-per takes file, line or jsonl, not '", name, "'",
          suggest(name, {"file", "line", "jsonl"}));
}

void check(const Request& request) {
  SW_USER_CHECK(UsageError, !request.words.empty(),
                "data: say what to do: shardwise data tokenize; see `shardwise data --help`");
  const std::string& action = request.words.front();
  SW_USER_CHECK(UsageError, action == "tokenize", "data: there is no '", action, "'",
                suggest(action, {"tokenize"}), "; see `shardwise data --help`");
  SW_USER_CHECK(UsageError, !request.tokenizer.empty(),
                "data tokenize: name the tokenizer: --tokenizer bytes, or --tokenizer FILE");
  SW_USER_CHECK(UsageError, !request.output.empty(),
                "data tokenize: name the token file: --output corpus.tokens");
  SW_USER_CHECK(UsageError, request.words.size() > 1, "data tokenize: name the text files");
  SW_USER_CHECK(UsageError, request.field.empty() || request.unit == "jsonl",
                "data tokenize: --jsonl-field goes with --document-per jsonl");
}

// One line that is written over; in a log that is no terminal, every hundredth megabyte.
void show_progress(const data::TokenizeProgress& progress) {
  const double megabytes = static_cast<double>(progress.bytes) / 1e6;
  const double total = static_cast<double>(progress.total_bytes) / 1e6;
  if (::isatty(STDERR_FILENO) != 0) {
    std::fprintf(stderr, "\r%.0f of %.0f MB, %lld tokens ", megabytes, total,
                 static_cast<long long>(progress.tokens));
    if (progress.bytes == progress.total_bytes) std::fputc('\n', stderr);
  } else if (progress.bytes / 100'000'000 != (progress.bytes - (1 << 20)) / 100'000'000) {
    log_info(concat(megabytes, " of ", total, " MB, ", progress.tokens, " tokens"));
  }
}

int tokenize(const Request& request) {
  data::TokenizeOptions options;
  options.files.assign(request.words.begin() + 1, request.words.end());
  options.output = request.output;
  options.unit = to_unit(request.unit);
  if (!request.field.empty()) options.field = request.field;
  if (!request.quiet) options.progress = show_progress;
  const auto tokenizer = data::make_tokenizer(request.tokenizer, "--tokenizer");
  const data::TokenizeProgress done = data::tokenize_files(options, *tokenizer);
  char rate[32];
  std::snprintf(rate, sizeof(rate), "%.4f",
                static_cast<double>(done.tokens) /
                    static_cast<double>(done.text_bytes > 0 ? done.text_bytes : 1));
  print(concat(request.output, ": ", done.tokens, " tokens, ", done.documents, " documents, ", rate,
               " tokens/byte\n"));
  return 0;
}

}  // namespace

int run_data(const Context& context) {
  const Request request = parse(context.arguments);
  if (request.help) {
    print(kHelp);
    return 0;
  }
  check(request);
  io::name_file_on_bus_error();
  io::remove_unfinished_files_on({SIGINT, SIGTERM, SIGHUP});
  return tokenize(request);
}

}  // namespace shardwise::apps
