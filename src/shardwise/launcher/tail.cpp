#include "shardwise/launcher/tail.h"

namespace shardwise::launcher {
namespace {

std::string printable(const std::string& line) {
  std::string text = line;
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\t') || byte == 0x7f) c = '?';
  }
  return text;
}

}  // namespace

void Tail::add(std::string_view line) {
  const std::string_view kept = line.substr(0, kLineBytes);
  if (ring_.size() < kLines) {
    ring_.emplace_back(kept);
    return;
  }
  ring_[next_].assign(kept);
  next_ = (next_ + 1) % kLines;
}

std::vector<std::string> Tail::lines() const {
  std::vector<std::string> ordered;
  ordered.reserve(ring_.size());
  for (std::size_t i = 0; i < ring_.size(); ++i) {
    ordered.push_back(printable(ring_[(next_ + i) % ring_.size()]));
  }
  return ordered;
}

}  // namespace shardwise::launcher
