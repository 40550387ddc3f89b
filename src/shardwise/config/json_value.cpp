#include "shardwise/config/json_value.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace shardwise::config {
namespace {

std::string number_text(double value) {
  if (std::isnan(value)) {
    return "NaN";
  }
  if (std::isinf(value)) {
    return value > 0 ? "Infinity" : "-Infinity";
  }
  std::array<char, 40> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  std::string text(buffer.data(), end.ptr);
  const bool looks_integer = text.find_first_of(".e") == std::string::npos;
  return looks_integer ? text + ".0" : text;
}

// The character, or its escape if it is a control character.
void append_visible(std::string& out, char c) {
  const auto byte = static_cast<unsigned char>(c);
  if (byte >= 0x20 && byte != 0x7F) {
    out.push_back(c);
    return;
  }
  switch (c) {
    case '\n': out += "\\n"; break;
    case '\t': out += "\\t"; break;
    case '\r': out += "\\r"; break;
    default: {
      std::array<char, 8> buffer;
      std::snprintf(buffer.data(), buffer.size(), "\\u%04x", static_cast<unsigned>(byte));
      out += buffer.data();
    }
  }
}

void append_string(std::string& out, std::string_view text) {
  out.push_back('"');
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out.push_back('\\');
    }
    append_visible(out, c);
  }
  out.push_back('"');
}

void append_value(std::string& out, const Value& value, int indent, int depth);

void append_line_start(std::string& out, int indent, int depth) {
  if (indent > 0) {
    out.push_back('\n');
    out.append(static_cast<std::size_t>(indent * depth), ' ');
  }
}

void append_array(std::string& out, const Value& value, int indent, int depth) {
  bool nested = false;
  for (const Value& item : value.items) {
    nested = nested || item.is_array() || item.is_object();
  }
  out.push_back('[');
  for (std::size_t i = 0; i < value.items.size(); ++i) {
    if (i > 0) {
      out += indent > 0 && nested ? "," : ", ";
    }
    if (nested) {
      append_line_start(out, indent, depth + 1);
    }
    append_value(out, value.items[i], indent, depth + 1);
  }
  if (nested) {
    append_line_start(out, indent, depth);
  }
  out.push_back(']');
}

void append_object(std::string& out, const Value& value, int indent, int depth) {
  out.push_back('{');
  bool first = true;
  for (const auto& [name, member] : value.members) {
    if (!first) {
      out += indent > 0 ? "," : ", ";
    }
    first = false;
    append_line_start(out, indent, depth + 1);
    append_string(out, name);
    out += ": ";
    append_value(out, member, indent, depth + 1);
  }
  if (!first) {
    append_line_start(out, indent, depth);
  }
  out.push_back('}');
}

void append_value(std::string& out, const Value& value, int indent, int depth) {
  switch (value.kind) {
    case Value::Kind::kNull: out += "null"; break;
    case Value::Kind::kBool: out += value.boolean ? "true" : "false"; break;
    case Value::Kind::kInt: out += std::to_string(value.integer); break;
    case Value::Kind::kFloat: out += number_text(value.number); break;
    case Value::Kind::kString: append_string(out, value.text); break;
    case Value::Kind::kArray: append_array(out, value, indent, depth); break;
    case Value::Kind::kObject: append_object(out, value, indent, depth); break;
  }
}

bool same_members(const Value& a, const Value& b) {
  if (a.members.size() != b.members.size()) {
    return false;
  }
  for (const auto& [name, member] : a.members) {
    const Value* other = b.find(name);
    if (other == nullptr || !(member == *other)) {
      return false;
    }
  }
  return true;
}

}  // namespace

Value Value::of(bool value) {
  Value result;
  result.kind = Kind::kBool;
  result.boolean = value;
  return result;
}

Value Value::of(std::int64_t value) {
  Value result;
  result.kind = Kind::kInt;
  result.integer = value;
  return result;
}

Value Value::of(double value) {
  Value result;
  result.kind = Kind::kFloat;
  result.number = value;
  return result;
}

Value Value::of(std::string value) {
  Value result;
  result.kind = Kind::kString;
  result.text = std::move(value);
  return result;
}

Value Value::array(std::vector<Value> items) {
  Value result;
  result.kind = Kind::kArray;
  result.items = std::move(items);
  return result;
}

Value Value::object() {
  Value result;
  result.kind = Kind::kObject;
  return result;
}

const Value* Value::find(std::string_view name) const {
  for (const auto& [key, member] : members) {
    if (key == name) {
      return &member;
    }
  }
  return nullptr;
}

Value* Value::find(std::string_view name) {
  return const_cast<Value*>(std::as_const(*this).find(name));
}

Value& Value::set(std::string name, Value value) {
  for (auto& [key, member] : members) {
    if (key == name) {
      member = std::move(value);
      return member;
    }
  }
  return members.emplace_back(std::move(name), std::move(value)).second;
}

bool operator==(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    const bool both_integers = a.kind == Value::Kind::kInt && b.kind == Value::Kind::kInt;
    return both_integers ? a.integer == b.integer : a.as_double() == b.as_double();
  }
  if (a.kind != b.kind) {
    return false;
  }
  switch (a.kind) {
    case Value::Kind::kBool: return a.boolean == b.boolean;
    case Value::Kind::kString: return a.text == b.text;
    case Value::Kind::kArray: return a.items == b.items;
    case Value::Kind::kObject: return same_members(a, b);
    default: return true;
  }
}

std::string to_text(const Value& value, int indent) {
  std::string out;
  append_value(out, value, indent, 0);
  return out;
}

std::string visible(std::string_view text) {
  std::string out;
  for (const char c : text) {
    append_visible(out, c);
  }
  return out;
}

std::string shorten(const Value& value) {
  constexpr std::size_t kMost = 60;
  std::string text = to_text(value);
  if (text.size() <= kMost) {
    return text;
  }
  std::size_t end = kMost - 3;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) {
    --end;  // do not cut a UTF-8 sequence
  }
  return text.substr(0, end) + "...";
}

const char* kind_name(const Value& value) {
  switch (value.kind) {
    case Value::Kind::kNull: return "null";
    case Value::Kind::kBool: return "a bool";
    case Value::Kind::kInt: return "an integer";
    case Value::Kind::kFloat: return "a number";
    case Value::Kind::kString: return "a string";
    case Value::Kind::kArray: return "a list";
    case Value::Kind::kObject: return "an object";
  }
  return "a value";
}

}  // namespace shardwise::config
