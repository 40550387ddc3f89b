// Words about how ranks ended, and which of several failures was the cause.
#pragma once

#include <string>
#include <vector>

namespace shardwise::launcher {

struct Failure {
  int rank = 0;  // global
  int pid = 0;
  int wait_status = 0;  // of waitpid
  double seconds = 0;   // life of the rank
  double ended_at = 0;  // now_seconds()
};

// 0 for success, the exit code, or 128 + signal.
int exit_code_of(int wait_status);

// "exited with code 3", "was killed by signal 9 (SIGKILL)".
std::string describe_end(int wait_status);

// Whether another rank's failure brings this about: the exit code of our communication errors, or
// SIGTERM.
bool follows_from_another(int wait_status);

// Whether it is the exit code of our communication errors.
bool lost_others(int wait_status);

// Index of the cause in a non-empty list in order of time. Failures that follow from another rank's
// come within moments of it; so a death that no other rank can bring about (SIGKILL, SIGSEGV, ...)
// counts before an exit code or SIGABRT, and these before the exit code of our communication errors
// and SIGTERM. Among equals the earliest is the cause.
std::size_t find_cause(const std::vector<Failure>& failures);

// The lines of the report about a failure: what happened, the last lines it wrote, a hint.
std::vector<std::string> failure_report(const Failure& failure,
                                        const std::vector<std::string>& last_lines);

}  // namespace shardwise::launcher
