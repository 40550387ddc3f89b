#include "shardwise/io/token_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <string_view>

#include "shardwise/base/check.h"
#include "shardwise/io/descriptor.h"

namespace shardwise::io {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

constexpr std::string_view kMagic = "SWTOKENS";
constexpr std::uint32_t kVersion = 1;

// The header as it lies in the file.
struct RawHeader {
  std::array<char, 8> magic{};
  std::uint32_t version = 0;
  std::uint32_t token_bytes = 0;
  std::uint64_t tokens = 0;
  std::uint64_t documents = 0;
  std::uint64_t vocabulary = 0;
  std::uint64_t tokenizer = 0;
  std::array<char, 16> reserved{};
};
static_assert(sizeof(RawHeader) == 64);

constexpr std::uint64_t kHeaderBytes = sizeof(RawHeader);

std::uint64_t padding(std::uint64_t bytes) { return (8 - bytes % 8) % 8; }

// Largest vocabulary whose tokens fit.
constexpr std::uint64_t vocabulary_limit(std::uint64_t token_bytes) {
  return std::uint64_t{1} << (8 * token_bytes);
}

template <typename... Parts>
void check(bool holds, const std::string& path, const Parts&... parts) {
  SW_USER_CHECK(DataError, holds, path, ": ", parts...);
}

void check_numbers(const RawHeader& raw, const std::string& path) {
  check(raw.version == kVersion, path, "version: ", raw.version, "; this program reads version ",
        kVersion, "; make the file again");
  check(raw.token_bytes == 2 || raw.token_bytes == 4, path, "bytes a token: ", raw.token_bytes,
        "; allowed: 2 or 4");
  check(raw.vocabulary >= 1 && raw.vocabulary <= vocabulary_limit(raw.token_bytes), path,
        "vocabulary size: ", raw.vocabulary, "; allowed with ", raw.token_bytes,
        " bytes a token: 1 to ", vocabulary_limit(raw.token_bytes));
  check(raw.tokens >= 1, path, "number of tokens: 0; there must be at least one");
  check(raw.documents >= 1 && raw.documents <= raw.tokens, path,
        "number of documents: ", raw.documents, "; allowed: 1 to the number of tokens, ",
        raw.tokens);
  check(std::ranges::all_of(raw.reserved, [](char byte) { return byte == 0; }), path,
        "reserved bytes of the header: must be zero; make the file again");
}

// Divides where a product of two numbers of the file could overflow.
void check_size(const RawHeader& raw, std::uint64_t size, const std::string& path) {
  std::uint64_t rest = size - kHeaderBytes;
  check(raw.tokens <= rest / raw.token_bytes, path, "number of tokens: ", raw.tokens, " of ",
        raw.token_bytes, " bytes do not fit into a file of ", size, " bytes; it may be cut off");
  const std::uint64_t data = raw.tokens * raw.token_bytes;
  rest -= data;
  check(padding(data) <= rest && raw.documents <= (rest - padding(data)) / 8, path,
        "number of documents: the ends of ", raw.documents, " documents do not fit into a file of ",
        size, " bytes; it may be cut off");
  const std::uint64_t surplus = rest - padding(data) - raw.documents * 8;
  check(surplus == 0, path, "file size: ", surplus, " bytes more than the header says");
}

RawHeader read_header(const MemoryMap& map) {
  const auto bytes = map.bytes();
  check(bytes.size() >= kHeaderBytes, map.path(), "file size: ", bytes.size(),
        " bytes; a token file has at least ", kHeaderBytes);
  RawHeader raw;
  std::memcpy(&raw, bytes.data(), sizeof raw);
  check(std::string_view(raw.magic.data(), raw.magic.size()) == kMagic, map.path(),
        "magic: not a token file (it does not begin with ", kMagic, ")");
  check_numbers(raw, map.path());
  check_size(raw, bytes.size(), map.path());
  return raw;
}

std::uint64_t read_end(const std::byte* ends, std::int64_t document) {
  std::uint64_t end = 0;
  std::memcpy(&end, ends + document * 8, sizeof end);
  return end;
}

// Returns the largest token.
template <typename Token>
std::uint64_t copy_tokens(const std::byte* from, std::span<std::int64_t> out) {
  Token largest = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    Token token = 0;
    std::memcpy(&token, from + i * sizeof token, sizeof token);
    largest = std::max(largest, token);
    out[i] = token;
  }
  return largest;
}

template <typename Token>
void append_tokens(std::span<const std::int64_t> tokens, AtomicFile& file) {
  std::array<Token, 4096> piece{};
  while (!tokens.empty()) {
    const std::size_t count = std::min(tokens.size(), piece.size());
    std::ranges::transform(tokens.first(count), piece.begin(),
                           [](std::int64_t token) { return static_cast<Token>(token); });
    file.write(std::as_bytes(std::span(piece).first(count)));
    tokens = tokens.subspan(count);
  }
}

}  // namespace

