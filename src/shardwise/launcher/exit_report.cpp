#include "shardwise/launcher/exit_report.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include <cstdio>

#include "shardwise/base/check.h"
#include "shardwise/base/error.h"

namespace shardwise::launcher {
namespace {

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : "unknown signal";
}

// 0: can only be the cause; 2: usually follows from another rank's failure.
int likely_consequence(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const int signal = WTERMSIG(wait_status);
    if (signal == SIGTERM || signal == SIGPIPE) return 2;
    return signal == SIGABRT ? 1 : 0;
  }
  return lost_others(wait_status) ? 2 : 1;
}

std::string hint(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    switch (WTERMSIG(wait_status)) {
      case SIGKILL:
        return "SIGKILL that nobody sent: usually memory ran out; `dmesg` and the control group's "
               "memory.events name the process";
      case SIGSEGV:
        return "SIGSEGV: a crash in native code; for a Python program set PYTHONFAULTHANDLER=1 to "
               "see where";
      case SIGBUS:
        return "SIGBUS: often /dev/shm or a disk under a memory map is full; see `df -h`";
      case SIGILL: return "SIGILL: the program uses instructions that this processor does not have";
      case SIGABRT: return "SIGABRT: a library gave up; its reason is in the lines above";
      default: return "";
    }
  }
  if (lost_others(wait_status)) {
    return "a communication error: when another rank stalled, its own log says more";
  }
  return "";
}

}  // namespace

bool lost_others(int wait_status) {
  return WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == exit_code(ErrorKind::kCommunication);
}

int exit_code_of(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

std::string describe_end(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const int signal = WTERMSIG(wait_status);
    return concat("was killed by signal ", signal, " (", signal_name(signal), ")");
  }
  return concat("exited with code ", WEXITSTATUS(wait_status));
}

bool follows_from_another(int wait_status) { return likely_consequence(wait_status) == 2; }

std::size_t find_cause(const std::vector<Failure>& failures) {
  std::size_t cause = 0;
  for (std::size_t i = 1; i < failures.size(); ++i) {
    if (likely_consequence(failures[i].wait_status) <
        likely_consequence(failures[cause].wait_status)) {
      cause = i;
    }
  }
  return cause;
}

std::vector<std::string> failure_report(const Failure& failure,
                                        const std::vector<std::string>& last_lines) {
  char seconds[32];
  std::snprintf(seconds, sizeof(seconds), "%.1f", failure.seconds);
  std::vector<std::string> report = {
      concat("rank ", failure.rank, " (pid ", failure.pid, ") ", describe_end(failure.wait_status),
             " after ", seconds, " s; ",
             last_lines.empty() ? "it wrote nothing" : "last lines it wrote:")};
  for (const std::string& line : last_lines) report.push_back("  | " + line);
  const std::string advice = hint(failure.wait_status);
  if (!advice.empty()) report.push_back("hint: " + advice);
  return report;
}

}  // namespace shardwise::launcher
