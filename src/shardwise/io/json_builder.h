// Builds a JSON document while it is parsed, and refuses it as soon as it exceeds a limit.
#pragma once

#include <nlohmann/json.hpp>

#include <cstddef>
#include <string>
#include <vector>

#include "shardwise/io/json_view.h"

namespace shardwise::io {

// For nlohmann::ordered_json::sax_parse(). The library's own builder looks for every key of an
// ordered object among those before it, which takes minutes for a vocabulary; this one appends, and
// looks for keys that are there twice when the object ends. Throws DataError.
class JsonBuilder : public nlohmann::json_sax<nlohmann::ordered_json> {
 public:
  using Json = nlohmann::ordered_json;

  JsonBuilder(Json& root, const std::string& source, const JsonLimits& limits)
      : root_(root), source_(source), limits_(limits) {}

  bool null() override;
  bool boolean(bool value) override;
  bool number_integer(number_integer_t value) override;
  bool number_unsigned(number_unsigned_t value) override;
  bool number_float(number_float_t value, const string_t& text) override;
  bool string(string_t& value) override;
  bool binary(binary_t& value) override;
  bool start_object(std::size_t size) override;
  bool key(string_t& name) override;
  bool end_object() override;
  bool start_array(std::size_t size) override;
  bool end_array() override;
  bool parse_error(std::size_t position, const std::string& last_token,
                   const nlohmann::detail::exception& error) override;

 private:
  // An object or array that has not ended.
  struct Open {
    Json* value;
    std::string key;  // of the member that comes next, or came last
  };

  Json& add(Json value);
  void open(Json value);
  std::string field() const;
  [[noreturn]] void fail(const std::string& what) const;

  Json& root_;
  const std::string& source_;
  const JsonLimits& limits_;
  std::vector<Open> stack_;
  std::size_t values_ = 0;
};

}  // namespace shardwise::io
