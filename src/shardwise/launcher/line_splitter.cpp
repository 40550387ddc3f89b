#include "shardwise/launcher/line_splitter.h"

namespace shardwise::launcher {

std::string_view visible_text(std::string_view line) {
  while (!line.empty() && line.back() == '\r') {
    line.remove_suffix(1);
  }
  const std::size_t last = line.rfind('\r');
  return last == std::string_view::npos ? line : line.substr(last + 1);
}

void LineSplitter::append(std::string_view piece) {
  if (piece.find('\r') == std::string_view::npos) {
    partial_.append(piece);
    return;
  }
  overwriting_ = true;
  partial_.append(piece);
  // What was written over is dropped; carriage returns at the end decide with what follows them.
  const std::size_t hidden =
      static_cast<std::size_t>(visible_text(partial_).data() - partial_.data());
  partial_.erase(0, hidden);
}

}  // namespace shardwise::launcher
