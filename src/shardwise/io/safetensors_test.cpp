#include "shardwise/io/safetensors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <random>

#include "shardwise/base/check.h"
#include "shardwise/base/memory_file.h"
#include "shardwise/base/mutation.h"
#include "shardwise/io/failure.h"
#include "shardwise/io/temporary_folder.h"

namespace shardwise::io {
namespace {

using Sizes = std::vector<std::int64_t>;
using Metadata = std::map<std::string, std::string>;

// A file with this header and data, and no padding between.
std::string file_text(const std::string& header, const std::string& data) {
  std::string text(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(text.data(), &length, sizeof length);
  return text + header + data;
}

// One tensor "a" of four bytes.
std::string one_tensor(const std::string& type, const std::string& shape,
                       const std::string& offsets, const std::string& data = "1234") {
  return file_text(concat(R"({"a":{"dtype":)", type, R"(,"shape":)", shape, R"(,"data_offsets":)",
                          offsets, "}}"),
                   data);
}

std::string text_of(const TensorData& tensor) {
  return {reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()};
}

const std::string kValid = file_text(
    R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[1,2],"data_offsets":[3,11]},)"
    R"("b":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]},)"
    R"("none":{"dtype":"F64","shape":[0,7],"data_offsets":[3,3]},)"
    R"("s":{"shape":[],"data_offsets":[11,13],"dtype":"BF16"}}  )",
    "abcdefghijklm");

TEST(Safetensors, ReadsTypesSizesAndBytes) {
  const TemporaryFolder folder;
  const Safetensors file = Safetensors::open(folder.put("x.safetensors", kValid));
  EXPECT_EQ(file.path(), folder.path("x.safetensors"));
  EXPECT_EQ(file.metadata(), (Metadata{{"format", "pt"}}));
  ASSERT_EQ(file.tensors().size(), 4U);
  EXPECT_EQ(file.at("w").type, TensorType::kF32);
  EXPECT_EQ(file.at("w").sizes, (Sizes{1, 2}));
  EXPECT_EQ(text_of(file.at("w")), "defghijk");
  EXPECT_EQ(text_of(file.at("b")), "abc");
  EXPECT_EQ(file.at("none").sizes, (Sizes{0, 7}));
  EXPECT_TRUE(file.at("none").bytes.empty());
  EXPECT_EQ(file.at("s").sizes, Sizes{});
  EXPECT_EQ(text_of(file.at("s")), "lm");
}

TEST(Safetensors, AllTypes) {
  const TemporaryFolder folder;
  const std::map<std::string, std::int64_t> sizes = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1},
      {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},
      {"U32", 4},  {"F32", 4}, {"F64", 8}, {"I64", 8},     {"U64", 8}};
  for (const auto& [name, bytes] : sizes) {
    const std::string text = one_tensor('"' + name + '"', "[1]", concat("[0,", bytes, "]"),
                                        std::string(static_cast<std::size_t>(bytes), 'x'));
    const Safetensors file = Safetensors::open(folder.put("x", text));
    EXPECT_EQ(tensor_type_name(file.at("a").type), name);
    EXPECT_EQ(element_bytes(file.at("a").type), bytes);
  }
}

// What upstream takes, too.
TEST(Safetensors, OddButValid) {
  const TemporaryFolder folder;
  const auto count = [&](const std::string& text) {
    return Safetensors::open(folder.put("x", text)).tensors().size();
  };
  EXPECT_EQ(count(file_text("{}", "")), 0U);
  EXPECT_EQ(count(file_text("{\"__metadata__\":{}}", "")), 0U);
  EXPECT_EQ(count(file_text("{\"__metadata__\":null}\n\n", "")), 0U);
  EXPECT_EQ(count(file_text(
                R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"more":{"b":[1]}}})", "1")),
            1U);
  EXPECT_EQ(count(one_tensor("\"F32\"", "[0,9223372036854775807]", "[0,0]", "")), 1U);
}

struct Refused {
  const char* what;  // must be in the message
  std::string text;
};

