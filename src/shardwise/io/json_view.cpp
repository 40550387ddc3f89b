#include "shardwise/io/json_view.h"

#include <nlohmann/json.hpp>

#include <limits>

#include "shardwise/base/check.h"
#include "shardwise/io/atomic_file.h"
#include "shardwise/io/json_builder.h"
#include "shardwise/io/quote.h"

namespace shardwise::io {
namespace {

using Json = nlohmann::ordered_json;

std::string describe(const Json& value) {
  if (value.is_string()) {
    return quoted(value.get_ref<const std::string&>(), 60);
  }
  if (value.is_object() || value.is_array()) {
    return value.is_object() ? "an object" : "a list";
  }
  return value.dump();
}

}  // namespace

JsonView JsonView::read(const std::string& path, const JsonLimits& limits) {
  return parse(read_text(path, limits.bytes), path, limits);
}

JsonView JsonView::parse(std::string_view text, const std::string& source,
                         const JsonLimits& limits) {
  SW_USER_CHECK(DataError, text.size() <= limits.bytes, source, ": ", text.size(),
                " bytes of JSON; the most that is read are ", limits.bytes);
  const auto document = std::make_shared<Json>();
  JsonBuilder builder(*document, source, limits);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return {document, std::make_shared<const std::string>(source)};
}

JsonView::JsonView(std::shared_ptr<const Json> document, std::shared_ptr<const std::string> source)
    : document_(std::move(document)), source_(std::move(source)), value_(document_.get()) {}

void JsonView::fail(const std::string& what) const {
  SW_FAIL(DataError, *source_, ": ", field_, field_.empty() ? "" : ": ", what);
}

void JsonView::fail_type(const std::string& allowed) const {
  fail(concat("must be ", allowed, ", not ", describe(*value_)));
}

bool JsonView::is_null() const { return value_->is_null(); }
bool JsonView::is_string() const { return value_->is_string(); }
bool JsonView::is_object() const { return value_->is_object(); }
bool JsonView::is_array() const { return value_->is_array(); }

JsonView JsonView::member(std::string_view key, const Json& value) const {
  JsonView view = *this;
  view.value_ = &value;
  view.field_ += view.field_.empty() ? "" : ".";
  view.field_ += printable(key);
  return view;
}

// Null where the key is missing or its value is null.
const Json* JsonView::lookup(std::string_view key) const {
  for (const auto& [name, value] : value_->get_ref<const Json::object_t&>()) {
    if (name == key) {
      return value.is_null() ? nullptr : &value;
    }
  }
  return nullptr;
}

bool JsonView::has(std::string_view key) const {
  return value_->is_object() && lookup(key) != nullptr;
}

std::optional<JsonView> JsonView::find(std::string_view key) const {
  if (!value_->is_object()) {
    fail_type("an object");
  }
  const Json* found = lookup(key);
  return found == nullptr ? std::nullopt : std::optional(member(key, *found));
}

JsonView JsonView::at(std::string_view key) const {
  std::optional<JsonView> found = find(key);
  if (!found) {
    member(key, *value_).fail("is missing or null; it must be given");
  }
  return *std::move(found);
}

std::vector<JsonView> JsonView::items() const {
  if (!value_->is_array()) {
    fail_type("a list");
  }
  std::vector<JsonView> result;
  result.reserve(value_->size());
  for (const Json& item : *value_) {
    JsonView view = *this;
    view.value_ = &item;
    view.field_ += concat("[", result.size(), "]");
    result.push_back(std::move(view));
  }
  return result;
}

std::vector<std::pair<std::string, JsonView>> JsonView::members() const {
  if (!value_->is_object()) {
    fail_type("an object");
  }
  std::vector<std::pair<std::string, JsonView>> result;
  result.reserve(value_->size());
  for (const auto& [key, value] : value_->get_ref<const Json::object_t&>()) {
    result.emplace_back(key, member(key, value));
  }
  return result;
}

std::string JsonView::string() const {
  if (!value_->is_string()) {
    fail_type("a string");
  }
  return value_->get<std::string>();
}

bool JsonView::boolean() const {
  if (!value_->is_boolean()) {
    fail_type("true or false");
  }
  return value_->get<bool>();
}

double JsonView::number() const {
  if (!value_->is_number()) {
    fail_type("a number");
  }
  return value_->get<double>();
}

std::int64_t JsonView::integer(std::int64_t least, std::int64_t most) const {
  constexpr auto kLargest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const bool fits = value_->is_number_integer() &&
                    (!value_->is_number_unsigned() || value_->get<std::uint64_t>() <= kLargest);
  const std::int64_t number = fits ? value_->get<std::int64_t>() : 0;
  if (!fits || number < least || number > most) {
    fail_type(concat("an integer from ", least, " to ", most));
  }
  return number;
}

std::string JsonView::string_or(std::string_view key, const std::string& fallback) const {
  const auto found = find(key);
  return found ? found->string() : fallback;
}

bool JsonView::boolean_or(std::string_view key, bool fallback) const {
  const auto found = find(key);
  return found ? found->boolean() : fallback;
}

double JsonView::number_or(std::string_view key, double fallback) const {
  const auto found = find(key);
  return found ? found->number() : fallback;
}

std::int64_t JsonView::integer_or(std::string_view key, std::int64_t fallback, std::int64_t least,
                                  std::int64_t most) const {
  const auto found = find(key);
  return found ? found->integer(least, most) : fallback;
}

std::string JsonView::text() const { return value_->dump(); }

}  // namespace shardwise::io
