// Text files to a token file.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "shardwise/data/tokenizer.h"

namespace shardwise::data {

// What one document is: a whole file, a line (without its line end), or one field of each line,
// which is a JSON object.
enum class DocumentUnit { kFile, kLine, kJsonLines };

struct TokenizeProgress {
  std::int64_t bytes = 0;  // of the files, read so far
  std::int64_t total_bytes = 0;
  std::int64_t documents = 0;  // with at least one token
  std::int64_t tokens = 0;
  std::int64_t text_bytes = 0;  // that the tokens stand for
};

struct TokenizeOptions {
  std::vector<std::string> files;  // globs are expanded
  std::string output;
  DocumentUnit unit = DocumentUnit::kFile;
  std::string field = "text";  // of JSON lines
  // Called about every megabyte and at the end.
  std::function<void(const TokenizeProgress&)> progress;
};

// Reads files in bounded memory (a document at a time) and writes io::TokenFile; no end of text is
// written, as a corpus puts it between documents. Empty documents are left out. Throws UsageError
// where the output is one of the files, IoError, and DataError that names file and line.
TokenizeProgress tokenize_files(const TokenizeOptions& options, const Tokenizer& tokenizer);

}  // namespace shardwise::data
