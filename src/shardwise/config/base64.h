// Base64 in both alphabets (RFC 4648, sections 4 and 5), with and without padding.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace shardwise::config {

// The bytes, or nothing when `text` is not base64.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace shardwise::config
