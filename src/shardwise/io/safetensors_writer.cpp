// Writing: the other half of safetensors.h.
#include <nlohmann/json.hpp>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <set>
#include <utility>

#include "shardwise/base/check.h"
#include "shardwise/io/atomic_file.h"
#include "shardwise/io/model_files.h"
#include "shardwise/io/quote.h"
#include "shardwise/io/safetensors.h"
#include "shardwise/io/safetensors_header.h"
#include "shardwise/io/tensor_types.h"

namespace shardwise::io {
namespace {

namespace fs = std::filesystem;

using Order = std::vector<const TensorTable::value_type*>;
using Metadata = std::map<std::string, std::string>;

void check_tensors(const TensorTable& tensors) {
  for (const auto& [name, tensor] : tensors) {
    const auto bytes = tensor_bytes(tensor.type, tensor.sizes);
    SW_CHECK(bytes && *bytes == static_cast<std::int64_t>(tensor.bytes.size()), name, ": ",
             tensor.bytes.size(), " bytes for ", tensor_type_name(tensor.type), " ",
             sizes_text(tensor.sizes));
  }
}

Order all_of(const TensorTable& tensors) {
  Order order;
  for (const auto& tensor : tensors) {
    order.push_back(&tensor);
  }
  return order;
}

// Writes everything but does not commit. `order`: by name; sorted as upstream does it.
void write_tensors(AtomicFile& file, Order order, const Metadata& metadata) {
  std::ranges::stable_sort(order, std::greater<>(), [](const auto* t) { return t->second.type; });
  for (const auto* tensor : order) {
    SW_USER_CHECK(DataError, tensor->first != "__metadata__", file.path(),
                  ": a tensor must not be named __metadata__");
  }
  try {
    file.write(make_safetensors_header(order, metadata));
  } catch (const nlohmann::json::exception&) {
    SW_FAIL(DataError, file.path(), ": a tensor's name or the metadata is not UTF-8");
  }
  for (const auto* tensor : order) {
    file.write(tensor->second.bytes);
  }
}

// Fills one file after the other, in the order of names.
std::vector<Order> split(const TensorTable& tensors, std::int64_t max_file_bytes) {
  std::vector<Order> files(1);
  std::int64_t filled = 0;
  for (const auto& tensor : tensors) {
    const auto bytes = static_cast<std::int64_t>(tensor.second.bytes.size());
    if (!files.back().empty() && bytes > max_file_bytes - filled) {
      files.emplace_back();
      filled = 0;
    }
    files.back().push_back(&tensor);
    filled += bytes;
  }
  return files;
}

std::string index_text(const std::vector<Order>& files) {
  std::int64_t total = 0;
  nlohmann::json weight_map = nlohmann::json::object();
  for (std::size_t i = 0; i < files.size(); ++i) {
    for (const auto* tensor : files[i]) {
      weight_map[tensor->first] = model_shard_name(i + 1, files.size());
      total += static_cast<std::int64_t>(tensor->second.bytes.size());
    }
  }
  const nlohmann::json index = {{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
  return index.dump(2) + "\n";
}

void remove_file(const fs::path& path) {
  std::error_code error;
  fs::remove(path, error);
  SW_USER_CHECK(IoError, !error, path.string(),
                ": cannot remove this file of an earlier save: ", error.message());
}

// Weight files of any earlier save, but for those in `kept`.
void remove_old_files(const std::string& folder, const std::set<std::string>& kept) {
  std::vector<fs::path> old;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (is_weight_file(name) && !kept.contains(name)) {
      old.push_back(entry->path());
    }
  }
  SW_USER_CHECK(IoError, !error, folder, ": cannot list the folder: ", error.message());
  // The names that open() looks for go first: what is left is no model, rather than half of one.
  std::ranges::sort(old, std::greater<>());
  std::ranges::for_each(old, remove_file);
}

std::string path_in(const std::string& folder, const std::string& name) {
  return (fs::path(folder) / name).string();
}

// Whether the folder holds one of `count` files of an earlier save.
bool holds_shard(const std::string& folder, std::size_t count) {
  for (std::size_t number = 1; number <= count; ++number) {
    std::error_code ignored;
    if (fs::exists(path_in(folder, model_shard_name(number, count)), ignored)) {
      return true;
    }
  }
  return false;
}

void make_folder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  SW_USER_CHECK(IoError, !error, folder, ": cannot make the folder: ", error.message());
}

}  // namespace

void write_safetensors(const std::string& path, const TensorTable& tensors,
                       const Metadata& metadata) {
  check_tensors(tensors);
  AtomicFile file(path);
  write_tensors(file, all_of(tensors), metadata);
  file.commit();
}

void write_model_folder(const std::string& folder, const TensorTable& tensors,
                        std::int64_t max_file_bytes) {
  SW_CHECK(max_file_bytes > 0, "max_file_bytes ", max_file_bytes);
  check_tensors(tensors);
  make_folder(folder);
  const std::vector<Order> files = split(tensors, max_file_bytes);
  std::deque<AtomicFile> written;
  std::set<std::string> names;
  const auto begin_file = [&](const std::string& name) -> AtomicFile& {
    names.insert(name);
    return written.emplace_back(path_in(folder, name));
  };
  const Metadata metadata = {{"format", "pt"}};
  for (std::size_t i = 0; i < files.size(); ++i) {
    AtomicFile& file =
        begin_file(files.size() == 1 ? kModelFile : model_shard_name(i + 1, files.size()));
    write_tensors(file, files[i], metadata);
    file.sync();
  }
  if (files.size() > 1) {
    begin_file(kModelIndex).write(index_text(files));
    written.back().sync();
    // An old index must not meet new files of the same names.
    if (holds_shard(folder, files.size())) {
      remove_file(path_in(folder, kModelIndex));
    }
  }
  for (AtomicFile& file : written) {
    file.commit();
  }
  remove_old_files(folder, names);
}

}  // namespace shardwise::io
