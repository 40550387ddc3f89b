// The run's configuration as other text. Text that is no JSON is taken as a string.
#pragma once

#include <string>

namespace shardwise::monitor {

std::string compact_json(const std::string& text);   // one line, always valid JSON
std::string indented_json(const std::string& text);  // for reading

}  // namespace shardwise::monitor
