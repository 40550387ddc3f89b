// The safetensors format of Hugging Face: 8 bytes of header length, a JSON header, raw tensors.
// Source: https://github.com/huggingface/safetensors (README, "Format").
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/io/memory_map.h"

namespace shardwise::io {

// Named "BOOL", "U8", ..., "F8_E5M2", "BF16", ... in files; in the order in which upstream sorts
// types (its 4-bit, 6-bit, complex and scale-only types are left out).
enum class TensorType {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kF64,
  kI64,
  kU64
};

std::int64_t element_bytes(TensorType type);
const char* tensor_type_name(TensorType type);

// A tensor in memory that somebody else owns: row-major, contiguous, little-endian.
struct TensorData {
  TensorType type = TensorType::kF32;
  std::vector<std::int64_t> sizes;  // none for a scalar; 0 is allowed
  std::span<const std::byte>
      bytes;  // element_bytes × product of sizes; in a foreign file unaligned
};

using TensorTable = std::map<std::string, TensorData, std::less<>>;

// The tensors of one file, several files with an index, or a folder; memory-mapped, so that opening
// reads headers only. Immutable; safe to read from several threads. Copies share the maps, and the
// bytes of tensors() stay valid while one copy lives.
class Safetensors {
 public:
  // `path`: a *.safetensors file, a *.safetensors.index.json, or a folder that holds
  // model.safetensors or else model.safetensors.index.json. Throws IoError or DataError, which
  // names the file and the field, for anything that does not hold: lengths, offsets, overlaps,
  // holes, types, overflowing shapes, tensors that the index names and the files lack. Of files
  // with an index, the tensors that the index names are taken.
  static Safetensors open(const std::string& path);

  const TensorTable& tensors() const { return tensors_; }
  // Throws DataError that names the nearest names where the tensor is missing.
  const TensorData& at(std::string_view name) const;
  // "__metadata__" of the files.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::string& path() const { return path_; }  // of the file or the index

 private:
  static Safetensors open_file(const std::string& path);
  static Safetensors open_index(const std::string& path);

  std::string path_;
  std::vector<MemoryMap> maps_;
  TensorTable tensors_;
  std::map<std::string, std::string> metadata_;
};

// Writes one file, atomically: whoever opens `path` sees the old file or the whole new one. Throws
// IoError (full disk, no permission) and leaves nothing behind then. The bytes are those that the
// library of Hugging Face writes: larger element types first, then by name, so that every tensor is
// aligned. Names and metadata are UTF-8, else DataError; a tensor named "__metadata__" is one, too.
void write_safetensors(const std::string& path, const TensorTable& tensors,
                       const std::map<std::string, std::string>& metadata);

// Writes model.safetensors into `folder` (which is made where it is missing), or where that would
// exceed `max_file_bytes` of tensors model-00001-of-0000N.safetensors files and
// model.safetensors.index.json, as Hugging Face's save_pretrained does; a tensor that is larger
// gets a file of its own. Weight files of an earlier save there are removed once the new ones
// stand.
//
// All new files are on the disk under temporary names before the first old one is touched: a full
// disk leaves the old model. A process killed while the names change leaves the old model, the new
// one, or files without an index, which open() refuses; never a mixture that loads.
void write_model_folder(const std::string& folder, const TensorTable& tensors,
                        std::int64_t max_file_bytes);

}  // namespace shardwise::io
