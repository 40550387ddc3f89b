// What `shardwise launch` was asked to do, and the one table of its options.
#pragma once

#include <string>
#include <vector>

namespace shardwise::launcher {

// Whose output is shown on the launcher's own output.
enum class Console { kAllRanks, kFirstRank, kNobody };

enum class ProgramKind {
  kByName,  // a file that ends in .py is a Python script, everything else a native program
  kModule,  // python -m NAME
  kNative,  // run as it is, whatever its name
};

struct LaunchOptions {
  int ranks = 0;                             // on this machine
  int nodes = 1;                             // machines
  int node_rank = 0;                         // this machine's number, from 0
  std::string master_address = "127.0.0.1";  // where global rank 0 runs
  int master_port = 0;                       // 0: one machine only, a free port is chosen
  ProgramKind kind = ProgramKind::kByName;
  bool pass_local_rank = false;  // add --local_rank=K to the program's arguments
  std::string python;            // empty: the one beside this program, else PATH's
  std::string log_directory;     // empty: no files
  Console console = Console::kAllRanks;
  double grace_seconds = 5;  // from SIGTERM to SIGKILL
  bool help = false;
  std::vector<std::string> program;  // the program and its own arguments
};

// `arguments` are the words after `launch`. Options end at the first word that is none (or at
// `--`); from there on everything belongs to the program. In long names `_` equals `-`.
// Throws UsageError, with the fix in the message.
LaunchOptions parse_launch_options(const std::vector<std::string>& arguments);

// The text of `shardwise launch --help`.
std::string launch_help();

}  // namespace shardwise::launcher
