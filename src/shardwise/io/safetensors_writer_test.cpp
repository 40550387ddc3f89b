#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "shardwise/base/check.h"
#include "shardwise/io/failure.h"
#include "shardwise/io/model_files.h"
#include "shardwise/io/safetensors.h"
#include "shardwise/io/temporary_folder.h"

namespace shardwise::io {
namespace {

using Names = std::set<std::string>;
using namespace std::string_view_literals;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

TensorData tensor(TensorType type, std::vector<std::int64_t> sizes, std::string_view bytes) {
  return {type, std::move(sizes), bytes_of(bytes)};
}

// What safetensors 0.8.0 for Python writes for
// {"w": [[1, 2], [3, -4]] float32, "a": [1, -2] int64, "b.é\n\"": [True, False, True],
//  "h": [1.5] bfloat16, "s": 7 uint8, "e": zeros(0, 3), "f8": [0.5, 1] float8_e4m3fn,
//  "f85": [0.5, 1] float8_e5m2} and the metadata {"format": "pt"}.
constexpr std::string_view kUpstream =
    "\xf0\x01\0\0\0\0\0\0"
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"I64","shape":[2],"data_offsets":[0,16]},)"
    R"("e":{"dtype":"F32","shape":[0,3],"data_offsets":[16,16]},)"
    R"("w":{"dtype":"F32","shape":[2,2],"data_offsets":[16,32]},)"
    R"("h":{"dtype":"BF16","shape":[1],"data_offsets":[32,34]},)"
    R"("f8":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[34,36]},)"
    R"("f85":{"dtype":"F8_E5M2","shape":[2],"data_offsets":[36,38]},)"
    R"("s":{"dtype":"U8","shape":[],"data_offsets":[38,39]},)"
    R"("b.é\n\"":{"dtype":"BOOL","shape":[3],"data_offsets":[39,42]}}   )"
    "\1\0\0\0\0\0\0\0\xfe\xff\xff\xff\xff\xff\xff\xff"
    "\0\0\x80?\0\0\0@\0\0@@\0\0\x80\xc0\xc0?088<\x07\1\0\1"sv;

TensorTable upstream_tensors() {
  return {
      {"w", tensor(TensorType::kF32, {2, 2}, "\0\0\x80?\0\0\0@\0\0@@\0\0\x80\xc0"sv)},
      {"a", tensor(TensorType::kI64, {2}, "\1\0\0\0\0\0\0\0\xfe\xff\xff\xff\xff\xff\xff\xff"sv)},
      {"b.é\n\"", tensor(TensorType::kBool, {3}, "\1\0\1"sv)},
      {"h", tensor(TensorType::kBF16, {1}, "\xc0?"sv)},
      {"s", tensor(TensorType::kU8, {}, "\7"sv)},
      {"e", tensor(TensorType::kF32, {0, 3}, "")},
      {"f8", tensor(TensorType::kF8E4M3, {2}, "08")},
      {"f85", tensor(TensorType::kF8E5M2, {2}, "8<")}};
}

TEST(WriteSafetensors, TheBytesThatUpstreamWrites) {
  const TemporaryFolder folder;
  write_safetensors(folder.path("x"), upstream_tensors(), {{"format", "pt"}});
  EXPECT_EQ(folder.get("x"), kUpstream);
  EXPECT_EQ(folder.names(), Names{"x"});
}

TEST(WriteSafetensors, ReadsBackAndOverItsOwnSource) {
  const TemporaryFolder folder;
  const std::string path = folder.path("x");
  write_safetensors(path, upstream_tensors(), {{"é", "\n"}, {"a", ""}});
  const Safetensors file = Safetensors::open(path);
  EXPECT_EQ(file.metadata().at("é"), "\n");
  const std::string before = folder.get("x");
  write_safetensors(path, file.tensors(), file.metadata());
  EXPECT_EQ(folder.get("x"), before);
  EXPECT_EQ(file.at("s").bytes.front(), std::byte{7});
}

