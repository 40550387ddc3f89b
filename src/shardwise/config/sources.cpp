// Where a document comes from: a file, or base64 text.
#include "shardwise/config/sources.h"

#include <array>
#include <filesystem>
#include <fstream>

#include "shardwise/base/check.h"
#include "shardwise/config/base64.h"
#include "shardwise/config/config.h"
#include "shardwise/config/draft.h"
#include "shardwise/config/json_reader.h"

namespace shardwise::config {
namespace {

namespace fs = std::filesystem;

bool is_there(const std::string& path) {
  std::error_code ignored;
  // A path that the system refuses (too long, NUL inside) is not there either.
  return !path.empty() && path.find('\0') == std::string::npos && fs::exists(path, ignored);
}

// A text for messages: printable, and not longer than a line.
std::string excerpt(const std::string& text) {
  constexpr std::size_t kMost = 80;
  std::string out;
  for (const char c : text.substr(0, kMost)) {
    out.push_back(c >= 0x20 && c < 0x7F ? c : '?');
  }
  return text.size() > kMost ? out + "..." : out;
}

}  // namespace

std::string read_document_file(const std::string& path) {
  SW_USER_CHECK(IoError, is_there(path), "configuration file \"", visible(path),
                "\" does not exist; check the path (the working directory is ",
                fs::current_path().string(), ")");
  std::error_code ignored;
  SW_USER_CHECK(IoError, !fs::is_directory(path, ignored), "configuration file \"", visible(path),
                "\" is a directory; name the JSON file in it");
  std::ifstream file(path, std::ios::binary);
  SW_USER_CHECK(IoError, file.is_open(), "configuration file \"", visible(path),
                "\" cannot be opened; check its permissions");
  std::string text;
  std::array<char, 16384> piece;
  while (text.size() <= kMaxJsonBytes && file) {  // more, so that a longer file is noticed
    file.read(piece.data(), piece.size());
    text.append(piece.data(), static_cast<std::size_t>(file.gcount()));
  }
  SW_USER_CHECK(IoError, !file.bad(), "configuration file \"", visible(path), "\" cannot be read");
  return text;
}

Resolved load_file(const std::string& path, const LoadOptions& options) {
  return load_file_text(read_document_file(path), path, options);
}

Resolved load_argument(const std::string& path_or_base64, const LoadOptions& options) {
  if (is_there(path_or_base64)) {
    return load_file(path_or_base64, options);
  }
  const std::size_t first = path_or_base64.find_first_not_of(" \t\r\n");
  SW_USER_CHECK(ConfigError, first == std::string::npos || path_or_base64[first] != '{',
                "config: this is JSON text, not the path of a JSON file; pass a dict or a file");
  const auto decoded = decode_base64(path_or_base64);
  const bool object = decoded && decoded->find_first_not_of(" \t\r\n") != std::string::npos &&
                      (*decoded)[decoded->find_first_not_of(" \t\r\n")] == '{';
  SW_USER_CHECK(ConfigError, object, "config: \"", excerpt(path_or_base64),
                "\" is neither an existing file nor a JSON object in base64; check the path");
  LoadOptions named = options;
  named.source = "base64";
  return load_text(*decoded, named);
}

}  // namespace shardwise::config
