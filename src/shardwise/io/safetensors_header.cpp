#include "shardwise/io/safetensors_header.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "shardwise/base/check.h"
#include "shardwise/io/json_view.h"
#include "shardwise/io/quote.h"
#include "shardwise/io/tensor_types.h"

namespace shardwise::io {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors are little-endian");

constexpr std::size_t kLengthBytes = sizeof(std::uint64_t);
constexpr std::uint64_t kMostHeaderBytes = 100'000'000;  // upstream's limit
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
constexpr const char* kMetadata = "__metadata__";

// Where a tensor lies behind the header: bytes [begin, end).
struct Place {
  std::int64_t begin, end;
  std::string_view name;
  auto operator<=>(const Place&) const = default;
};

std::string_view header_text(const MemoryMap& map) {
  const auto bytes = map.bytes();
  SW_USER_CHECK(DataError, bytes.size() >= kLengthBytes, map.path(), ": file size: ", bytes.size(),
                " bytes; a safetensors file begins with 8 bytes of header length");
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  SW_USER_CHECK(DataError, length <= kMostHeaderBytes, map.path(), ": header length: ", length,
                " bytes; the most allowed is ", kMostHeaderBytes,
                "; check that it is a safetensors file");
  SW_USER_CHECK(DataError, length <= bytes.size() - kLengthBytes, map.path(),
                ": header length: ", length, " bytes do not fit into a file of ", bytes.size(),
                " bytes; it may be cut off");
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, length);
  SW_USER_CHECK(DataError, text.starts_with('{'), map.path(),
                ": header: must begin with \"{\"; check that it is a safetensors file");
  return text;
}

std::map<std::string, std::string> read_metadata(const JsonView& value) {
  std::map<std::string, std::string> metadata;
  if (!value.is_null()) {
    for (const auto& [key, text] : value.members()) {
      metadata.emplace(key, text.string());
    }
  }
  return metadata;
}

TensorType read_type(const JsonView& entry) {
  const JsonView name = entry.at("dtype");
  const auto type = find_tensor_type(name.string());
  if (!type) {
    name.fail(
        concat(quoted(name.string()), " is no type that is read; allowed: ", tensor_type_names()));
  }
  return *type;
}

std::vector<std::int64_t> read_sizes(const JsonView& entry) {
  std::vector<std::int64_t> sizes;
  for (const JsonView& size : entry.at("shape").items()) {
    sizes.push_back(size.integer(0, kMost));
  }
  return sizes;
}

Place read_place(const JsonView& entry, std::string_view name, std::int64_t data_bytes) {
  const JsonView offsets = entry.at("data_offsets");
  const std::vector<JsonView> both = offsets.items();
  if (both.size() != 2) {
    offsets.fail(concat("must be [begin, end], not ", both.size(), " numbers"));
  }
  const Place place{both[0].integer(0, kMost), both[1].integer(0, kMost), name};
  if (place.begin > place.end || place.end > data_bytes) {
    offsets.fail(concat("[", place.begin, ", ", place.end,
                        "] must ascend and end at or before the ", data_bytes,
                        " bytes behind the header; the file may be cut off"));
  }
  return place;
}

TensorData read_tensor(const JsonView& entry, const Place& place, std::span<const std::byte> data) {
  TensorData tensor{read_type(entry), read_sizes(entry), {}};
  const auto bytes = tensor_bytes(tensor.type, tensor.sizes);
  if (!bytes) {
    entry.at("shape").fail(sizes_text(tensor.sizes) + " has more elements than memory can hold");
  }
  if (*bytes != place.end - place.begin) {
    entry.at("data_offsets")
        .fail(concat(place.end - place.begin, " bytes, but ", tensor_type_name(tensor.type), " ",
                     sizes_text(tensor.sizes), " has ", *bytes));
  }
  tensor.bytes =
      data.subspan(static_cast<std::size_t>(place.begin), static_cast<std::size_t>(*bytes));
  return tensor;
}

// As upstream: every byte behind the header belongs to one tensor.
void check_cover(std::vector<Place> places, std::int64_t data_bytes, const std::string& path) {
  std::ranges::sort(places);
  std::int64_t end = 0;
  for (const Place& place : places) {
    SW_USER_CHECK(DataError, place.begin == end, path, ": ", printable(place.name),
                  ".data_offsets: begins at ", place.begin, ", but the tensor before ends at ", end,
                  "; tensors must neither overlap nor leave holes");
    end = place.end;
  }
  SW_USER_CHECK(DataError, end == data_bytes, path, ": file size: ", data_bytes - end,
                " bytes behind the last tensor; the file may be damaged");
}

nlohmann::ordered_json entry_of(const TensorData& tensor, std::int64_t begin) {
  return {{"dtype", tensor_type_name(tensor.type)},
          {"shape", tensor.sizes},
          {"data_offsets", {begin, begin + static_cast<std::int64_t>(tensor.bytes.size())}}};
}

}  // namespace

SafetensorsHeader read_safetensors_header(const MemoryMap& map) {
  const std::string_view text = header_text(map);
  const auto data = map.bytes().subspan(kLengthBytes + text.size());
  const auto data_bytes = static_cast<std::int64_t>(data.size());
  const JsonView document = JsonView::parse(text, map.path(), {.bytes = kMostHeaderBytes});
  SafetensorsHeader header;
  std::vector<Place> places;
  for (const auto& [name, entry] : document.members()) {
    if (name == kMetadata) {
      header.metadata = read_metadata(entry);
      continue;
    }
    const Place place = read_place(entry, name, data_bytes);
    const auto added = header.tensors.emplace(name, read_tensor(entry, place, data)).first;
    places.push_back({place.begin, place.end, added->first});
  }
  check_cover(std::move(places), data_bytes, map.path());
  return header;
}

std::string make_safetensors_header(const std::vector<const TensorTable::value_type*>& order,
                                    const std::map<std::string, std::string>& metadata) {
  // Put together by hand: an ordered object would look for each key among those before it.
  std::string text = "{";
  if (!metadata.empty()) {
    text += '"' + std::string(kMetadata) + "\":" + nlohmann::json(metadata).dump();
  }
  std::int64_t begin = 0;
  for (const auto* tensor : order) {
    text += text.size() > 1 ? "," : "";
    text += nlohmann::json(tensor->first).dump() + ':' + entry_of(tensor->second, begin).dump();
    begin += static_cast<std::int64_t>(tensor->second.bytes.size());
  }
  text += '}';
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');
  const std::uint64_t length = text.size();
  std::string result(kLengthBytes, '\0');
  std::memcpy(result.data(), &length, sizeof length);
  return result + text;
}

}  // namespace shardwise::io
