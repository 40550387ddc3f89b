// What the parts of a tokenizer.json have in common.
#pragma once

#include <cstddef>
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

// What a step puts in the place of something: 1 KiB at most.
std::string read_content(const io::JsonView& view);

// For chains of steps, each of which may double a text: throws DataError once `now` bytes are far
// more than the `before` of the beginning.
void check_growth(std::size_t before, std::size_t now, const std::string& place);

}  // namespace shardwise::data
