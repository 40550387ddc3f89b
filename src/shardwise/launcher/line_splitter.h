// Cuts the bytes of one stream into lines, with carriage returns understood as progress updates.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace shardwise::launcher {

// What a terminal would show of a line after its carriage returns: the text behind the last one,
// not counting those at the end ("10%\r20%" gives "20%", "20%\r" too).
std::string_view visible_text(std::string_view line);

// Not thread-safe. Holds at most kMaxLine bytes, whatever arrives.
class LineSplitter {
 public:
  // Longer lines are cut into pieces of this size, so that a rank that never ends its line costs a
  // bounded amount of memory.
  static constexpr std::size_t kMaxLine = std::size_t{1} << 16;

  // Calls line(std::string_view) for each completed line, without its end. The view is valid during
  // the call.
  template <typename Line>
  void feed(std::string_view bytes, const Line& line) {
    while (!bytes.empty()) {
      const std::size_t end = bytes.find('\n');
      if (end == std::string_view::npos) {
        keep(bytes, line);
        return;
      }
      complete(bytes.substr(0, end), line);
      bytes.remove_prefix(end + 1);
    }
  }

  // Hands over what is left when the stream has ended.
  template <typename Line>
  void finish(const Line& line) {
    if (!partial_.empty()) {
      complete({}, line);
    }
  }

  // What a terminal would show of the unfinished line.
  std::string_view unfinished() const { return visible_text(partial_); }

  // Whether the unfinished line has been written over: a progress bar.
  bool overwriting() const { return overwriting_; }

 private:
  template <typename Line>
  void complete(std::string_view rest, const Line& line) {
    overwriting_ = false;
    if (partial_.empty() && rest.size() <= kMaxLine) {
      line(visible_text(rest));
      return;
    }
    keep(rest, line);
    line(visible_text(partial_));
    partial_.clear();
    overwriting_ = false;
  }

  // Adds to the unfinished line; hands over a full piece once more follows.
  template <typename Line>
  void keep(std::string_view bytes, const Line& line) {
    while (!bytes.empty()) {
      if (partial_.size() == kMaxLine) {
        line(visible_text(partial_));
        partial_.clear();
      }
      const std::string_view piece = bytes.substr(0, kMaxLine - partial_.size());
      append(piece);
      bytes.remove_prefix(piece.size());
    }
  }

  void append(std::string_view piece);

  std::string partial_;
  bool overwriting_ = false;
};

}  // namespace shardwise::launcher
