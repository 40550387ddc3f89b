#include "shardwise/launcher/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>

#include "shardwise/base/check.h"
#include "shardwise/base/suggest.h"

namespace shardwise::launcher {
namespace {

// More ranks than this on one machine, or machines in one job, is a typing error.
constexpr int kMaxRanks = 4096;
constexpr int kMaxNodes = 65536;
constexpr int kDefaultMultiNodePort = 29500;  // torchrun's and DeepSpeed's

int to_int(const std::string& name, const std::string& text, int low, int high) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  SW_USER_CHECK(UsageError, whole && value >= low && value <= high, "launch: ", name,
                " takes a whole number from ", low, " to ", high, ", not '", text, "'");
  return value;
}

double to_seconds(const std::string& name, const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  SW_USER_CHECK(UsageError, whole && std::isfinite(value) && value >= 0 && value <= 86400,
                "launch: ", name, " takes seconds from 0 to 86400, not '", text, "'");
  return value;
}

Console to_console(const std::string& name, const std::string& text) {
  if (text == "all") return Console::kAllRanks;
  if (text == "first") return Console::kFirstRank;
  SW_USER_CHECK(UsageError, text == "none", "launch: ", name, " takes all, first or none, not '",
                text, "'");
  return Console::kNobody;
}

// Options and what was said about things whose default depends on others.
struct Parsed {
  LaunchOptions options;
  bool node_rank_given = false;
  bool address_given = false;
  bool console_given = false;
};

struct Option {
  std::vector<std::string> names;  // the first is shown in the help, the rest beside it
  std::string value;               // placeholder of the value, empty for a switch
  std::string meaning;
  void (*apply)(Parsed& parsed, const std::string& name, const std::string& value);
};

std::vector<Option> placement_options() {
  return {
      {{"-n", "--ranks", "--nproc-per-node", "--num-gpus"},
       "N",
       "ranks to start on this machine (required)",
       [](Parsed& p, const std::string& name, const std::string& value) {
         p.options.ranks = to_int(name, value, 1, kMaxRanks);
       }},
      {{"--nnodes", "--num-nodes"},
       "K",
       "machines in the job; run the same command on each (default 1)",
       [](Parsed& p, const std::string& name, const std::string& value) {
         p.options.nodes = to_int(name, value, 1, kMaxNodes);
       }},
      {{"--node-rank"},
       "I",
       "number of this machine, 0 to K-1",
       [](Parsed& p, const std::string& name, const std::string& value) {
         p.options.node_rank = to_int(name, value, 0, kMaxNodes - 1);
         p.node_rank_given = true;
       }},
      {{"--master-addr"},
       "HOST",
       "where rank 0 runs (default 127.0.0.1; required with several machines)",
       [](Parsed& p, const std::string& name, const std::string& value) {
         SW_USER_CHECK(UsageError, !value.empty(), "launch: ", name, " takes a host or address");
         p.options.master_address = value;
         p.address_given = true;
       }},
      {{"--master-port"},
       "PORT",
       "where the ranks meet (default: a free one; 29500 with several machines)",
       [](Parsed& p, const std::string& name, const std::string& value) {
         p.options.master_port = to_int(name, value, 1, 65535);
       }},
  };
}

std::vector<Option> program_options() {
  return {
      {{"-m", "--module"},
       "",
       "the program is the name of a Python module",
       [](Parsed& p, const std::string&, const std::string&) {
         p.options.kind = ProgramKind::kModule;
       }},
      {{"--no-python"},
       "",
       "run the program as it is, even if its name ends in .py",
       [](Parsed& p, const std::string&, const std::string&) {
         p.options.kind = ProgramKind::kNative;
       }},
      {{"--python"},
       "FILE",
       "interpreter for scripts and modules (default: python3 beside this program)",
       [](Parsed& p, const std::string& name, const std::string& value) {
         SW_USER_CHECK(UsageError, !value.empty(), "launch: ", name, " takes a program");
         p.options.python = value;
       }},
      {{"--pass-local-rank"},
       "",
       "add --local_rank=K to the program's arguments",
       [](Parsed& p, const std::string&, const std::string&) { p.options.pass_local_rank = true; }},
      {{"--no-local-rank"},
       "",
       "do not add it (this is the default)",
       [](Parsed& p, const std::string&, const std::string&) {
         p.options.pass_local_rank = false;
       }},
  };
}

std::vector<Option> output_options() {
  return {
      {{"--log-dir", "--enable-each-rank-log"},
       "DIR",
       "write what rank K says to DIR/rank_K.log; the console then shows rank 0",
       [](Parsed& p, const std::string& name, const std::string& value) {
         SW_USER_CHECK(UsageError, !value.empty(), "launch: ", name, " takes a directory");
         p.options.log_directory = value;
       }},
      {{"--console"},
       "WHO",
       "whose lines to show: all, first (the machine's first rank) or none",
       [](Parsed& p, const std::string& name, const std::string& value) {
         p.options.console = to_console(name, value);
         p.console_given = true;
       }},
      {{"--quiet-ranks"},
       "",
       "the same as --console first",
       [](Parsed& p, const std::string&, const std::string&) {
         p.options.console = Console::kFirstRank;
         p.console_given = true;
       }},
      {{"--grace"},
       "SECONDS",
       "time between SIGTERM and SIGKILL when ranks are ended (default 5)",
       [](Parsed& p, const std::string& name, const std::string& value) {
         p.options.grace_seconds = to_seconds(name, value);
       }},
      {{"-h", "--help"},
       "",
       "this text",
       [](Parsed& p, const std::string&, const std::string&) { p.options.help = true; }},
  };
}

std::vector<Option> all_options() {
  std::vector<Option> options = placement_options();
  for (auto part : {program_options(), output_options()}) {
    options.insert(options.end(), part.begin(), part.end());
  }
  return options;
}

// Options of other launchers that start ranks on other machines or restart them.
void refuse_foreign(const std::string& name) {
  for (const char* foreign : {"--hostfile", "--include", "--exclude", "--launcher", "--no-ssh",
                              "--launcher-args", "--force-multi"}) {
    SW_USER_CHECK(UsageError, name != foreign, "launch: ", name,
                  " is not available: ranks are started on this machine only. Run the same command "
                  "on each machine with --nnodes K --node-rank I --master-addr HOST");
  }
  for (const char* foreign : {"--max-restarts", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id",
                              "--rdzv-conf", "--elastic-training", "--autotuning"}) {
    SW_USER_CHECK(
        UsageError, name != foreign, "launch: ", name,
        " is not available in this version: a job is started once, with a fixed number of "
        "ranks; leave it out");
  }
}

std::string with_hyphens(std::string name) {
  if (name.size() > 2 && name.starts_with("--")) {
    std::replace(name.begin(), name.end(), '_', '-');
  }
  return name;
}

const Option& find_option(const std::vector<Option>& options, const std::string& given) {
  const std::string name = with_hyphens(given);
  std::vector<std::string> known;
  for (const Option& option : options) {
    for (const std::string& candidate : option.names) {
      if (candidate == name) return option;
      known.push_back(candidate);
    }
  }
  refuse_foreign(name);
  SW_FAIL(UsageError, "launch: unknown option ", given, suggest(name, known),
          "; options of the program go after its name; see `shardwise launch --help`");
}

// Splits "--name=value"; "-n4" is understood too.
std::pair<std::string, std::optional<std::string>> split_word(const std::string& word) {
  if (word.size() > 2 && word.starts_with("-n") &&
      std::isdigit(static_cast<unsigned char>(word[2]))) {
    return {"-n", word.substr(2)};
  }
  const std::size_t equals = word.find('=');
  if (!word.starts_with("--") || equals == std::string::npos) {
    return {word, std::nullopt};
  }
  return {word.substr(0, equals), word.substr(equals + 1)};
}

void check_placement(Parsed& parsed) {
  LaunchOptions& options = parsed.options;
  SW_USER_CHECK(UsageError, options.ranks > 0,
                "launch: say how many ranks to start on this machine, for example -n 2, before the "
                "program: what follows it belongs to it");
  SW_USER_CHECK(UsageError, options.node_rank < options.nodes, "launch: --node-rank ",
                options.node_rank, " does not fit --nnodes ", options.nodes, "; it runs from 0 to ",
                options.nodes - 1);
  if (options.nodes == 1) {
    return;
  }
  SW_USER_CHECK(UsageError, parsed.node_rank_given, "launch: --nnodes ", options.nodes,
                " needs --node-rank, from 0 to ", options.nodes - 1, ", another on each machine");
  SW_USER_CHECK(UsageError, parsed.address_given, "launch: --nnodes ", options.nodes,
                " needs --master-addr, the address of the machine with --node-rank 0");
  if (options.master_port == 0) {
    options.master_port = kDefaultMultiNodePort;
  }
}

}  // namespace

