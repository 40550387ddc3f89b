#include "shardwise/io/json_builder.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "shardwise/base/check.h"
#include "shardwise/io/quote.h"

namespace shardwise::io {
namespace {

using Json = nlohmann::ordered_json;

// A key that is there twice, or null.
const std::string* repeated_key(const Json::object_t& object) {
  std::vector<const std::string*> keys;
  keys.reserve(object.size());
  for (const auto& member : object) {
    keys.push_back(&member.first);
  }
  std::ranges::sort(keys, {}, [](const std::string* key) { return std::string_view(*key); });
  const auto found = std::ranges::adjacent_find(
      keys, [](const std::string* a, const std::string* b) { return *a == *b; });
  return found == keys.end() ? nullptr : *found;
}

// "[json.exception.parse_error.101] parse error at line 1, column 2: ...; last read: '...'; ...":
// without the tag, and without the last token, which may be megabytes of anything.
std::string plain_words(std::string_view message) {
  if (const std::size_t tag = message.find("] "); message.starts_with('[') && tag < 64) {
    message.remove_prefix(tag + 2);
  }
  const std::size_t token = message.find("; last read: ");
  std::string_view expected;
  if (const std::size_t at = message.rfind("; expected "); token < at && at != message.npos) {
    expected = message.substr(at);
  }
  return printable(message.substr(0, token), 200) + printable(expected, 60);
}

}  // namespace

void JsonBuilder::fail(const std::string& what) const {
  const std::string where = field();
  SW_FAIL(DataError, source_, ": ", where, where.empty() ? "" : ": ", what);
}

std::string JsonBuilder::field() const {
  std::string path;
  for (const Open& open : stack_) {
    if (open.value->is_array()) {
      path += concat("[", open.value->size(), "]");
    } else if (!open.key.empty()) {
      path += (path.empty() ? "" : ".") + printable(open.key);
    }
  }
  return printable(path, 300);
}

Json& JsonBuilder::add(Json value) {
  if (++values_ > limits_.values) {
    fail(concat("more than ", limits_.values,
                " values in one document; check that it is the right file"));
  }
  if (stack_.empty()) {
    return root_ = std::move(value);
  }
  Json& parent = *stack_.back().value;
  if (parent.is_array()) {
    return parent.get_ref<Json::array_t&>().emplace_back(std::move(value));
  }
  // The base class is a vector of pairs; its own emplace() would search.
  return parent.get_ref<Json::object_t&>().emplace_back(stack_.back().key, std::move(value)).second;
}

void JsonBuilder::open(Json value) {
  if (stack_.size() >= static_cast<std::size_t>(limits_.depth)) {
    fail(concat("more than ", limits_.depth,
                " objects and lists inside of one another; check that it is the right file"));
  }
  Json& place = add(std::move(value));
  stack_.push_back({&place, ""});
}

bool JsonBuilder::null() { return add(nullptr), true; }
bool JsonBuilder::boolean(bool value) { return add(value), true; }
bool JsonBuilder::number_integer(number_integer_t value) { return add(value), true; }
bool JsonBuilder::number_unsigned(number_unsigned_t value) { return add(value), true; }
bool JsonBuilder::number_float(number_float_t value, const string_t&) { return add(value), true; }
bool JsonBuilder::string(string_t& value) { return add(std::move(value)), true; }
bool JsonBuilder::binary(binary_t&) { return false; }  // never in text

bool JsonBuilder::start_object(std::size_t) { return open(Json::object()), true; }
bool JsonBuilder::start_array(std::size_t) { return open(Json::array()), true; }

bool JsonBuilder::key(string_t& name) {
  stack_.back().key = std::move(name);
  return true;
}

bool JsonBuilder::end_object() {
  const auto& object = stack_.back().value->get_ref<const Json::object_t&>();
  if (const std::string* twice = repeated_key(object)) {
    stack_.back().key = *twice;
    fail("is there twice; an object has each key once");
  }
  stack_.pop_back();
  return true;
}

bool JsonBuilder::end_array() {
  stack_.pop_back();
  return true;
}

bool JsonBuilder::parse_error(std::size_t, const std::string&,
                              const nlohmann::detail::exception& error) {
  SW_FAIL(DataError, source_, ": not valid JSON: ", plain_words(error.what()));
}

}  // namespace shardwise::io
