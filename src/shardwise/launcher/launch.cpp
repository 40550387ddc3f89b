#include "shardwise/launcher/launch.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "shardwise/base/check.h"
#include "shardwise/launcher/command.h"
#include "shardwise/launcher/log_router.h"
#include "shardwise/launcher/machine.h"
#include "shardwise/launcher/output_port.h"
#include "shardwise/launcher/supervisor.h"

namespace shardwise::launcher {
namespace {

// Pipes must not land on the numbers of the standard streams.
void open_standard_streams() {
  int file = 0;
  do {
    file = ::open("/dev/null", O_RDWR);
  } while (file >= 0 && file <= STDERR_FILENO);
  if (file >= 0) ::close(file);
}

// Torch starts as many threads as the machine has cores in every rank otherwise.
void set_thread_count(Environment& environment, const LaunchOptions& options, LogRouter& router) {
  if (!lookup(environment, "OMP_NUM_THREADS").empty()) return;
  const int cores = usable_cores();
  const int threads = std::max(1, cores / options.ranks);
  environment["OMP_NUM_THREADS"] = std::to_string(threads);
  router.note(concat("OMP_NUM_THREADS=", threads, " for each rank (", cores,
                     cores == 1 ? " core, " : " cores, ", options.ranks,
                     options.ranks == 1 ? " rank" : " ranks", "); set it to choose another"));
}

// What lets the first rank draw a progress bar although it writes to a pipe.
void describe_terminal(Environment& environment, const LaunchOptions& options,
                       const OutputPort& port) {
  if (!port.is_terminal() || options.console == Console::kNobody) return;
  environment["SHARDWISE_TERMINAL"] = std::to_string(1);
  if (port.terminal_width() > 0 && lookup(environment, "COLUMNS").empty()) {
    environment["COLUMNS"] = std::to_string(port.terminal_width());
  }
}

std::vector<SpawnRequest> spawn_requests(const LaunchOptions& options, const Command& command,
                                         const Environment& base, const OutputPort& terminal) {
  std::vector<SpawnRequest> requests;
  for (int local = 0; local < options.ranks; ++local) {
    Environment environment = rank_environment(base, options, local);
    if (local == 0) describe_terminal(environment, options, terminal);
    requests.push_back({options.node_rank * options.ranks + local, command.file,
                        rank_arguments(command, options, local), environment_strings(environment),
                        // A background process that reads from a terminal is stopped.
                        local == 0 && ::isatty(STDIN_FILENO) == 0});
  }
  return requests;
}

}  // namespace

int launch(LaunchOptions options, const Environment& environment,
           const std::string& program_directory) {
  open_standard_streams();
  check_open_files(options.ranks);
  const Command command = resolve_command(options, environment, program_directory);
  if (options.master_port == 0) options.master_port = free_port();

  OutputPort out(STDOUT_FILENO);
  OutputPort err(STDERR_FILENO);
  LogRouter router({options.ranks, options.node_rank * options.ranks, options.console,
                    options.log_directory, lookup(environment, "NO_COLOR").empty()},
                   out, err);
  Environment base = environment;
  base.erase("SHARDWISE_TERMINAL");
  set_thread_count(base, options, router);
  Supervisor supervisor(router, {&out, &err}, options.grace_seconds);
  return supervisor.run(spawn_requests(options, command, base, err.is_terminal() ? err : out));
}

}  // namespace shardwise::launcher
