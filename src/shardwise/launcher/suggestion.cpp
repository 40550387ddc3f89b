#include "shardwise/launcher/suggestion.h"

#include "shardwise/config/suggest.h"

namespace shardwise::launcher {

std::string suggest(const std::string& word, const std::vector<std::string>& known) {
  const std::vector<std::string> near = config::nearest(word, known);
  return near.empty() ? "" : " (did you mean " + config::join_or(near) + "?)";
}

}  // namespace shardwise::launcher
