#include "shardwise/io/memory_map.h"

#include <sys/mman.h>

#include <cerrno>
#include <optional>

#include "shardwise/io/descriptor.h"
#include "shardwise/io/live_files.h"

namespace shardwise::io {

struct MemoryMap::Mapping {
  explicit Mapping(std::string file) : path(std::move(file)) {
    const Descriptor descriptor = open_to_read(path);
    size = static_cast<std::size_t>(file_bytes(descriptor, path));
    if (size == 0) {
      return;
    }
    void* at = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor.number(), 0);
    if (at == MAP_FAILED) {
      fail_io(path, "map into memory", errno);
    }
    data = static_cast<const std::byte*>(at);
    listed.emplace(LiveFile::List::kMapped, path, std::span(data, size));
  }
  ~Mapping() {
    listed.reset();
    if (data != nullptr) {
      ::munmap(const_cast<std::byte*>(data), size);
    }
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::string path;
  const std::byte* data = nullptr;
  std::size_t size = 0;
  std::optional<LiveFile> listed;
};

MemoryMap::MemoryMap(const std::string& path) : mapping_(std::make_shared<const Mapping>(path)) {}

std::span<const std::byte> MemoryMap::bytes() const { return {mapping_->data, mapping_->size}; }

const std::string& MemoryMap::path() const { return mapping_->path; }

}  // namespace shardwise::io
