// The header of one safetensors file, read with every number checked against the file.
#pragma once

#include <map>
#include <string>

#include "shardwise/io/memory_map.h"
#include "shardwise/io/safetensors.h"

namespace shardwise::io {

struct SafetensorsHeader {
  TensorTable tensors;  // their bytes lie in the map
  std::map<std::string, std::string> metadata;
};

// Throws DataError "<file>: <field>: ..." unless the file is one that upstream reads, too.
SafetensorsHeader read_safetensors_header(const MemoryMap& map);

// The header's bytes with the length in front and spaces behind, so that tensors begin at a
// multiple of 8; `order`: the tensors as they follow in the file.
std::string make_safetensors_header(const std::vector<const TensorTable::value_type*>& order,
                                    const std::map<std::string, std::string>& metadata);

}  // namespace shardwise::io
