#include "shardwise/data/tokenize_files.h"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "shardwise/base/check.h"
#include "shardwise/data/file_list.h"
#include "shardwise/data/text_check.h"
#include "shardwise/io/json_view.h"
#include "shardwise/io/memory_map.h"
#include "shardwise/io/token_file.h"

namespace shardwise::data {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kReportBytes = 1 << 20;

void check_output(const std::string& output, const std::vector<std::string>& files) {
  for (const std::string& file : files) {
    std::error_code error;
    SW_USER_CHECK(UsageError, !fs::equivalent(output, file, error), "data tokenize: --output '",
                  output, "' is the input '", file, "'; name another file");
    SW_USER_CHECK(UsageError, !io::TokenFile::has_magic(file), "data tokenize: '", file,
                  "' is a token file already; it takes text files");
  }
}

class Run {
 public:
  Run(const TokenizeOptions& options, const Tokenizer& tokenizer)
      : options_(options),
        tokenizer_(tokenizer),
        writer_(options.output, tokenizer.vocabulary_size(), tokenizer.fingerprint()) {}

  // The file is mapped: of what has been read, the system keeps what it has room for.
  void add_file(const std::string& path) {
    const io::MemoryMap map(path);
    const auto bytes = map.bytes();
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    check_not_binary(text, path);
    // JSON is checked where it is parsed.
    const bool check = options_.unit != DocumentUnit::kJsonLines && !tokenizer_.takes_any_bytes();
    if (options_.unit == DocumentUnit::kFile) {
      if (check) check_utf8(text, path);
      add_document(text);
      count(text.size());
      return;
    }
    std::int64_t number = 0;
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = std::min(text.find('\n', begin), text.size());
      std::string_view line = text.substr(begin, end - begin);
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (check) check_utf8(line, path, begin);
      add_line(line, path, ++number);
      count(std::min(end + 1, text.size()) - begin);
      begin = end + 1;
    }
  }

  void set_total(std::int64_t bytes) { progress_.total_bytes = bytes; }

  TokenizeProgress finish() {
    writer_.commit();
    report();
    return progress_;
  }

 private:
  void add_line(std::string_view line, const std::string& path, std::int64_t number) {
    if (options_.unit == DocumentUnit::kLine) {
      add_document(line);
    } else if (line.find_first_not_of(" \t") != std::string_view::npos) {
      const std::string source = concat(path, ": line ", number);
      add_document(io::JsonView::parse(line, source).at(options_.field).string());
    }
  }

  void add_document(std::string_view text) {
    const std::vector<std::int64_t> ids = tokenizer_.encode(text);
    writer_.add_document(ids);
    progress_.documents += ids.empty() ? 0 : 1;
    progress_.tokens += static_cast<std::int64_t>(ids.size());
    progress_.text_bytes += static_cast<std::int64_t>(text.size());
  }

  void count(std::size_t bytes) {
    progress_.bytes += static_cast<std::int64_t>(bytes);
    if (progress_.bytes - reported_ >= kReportBytes) report();
  }

  void report() {
    reported_ = progress_.bytes;
    if (options_.progress) options_.progress(progress_);
  }

  const TokenizeOptions& options_;
  const Tokenizer& tokenizer_;
  io::TokenFileWriter writer_;
  TokenizeProgress progress_;
  std::int64_t reported_ = 0;
};

}  // namespace

TokenizeProgress tokenize_files(const TokenizeOptions& options, const Tokenizer& tokenizer) {
  const std::vector<std::string> files = expand_files(options.files, "data tokenize");
  check_output(options.output, files);
  Run run(options, tokenizer);
  std::int64_t total = 0;
  for (const std::string& file : files) {
    total += static_cast<std::int64_t>(io::MemoryMap(file).bytes().size());
  }
  run.set_total(total);
  for (const std::string& file : files) run.add_file(file);
  return run.finish();
}

}  // namespace shardwise::data
