// A JSON value as a plain struct, so that nothing but json_reader.cpp sees the JSON library.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardwise::config {

struct Value {
  enum class Kind { kNull, kBool, kInt, kFloat, kString, kArray, kObject };

  Kind kind = Kind::kNull;
  bool boolean = false;
  std::int64_t integer = 0;
  double number = 0;  // infinity and NaN are possible: Python writes them
  std::string text;
  std::vector<Value> items;
  std::vector<std::pair<std::string, Value>> members;  // in the order of the document

  static Value null() { return {}; }
  static Value of(bool value);
  static Value of(std::int64_t value);
  static Value of(double value);
  static Value of(std::string value);
  static Value of(const char* value) { return of(std::string(value)); }
  static Value array(std::vector<Value> items = {});
  static Value object();

  bool is_null() const { return kind == Kind::kNull; }
  bool is_bool() const { return kind == Kind::kBool; }
  bool is_string() const { return kind == Kind::kString; }
  bool is_array() const { return kind == Kind::kArray; }
  bool is_object() const { return kind == Kind::kObject; }
  bool is_number() const { return kind == Kind::kInt || kind == Kind::kFloat; }
  bool is_string(std::string_view value) const { return is_string() && text == value; }

  // The number as a double, whichever kind of number it is.
  double as_double() const { return kind == Kind::kInt ? static_cast<double>(integer) : number; }

  // The member with this name, or null pointer. Only for objects.
  const Value* find(std::string_view name) const;
  Value* find(std::string_view name);
  // Sets a member, replacing one of the same name.
  Value& set(std::string name, Value value);
};

// Equal content; 1 and 1.0 are equal, the order of members does not matter.
bool operator==(const Value& a, const Value& b);

// JSON text; `indent` 0 writes one line. Infinity and NaN are written as Python writes them.
std::string to_text(const Value& value, int indent = 0);

// JSON text for messages: one line, cut to about 60 characters.
std::string shorten(const Value& value);

// Text for messages: control characters (NUL would cut a message short) as \n, \u0000, ...
std::string visible(std::string_view text);

// "an integer", "a string", ...: the kind for messages.
const char* kind_name(const Value& value);

}  // namespace shardwise::config
