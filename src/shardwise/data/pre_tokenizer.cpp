#include "shardwise/data/pre_tokenizer.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/data/byte_alphabet.h"
#include "shardwise/data/metaspace.h"
#include "shardwise/data/pattern.h"
#include "shardwise/data/splitter.h"
#include "shardwise/data/tokenizer_fields.h"
#include "shardwise/data/unicode.h"

namespace shardwise::data {
namespace {

// GPT-2's encoder.py.
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// The piece with a text in front.
OwnedPiece with_prefix(std::string_view prefix, const Piece& piece) {
  OwnedPiece made;
  made.text.reserve(prefix.size() + piece.text.size());
  made.text.append(prefix).append(piece.text);
  made.origin = piece.at_origin() ? piece.origin + prefix.size() : 0;
  return made;
}

class SequencePreTokenizer : public PreTokenizer {
 public:
  SequencePreTokenizer(std::vector<std::unique_ptr<const PreTokenizer>> parts, std::string place)
      : parts_(std::move(parts)), place_(std::move(place)) {}
  void split(const Piece& piece, const PieceSink& sink) const override {
    run(0, piece, piece.text.size(), sink);
  }

 private:
  // `before`: bytes of the text that the piece is part of.
  void run(std::size_t part, const Piece& piece, std::size_t before, const PieceSink& sink) const {
    check_growth(before, piece.text.size(), place_);
    if (part == parts_.size()) {
      sink(piece);
      return;
    }
    parts_[part]->split(piece, [&](const Piece& word) { run(part + 1, word, before, sink); });
  }

  std::vector<std::unique_ptr<const PreTokenizer>> parts_;
  std::string place_;
};

class SplitPreTokenizer : public PreTokenizer {
 public:
  explicit SplitPreTokenizer(Splitter splitter) : splitter_(std::move(splitter)) {}
  void split(const Piece& piece, const PieceSink& sink) const override {
    splitter_.split(piece, sink);
  }

 private:
  Splitter splitter_;
};

class ByteLevel : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, std::unique_ptr<const Splitter> splitter)
      : add_prefix_space_(add_prefix_space), splitter_(std::move(splitter)) {}

  void split(const Piece& piece, const PieceSink& sink) const override {
    if (add_prefix_space_ && !piece.text.starts_with(' ')) {
      const OwnedPiece prefixed = with_prefix(" ", piece);
      split_words(prefixed.view(), sink);
    } else {
      split_words(piece, sink);
    }
  }

 private:
  void split_words(const Piece& piece, const PieceSink& sink) const {
    const auto write = [&](const Piece& word) {
      const std::string text = alphabet_.write(word.text);
      const std::size_t origin =
          word.at_origin() ? alphabet_.write(word.text.substr(0, word.origin)).size() : 0;
      sink({text, origin});
    };
    if (splitter_ != nullptr) {
      splitter_->split(piece, write);
    } else {
      write(piece);
    }
  }

  bool add_prefix_space_;
  std::unique_ptr<const Splitter> splitter_;  // null: the piece is one word
  ByteAlphabet alphabet_;
};

class MetaspacePreTokenizer : public PreTokenizer {
 public:
  explicit MetaspacePreTokenizer(const Metaspace& options)
      : options_(options),
        splitter_(make_literal(options.replacement), SplitBehavior::kMergedWithNext) {}

  void split(const Piece& piece, const PieceSink& sink) const override {
    OwnedPiece replaced = replace_blanks(piece);
    const bool wanted = options_.scheme == PrependScheme::kAlways ||
                        (options_.scheme == PrependScheme::kFirst && piece.at_origin());
    if (wanted && !replaced.text.starts_with(options_.replacement)) {
      replaced = with_prefix(options_.replacement, replaced.view());
    }
    if (options_.split) {
      splitter_.split(replaced.view(), sink);
    } else {
      sink(replaced.view());
    }
  }

 private:
  OwnedPiece replace_blanks(const Piece& piece) const {
    OwnedPiece made;
    made.text.reserve(piece.text.size() + piece.text.size() / 2);
    for (std::size_t i = 0; i < piece.text.size(); ++i) {
      if (piece.text[i] == ' ') {
        made.text += options_.replacement;
      } else {
        made.text += piece.text[i];
      }
      if (i < piece.origin) made.origin = made.text.size();
    }
    return made;
  }

  Metaspace options_;
  Splitter splitter_;
};

using Made = std::unique_ptr<const PreTokenizer>;

Made by_splitter(std::unique_ptr<const Pattern> pattern, SplitBehavior behavior,
                 bool invert = false) {
  return std::make_unique<SplitPreTokenizer>(Splitter(std::move(pattern), behavior, invert));
}

Made make_sequence(const io::JsonView& view) {
  allow_only(view, {"pretokenizers"});
  std::vector<Made> parts;
  for (const io::JsonView& part : view.at("pretokenizers").items()) {
    parts.push_back(make_pre_tokenizer(part));
  }
  return std::make_unique<SequencePreTokenizer>(std::move(parts), place_of(view));
}

Made make_byte_level(const io::JsonView& view) {
  // trim_offsets is about offsets, which nobody asks for here.
  allow_only(view, {"add_prefix_space", "use_regex", "trim_offsets"});
  view.boolean_or("trim_offsets", true);
  std::unique_ptr<const Splitter> splitter;
  if (view.boolean_or("use_regex", true)) {
    splitter = std::make_unique<const Splitter>(make_regex(kGpt2Pattern, place_of(view)),
                                                SplitBehavior::kIsolated);
  }
  return std::make_unique<ByteLevel>(view.at("add_prefix_space").boolean(), std::move(splitter));
}

Made make_split(const io::JsonView& view) {
  allow_only(view, {"pattern", "behavior", "invert"});
  return by_splitter(read_pattern(view.at("pattern")), read_behavior(view.at("behavior")),
                     view.boolean_or("invert", false));
}

Made make_digits(const io::JsonView& view) {
  allow_only(view, {"individual_digits"});
  return by_splitter(make_class(is_number), view.boolean_or("individual_digits", false)
                                                ? SplitBehavior::kIsolated
                                                : SplitBehavior::kContiguous);
}

Made make_punctuation(const io::JsonView& view) {
  allow_only(view, {"behavior"});
  const auto behavior = view.find("behavior");
  return by_splitter(make_class(is_punctuation),
                     behavior ? read_behavior(*behavior) : SplitBehavior::kIsolated);
}

}  // namespace

std::unique_ptr<const PreTokenizer> make_pre_tokenizer(const io::JsonView& view) {
  const std::string type = view.at("type").string();
  if (type == "Sequence") return make_sequence(view);
  if (type == "ByteLevel") return make_byte_level(view);
  if (type == "Split") return make_split(view);
  if (type == "Digits") return make_digits(view);
  if (type == "Punctuation") return make_punctuation(view);
  if (type == "Metaspace") return std::make_unique<MetaspacePreTokenizer>(read_metaspace(view));
  if (type == "Whitespace") {
    allow_only(view, {});
    return by_splitter(make_words(), SplitBehavior::kRemoved, true);
  }
  if (type == "WhitespaceSplit") {
    allow_only(view, {});
    return by_splitter(make_class(is_space), SplitBehavior::kRemoved);
  }
  fail_type(view,
            "Sequence, ByteLevel, Split, Digits, Punctuation, Metaspace, Whitespace and "
            "WhitespaceSplit");
}

}  // namespace shardwise::data
