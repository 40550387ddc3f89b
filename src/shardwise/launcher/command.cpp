#include "shardwise/launcher/command.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <sstream>

#include "shardwise/base/check.h"

namespace shardwise::launcher {
namespace {

bool is_regular(const std::string& path) {
  struct stat status{};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

bool is_directory(const std::string& path) {
  struct stat status{};
  return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

bool is_executable(const std::string& path) {
  return is_regular(path) && ::access(path.c_str(), X_OK) == 0;
}

std::string working_directory() {
  std::string buffer(4096, '\0');
  return ::getcwd(buffer.data(), buffer.size()) == nullptr ? "." : std::string(buffer.c_str());
}

// The first executable file of this name in the directories of PATH.
std::optional<std::string> search_path(const std::string& name, const Environment& environment) {
  std::istringstream directories(lookup(environment, "PATH", "/usr/local/bin:/usr/bin:/bin"));
  std::string directory;
  while (std::getline(directories, directory, ':')) {
    const std::string candidate = (directory.empty() ? "." : directory) + "/" + name;
    if (is_executable(candidate)) return candidate;
  }
  return std::nullopt;
}

void check_file(const std::string& what, const std::string& path) {
  SW_USER_CHECK(IoError, !is_directory(path), "launch: ", what, " '", path,
                "' is a directory; name a file in it");
  struct stat status{};
  const int error = ::stat(path.c_str(), &status) == 0 ? 0 : errno;
  SW_USER_CHECK(IoError, error == 0, "launch: there is no ", what, " '", path, "' (",
                std::strerror(error), path.starts_with("/") ? "" : "; looked in ",
                path.starts_with("/") ? "" : working_directory(), "); check the path");
}

std::string find_native(const std::string& name, const Environment& environment) {
  if (name.find('/') == std::string::npos) {
    const auto found = search_path(name, environment);
    if (found) return *found;
    SW_USER_CHECK(IoError, !is_regular(name), "launch: '", name,
                  "' is not in PATH; for the file in this directory write ./", name);
    SW_FAIL(IoError, "launch: there is no program '", name,
            "' in PATH; give its path, or -m for a Python module");
  }
  check_file("program", name);
  SW_USER_CHECK(IoError, is_executable(name), "launch: '", name,
                "' is not executable; run `chmod +x ", name,
                "`, or give it to an interpreter: shardwise launch -n N python3 ", name);
  return name;
}

}  // namespace

std::string find_python(const LaunchOptions& options, const Environment& environment,
                        const std::string& program_directory) {
  if (!options.python.empty()) {
    return find_native(options.python, environment);
  }
  for (const char* name : {"/python3", "/python"}) {
    const std::string beside = program_directory + name;
    if (is_executable(beside)) return beside;
  }
  const auto found = search_path("python3", environment);
  SW_USER_CHECK(IoError, found.has_value(), "launch: there is no python3 in ", program_directory,
                " or in PATH; name one with --python FILE");
  return *found;
}

Command resolve_command(const LaunchOptions& options, const Environment& environment,
                        const std::string& program_directory) {
  const std::string& program = options.program.front();
  const bool script = options.kind == ProgramKind::kByName && program.ends_with(".py");
  Command command;
  if (script || options.kind == ProgramKind::kModule) {
    if (script) {
      check_file("script", program);
      SW_USER_CHECK(IoError, ::access(program.c_str(), R_OK) == 0, "launch: script '", program,
                    "' cannot be read (", std::strerror(errno), "); run `chmod +r ", program, "`");
    }
    command.file = find_python(options, environment, program_directory);
    // -u: what a rank printed before it died is not lost in its buffer.
    command.arguments = {command.file, "-u"};
    if (!script) command.arguments.push_back("-m");
  } else {
    command.file = find_native(program, environment);
  }
  command.arguments.push_back(program);
  command.program_arguments = command.arguments.size();
  command.arguments.insert(command.arguments.end(), options.program.begin() + 1,
                           options.program.end());
  return command;
}

std::vector<std::string> rank_arguments(const Command& command, const LaunchOptions& options,
                                        int local_rank) {
  std::vector<std::string> arguments = command.arguments;
  if (options.pass_local_rank) {
    arguments.insert(arguments.begin() + static_cast<std::ptrdiff_t>(command.program_arguments),
                     "--local_rank=" + std::to_string(local_rank));
  }
  return arguments;
}

}  // namespace shardwise::launcher
