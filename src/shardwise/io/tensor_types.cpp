#include "shardwise/io/tensor_types.h"

#include <algorithm>
#include <array>

#include "shardwise/base/check.h"

namespace shardwise::io {
namespace {

struct TypeRow {
  TensorType type;
  const char* name;
  std::int64_t bytes;
};

constexpr std::array<TypeRow, 15> kTypes = {{{TensorType::kBool, "BOOL", 1},
                                             {TensorType::kU8, "U8", 1},
                                             {TensorType::kI8, "I8", 1},
                                             {TensorType::kF8E5M2, "F8_E5M2", 1},
                                             {TensorType::kF8E4M3, "F8_E4M3", 1},
                                             {TensorType::kI16, "I16", 2},
                                             {TensorType::kU16, "U16", 2},
                                             {TensorType::kF16, "F16", 2},
                                             {TensorType::kBF16, "BF16", 2},
                                             {TensorType::kI32, "I32", 4},
                                             {TensorType::kU32, "U32", 4},
                                             {TensorType::kF32, "F32", 4},
                                             {TensorType::kF64, "F64", 8},
                                             {TensorType::kI64, "I64", 8},
                                             {TensorType::kU64, "U64", 8}}};

const TypeRow& row_of(TensorType type) {
  const auto row = std::ranges::find(kTypes, type, &TypeRow::type);
  SW_CHECK(row != kTypes.end(), "tensor type ", static_cast<int>(type));
  return *row;
}

}  // namespace

std::int64_t element_bytes(TensorType type) { return row_of(type).bytes; }

const char* tensor_type_name(TensorType type) { return row_of(type).name; }

std::optional<TensorType> find_tensor_type(std::string_view name) {
  const auto row = std::ranges::find(kTypes, name, &TypeRow::name);
  return row == kTypes.end() ? std::nullopt : std::optional(row->type);
}

std::string tensor_type_names() {
  std::string names;
  for (const TypeRow& row : kTypes) {
    names += names.empty() ? "" : ", ";
    names += row.name;
  }
  return names;
}

std::optional<std::int64_t> tensor_bytes(TensorType type, std::span<const std::int64_t> sizes) {
  std::int64_t bytes = element_bytes(type);
  for (const std::int64_t size : sizes) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) {
      return std::nullopt;
    }
  }
  return bytes;
}

std::string sizes_text(std::span<const std::int64_t> sizes) {
  constexpr std::size_t kMostShown = 16;
  std::string text = "[";
  for (std::size_t i = 0; i < std::min(sizes.size(), kMostShown); ++i) {
    text += concat(i == 0 ? "" : ", ", sizes[i]);
  }
  return text + (sizes.size() > kMostShown ? ", ...]" : "]");
}

}  // namespace shardwise::io
