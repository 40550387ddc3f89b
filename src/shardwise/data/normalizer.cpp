#include "shardwise/data/normalizer.h"

#include <utility>
#include <vector>

#include "shardwise/data/byte_alphabet.h"
#include "shardwise/data/pattern.h"
#include "shardwise/data/tokenizer_fields.h"
#include "shardwise/data/unicode.h"

namespace shardwise::data {
namespace {

class SequenceNormalizer : public Normalizer {
 public:
  SequenceNormalizer(std::vector<std::unique_ptr<const Normalizer>> parts, std::string place)
      : parts_(std::move(parts)), place_(std::move(place)) {}
  void normalize(OwnedPiece& piece) const override {
    const std::size_t before = piece.text.size();
    for (const auto& part : parts_) {
      part->normalize(piece);
      check_growth(before, piece.text.size(), place_);
    }
  }

 private:
  std::vector<std::unique_ptr<const Normalizer>> parts_;
  std::string place_;
};

class UnicodeNormalizer : public Normalizer {
 public:
  explicit UnicodeNormalizer(NormalForm form) : form_(form) {}
  void normalize(OwnedPiece& piece) const override {
    piece.text = data::normalize(piece.text, form_);
    if (piece.origin > 0) {
      piece.origin = piece.text.empty() ? 0 : first_code_point(piece.text).bytes;
    }
  }

 private:
  NormalForm form_;
};

// Replaces each character by a text.
template <typename Append>
void map_characters(OwnedPiece& piece, const Append& append) {
  OwnedPiece made;
  made.text.reserve(piece.text.size());
  for (std::size_t at = 0; at < piece.text.size();) {
    const CodePoint next = first_code_point(std::string_view(piece.text).substr(at));
    append(made.text, next.value);
    at += next.bytes;
    if (at <= piece.origin) made.origin = made.text.size();
  }
  piece = std::move(made);
}

class Lowercase : public Normalizer {
 public:
  void normalize(OwnedPiece& piece) const override { map_characters(piece, append_lower); }
};

class StripAccents : public Normalizer {
 public:
  void normalize(OwnedPiece& piece) const override {
    map_characters(piece, [](std::string& text, char32_t c) {
      if (!is_mark(c)) append_utf8(text, c);
    });
  }
};

class Strip : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}

  void normalize(OwnedPiece& piece) const override {
    std::string_view text = piece.text;
    while (right_ && !text.empty() && is_space(last_code_point(text).value)) {
      text.remove_suffix(last_code_point(text).bytes);
    }
    while (left_ && !text.empty() && is_space(first_code_point(text).value)) {
      text.remove_prefix(first_code_point(text).bytes);
    }
    const auto begin = static_cast<std::size_t>(text.data() - piece.text.data());
    const Piece kept = piece.view().part(begin, begin + text.size());
    piece = {std::string(kept.text), kept.origin};
  }

 private:
  bool left_, right_;
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(std::string text) : text_(std::move(text)) {}
  void normalize(OwnedPiece& piece) const override {
    if (piece.text.empty()) return;
    piece.text.insert(0, text_);
    if (piece.origin > 0) piece.origin += text_.size();
  }

 private:
  std::string text_;
};

class Replace : public Normalizer {
 public:
  Replace(std::unique_ptr<const Pattern> pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

  void normalize(OwnedPiece& piece) const override {
    OwnedPiece made;
    pattern_->find(piece.text, [&](const Match& match) {
      // What is put in stands where the last byte that it replaces stood.
      if (match.matched) {
        made.text += content_;
        if (match.end <= piece.origin) made.origin = made.text.size();
        return;
      }
      if (match.begin < piece.origin) {
        made.origin = made.text.size() + std::min(piece.origin, match.end) - match.begin;
      }
      made.text.append(piece.text, match.begin, match.end - match.begin);
    });
    piece = std::move(made);
  }

 private:
  std::unique_ptr<const Pattern> pattern_;
  std::string content_;
};

class ByteLevelNormalizer : public Normalizer {
 public:
  void normalize(OwnedPiece& piece) const override {
    const std::size_t origin = alphabet_.write(piece.text.substr(0, piece.origin)).size();
    piece = {alphabet_.write(piece.text), origin};
  }

 private:
  ByteAlphabet alphabet_;
};

std::unique_ptr<const Normalizer> make_sequence(const io::JsonView& view) {
  allow_only(view, {"normalizers"});
  std::vector<std::unique_ptr<const Normalizer>> parts;
  for (const io::JsonView& part : view.at("normalizers").items()) {
    parts.push_back(make_normalizer(part));
  }
  return std::make_unique<SequenceNormalizer>(std::move(parts), place_of(view));
}

std::unique_ptr<const Normalizer> make_replace(const io::JsonView& view) {
  allow_only(view, {"pattern", "content"});
  return std::make_unique<Replace>(read_pattern(view.at("pattern")),
                                   read_content(view.at("content")));
}

std::unique_ptr<const Normalizer> make_strip(const io::JsonView& view) {
  allow_only(view, {"strip_left", "strip_right"});
  return std::make_unique<Strip>(view.at("strip_left").boolean(), view.at("strip_right").boolean());
}

template <typename Made, typename... Arguments>
std::unique_ptr<const Normalizer> make_plain(const io::JsonView& view, Arguments... arguments) {
  allow_only(view, {});
  return std::make_unique<Made>(arguments...);
}

}  // namespace

std::unique_ptr<const Normalizer> make_normalizer(const io::JsonView& view) {
  const std::string type = view.at("type").string();
  if (type == "Sequence") return make_sequence(view);
  if (type == "NFC") return make_plain<UnicodeNormalizer>(view, NormalForm::kNfc);
  if (type == "NFD") return make_plain<UnicodeNormalizer>(view, NormalForm::kNfd);
  if (type == "NFKC") return make_plain<UnicodeNormalizer>(view, NormalForm::kNfkc);
  if (type == "NFKD") return make_plain<UnicodeNormalizer>(view, NormalForm::kNfkd);
  if (type == "Lowercase") return make_plain<Lowercase>(view);
  if (type == "StripAccents") return make_plain<StripAccents>(view);
  if (type == "ByteLevel") return make_plain<ByteLevelNormalizer>(view);
  if (type == "Strip") return make_strip(view);
  if (type == "Replace") return make_replace(view);
  if (type == "Prepend") {
    allow_only(view, {"prepend"});
    return std::make_unique<Prepend>(read_content(view.at("prepend")));
  }
  fail_type(view,
            "Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Prepend, Replace and "
            "ByteLevel");
}

}  // namespace shardwise::data
