#include "shardwise/data/decoder.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "shardwise/data/byte_alphabet.h"
#include "shardwise/data/metaspace.h"
#include "shardwise/data/pattern.h"
#include "shardwise/data/tokenizer_fields.h"
#include "shardwise/data/unicode.h"

namespace shardwise::data {
namespace {

class SequenceDecoder : public Decoder {
 public:
  SequenceDecoder(std::vector<std::unique_ptr<const Decoder>> parts, std::string place)
      : parts_(std::move(parts)), place_(std::move(place)) {}
  void decode(std::vector<std::string>& tokens) const override {
    const std::size_t before = size_of(tokens);
    for (const auto& part : parts_) {
      part->decode(tokens);
      check_growth(before, size_of(tokens), place_);
    }
  }

 private:
  static std::size_t size_of(const std::vector<std::string>& tokens) {
    std::size_t size = 0;
    for (const std::string& token : tokens) size += token.size();
    return size;
  }

  std::vector<std::unique_ptr<const Decoder>> parts_;
  std::string place_;
};

class ByteLevelDecoder : public Decoder {
 public:
  void decode(std::vector<std::string>& tokens) const override {
    std::string bytes;
    for (const std::string& token : tokens) {
      const std::optional<std::string> decoded = bytes_of(token);
      bytes += decoded ? *decoded : token;
    }
    tokens = {replace_invalid_utf8(bytes)};
  }

 private:
  // Nothing when a character is not of the alphabet: then the token stands for itself.
  std::optional<std::string> bytes_of(std::string_view token) const {
    std::string bytes;
    while (!token.empty()) {
      const CodePoint next = first_code_point(token);
      const auto byte = alphabet_.byte_of(next.value);
      if (!byte) return std::nullopt;
      bytes.push_back(static_cast<char>(*byte));
      token.remove_prefix(next.bytes);
    }
    return bytes;
  }

  ByteAlphabet alphabet_;
};

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (std::size_t at = text.find(from); at != std::string_view::npos; at = text.find(from)) {
    out.append(text.substr(0, at)).append(to);
    text.remove_prefix(at + from.size());
  }
  return out.append(text);
}

class MetaspaceDecoder : public Decoder {
 public:
  explicit MetaspaceDecoder(Metaspace options) : options_(std::move(options)) {}
  void decode(std::vector<std::string>& tokens) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const bool prepended = i == 0 && options_.scheme != PrependScheme::kNever;
      tokens[i] = replace_all(tokens[i], options_.replacement, prepended ? "" : " ");
    }
  }

 private:
  Metaspace options_;
};

// "<0x0A>" to its byte.
std::optional<char> byte_of(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  unsigned value = 0;
  const char* begin = token.data() + (token[3] == '+' ? 4 : 3);  // as Rust reads numbers
  const char* end = token.data() + 5;
  const auto [stop, error] = std::from_chars(begin, end, value, 16);
  return error == std::errc() && stop == end ? std::optional(static_cast<char>(value))
                                             : std::nullopt;
}

class ByteFallback : public Decoder {
 public:
  void decode(std::vector<std::string>& tokens) const override {
    std::vector<std::string> made;
    std::string bytes;
    const auto flush = [&] {
      if (bytes.empty()) return;
      if (valid_utf8_prefix(bytes) == bytes.size()) {
        made.push_back(bytes);
      } else {
        made.insert(made.end(), bytes.size(), std::string(kReplacementCharacter));
      }
      bytes.clear();
    };
    for (std::string& token : tokens) {
      if (const auto byte = byte_of(token)) {
        bytes.push_back(*byte);
      } else {
        flush();
        made.push_back(std::move(token));
      }
    }
    flush();
    tokens = std::move(made);
  }
};

class Fuse : public Decoder {
 public:
  void decode(std::vector<std::string>& tokens) const override {
    std::string all;
    for (const std::string& token : tokens) all += token;
    tokens = {std::move(all)};
  }
};

