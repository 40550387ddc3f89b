// Writing to descriptors.
#pragma once

#include <string>
#include <string_view>

namespace shardwise::monitor {

// Writes all bytes, by one write(2) unless the kernel takes less; waits where the descriptor does
// not block. Returns 0 or the errno.
int write_all(int descriptor, std::string_view bytes);

// Throws IoError unless the folder of `path` exists and may be written.
void check_folder(const std::string& path);

}  // namespace shardwise::monitor
