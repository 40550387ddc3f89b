#include "shardwise/io/model_files.h"

#include <algorithm>

namespace shardwise::io {
namespace {

constexpr std::string_view kPrefix = "model-";
constexpr std::string_view kMiddle = "-of-";
constexpr std::string_view kSuffix = ".safetensors";
constexpr std::string_view kTemporary = ".tmp";
constexpr std::size_t kDigits = 5;

std::string padded(std::size_t number) {
  const std::string digits = std::to_string(number);
  return std::string(kDigits - std::min(kDigits, digits.size()), '0') + digits;
}

bool is_number(std::string_view text) {
  return text.size() >= kDigits &&
         std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

std::string model_shard_name(std::size_t number, std::size_t count) {
  std::string name(kPrefix);
  name += padded(number);
  name += kMiddle;
  name += padded(count);
  return name += kSuffix;
}

bool is_model_shard(std::string_view name) {
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) {
    return false;
  }
  name.remove_prefix(kPrefix.size());
  name.remove_suffix(std::min(kSuffix.size(), name.size()));
  const std::size_t middle = name.find(kMiddle);
  return middle != std::string_view::npos && is_number(name.substr(0, middle)) &&
         is_number(name.substr(middle + kMiddle.size()));
}

bool is_weight_file(std::string_view name) {
  if (name.ends_with(kTemporary)) {
    name.remove_suffix(kTemporary.size());
    name = name.substr(0, name.rfind('.'));  // without the number of the process
  }
  return name == kModelFile || name == kModelIndex || is_model_shard(name);
}

}  // namespace shardwise::io
