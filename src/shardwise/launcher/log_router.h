// Brings what the ranks write to the launcher's outputs and files.
//
// Console: whole lines with "[rank 1] " in front, standard output and standard error apart. On a
// terminal the unfinished line of the first rank (a progress bar, a prompt) is kept at the bottom,
// as that rank wrote it, and other lines are put above it. A progress bar that cannot be shown in
// place (other ranks, outputs that are no terminal) becomes a line every kProgressSeconds and its
// last state. Files hold the bytes as they came.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shardwise/launcher/line_splitter.h"
#include "shardwise/launcher/options.h"
#include "shardwise/launcher/output_port.h"
#include "shardwise/launcher/tail.h"

namespace shardwise::launcher {

enum class Stream { kOut = 0, kErr = 1 };

// Not thread-safe. Ranks are meant by their number on this machine.
class LogRouter {
 public:
  static constexpr double kProgressSeconds = 10;
  // An unfinished line without a carriage return is shown when nothing followed for so long.
  static constexpr double kPromptSeconds = 0.2;

  struct Options {
    int ranks = 1;
    int first_rank = 0;  // global number of the machine's first rank
    Console console = Console::kAllRanks;
    std::string log_directory;  // empty: no files
    bool colour = true;         // on terminals
  };

  // Opens the files; throws IoError where that fails.
  LogRouter(const Options& options, OutputPort& out, OutputPort& err);
  ~LogRouter();
  LogRouter(const LogRouter&) = delete;
  LogRouter& operator=(const LogRouter&) = delete;

  // `now` in seconds (now_seconds()).
  void bytes(int rank, Stream stream, std::string_view bytes, double now);
  void end(int rank, Stream stream);

  // A line of the launcher's own, on standard error: "[shardwise] text".
  void note(std::string_view text);

  // Writes out what can be written. Returns the seconds after which it wants to be called again, or
  // a negative number.
  double flush(double now);

  // False while the output that this stream goes to has too much waiting.
  bool accepts(Stream stream) const;

  const Tail& tail(int rank) const { return tails_[static_cast<std::size_t>(rank)]; }

 private:
  struct Source {
    LineSplitter splitter;
    double changed = 0;         // when bytes came last
    double progress_since = 0;  // last line made of a progress bar, or its start; 0: no bar
  };

  OutputPort& port(Stream stream) const;
  bool shown(int rank) const;
  bool live(int rank, Stream stream) const;
  void emit(int rank, Stream stream, std::string_view line);
  void write_file(int rank, std::string_view bytes);
  void show_progress(int rank, Stream stream, Source& source, double now);
  void hide_live();
  void draw_live(double now);

  Options options_;
  OutputPort* ports_[2];  // one and the same when both are terminals
  std::vector<Source> sources_;
  std::vector<Tail> tails_;
  std::vector<int> files_;
  std::vector<std::string> prefixes_[2];
  Stream live_stream_ = Stream::kErr;  // of the first rank; the one that wrote last
  std::string live_text_;              // what is drawn; empty: nothing
  bool file_failed_ = false;
};

}  // namespace shardwise::launcher
