#include "shardwise/io/safetensors.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "shardwise/base/check.h"
#include "shardwise/base/suggest.h"
#include "shardwise/io/json_view.h"
#include "shardwise/io/model_files.h"
#include "shardwise/io/quote.h"
#include "shardwise/io/safetensors_header.h"

namespace shardwise::io {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// Names of the folder's files, sorted.
std::vector<std::string> file_names(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  SW_USER_CHECK(IoError, !error, folder, ": cannot list the folder: ", error.message());
  std::ranges::sort(names);
  return names;
}

[[noreturn]] void fail_without_model(const std::string& folder) {
  bool pickles = false;
  for (const std::string& name : file_names(folder)) {
    if (name.ends_with(".safetensors")) {
      SW_FAIL(DataError, folder, ": holds ", printable(name), ", but neither ", kModelFile, " nor ",
              kModelIndex,
              (is_model_shard(name) ? "; the index is missing: copy it, too"
                                    : "; give the path of that file itself"));
    }
    pickles = pickles || (name.starts_with("pytorch_model") && name.ends_with(".bin"));
  }
  SW_USER_CHECK(DataError, !pickles, folder, ": holds pytorch_model*.bin only, which is not read; ",
                "convert it once in Python: transformers.AutoModelForCausalLM.from_pretrained(",
                quoted(folder), ").save_pretrained(\"new folder\")");
  SW_FAIL(IoError, folder, ": holds neither ", kModelFile, " nor ", kModelIndex,
          "; give a folder with a model, or a safetensors file");
}

std::string file_of(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    return path;
  }
  for (const char* name : {kModelFile, kModelIndex}) {
    if (is_there(fs::path(path) / name)) {
      return (fs::path(path) / name).string();
    }
  }
  fail_without_model(path);
}

// A name that leads out of the folder could make a model read, and save, foreign files.
std::string shard_name(const JsonView& entry) {
  const std::string name = entry.string();
  if (name.find('/') != std::string::npos || name.find('\0') != std::string::npos ||
      !name.ends_with(".safetensors")) {
    entry.fail(concat(quoted(name), " must name a *.safetensors file in the folder of the index"));
  }
  return name;
}

std::string names_text(std::string_view wanted, const TensorTable& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    names.push_back(name);
  }
  std::string text;
  for (const std::string& name : nearest(wanted, names)) {
    text += (text.empty() ? "; nearest: " : ", ") + printable(name);
  }
  return concat("; it holds ", names.size(), " tensors", text);
}

}  // namespace

Safetensors Safetensors::open(const std::string& path) {
  const std::string file = file_of(path);
  return file.ends_with(".json") ? open_index(file) : open_file(file);
}

Safetensors Safetensors::open_file(const std::string& path) {
  Safetensors result;
  result.path_ = path;
  result.maps_.emplace_back(path);
  SafetensorsHeader header = read_safetensors_header(result.maps_.back());
  result.tensors_ = std::move(header.tensors);
  result.metadata_ = std::move(header.metadata);
  return result;
}

Safetensors Safetensors::open_index(const std::string& path) {
  Safetensors result;
  result.path_ = path;
  std::map<std::string, Safetensors> files;
  for (const auto& [name, entry] : JsonView::read(path).at("weight_map").members()) {
    const std::string file_name = shard_name(entry);
    auto file = files.find(file_name);
    if (file == files.end()) {
      const fs::path shard = fs::path(path).parent_path() / file_name;
      SW_USER_CHECK(IoError, is_there(shard), path, ": ", entry.field(), ": the file ",
                    shard.string(), " is missing; copy it into the folder of the index");
      file = files.emplace(file_name, open_file(shard.string())).first;
      result.maps_.push_back(file->second.maps_.front());
      result.metadata_.insert(file->second.metadata_.begin(), file->second.metadata_.end());
    }
    const auto tensor = file->second.tensors_.find(name);
    if (tensor == file->second.tensors_.end()) {
      entry.fail(concat("the file ", file->second.path_, " does not hold this tensor"));
    }
    result.tensors_.insert(*tensor);
  }
  return result;
}

const TensorData& Safetensors::at(std::string_view name) const {
  const auto found = tensors_.find(name);
  SW_USER_CHECK(DataError, found != tensors_.end(), path_, ": the tensor ", printable(name),
                " is missing", names_text(name, tensors_));
  return found->second;
}

}  // namespace shardwise::io
