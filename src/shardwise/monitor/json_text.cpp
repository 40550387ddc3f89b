#include "shardwise/monitor/json_text.h"

#include <nlohmann/json.hpp>

#include "shardwise/monitor/text.h"

namespace shardwise::monitor {
namespace {

using Json = nlohmann::ordered_json;

Json parse(const std::string& text) { return Json::parse(text, nullptr, /*exceptions=*/false); }

}  // namespace

std::string compact_json(const std::string& text) {
  const Json json = parse(text);
  return json.is_discarded() ? json_string(text) : json.dump();
}

std::string indented_json(const std::string& text) {
  const Json json = parse(text);
  return json.is_discarded() ? text : json.dump(2);
}

}  // namespace shardwise::monitor
