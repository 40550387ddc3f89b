// What a name that was not found may have meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shardwise::io {

// Up to three of `names`, nearest first, by the number of characters to change, insert or remove;
// none that differs in more than half of its characters. Takes time for each name in proportion to
// the product of the lengths; names of more than 200 bytes are passed over.
std::vector<std::string_view> nearest_names(std::string_view wanted,
                                            const std::vector<std::string_view>& names);

}  // namespace shardwise::io
