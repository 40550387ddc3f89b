// The last lines that a rank wrote, for the report about its death.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace shardwise::launcher {

class Tail {
 public:
  static constexpr std::size_t kLines = 20;
  // Longer lines are shown up to here.
  static constexpr std::size_t kLineBytes = 500;

  void add(std::string_view line);

  // Oldest first, with control characters replaced by '?' so that binary output cannot garble the
  // terminal.
  std::vector<std::string> lines() const;

 private:
  std::vector<std::string> ring_;
  std::size_t next_ = 0;  // where the next line goes once the ring is full
};

}  // namespace shardwise::launcher
