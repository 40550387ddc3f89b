// Sizes and shapes as safetensors files state them, checked.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "shardwise/io/safetensors.h"

namespace shardwise::io {

// nullopt for a name that is none of a TensorType.
std::optional<TensorType> find_tensor_type(std::string_view name);

// "BOOL, U8, ...": all names.
std::string tensor_type_names();

// Bytes of a tensor; nullopt where that exceeds 2^63 - 1 on the way.
std::optional<std::int64_t> tensor_bytes(TensorType type, std::span<const std::int64_t> sizes);

// "[2, 3]"
std::string sizes_text(std::span<const std::int64_t> sizes);

}  // namespace shardwise::io