TEST(WriteSafetensors, WhatCannotBeWritten) {
  const TemporaryFolder folder;
  const auto write = [&](const std::string& name, const TensorData& data,
                         const std::map<std::string, std::string>& metadata = {}) {
    write_safetensors(folder.path("x"), {{name, data}}, metadata);
  };
  const TensorData good = tensor(TensorType::kU8, {1}, "1");
  EXPECT_TRUE(contains(failure<DataError>([&] { write("\xFF", good); }), folder.path("x")));
  failure<DataError>([&] { write("a", good, {{"k", "\xC3"}}); });
  failure<DataError>([&] { write("__metadata__", good); });
  EXPECT_THROW(write("a", tensor(TensorType::kU8, {2}, "1")), InternalError);
  EXPECT_THROW(write("a", tensor(TensorType::kU8, {1LL << 62, 4}, "")), InternalError);
  failure<IoError>([&] { write_safetensors(folder.path("absent/x"), {{"a", good}}, {}); });
  EXPECT_EQ(folder.names(), Names{});
}

// Four tensors of 4 bytes each: "a", "b", "c", "d".
TensorTable four(const std::string_view content) {
  TensorTable tensors;
  for (std::size_t i = 0; i < 4; ++i) {
    tensors[std::string(1, static_cast<char>('a' + i))] =
        tensor(TensorType::kF32, {1}, content.substr(4 * i, 4));
  }
  return tensors;
}

std::string joined(const Safetensors& model) {
  std::string text;
  for (const auto& [name, data] : model.tensors()) {
    text.append(reinterpret_cast<const char*>(data.bytes.data()), data.bytes.size());
  }
  return text;
}

constexpr std::string_view kOld = "aaaabbbbccccdddd";
constexpr std::string_view kNew = "AAAABBBBCCCCDDDD";

const Names kTwoFiles = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                         "model.safetensors.index.json"};

TEST(WriteModelFolder, OneFileWhereItFits) {
  const TemporaryFolder folder;
  write_model_folder(folder.path("new/model"), four(kNew), 16);
  const Safetensors model = Safetensors::open(folder.path("new/model"));
  EXPECT_EQ(model.path(), folder.path("new/model/model.safetensors"));
  EXPECT_EQ(joined(model), kNew);
  EXPECT_EQ(model.metadata().at("format"), "pt");
}

TEST(WriteModelFolder, SeveralFilesWithAnIndex) {
  const TemporaryFolder folder;
  write_model_folder(folder.path(), four(kNew), 11);
  EXPECT_EQ(folder.names(), kTwoFiles);
  const auto index = nlohmann::json::parse(folder.get("model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], 16);
  EXPECT_EQ(index["weight_map"], (nlohmann::json{{"a", "model-00001-of-00002.safetensors"},
                                                 {"b", "model-00001-of-00002.safetensors"},
                                                 {"c", "model-00002-of-00002.safetensors"},
                                                 {"d", "model-00002-of-00002.safetensors"}}));
  EXPECT_EQ(joined(Safetensors::open(folder.path())), kNew);
}

TEST(WriteModelFolder, ATensorAboveTheLimitHasAFileOfItsOwn) {
  const TemporaryFolder folder;
  write_model_folder(folder.path(), four(kNew), 1);
  EXPECT_EQ(folder.names().size(), 5U);
  EXPECT_EQ(joined(Safetensors::open(folder.path())), kNew);
  write_model_folder(folder.path(), {}, 1);
  EXPECT_EQ(folder.names(), Names{"model.safetensors"});
  EXPECT_TRUE(Safetensors::open(folder.path()).tensors().empty());
}

TEST(WriteModelFolder, EverySaveReplacesEveryOther) {
  for (const std::int64_t before : {1, 8, 12, 16}) {
    for (const std::int64_t after : {1, 8, 12, 16}) {
      const TemporaryFolder folder;
      folder.put("config.json", "{}");
      folder.put("model-notes.safetensors", "");
      folder.put("model-00001-of-00007.safetensors.123-0.tmp", "left by a killed process");
      write_model_folder(folder.path(), four(kOld), before);
      const Safetensors old = Safetensors::open(folder.path());
      write_model_folder(folder.path(), four(kNew), after);
      EXPECT_EQ(joined(Safetensors::open(folder.path())), kNew);
      EXPECT_EQ(joined(old), kOld);
      const std::size_t files = after == 16 ? 1 : after == 1 ? 5 : 3;
      EXPECT_EQ(folder.names().size(), files + 2);
      EXPECT_TRUE(folder.names().contains("model-notes.safetensors"));
    }
  }
}

TEST(WriteModelFolder, AFullDiskLeavesTheOldModel) {
  const TemporaryFolder folder;
  write_model_folder(folder.path(), four(kOld), 8);
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100'000, 100'000};
    int status = ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      TensorTable tensors = four(kNew);
      const std::string large(1'000'000, 'x');
      tensors["e"] = tensor(TensorType::kU8, {1'000'000}, large);
      write_model_folder(folder.path(), tensors, 8);
      status = 1;
    } catch (const IoError&) {
    } catch (...) {
      status = 2;
    }
    ::_exit(status);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(folder.names(), kTwoFiles);
  EXPECT_EQ(joined(Safetensors::open(folder.path())), kOld);
}

