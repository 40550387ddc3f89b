#include "shardwise/launcher/log_router.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "shardwise/base/check.h"

namespace shardwise::launcher {
namespace {

constexpr const char* kEraseLine = "\r\x1b[K";
// A line longer than the terminal is cut by the terminal instead of being wrapped.
constexpr const char* kNoWrap = "\x1b[?7l";
constexpr const char* kWrap = "\x1b[?7h";

std::size_t source_index(int rank, Stream stream) {
  return static_cast<std::size_t>(rank) * 2 + static_cast<std::size_t>(stream);
}

std::string prefix(int rank, bool colour) {
  static constexpr const char* kColours[] = {"\x1b[36m", "\x1b[33m", "\x1b[32m",
                                             "\x1b[35m", "\x1b[34m", "\x1b[31m"};
  const std::string name = "[rank " + std::to_string(rank) + "]";
  return colour ? kColours[rank % 6] + name + "\x1b[0m " : name + " ";
}

// An existing log is continued below a line that names the time: the traceback of the run before is
// often what one looks for.
int open_log(const std::string& path) {
  struct stat status{};
  const bool special =
      ::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) && !S_ISCHR(status.st_mode);
  SW_USER_CHECK(IoError, !special, "launch: cannot write '", path, "': it is a ",
                S_ISFIFO(status.st_mode) ? "pipe" : "folder, socket or disk",
                ", not a regular file; remove it, or give another --log-dir");
  constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  const int file = ::open(path.c_str(), kFlags, 0666);
  SW_USER_CHECK(IoError, file >= 0, "launch: cannot write '", path, "' (", std::strerror(errno),
                "); give another --log-dir");
  if (::lseek(file, 0, SEEK_END) > 0) {
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    ::localtime_r(&now, &parts);
    char line[64];
    const std::size_t size =
        std::strftime(line, sizeof(line), "\n=== started %Y-%m-%d %H:%M:%S ===\n", &parts);
    [[maybe_unused]] const ssize_t written = ::write(file, line, size);
  }
  return file;
}

}  // namespace

LogRouter::LogRouter(const Options& options, OutputPort& out, OutputPort& err)
    : options_(options),
      ports_{out.is_terminal() && err.is_terminal() ? &err : &out, &err},
      sources_(static_cast<std::size_t>(options.ranks) * 2),
      tails_(static_cast<std::size_t>(options.ranks)) {
  for (int rank = 0; rank < options.ranks; ++rank) {
    for (const Stream stream : {Stream::kOut, Stream::kErr}) {
      const bool colour = options.colour && port(stream).is_terminal();
      prefixes_[static_cast<int>(stream)].push_back(prefix(options.first_rank + rank, colour));
    }
  }
  if (options.log_directory.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(options.log_directory, error);
  SW_USER_CHECK(IoError, !error, "launch: cannot make the directory '", options.log_directory,
                "' (", error.message(), "); give another --log-dir");
  for (int rank = 0; rank < options.ranks; ++rank) {
    files_.push_back(open_log(options.log_directory + "/rank_" +
                              std::to_string(options.first_rank + rank) + ".log"));
  }
}

LogRouter::~LogRouter() {
  for (const int file : files_) ::close(file);
}

OutputPort& LogRouter::port(Stream stream) const { return *ports_[static_cast<int>(stream)]; }

bool LogRouter::shown(int rank) const {
  return options_.console == Console::kAllRanks ||
         (options_.console == Console::kFirstRank && rank == 0);
}

// Whether the unfinished line of this stream is kept at the bottom of a terminal.
bool LogRouter::live(int rank, Stream stream) const {
  return rank == 0 && shown(0) && port(stream).is_terminal();
}

bool LogRouter::accepts(Stream stream) const { return !port(stream).full(); }

void LogRouter::bytes(int rank, Stream stream, std::string_view bytes, double now) {
  write_file(rank, bytes);
  Source& source = sources_[source_index(rank, stream)];
  source.changed = now;
  source.splitter.feed(bytes, [&](std::string_view line) { emit(rank, stream, line); });
  if (live(rank, stream)) live_stream_ = stream;
  show_progress(rank, stream, source, now);
}

void LogRouter::end(int rank, Stream stream) {
  sources_[source_index(rank, stream)].splitter.finish(
      [&](std::string_view line) { emit(rank, stream, line); });
}

void LogRouter::emit(int rank, Stream stream, std::string_view line) {
  tails_[static_cast<std::size_t>(rank)].add(line);
  if (!shown(rank)) return;
  OutputPort& output = port(stream);
  if (output.is_terminal()) hide_live();
  output.append(prefixes_[static_cast<int>(stream)][static_cast<std::size_t>(rank)]);
  output.append(line);
  output.append("\n");
}

// Progress bars that are not kept at the bottom of a terminal.
void LogRouter::show_progress(int rank, Stream stream, Source& source, double now) {
  if (!source.splitter.overwriting()) {
    source.progress_since = 0;
  } else if (source.progress_since == 0) {
    source.progress_since = now;
  } else if (!live(rank, stream) && now - source.progress_since >= kProgressSeconds) {
    source.progress_since = now;
    emit(rank, stream, source.splitter.unfinished());
  }
}

void LogRouter::write_file(int rank, std::string_view bytes) {
  if (files_.empty()) return;
  while (!bytes.empty()) {
    const ssize_t count =
        ::write(files_[static_cast<std::size_t>(rank)], bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      if (!file_failed_) {
        note(concat("warning: cannot write the log of rank ", options_.first_rank + rank, " in '",
                    options_.log_directory, "' (", std::strerror(errno), "); the run goes on"));
      }
      file_failed_ = true;
      return;
    }
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

void LogRouter::note(std::string_view text) {
  OutputPort& output = port(Stream::kErr);
  if (output.is_terminal()) hide_live();
  output.append("[shardwise] ");
  output.append(text);
  output.append("\n");
}

void LogRouter::hide_live() {
  if (live_text_.empty()) return;
  port(live_stream_).append(kEraseLine);
  live_text_.clear();
}

void LogRouter::draw_live(double now) {
  const Source& source = sources_[source_index(0, live_stream_)];
  const bool wanted = source.splitter.overwriting() || now - source.changed >= kPromptSeconds;
  const std::string_view text = wanted ? source.splitter.unfinished() : std::string_view();
  if (text == live_text_) return;
  hide_live();
  if (text.empty()) return;
  live_text_ = text;
  OutputPort& output = port(live_stream_);
  output.append(kNoWrap);
  output.append(text);
  output.append(kWrap);
}

double LogRouter::flush(double now) {
  double again = -1;
  if (live(0, live_stream_)) {
    draw_live(now);
    const Source& source = sources_[source_index(0, live_stream_)];
    if (live_text_.empty() && !source.splitter.unfinished().empty()) again = kPromptSeconds;
  }
  ports_[0]->flush();
  ports_[1]->flush();
  return again;
}

}  // namespace shardwise::launcher
