#include "shardwise/data/file_list.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>

#include "shardwise/base/check.h"

namespace shardwise::data {
namespace {

std::vector<std::string> matches(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> paths;
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  ::globfree(&found);
  std::error_code error;
  std::erase_if(paths,
                [&](const std::string& p) { return std::filesystem::is_directory(p, error); });
  std::sort(paths.begin(), paths.end());
  return paths;
}

// Where a file comes from that has to be made first: the page beside it or one folder up, or "".
std::string page_near(const std::string& file) {
  const std::filesystem::path folder = std::filesystem::path(file).parent_path();
  for (const std::filesystem::path& place : {folder, folder.parent_path()}) {
    const std::filesystem::path page = place / "README.md";
    std::error_code error;
    if (std::filesystem::is_regular_file(page, error)) {
      return page.string();
    }
  }
  return "";
}

void check_exists(const std::string& file, const std::string& key) {
  std::error_code error;
  if (!std::filesystem::exists(file, error)) {
    const std::string page = page_near(file);
    SW_FAIL(IoError, key, ": '", file, "' does not exist",
            page.empty() ? "" : concat("; ", page, " may say what makes it"));
  }
}

}  // namespace

std::vector<std::string> expand_files(const std::vector<std::string>& patterns,
                                      const std::string& key) {
  SW_USER_CHECK(ConfigError, !patterns.empty(), key,
                ": names no file; give text or token files, for example [\"corpus/*.txt\"]");
  std::vector<std::string> files;
  for (const std::string& pattern : patterns) {
    std::error_code error;
    SW_USER_CHECK(ConfigError, !std::filesystem::is_directory(pattern, error), key, ": '", pattern,
                  "' is a folder; name files, for example '", pattern, "/*.txt'");
    if (std::filesystem::exists(pattern, error)) {
      files.push_back(pattern);
      continue;
    }
    if (pattern.find_first_of("*?[") == std::string::npos) {
      check_exists(pattern, key);
    }
    const std::vector<std::string> found = matches(pattern);
    SW_USER_CHECK(ConfigError, !found.empty(), key, ": no file matches '", pattern, "'");
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

}  // namespace shardwise::data
