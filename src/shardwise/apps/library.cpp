#include "shardwise/apps/library.h"

#include <dlfcn.h>

#include <filesystem>
#include <fstream>

#include "shardwise/base/check.h"

namespace shardwise::apps {
namespace {

namespace fs = std::filesystem;
constexpr const char* kName = "libshardwise.so";
// The version that it is built against (cmake/torch.cmake).
constexpr const char* kTorchVersion = "2.11.0";

std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    paths.push_back(at->path());
  }
  return paths;
}

void add_if_there(std::vector<std::string>& found, const fs::path& path) {
  std::error_code error;
  if (fs::is_regular_file(path, error)) found.push_back(path.lexically_normal().string());
}

// A line of a *.pth file is a folder of packages, unless it is an import.
void follow_pth(std::vector<std::string>& found, const fs::path& file) {
  std::ifstream lines(file);
  std::string line;
  while (std::getline(lines, line)) {
    if (line.empty() || line.starts_with("#") || line.starts_with("import ")) continue;
    add_if_there(found, (file.parent_path() / line) / "shardwise" / kName);
  }
}

}  // namespace

std::vector<std::string> find_libraries(const std::string& program_directory) {
  std::vector<std::string> found;
  const fs::path root = fs::path(program_directory).parent_path();
  for (const fs::path& python : entries(root / "lib")) {
    if (!python.filename().string().starts_with("python3")) continue;
    for (const char* packages : {"site-packages", "dist-packages"}) {
      add_if_there(found, python / packages / "shardwise" / kName);
      for (const fs::path& file : entries(python / packages)) {
        if (file.extension() == ".pth") follow_pth(found, file);
      }
    }
  }
  add_if_there(found, root / "package" / kName);
  return found;
}

void* load_function(const std::string& library, const std::string& name) {
  void* loaded = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  SW_USER_CHECK(IoError, loaded != nullptr, "cannot be loaded (", ::dlerror(), "); install torch ",
                kTorchVersion, " into this program's Python environment");
  void* function = ::dlsym(loaded, name.c_str());
  SW_USER_CHECK(IoError, function != nullptr,
                "is of another version than this program; build or install both anew");
  return function;
}

void* find_function(const std::string& program_directory, const std::string& name) {
  const std::vector<std::string> libraries = find_libraries(program_directory);
  SW_USER_CHECK(IoError, !libraries.empty(), kName, " was not found from ", program_directory,
                "; run `make build`, or install the package there");
  try {
    return load_function(libraries.front(), name);
  } catch (const IoError& error) {
    SW_FAIL(IoError, libraries.front(), " ", error.what());
  }
}

}  // namespace shardwise::apps
