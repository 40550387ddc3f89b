// Token files: the token ids of a corpus, memory-mapped.
//
// Layout, little-endian, 64 bytes of header:
//   0  8 bytes  magic "SWTOKENS"
//   8  uint32   version, 1
//   12 uint32   bytes a token, 2 or 4
//   16 uint64   number of tokens
//   24 uint64   number of documents
//   32 uint64   vocabulary size: every token is below it
//   40 uint64   FNV-1a of the tokenizer (data::Tokenizer::fingerprint), 0: unknown
//   48 16 bytes reserved, zero
// then the tokens, zero bytes up to a multiple of 8, and the end of each document as a token index
// (uint64, ascending, the last one is the number of tokens). No document is empty. Nothing follows.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shardwise/io/atomic_file.h"
#include "shardwise/io/memory_map.h"

namespace shardwise::io {

struct TokenFileHeader {
  int token_bytes = 2;
  std::int64_t tokens = 0;
  std::int64_t documents = 0;
  std::int64_t vocabulary = 0;
  std::uint64_t tokenizer = 0;
};

// Immutable; safe to read from several threads. Copies share the map.
class TokenFile {
 public:
  // Throws IoError or DataError (file and field) unless header, size and document ends agree. Reads
  // the ends, not the tokens.
  static TokenFile open(const std::string& path);
  // Whether the file says it is one. Throws IoError where it cannot be read.
  static bool has_magic(const std::string& path);

  const TokenFileHeader& header() const { return header_; }
  const std::string& path() const { return map_.path(); }
  // Copies tokens [begin, begin + out.size()), which must lie in the file; throws DataError for one
  // outside of the vocabulary.
  void read(std::int64_t begin, std::span<std::int64_t> out) const;
  // Token index behind the last token of document 0, 1, ..., header().documents - 1.
  std::int64_t document_end(std::int64_t document) const;

 private:
  explicit TokenFile(MemoryMap map) : map_(std::move(map)) {}
  void check_document_ends() const;
  const std::byte* ends_begin() const;

  MemoryMap map_;
  TokenFileHeader header_;
};

// Writes a token file piece by piece, atomically. token_bytes follows from the vocabulary: 2 up to
// 65536, else 4. Keeps 8 bytes a document in memory. Not thread-safe.
class TokenFileWriter {
 public:
  // `vocabulary`: from 1 to 2^32; throws IoError, or DataError for a vocabulary beyond.
  TokenFileWriter(const std::string& path, std::int64_t vocabulary, std::uint64_t tokenizer);
  // A document without tokens is left out. Throws DataError for a token outside of the vocabulary.
  void add_document(std::span<const std::int64_t> tokens);
  std::int64_t tokens() const { return header_.tokens; }
  // Throws DataError when there is no token.
  void commit();

 private:
  AtomicFile file_;
  TokenFileHeader header_;
  std::vector<std::uint64_t> document_ends_;
};

}  // namespace shardwise::io
