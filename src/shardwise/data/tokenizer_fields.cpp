#include "shardwise/data/tokenizer_fields.h"

#include <algorithm>

#include "shardwise/base/check.h"
#include "shardwise/data/unicode.h"
#include "shardwise/io/quote.h"

namespace shardwise::data {

std::string place_of(const io::JsonView& view) {
  return view.source() + ": " + (view.field().empty() ? "the document" : view.field());
}

void allow_only(const io::JsonView& object, std::initializer_list<std::string_view> keys) {
  for (const auto& [key, value] : object.members()) {
    if (key == "type" || std::ranges::find(keys, std::string_view(key)) != keys.end()) continue;
    value.fail("is not known here and cannot be passed over");
  }
}

void fail_type(const io::JsonView& object, const std::string& known) {
  const io::JsonView type = object.at("type");
  type.fail(io::quoted(type.string()) + " is not supported; this reader knows " + known);
}

std::unique_ptr<const Pattern> read_pattern(const io::JsonView& view) {
  allow_only(view, {"String", "Regex"});
  const auto literal = view.find("String");
  const auto regex = view.find("Regex");
  if (literal.has_value() == regex.has_value()) {
    view.fail("must hold either \"String\" or \"Regex\"");
  }
  if (regex) {
    return make_regex(regex->string(), place_of(*regex));
  }
  std::string text = literal->string();
  if (text.empty()) literal->fail("must not be empty");
  return make_literal(std::move(text));
}

char32_t read_character(const io::JsonView& view) {
  const std::string text = view.string();
  if (text.empty() || first_code_point(text).bytes != text.size()) {
    view.fail("must be a single character, not " + io::quoted(text));
  }
  return first_code_point(text).value;
}

std::string read_content(const io::JsonView& view) {
  constexpr std::size_t kMost = 1024;
  std::string text = view.string();
  if (text.size() > kMost) view.fail(concat("has ", text.size(), " bytes; 1024 are allowed"));
  return text;
}

void check_growth(std::size_t before, std::size_t now, const std::string& place) {
  constexpr std::size_t kAllowance = std::size_t{1} << 20;
  constexpr std::size_t kFactor = 64;  // the largest of one character's normal forms is 11
  SW_USER_CHECK(DataError, now <= kAllowance || now / kFactor <= before, place, ": makes ", now,
                " bytes of a text of ", before, "; leave out steps that repeat");
}

}  // namespace shardwise::data
