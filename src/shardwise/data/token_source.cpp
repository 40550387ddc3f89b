#include "shardwise/data/token_source.h"

#include <algorithm>
#include <cstddef>
#include <ranges>
#include <string_view>
#include <utility>

#include "shardwise/base/check.h"
#include "shardwise/data/text_check.h"
#include "shardwise/io/memory_map.h"
#include "shardwise/io/token_file.h"

namespace shardwise::data {
namespace {

// A source that is one document.
std::vector<std::int64_t> begins_of_one(std::int64_t begin, std::int64_t end) {
  return begin == 0 && end > 0 ? std::vector<std::int64_t>{0} : std::vector<std::int64_t>{};
}

class ByteSource : public TokenSource {
 public:
  explicit ByteSource(io::MemoryMap map) : map_(std::move(map)) {}
  std::int64_t tokens() const override { return static_cast<std::int64_t>(map_.bytes().size()); }
  void read(std::int64_t begin, std::span<std::int64_t> out) const override {
    const auto bytes = map_.bytes().subspan(static_cast<std::size_t>(begin), out.size());
    std::transform(bytes.begin(), bytes.end(), out.begin(),
                   [](std::byte b) { return std::to_integer<std::int64_t>(b); });
  }
  std::vector<std::int64_t> document_begins(std::int64_t begin, std::int64_t end) const override {
    return begins_of_one(begin, end);
  }

 private:
  io::MemoryMap map_;
};

class MemorySource : public TokenSource {
 public:
  explicit MemorySource(const std::vector<std::int64_t>& ids) : ids_(ids.begin(), ids.end()) {}
  std::int64_t tokens() const override { return static_cast<std::int64_t>(ids_.size()); }
  void read(std::int64_t begin, std::span<std::int64_t> out) const override {
    std::copy_n(ids_.begin() + begin, out.size(), out.begin());
  }
  std::vector<std::int64_t> document_begins(std::int64_t begin, std::int64_t end) const override {
    return begins_of_one(begin, end);
  }

 private:
  std::vector<std::uint32_t> ids_;  // half the size of what encode() gives
};

// Puts the separator between the documents of a token file. Document d begins, in joined tokens,
// d separators later than in the file, so that places are found by halving. No document is empty.
class TokenFileSource : public TokenSource {
 public:
  TokenFileSource(io::TokenFile file, std::optional<std::int64_t> separator)
      : file_(std::move(file)), separator_(separator) {}

  std::int64_t tokens() const override {
    const std::int64_t documents = file_.header().documents;
    return file_.header().tokens + (separator_ && documents > 0 ? documents - 1 : 0);
  }

  void read(std::int64_t begin, std::span<std::int64_t> out) const override {
    if (!separator_) {
      file_.read(begin, out);
      return;
    }
    for (std::int64_t document = document_at(begin); !out.empty(); ++document) {
      const std::int64_t end = joined_end(document);
      const std::int64_t count = std::min(end - begin, static_cast<std::int64_t>(out.size()));
      file_.read(begin - document, out.first(static_cast<std::size_t>(count)));
      out = out.subspan(static_cast<std::size_t>(count));
      if (!out.empty()) {
        out.front() = *separator_;
        out = out.subspan(1);
      }
      begin = end + 1;
    }
  }

  std::vector<std::int64_t> document_begins(std::int64_t begin, std::int64_t end) const override {
    std::vector<std::int64_t> begins;
    for (std::int64_t document = first_from(begin); document < file_.header().documents;
         ++document) {
      const std::int64_t place = joined_begin(document);
      if (place >= end) {
        break;
      }
      begins.push_back(place);
    }
    return begins;
  }

 private:
  std::int64_t joined_begin(std::int64_t document) const {
    return document == 0 ? 0 : file_.document_end(document - 1) + (separator_ ? document : 0);
  }

  // The first document that begins at a joined token or behind it.
  std::int64_t first_from(std::int64_t place) const {
    const auto documents = std::views::iota(std::int64_t{0}, file_.header().documents);
    return *std::ranges::lower_bound(documents, place, {},
                                     [this](std::int64_t d) { return joined_begin(d); });
  }

  // Where the document ends in joined tokens, which is where its separator stands.
  std::int64_t joined_end(std::int64_t document) const {
    return file_.document_end(document) + document;
  }

