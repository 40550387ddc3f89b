// JSON documents of foreign files (config.json, tokenizer.json, safetensors headers), read with
// limits and asked with errors that name file and field.
#pragma once

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardwise::io {

// What a document may have at most. The tokenizer.json of a vocabulary of 250,000 has 20 MB, 5
// levels and two million values. Memory stays below `bytes` + 200 bytes × `values`.
struct JsonLimits {
  std::size_t bytes = std::size_t{64} << 20;
  int depth = 64;
  std::size_t values = std::size_t{4} << 20;  // numbers, strings, lists, ... together
};

// A value inside a document. Holds the document alive; copies are cheap; immutable, so that several
// threads may read. Every getter throws DataError "<file>: <field>: <what is wrong, what is
// allowed>".
//
// Strict JSON: no comments, no NaN; a key twice in an object and text that is not UTF-8 are errors.
// Integers beyond 64 bits are read as numbers with a fraction, as tokenizers write them
// ("model_max_length": 1e30 in full): number() gives them, integer() refuses them.
class JsonView {
 public:
  // Throws IoError when the file cannot be read, DataError when it is no JSON or exceeds the
  // limits.
  static JsonView read(const std::string& path, const JsonLimits& limits = {});
  // `source` stands for the file's name in errors.
  static JsonView parse(std::string_view text, const std::string& source,
                        const JsonLimits& limits = {});

  const nlohmann::ordered_json& json() const { return *value_; }
  const std::string& source() const { return *source_; }
  const std::string& field() const { return field_; }  // "rope_scaling.factor"; "" at the root

  bool is_null() const;
  bool is_string() const;
  bool is_object() const;
  bool is_array() const;

  // Members of an object by key. They search one member after the other: in a loop over many keys
  // take members() instead. Of something that is no object, has() is false and the others throw.
  bool has(std::string_view key) const;                           // there and not null
  JsonView at(std::string_view key) const;                        // throws where has() is false
  std::optional<JsonView> find(std::string_view key) const;       // nullopt where has() is false
  std::vector<JsonView> items() const;                            // of an array
  std::vector<std::pair<std::string, JsonView>> members() const;  // of an object, in file order

  std::string string() const;
  bool boolean() const;
  double number() const;  // finite; an integer is a number, too
  std::int64_t integer(std::int64_t least, std::int64_t most) const;  // written as one: not 1.0

  // The same for a member, with a default where it is missing or null.
  std::string string_or(std::string_view key, const std::string& fallback) const;
  bool boolean_or(std::string_view key, bool fallback) const;
  double number_or(std::string_view key, double fallback) const;
  std::int64_t integer_or(std::string_view key, std::int64_t fallback, std::int64_t least,
                          std::int64_t most) const;

  // The value as compact JSON.
  std::string text() const;

  // Throws DataError "<file>: <field>: <what>".
  [[noreturn]] void fail(const std::string& what) const;

 private:
  using Json = nlohmann::ordered_json;

  JsonView(std::shared_ptr<const Json> document, std::shared_ptr<const std::string> source);
  JsonView member(std::string_view key, const Json& value) const;
  const Json* lookup(std::string_view key) const;
  [[noreturn]] void fail_type(const std::string& allowed) const;

  std::shared_ptr<const Json> document_;
  std::shared_ptr<const std::string> source_;
  const Json* value_ = nullptr;
  std::string field_;
};

}  // namespace shardwise::io
