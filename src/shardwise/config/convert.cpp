#include "shardwise/config/convert.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>

#include "shardwise/base/check.h"
#include "shardwise/base/suggest.h"

namespace shardwise::config {
namespace {

// 2^63: the first double that no 64-bit integer holds.
constexpr double kIntegerEnd = 9223372036854775808.0;

std::string bound(const Shape& shape, double value) {
  const bool whole = std::abs(value) < 1e15 && value == std::floor(value);
  const bool integer_text =
      whole && (shape.type == Type::kInt || shape.type == Type::kIntList || std::abs(value) < 1e6);
  return integer_text ? std::to_string(static_cast<std::int64_t>(value))
                      : to_text(Value::of(value));
}

// " from 0 to 3", " >= 1", " > 0", "".
std::string describe_range(const Shape& shape) {
  const bool low = std::isfinite(shape.least);
  const bool high = std::isfinite(shape.most);
  if (low && high && !shape.above_least && !shape.below_most) {
    return concat(" from ", bound(shape, shape.least), " to ", bound(shape, shape.most));
  }
  std::string text;
  if (low) {
    text += concat(shape.above_least ? " > " : " >= ", bound(shape, shape.least));
  }
  if (high) {
    text += concat(low ? " and" : "", shape.below_most ? " < " : " <= ", bound(shape, shape.most));
  }
  return text;
}

std::vector<std::string> quoted(std::vector<std::string> words) {
  for (std::string& word : words) {
    word = concat("\"", word, "\"");
  }
  return words;
}

std::string describe_type(const Shape& shape) {
  const std::string count = shape.length < 0 ? "" : concat(shape.length, " ");
  switch (shape.type) {
    case Type::kBool: return "true or false";
    case Type::kInt: return "an integer" + describe_range(shape);
    case Type::kFloat: return "a number" + describe_range(shape);
    case Type::kString: return "a string";
    case Type::kStringList:
      return shape.choices.empty() ? "a list of strings"
                                   : "a list of " + join_or(quoted(shape.choices));
    case Type::kIntList: return concat("a list of ", count, "integers", describe_range(shape));
    case Type::kFloatList: return concat("a list of ", count, "numbers", describe_range(shape));
    case Type::kFloatOrList: return concat("a number", describe_range(shape), " or a list of them");
    case Type::kObjectList: return "a list of objects";
    case Type::kAny: return "any value";
    default: return "an object";
  }
}

std::string wrong(const Shape& shape, const Value& given, const std::string& what) {
  return concat(shorten(given), " ", what, "; allowed: ", describe(shape));
}

// For a string where a number or a bool is meant: how to write it.
std::string quotes_hint(const Shape& shape, const Value& given) {
  if (!given.is_string() || given.text.empty()) {
    return "";
  }
  char* end = nullptr;
  std::strtod(given.text.c_str(), &end);
  const bool numeric = end == given.text.c_str() + given.text.size();
  const bool wants_number =
      shape.type == Type::kInt || shape.type == Type::kFloat || shape.type == Type::kFloatOrList;
  std::string lower = given.text;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const bool truth = shape.type == Type::kBool && (lower == "true" || lower == "false");
  if ((wants_number && numeric) || truth) {
    return concat(" (write ", truth ? lower : given.text, " without quotes)");
  }
  return "";
}

std::string wrong_kind(const Shape& shape, const Value& given) {
  return given.is_null()
             ? concat("null is not a value of this key; allowed: ", describe(shape),
                      " (remove the key to get the default)")
             : wrong(shape, given, concat("is ", kind_name(given))) + quotes_hint(shape, given);
}

std::string check_range(const Shape& shape, const Value& given, double value) {
  if (value < shape.least || (shape.above_least && value == shape.least)) {
    return wrong(shape, given, "is too small");
  }
  if (value > shape.most || (shape.below_most && value == shape.most)) {
    return wrong(shape, given, "is too large");
  }
  return "";
}

std::string convert_int(const Shape& shape, const Value& given, Value& out) {
  if (!given.is_number()) {
    return wrong_kind(shape, given);
  }
  out = given;
  if (given.kind == Value::Kind::kFloat) {
    const double value = given.number;
    if (!std::isfinite(value) || value != std::floor(value)) {
      return wrong(shape, given, "is not a whole number");
    }
    if (value < -kIntegerEnd || value >= kIntegerEnd) {
      return wrong(shape, given, "does not fit into 64 bits");
    }
    out = Value::of(static_cast<std::int64_t>(value));
  }
  return check_range(shape, given, static_cast<double>(out.integer));
}

std::string convert_float(const Shape& shape, const Value& given, Value& out) {
  if (!given.is_number()) {
    return wrong_kind(shape, given);
  }
  out = Value::of(given.as_double());
  if (!std::isfinite(out.number)) {
    return wrong(shape, given, "is not finite");
  }
  return check_range(shape, given, out.number);
}

std::string folded(std::string_view text, bool fold) {
  std::string result(text);
  if (fold) {
    std::transform(result.begin(), result.end(), result.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  }
  return result;
}

std::string convert_string(const Shape& shape, const Value& given, Value& out) {
  if (shape.bool_spells && given.kind == Value::Kind::kBool) {
    return convert_string(shape, Value::of(given.boolean ? "true" : "false"), out);
  }
  if (!given.is_string()) {
    return wrong_kind(shape, given);
  }
  out = given;
  if (shape.choices.empty()) {
    return "";
  }
  for (const auto& [spelling, choice] : shape.spellings) {
    if (given.text == spelling) {
      out = Value::of(choice);
      return "";
    }
  }
  for (const std::string& choice : shape.choices) {
    if (folded(given.text, shape.any_case) == folded(choice, shape.any_case)) {
      out = Value::of(choice);
      return "";
    }
  }
  return wrong(shape, given, "is not one of its values") + suggest(given.text, shape.choices);
}

using Converter = std::string (*)(const Shape&, const Value&, Value&);

std::string convert_list(const Shape& shape, const Value& given, Value& out, Converter item_of) {
  if (given.is_string() && shape.type == Type::kStringList) {
    out = Value::array({given});
  } else if (given.is_array()) {
    out = given;
  } else {
    return wrong_kind(shape, given);
  }
  if (shape.length >= 0 && static_cast<int>(out.items.size()) != shape.length) {
    return wrong(shape, given, concat("has ", out.items.size(), " entries"));
  }
  for (Value& item : out.items) {
    const Value original = item;
    const std::string problem = item_of(shape, original, item);
    if (!problem.empty()) {
      return problem;
    }
  }
  return "";
}

std::string convert_float_or_list(const Shape& shape, const Value& given, Value& out) {
  if (!given.is_array()) {
    return convert_float(shape, given, out);
  }
  if (given.items.empty()) {
    return wrong(shape, given, "has no entries");
  }
  return convert_list(shape, given, out, convert_float);
}

bool means_infinity(const Value& value) {
  return (value.kind == Value::Kind::kFloat && std::isinf(value.number) && value.number > 0) ||
         value.is_string("inf") || value.is_string("Infinity");
}

}  // namespace

std::string describe(const Shape& shape) {
  if (!shape.described.empty()) {
    return shape.described;
  }
  std::vector<std::string> parts = {describe_type(shape)};
  if (shape.type == Type::kString && !shape.choices.empty()) {
    parts = quoted(shape.choices);
  }
  if (shape.infinity_is_null) {
    parts.emplace_back("Infinity");
  }
  if (shape.native_auto && shape.type != Type::kAny && shape.choices.empty()) {
    parts.emplace_back("\"auto\"");
  }
  if (shape.nullable && !shape.must_be_given && shape.type != Type::kAny) {
    parts.emplace_back("null");
  }
  return join_or(parts);
}

std::string convert(const Shape& shape, const Value& given, Value& out) {
  if ((given.is_null() && shape.nullable) || (shape.infinity_is_null && means_infinity(given))) {
    out = Value::null();
    return "";
  }
  switch (shape.type) {
    case Type::kBool: out = given; return given.is_bool() ? "" : wrong_kind(shape, given);
    case Type::kInt: return convert_int(shape, given, out);
    case Type::kFloat: return convert_float(shape, given, out);
    case Type::kString: return convert_string(shape, given, out);
    case Type::kStringList: return convert_list(shape, given, out, convert_string);
    case Type::kIntList: return convert_list(shape, given, out, convert_int);
    case Type::kFloatList: return convert_list(shape, given, out, convert_float);
    case Type::kFloatOrList: return convert_float_or_list(shape, given, out);
    case Type::kObjectList: out = given; return given.is_array() ? "" : wrong_kind(shape, given);
    case Type::kAny: out = given; return "";
    default: out = given; return given.is_object() ? "" : wrong_kind(shape, given);
  }
}

}  // namespace shardwise::config