  // The document of a joined token or of the separator behind it.
  std::int64_t document_at(std::int64_t place) const {
    std::int64_t low = 0;
    std::int64_t high = file_.header().documents - 1;
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      if (joined_end(middle) < place) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  io::TokenFile file_;
  std::optional<std::int64_t> separator_;
};

class JoinedSource : public TokenSource {
 public:
  JoinedSource(std::vector<std::shared_ptr<const TokenSource>> sources,
               std::optional<std::int64_t> separator)
      : sources_(std::move(sources)), separator_(separator) {
    std::int64_t at = 0;
    for (const auto& source : sources_) {
      at += source->tokens();
      ends_.push_back(at);
      at += separator_ ? 1 : 0;
    }
  }

  std::int64_t tokens() const override { return ends_.empty() ? 0 : ends_.back(); }

  void read(std::int64_t begin, std::span<std::int64_t> out) const override {
    // A place that equals an end is the separator there, or without one the next source's first.
    const auto found = separator_ ? std::lower_bound(ends_.begin(), ends_.end(), begin)
                                  : std::upper_bound(ends_.begin(), ends_.end(), begin);
    for (auto i = static_cast<std::size_t>(found - ends_.begin()); !out.empty(); ++i) {
      const std::int64_t count = std::min(ends_[i] - begin, static_cast<std::int64_t>(out.size()));
      const std::int64_t source_begin = ends_[i] - sources_[i]->tokens();
      sources_[i]->read(begin - source_begin, out.first(static_cast<std::size_t>(count)));
      out = out.subspan(static_cast<std::size_t>(count));
      begin = ends_[i];
      if (separator_ && !out.empty()) {
        out.front() = *separator_;
        out = out.subspan(1);
        ++begin;
      }
    }
  }

  std::vector<std::int64_t> document_begins(std::int64_t begin, std::int64_t end) const override {
    std::vector<std::int64_t> begins;
    const auto first = std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin();
    for (auto i = static_cast<std::size_t>(first); i < sources_.size(); ++i) {
      const std::int64_t source_begin = ends_[i] - sources_[i]->tokens();
      if (source_begin >= end) {
        break;
      }
      for (const std::int64_t place :
           sources_[i]->document_begins(std::max<std::int64_t>(begin - source_begin, 0),
                                        std::min(end, ends_[i]) - source_begin)) {
        begins.push_back(source_begin + place);
      }
    }
    return begins;
  }

 private:
  std::vector<std::shared_ptr<const TokenSource>> sources_;
  std::vector<std::int64_t> ends_;  // in joined tokens, without the separator behind
  std::optional<std::int64_t> separator_;
};

std::shared_ptr<const TokenSource> open_token_file(const std::string& path,
                                                   const Tokenizer& tokenizer) {
  io::TokenFile file = io::TokenFile::open(path);
  const io::TokenFileHeader& header = file.header();
  SW_USER_CHECK(DataError, header.tokenizer == 0 || header.tokenizer == tokenizer.fingerprint(),
                path,
                ": tokenizer: the file was made with another tokenizer than data.tokenizer; "
                "name that one, or make the file anew with `shardwise data tokenize`");
  SW_USER_CHECK(DataError, header.vocabulary <= tokenizer.vocabulary_size(), path,
                ": vocabulary: ", header.vocabulary, " tokens, but data.tokenizer has ",
                tokenizer.vocabulary_size(), "; name the tokenizer that made the file");
  return std::make_shared<TokenFileSource>(std::move(file), tokenizer.end_of_text());
}

}  // namespace

std::shared_ptr<const TokenSource> open_source(const std::string& path,
                                               const Tokenizer& tokenizer) {
  if (io::TokenFile::has_magic(path)) {
    return open_token_file(path, tokenizer);
  }
  io::MemoryMap map(path);
  const auto bytes = map.bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  check_not_binary(text, path);
  if (tokenizer.takes_any_bytes()) {
    return std::make_shared<ByteSource>(std::move(map));
  }
  check_utf8(text, path);
  return std::make_shared<MemorySource>(tokenizer.encode(text));
}

std::shared_ptr<const TokenSource> join(std::vector<std::shared_ptr<const TokenSource>> sources,
                                        std::optional<std::int64_t> separator) {
  std::erase_if(sources, [](const auto& source) { return source->tokens() == 0; });
  if (sources.size() == 1) {
    return sources.front();
  }
  return std::make_shared<JoinedSource>(std::move(sources), separator);
}

}  // namespace shardwise::data
