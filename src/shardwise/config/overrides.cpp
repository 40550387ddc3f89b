#include "shardwise/config/overrides.h"

#include <algorithm>

#include "shardwise/base/check.h"
#include "shardwise/config/json_reader.h"

namespace shardwise::config {
namespace {

std::vector<std::string> parts_of(const std::string& path) {
  std::vector<std::string> parts;
  std::size_t start = 0;
  for (std::size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', start)) {
    parts.push_back(path.substr(start, dot - start));
    start = dot + 1;
  }
  parts.push_back(path.substr(start));
  return parts;
}

// The text as JSON; where it is none, as a string.
Value parse_value(const std::string& text, std::vector<std::string>* duplicates) {
  try {
    return parse_json(text, "value", duplicates);
  } catch (const ConfigError&) {
    return Value::of(text);
  }
}

// The name under which `object` holds the key `name` of `node`: it may use another name of it.
std::string name_in(const Value& object, const Node* node, const std::string& name) {
  const Node* wanted = node == nullptr ? nullptr : node->child(name);
  if (wanted == nullptr || wanted->last_name() == "*" || object.find(name) != nullptr) {
    return name;
  }
  for (const auto& [other, value] : object.members) {
    if (node->child(other) == wanted) {
      return other;
    }
  }
  return name;
}

// Puts the value in; returns what is wrong, or "".
std::string put(Value& document, const std::vector<std::string>& parts, Value value, Draft& draft) {
  Value* object = &document;
  const Node* node = &schema().root();
  std::string path;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (object->is_null()) {
      *object = Value::object();
    }
    if (!object->is_object()) {
      return concat(path, " is ", kind_name(*object), " (", shorten(*object),
                    "), not an object; set ", path, " itself");
    }
    const std::string name = name_in(*object, node, parts[i]);
    path += (i == 0 ? "" : ".") + visible(name);
    node = node == nullptr ? nullptr : node->child(name);
    const bool there = object->find(name) != nullptr;
    object = there ? object->find(name) : &object->set(name, Value::null());
  }
  *object = std::move(value);
  draft.command_line.insert(path);
  return "";
}

std::string apply(const Override& given, Value& document, Draft& draft) {
  if (!is_utf8(given.path) || !is_utf8(given.value)) {
    return "is not UTF-8 text";
  }
  const std::vector<std::string> parts = parts_of(given.path);
  if (std::find(parts.begin(), parts.end(), "") != parts.end()) {
    return "the path has an empty part; write it as in training.steps=100";
  }
  if (parts.size() > kMaxJsonDepth) {
    return concat("the path has more than ", kMaxJsonDepth, " parts; no key has");
  }
  return put(document, parts, parse_value(given.value, &draft.problems), draft);
}

}  // namespace

void apply_overrides(const std::vector<Override>& overrides, Value& document, Draft& draft) {
  for (const Override& given : overrides) {
    const std::string problem = apply(given, document, draft);
    if (!problem.empty()) {
      draft.problem(concat("command line: ", shorten(Value::of(given.path)), ": ", problem));
    }
  }
}

}  // namespace shardwise::config