// Removes up to `start` and `stop` characters of one kind from the ends of each token.
class StripDecoder : public Decoder {
 public:
  struct Options {
    char32_t content = 0;
    std::int64_t start = 0, stop = 0;
  };

  explicit StripDecoder(Options options) : options_(options) {}

  void decode(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) {
      std::string_view text = token;
      for (std::int64_t i = 0; i < options_.start && !text.empty(); ++i) {
        const CodePoint first = first_code_point(text);
        if (first.value != options_.content) break;
        text.remove_prefix(first.bytes);
      }
      for (std::int64_t i = 0; i < options_.stop && !text.empty(); ++i) {
        const CodePoint last = last_code_point(text);
        if (last.value != options_.content) break;
        text.remove_suffix(last.bytes);
      }
      token = std::string(text);
    }
  }

 private:
  Options options_;
};

class ReplaceDecoder : public Decoder {
 public:
  ReplaceDecoder(std::unique_ptr<const Pattern> pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

  void decode(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) {
      std::string made;
      pattern_->find(token, [&](const Match& match) {
        if (match.matched) {
          made += content_;
        } else {
          made.append(token, match.begin, match.end - match.begin);
        }
      });
      token = std::move(made);
    }
  }

 private:
  std::unique_ptr<const Pattern> pattern_;
  std::string content_;
};

class BpeDecoder : public Decoder {
 public:
  explicit BpeDecoder(std::string suffix) : suffix_(std::move(suffix)) {}
  void decode(std::vector<std::string>& tokens) const override {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = replace_all(tokens[i], suffix_, i + 1 == tokens.size() ? "" : " ");
    }
  }

 private:
  std::string suffix_;
};

using Made = std::unique_ptr<const Decoder>;

Made make_sequence(const io::JsonView& view) {
  allow_only(view, {"decoders"});
  std::vector<Made> parts;
  for (const io::JsonView& part : view.at("decoders").items()) {
    parts.push_back(make_decoder(part));
  }
  return std::make_unique<SequenceDecoder>(std::move(parts), place_of(view));
}

Made make_strip(const io::JsonView& view) {
  allow_only(view, {"content", "start", "stop"});
  constexpr std::int64_t kMost = 1 << 20;
  return std::make_unique<StripDecoder>(StripDecoder::Options{read_character(view.at("content")),
                                                              view.at("start").integer(0, kMost),
                                                              view.at("stop").integer(0, kMost)});
}

Made make_replace(const io::JsonView& view) {
  allow_only(view, {"pattern", "content"});
  return std::make_unique<ReplaceDecoder>(read_pattern(view.at("pattern")),
                                          read_content(view.at("content")));
}

Made make_bpe(const io::JsonView& view) {
  allow_only(view, {"suffix"});
  std::string suffix = view.at("suffix").string();
  if (suffix.empty()) view.at("suffix").fail("must not be empty");
  return std::make_unique<BpeDecoder>(std::move(suffix));
}

}  // namespace

std::unique_ptr<const Decoder> make_decoder(const io::JsonView& view) {
  const std::string type = view.at("type").string();
  if (type == "Sequence") return make_sequence(view);
  if (type == "Metaspace") return std::make_unique<MetaspaceDecoder>(read_metaspace(view));
  if (type == "Strip") return make_strip(view);
  if (type == "Replace") return make_replace(view);
  if (type == "BPEDecoder") return make_bpe(view);
  if (type == "ByteLevel") {
    // Options of the pre-tokenizer, which files repeat here.
    allow_only(view, {"add_prefix_space", "use_regex", "trim_offsets"});
    return std::make_unique<ByteLevelDecoder>();
  }
  if (type == "ByteFallback") {
    allow_only(view, {});
    return std::make_unique<ByteFallback>();
  }
  if (type == "Fuse") {
    allow_only(view, {});
    return std::make_unique<Fuse>();
  }
  fail_type(view,
            "Sequence, ByteLevel, Metaspace, ByteFallback, Fuse, Strip, Replace and BPEDecoder");
}

}  // namespace shardwise::data
