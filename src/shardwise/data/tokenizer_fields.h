// What the parts of a tokenizer.json have in common.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

#include "shardwise/data/pattern.h"
#include "shardwise/io/json_view.h"

namespace shardwise::data {

// "file: field", for the errors of what is made from the value.
std::string place_of(const io::JsonView& view);

// Throws DataError for a member, other than "type", that `keys` does not name: nothing that a file
// asks for is passed over.
void allow_only(const io::JsonView& object, std::initializer_list<std::string_view> keys);

// Throws DataError for a type that is not one of `known`.
[[noreturn]] void fail_type(const io::JsonView& object, const std::string& known);

// {"String": text} or {"Regex": expression}.
std::unique_ptr<const Pattern> read_pattern(const io::JsonView& view);

// A string of exactly one character.
char32_t read_character(const io::JsonView& view);

}  // namespace shardwise::data
