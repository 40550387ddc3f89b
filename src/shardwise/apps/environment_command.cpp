#include <fstream>
#include <sstream>

#include "shardwise/apps/command.h"
#include "shardwise/apps/library.h"
#include "shardwise/base/check.h"
#include "shardwise/launcher/command.h"
#include "shardwise/launcher/machine.h"

namespace shardwise::apps {
namespace {

constexpr const char* kHelp =
    "Usage: shardwise env\n\n"
    "Shows what was found: versions and places of Shardwise, Python and torch, CUDA with driver "
    "and\n"
    "devices, NCCL, Gloo, CPU features, and the kernels of this build. Exits with 1 when the "
    "library\n"
    "or torch cannot be loaded.\n";

std::string line(const std::string& name, const std::string& value) {
  constexpr std::size_t kWidth = 18;
  return name + std::string(name.size() < kWidth ? kWidth - name.size() : 1, ' ') + value + "\n";
}

// The value of the first line "name<spaces><separator> value" of a file.
std::string file_value(const std::string& path, const std::string& name, char separator) {
  std::ifstream file(path);
  std::string text;
  while (std::getline(file, text)) {
    const std::size_t at = text.find(separator);
    if (at == std::string::npos) continue;
    const std::size_t name_end = text.find_last_not_of(" \t", at == 0 ? 0 : at - 1);
    if (text.substr(0, name_end + 1) != name) continue;
    const std::size_t start = text.find_first_not_of(" \t", at + 1);
    return start == std::string::npos ? "" : text.substr(start);
  }
  return "";
}

// Those that kernels and torch choose by.
std::string cpu_features() {
  std::string flags = file_value("/proc/cpuinfo", "flags", ':');
  if (flags.empty()) flags = file_value("/proc/cpuinfo", "Features", ':');
  std::istringstream words(flags);
  std::string found;
  std::string word;
  while (words >> word) {
    for (const char* known : {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl",
                              "avx512_bf16", "avx512_fp16", "amx_bf16", "asimd", "sve", "bf16"}) {
      if (word == known) found += (found.empty() ? "" : " ") + word;
    }
  }
  return found.empty() ? "none of AVX2, AVX-512, bf16" : found;
}

std::string python_line(const Context& context) {
  std::string python;
  try {
    python = launcher::find_python({}, context.environment, context.program_directory);
  } catch (const Error& error) {
    return error.what();
  }
  const std::string version =
      file_value(context.program_directory + "/../pyvenv.cfg", "version", '=');
  return python + (version.empty() ? "" : " (" + version + ")");
}

std::string machine_report(const Context& context) {
  const std::string model = file_value("/proc/cpuinfo", "model name", ':');
  return line("shardwise", concat(SW_VERSION, ", ", context.program)) +
         line("python", python_line(context)) +
         line("processor", concat(model.empty() ? "unknown" : model, ", ", launcher::usable_cores(),
                                  " cores usable")) +
         line("CPU features", cpu_features());
}

using Report = int (*)(char* buffer, std::size_t size);

// The report of the library; throws IoError where it cannot be had.
std::string library_report(const std::string& path) {
  const auto report = reinterpret_cast<Report>(load_function(path, "shardwise_environment_report"));
  const int size = report(nullptr, 0);
  SW_USER_CHECK(IoError, size >= 0, "could not report");
  std::string text(static_cast<std::size_t>(size) + 1, '\0');
  report(text.data(), text.size());
  text.resize(static_cast<std::size_t>(size));
  return text;
}

}  // namespace

int run_environment(const Context& context) {
  for (const std::string& word : context.arguments) {
    SW_USER_CHECK(UsageError, word == "--help" || word == "-h", "env: takes no argument '", word,
                  "'");
    print(kHelp);
    return 0;
  }
  print(machine_report(context));
  const std::vector<std::string> libraries = find_libraries(context.program_directory);
  if (libraries.empty()) {
    print(line("libshardwise.so", concat("not found from ", context.program_directory,
                                         "; run `make build`, or install the package there")));
    return 1;
  }
  try {
    print(line("libshardwise.so", libraries.front()) + library_report(libraries.front()));
  } catch (const IoError& error) {
    print(line("", error.what()));
    return 1;
  }
  return 0;
}

}  // namespace shardwise::apps