std::vector<Refused> refused_files() {
  const std::string good = R"("a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]})";
  return {
      {"file size: 0 bytes", ""},
      {"file size: 7 bytes", std::string(7, '\0')},
      {"header: must begin", std::string(8, '\0')},
      {"header length: 100000001", std::string("\x01\xE1\xF5\x05\0\0\0\0{}", 10)},
      {"header length: 18446744073709551615", std::string(8, '\xFF') + "{}"},
      {"header length: 3 bytes do not fit", std::string("\3\0\0\0\0\0\0\0{}", 10)},
      {"header: must begin", file_text(" {}", "")},
      {"not valid JSON", file_text("{\"a\"}", "")},
      {"not valid JSON", file_text("{} {}", "")},
      {"twice", file_text("{" + good + "," + good + "}", "12")},
      {"__metadata__.k: must be a string", file_text(R"({"__metadata__":{"k":1}})", "")},
      {"__metadata__: must be an object", file_text(R"({"__metadata__":[]})", "")},
      {"a: must be an object", file_text(R"({"a":1})", "")},
      {"a.dtype: is missing", file_text(R"({"a":{"shape":[],"data_offsets":[0,0]}})", "")},
      {"a.shape: is missing", file_text(R"({"a":{"dtype":"U8","data_offsets":[0,0]}})", "")},
      {"a.data_offsets: is missing", file_text(R"({"a":{"dtype":"U8","shape":[]}})", "")},
      {"a.dtype: \"C64\" is no type", one_tensor("\"C64\"", "[1]", "[0,4]")},
      {"a.dtype: must be a string", one_tensor("4", "[1]", "[0,4]")},
      {"a.shape: must be a list", one_tensor("\"F32\"", "1", "[0,4]")},
      {"a.shape[1]: must be an integer", one_tensor("\"F32\"", "[1,-1]", "[0,4]")},
      {"a.shape[0]: must be an integer", one_tensor("\"F32\"", "[1.0]", "[0,4]")},
      {"a.shape[0]: must be an integer", one_tensor("\"U8\"", "[18446744073709551615]", "[0,4]")},
      {"a.data_offsets: 4 bytes, but F32 [2] has 8", one_tensor("\"F32\"", "[2]", "[0,4]")},
      {"a.shape: [4611686018427387904, 4] has",
       one_tensor("\"U8\"", "[4611686018427387904,4]", "[0,4]")},
      {"a.shape: [2305843009213693952] has",
       one_tensor("\"I64\"", "[2305843009213693952]", "[0,0]", "")},
      {"must be [begin, end], not 1", one_tensor("\"F32\"", "[1]", "[0]")},
      {"must be [begin, end], not 3", one_tensor("\"F32\"", "[1]", "[0,4,4]")},
      {"a.data_offsets[0]: must be an integer", one_tensor("\"F32\"", "[1]", "[-4,0]")},
      {"a.data_offsets: [4, 0] must ascend", one_tensor("\"F32\"", "[1]", "[4,0]")},
      {"a.data_offsets: [0, 8] must ascend", one_tensor("\"F32\"", "[2]", "[0,8]")},
      {"a.data_offsets: begins at 1", one_tensor("\"U8\"", "[3]", "[1,4]")},
      {"file size: 1 bytes behind", one_tensor("\"U8\"", "[3]", "[0,3]")},
      {"file size: 1 bytes behind", file_text("{}", "1")},
      {"b.data_offsets: begins at 1",
       file_text("{" + good + R"(,"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", "123")},
      {"b.data_offsets: begins at 0",
       file_text("{" + good + R"(,"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "12")},
  };
}

TEST(Safetensors, RefusedFilesNameFileAndField) {
  const TemporaryFolder folder;
  for (const Refused& refused : refused_files()) {
    const std::string path = folder.put("x", refused.text);
    const std::string message = failure<DataError>([&] { Safetensors::open(path); });
    EXPECT_TRUE(message.starts_with(path + ": ")) << message;
    EXPECT_TRUE(contains(message, refused.what)) << message << "\n" << refused.what;
  }
}

TEST(Safetensors, EveryPrefixIsRefused) {
  const TemporaryFolder folder;
  for (std::size_t length = 0; length < kValid.size(); ++length) {
    folder.put("x", kValid.substr(0, length));
    failure<DataError>([&] { Safetensors::open(folder.path("x")); });
  }
}

TEST(Safetensors, AMissingTensorComesWithTheNearestNames) {
  const TemporaryFolder folder;
  const Safetensors file = Safetensors::open(folder.put(
      "x", file_text(R"({"model.norm.weight":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                     R"("lm_head.weight":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}})",
                     "1")));
  const std::string message = failure<DataError>([&] { file.at("model.norms.weight"); });
  EXPECT_EQ(message, folder.path("x") +
                         ": the tensor model.norms.weight is missing; it holds 2 "
                         "tensors; nearest: model.norm.weight");
}