// A process killed at any time: the folder holds the old model, the new one, or none that opens.
TEST(WriteModelFolder, AKilledSaveNeverMixesModels) {
  int opened = 0;
  for (int i = 0; i < 60; ++i) {
    const TemporaryFolder folder;
    write_model_folder(folder.path(), four(kOld), i % 2 == 0 ? 8 : 16);
    const pid_t child = ::fork();
    if (child == 0) {
      write_model_folder(folder.path(), four(kNew), i % 3 == 0 ? 16 : 8);
      ::_exit(0);
    }
    ::usleep(static_cast<useconds_t>(100 * i));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    try {
      const std::string content = joined(Safetensors::open(folder.path()));
      EXPECT_TRUE(content == kOld || content == kNew) << content;
      ++opened;
    } catch (const DataError& error) {
      EXPECT_TRUE(contains(error.what(), "the index is missing")) << error.what();
    }
  }
  EXPECT_GT(opened, 30);
}

TEST(ModelFiles, WhatASaveWrites) {
  EXPECT_TRUE(is_weight_file("model.safetensors"));
  EXPECT_TRUE(is_weight_file("model.safetensors.index.json"));
  EXPECT_TRUE(is_weight_file("model-00001-of-00002.safetensors"));
  EXPECT_TRUE(is_weight_file("model.safetensors.12-0.tmp"));
  EXPECT_TRUE(is_weight_file("model.safetensors.index.json.12-0.tmp"));
  for (const char* name : {"config.json", "model.safetensors.old", "x.tmp", ".tmp", "model.tmp",
                           "adapter_model.safetensors", ""}) {
    EXPECT_FALSE(is_weight_file(name)) << name;
  }
}

TEST(ModelFiles, Names) {
  EXPECT_EQ(model_shard_name(2, 3), "model-00002-of-00003.safetensors");
  EXPECT_EQ(model_shard_name(2, 123'456), "model-00002-of-123456.safetensors");
  EXPECT_TRUE(is_model_shard(model_shard_name(1, 1)));
  EXPECT_TRUE(is_model_shard(model_shard_name(99'999, 123'456)));
  for (const char* name :
       {"model.safetensors", "model-00001.safetensors", "model-.safetensors",
        "model-1-of-2.safetensors", "xmodel-00001-of-00002.safetensors", "model-00001-of-00002.bin",
        "model-0000x-of-00002.safetensors", "", "model-00001-of-00002.safetensors.index.json"}) {
    EXPECT_FALSE(is_model_shard(name)) << name;
  }
}

// Driven by tests/test_io.py: copies what Python wrote, for Python to compare.
TEST(SafetensorsPeer, CopiesModelsOfPython) {
  const char* folder = std::getenv("SW_SAFETENSORS_PEER");
  if (folder == nullptr) {
    GTEST_SKIP() << "tests/test_io.py runs this";
  }
  const std::string from = concat(folder, "/from_python");
  for (const auto& entry : std::filesystem::directory_iterator(from)) {
    const Safetensors model = Safetensors::open(entry.path().string());
    const std::string to = concat(folder, "/from_cpp/", entry.path().filename().string());
    if (entry.is_directory()) {
      write_model_folder(to, model.tensors(), 50'000);
    } else {
      write_safetensors(to, model.tensors(), model.metadata());
    }
  }
}

}  // namespace
}  // namespace shardwise::io