TokenFile TokenFile::open(const std::string& path) {
  TokenFile file{MemoryMap(path)};
  const RawHeader raw = read_header(file.map_);
  file.header_ = {.token_bytes = static_cast<int>(raw.token_bytes),
                  .tokens = static_cast<std::int64_t>(raw.tokens),
                  .documents = static_cast<std::int64_t>(raw.documents),
                  .vocabulary = static_cast<std::int64_t>(raw.vocabulary),
                  .tokenizer = raw.tokenizer};
  file.check_document_ends();
  return file;
}

bool TokenFile::has_magic(const std::string& path) {
  std::array<char, kMagic.size()> begin{};
  const std::size_t count = read_some(open_to_read(path), path, begin);
  return std::string_view(begin.data(), count) == kMagic;
}

const std::byte* TokenFile::ends_begin() const {
  return map_.bytes().data() + map_.bytes().size() - header_.documents * 8;
}

void TokenFile::check_document_ends() const {
  const std::byte* data_end =
      map_.bytes().data() + kHeaderBytes + header_.tokens * header_.token_bytes;
  check(std::all_of(data_end, ends_begin(), [](std::byte byte) { return byte == std::byte{0}; }),
        path(), "padding behind the tokens: must be zero; make the file again");
  std::uint64_t last = 0;
  for (std::int64_t i = 0; i < header_.documents; ++i) {
    const std::uint64_t end = read_end(ends_begin(), i);
    check(end > last, path(), "end of document ", i, ": ", end,
          "; it must be larger than the one before, ", last);
    last = end;
  }
  check(last == static_cast<std::uint64_t>(header_.tokens), path(),
        "end of the last document: ", last, "; it must be the number of tokens, ", header_.tokens);
}

void TokenFile::read(std::int64_t begin, std::span<std::int64_t> out) const {
  const auto count = static_cast<std::int64_t>(out.size());
  SW_CHECK(begin >= 0 && count <= header_.tokens && begin <= header_.tokens - count, path(), ": ",
           count, " tokens from ", begin, " of ", header_.tokens);
  const std::byte* from = map_.bytes().data() + kHeaderBytes + begin * header_.token_bytes;
  const std::uint64_t largest = header_.token_bytes == 2 ? copy_tokens<std::uint16_t>(from, out)
                                                         : copy_tokens<std::uint32_t>(from, out);
  if (largest >= static_cast<std::uint64_t>(header_.vocabulary)) {
    const auto place = std::ranges::find(out, static_cast<std::int64_t>(largest)) - out.begin();
    check(false, path(), "token ", begin + place, ": ", largest,
          "; every token must be below the vocabulary size, ", header_.vocabulary);
  }
}

std::int64_t TokenFile::document_end(std::int64_t document) const {
  SW_CHECK(document >= 0 && document < header_.documents, path(), ": document ", document, " of ",
           header_.documents);
  return static_cast<std::int64_t>(read_end(ends_begin(), document));
}

TokenFileWriter::TokenFileWriter(const std::string& path, std::int64_t vocabulary,
                                 std::uint64_t tokenizer)
    : file_(path) {
  constexpr auto kMost = static_cast<std::int64_t>(vocabulary_limit(4));
  check(vocabulary >= 1 && vocabulary <= kMost, path, "vocabulary size: ", vocabulary,
        "; allowed: 1 to ", kMost);
  header_.vocabulary = vocabulary;
  header_.token_bytes = vocabulary <= static_cast<std::int64_t>(vocabulary_limit(2)) ? 2 : 4;
  header_.tokenizer = tokenizer;
  file_.write(std::string(kHeaderBytes, '\0'));  // commit() knows the numbers
}

void TokenFileWriter::add_document(std::span<const std::int64_t> tokens) {
  if (tokens.empty()) {
    return;
  }
  const auto wrong = std::ranges::find_if(
      tokens, [&](std::int64_t token) { return token < 0 || token >= header_.vocabulary; });
  check(wrong == tokens.end(), file_.path(), "token ", wrong == tokens.end() ? 0 : *wrong,
        " of a document: allowed: 0 to ", header_.vocabulary - 1);
  if (header_.token_bytes == 2) {
    append_tokens<std::uint16_t>(tokens, file_);
  } else {
    append_tokens<std::uint32_t>(tokens, file_);
  }
  header_.tokens += static_cast<std::int64_t>(tokens.size());
  document_ends_.push_back(static_cast<std::uint64_t>(header_.tokens));
}

void TokenFileWriter::commit() {
  check(header_.tokens > 0, file_.path(), "no tokens to write; every document was empty");
  header_.documents = static_cast<std::int64_t>(document_ends_.size());
  RawHeader raw{.version = kVersion,
                .token_bytes = static_cast<std::uint32_t>(header_.token_bytes),
                .tokens = static_cast<std::uint64_t>(header_.tokens),
                .documents = document_ends_.size(),
                .vocabulary = static_cast<std::uint64_t>(header_.vocabulary),
                .tokenizer = header_.tokenizer};
  std::ranges::copy(kMagic, raw.magic.begin());
  file_.write(std::string(padding(raw.tokens * raw.token_bytes), '\0'));
  file_.write(std::as_bytes(std::span(document_ends_)));
  file_.overwrite(0, std::as_bytes(std::span(&raw, 1)));
  file_.commit();
}

}  // namespace shardwise::io