// A folder with an index of two files.
class IndexTest : public ::testing::Test {
 protected:
  IndexTest() {
    folder.put("one.safetensors", one_tensor("\"U8\"", "[4]", "[0,4]", "1234"));
    folder.put("two.safetensors",
               file_text(R"({"__metadata__":{"format":"pt"},)"
                         R"("b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                         R"("unlisted":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                         "56"));
  }
  std::string put_index(const std::string& weight_map) const {
    return folder.put("model.safetensors.index.json",
                      R"({"metadata":{"total_size":5},"weight_map":)" + weight_map + "}");
  }
  std::string refusal(const std::string& weight_map) const {
    const std::string path = put_index(weight_map);
    const std::string message = failure<DataError>([&] { Safetensors::open(folder.path()); });
    EXPECT_TRUE(message.starts_with(path + ": ")) << message;
    return message;
  }

  TemporaryFolder folder;
};

TEST_F(IndexTest, TensorsOfAllFilesThatTheIndexNames) {
  const std::string index = put_index(R"({"a":"one.safetensors","b":"two.safetensors"})");
  for (const std::string& path : {folder.path(), index}) {
    const Safetensors files = Safetensors::open(path);
    EXPECT_EQ(files.path(), index);
    ASSERT_EQ(files.tensors().size(), 2U);
    EXPECT_EQ(text_of(files.at("a")), "1234");
    EXPECT_EQ(text_of(files.at("b")), "5");
    EXPECT_EQ(files.metadata(), (Metadata{{"format", "pt"}}));
  }
}

TEST_F(IndexTest, WhatTheIndexMayNotSay) {
  for (const char* name : {"../one.safetensors", "/etc/passwd", "sub/one.safetensors", "..", "",
                           "one.bin", "one.safetensors\\u0000", "\\u0000.safetensors"}) {
    EXPECT_TRUE(contains(refusal(concat(R"({"a":")", name, "\"}")), "weight_map.a: ")) << name;
  }
  EXPECT_TRUE(contains(refusal(R"({"c":"one.safetensors"})"), "weight_map.c: the file"));
  EXPECT_TRUE(contains(refusal(R"({"a":1})"), "weight_map.a: must be a string"));
  EXPECT_TRUE(contains(refusal("[]"), "weight_map: must be an object"));
  EXPECT_TRUE(contains(refusal("null"), "weight_map: is missing"));
}

TEST_F(IndexTest, AMissingFileIsNamed) {
  put_index(R"({"a":"one.safetensors","b":"three.safetensors"})");
  const std::string message = failure<IoError>([&] { Safetensors::open(folder.path()); });
  EXPECT_TRUE(contains(message, folder.path("three.safetensors"))) << message;
}

TEST_F(IndexTest, ABrokenFileIsNamed) {
  put_index(R"({"a":"one.safetensors","b":"two.safetensors"})");
  folder.put("two.safetensors", "");
  EXPECT_TRUE(contains(failure<DataError>([&] { Safetensors::open(folder.path()); }),
                       folder.path("two.safetensors")));
}

TEST_F(IndexTest, AFileWithAllTensorsGoesBeforeTheIndex) {
  put_index(R"({"a":"one.safetensors"})");
  folder.put("model.safetensors", kValid);
  EXPECT_EQ(Safetensors::open(folder.path()).path(), folder.path("model.safetensors"));
}

TEST(SafetensorsFolder, WithoutAModelSaysWhatIsThere) {
  const TemporaryFolder folder;
  const auto message = [&](auto kind) {
    return failure<decltype(kind)>([&] { Safetensors::open(folder.path()); });
  };
  EXPECT_TRUE(contains(message(IoError("")), "neither model.safetensors nor"));
  folder.put("pytorch_model-00001-of-00002.bin", "");
  EXPECT_TRUE(contains(message(DataError("")), "save_pretrained"));
  folder.put("model-00001-of-00002.safetensors", "");
  EXPECT_TRUE(contains(message(DataError("")), "the index is missing"));
  folder.put("adapter.safetensors", "");
  EXPECT_TRUE(contains(message(DataError("")), "adapter.safetensors"));
  EXPECT_TRUE(contains(failure<IoError>([&] { Safetensors::open(folder.path("absent")); }),
                       folder.path("absent")));
}

// Opens the file; everything that it says must then lie inside of it.
bool opens(const std::string& path, std::size_t file_bytes) {
  try {
    const Safetensors file = Safetensors::open(path);
    std::size_t bytes = 0;
    unsigned sum = 0;
    for (const auto& [name, tensor] : file.tensors()) {
      bytes += tensor.bytes.size();
      for (const std::byte byte : tensor.bytes) {
        sum += static_cast<unsigned>(byte);
      }
    }
    EXPECT_LE(bytes, file_bytes);
    EXPECT_LE(sum, 255 * file_bytes);
    return true;
  } catch (const DataError& error) {
    EXPECT_TRUE(contains(error.what(), path)) << error.what();
    return false;
  }
}

TEST(SafetensorsFuzz, MutantsOpenOrGiveDataErrors) {
  const MemoryFile file;
  std::mt19937_64 random(20240303);
  int opened = 0;
  for (int i = 0; i < 50'000 && !HasFailure(); ++i) {
    std::string text = mutate(kValid, random);
    file.set(text);
    opened += opens(file.path(), text.size()) ? 1 : 0;
  }
  EXPECT_GT(opened, 1'000);
  EXPECT_LT(opened, 90'000);
}

TEST_F(IndexTest, MutantsOfTheIndexOpenOrNameAFile) {
  const MemoryFile file;
  std::filesystem::create_symlink(file.path(), folder.path("model.safetensors.index.json"));
  const std::string valid = R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})";
  std::mt19937_64 random(20240305);
  int opened = 0;
  for (int i = 0; i < 10'000; ++i) {
    file.set(mutate(valid, random));
    try {
      opened += Safetensors::open(folder.path()).tensors().size() <= 2 ? 1 : 0;
    } catch (const Error& error) {
      ASSERT_TRUE(error.kind() == ErrorKind::kData || error.kind() == ErrorKind::kIo);
      ASSERT_TRUE(contains(error.what(), folder.path())) << error.what();
    }
  }
  EXPECT_GT(opened, 10);
}

// The header alone mutated, with a length that fits: more mutants get past the first check.
TEST(SafetensorsFuzz, MutantHeadersOpenOrGiveDataErrors) {
  const MemoryFile file;
  std::mt19937_64 random(20240304);
  const std::string header = kValid.substr(8, kValid.size() - 8 - 13);
  int opened = 0;
  for (int i = 0; i < 50'000 && !HasFailure(); ++i) {
    const std::string text = file_text(mutate(header, random), kValid.substr(kValid.size() - 13));
    file.set(text);
    opened += opens(file.path(), text.size()) ? 1 : 0;
  }
  EXPECT_GT(opened, 1'000);
  EXPECT_LT(opened, 90'000);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Sanitizers map terabytes for themselves.
std::size_t address_space() {
  std::ifstream file("/proc/self/statm");
  std::size_t pages = 0;
  file >> pages;
  return pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

TEST(Safetensors, NumbersInAFileDoNotMakeMemory) {
  const TemporaryFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    const rlim_t most = address_space() + (std::size_t{256} << 20);  // what earlier tests map stays
    const rlimit limit{most, most};
    int status = ::setrlimit(RLIMIT_AS, &limit) == 0 ? 0 : 1;
    try {
      for (const Refused& refused : refused_files()) {
        failure<DataError>([&] { Safetensors::open(folder.put("x", refused.text)); });
      }
      const std::string bomb = std::string(10'000'000, '[');
      failure<DataError>(
          [&] { Safetensors::open(folder.put("x", file_text("{\"a\":" + bomb, ""))); });
    } catch (...) {
      status = 2;
    }
    ::_exit(::testing::Test::HasFailure() ? 3 : status);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}
#endif

}  // namespace
}  // namespace shardwise::io