LaunchOptions parse_launch_options(const std::vector<std::string>& arguments) {
  const std::vector<Option> table = all_options();
  Parsed parsed;
  std::size_t at = 0;
  while (at < arguments.size() && arguments[at].size() > 1 && arguments[at][0] == '-') {
    if (arguments[at] == "--") {
      ++at;
      break;
    }
    auto [name, value] = split_word(arguments[at++]);
    const Option& option = find_option(table, name);
    SW_USER_CHECK(UsageError, !option.value.empty() || !value, "launch: ", name,
                  " takes no value, not '", value.value_or(""), "'");
    if (!option.value.empty() && !value) {
      SW_USER_CHECK(UsageError, at < arguments.size(), "launch: ", name, " needs a value: ", name,
                    " ", option.value);
      value = arguments[at++];
    }
    option.apply(parsed, name, value.value_or(""));
    if (parsed.options.help) {
      return parsed.options;
    }
  }
  parsed.options.program.assign(arguments.begin() + static_cast<std::ptrdiff_t>(at),
                                arguments.end());
  check_placement(parsed);
  SW_USER_CHECK(UsageError, !parsed.options.program.empty(),
                "launch: name the program to run, for example: shardwise launch -n ",
                parsed.options.ranks, " train.py");
  if (!parsed.options.log_directory.empty() && !parsed.console_given) {
    parsed.options.console = Console::kFirstRank;
  }
  return parsed.options;
}

std::string launch_help() {
  std::string text =
      "Usage: shardwise launch -n N [options] PROGRAM [arguments of the program]\n\n"
      "Starts N ranks of PROGRAM on this machine: a Python script (*.py), a Python module (-m) or\n"
      "a native program. When a rank fails the others are ended and the first cause is printed\n"
      "last; the exit code is the failing rank's (128 + signal for a signal).\n\nOptions:\n";
  for (const Option& option : all_options()) {
    std::string left = "  ";
    for (const std::string& name : option.names) {
      left += (&name == &option.names.front() ? "" : ", ") + name;
    }
    left += option.value.empty() ? "" : " " + option.value;
    text += left + "\n        " + option.meaning + "\n";
  }
  text +=
      "\nIn long names _ equals - (--num_gpus, --master_port). Each rank sees RANK, LOCAL_RANK,\n"
      "WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and the others that torchrun and\n"
      "DeepSpeed set; OMP_NUM_THREADS, where not set, becomes the cores divided by N.\n";
  return text;
}

}  // namespace shardwise::launcher
