// Text on its way through a tokenizer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace shardwise::data {

// Note [Where the text begins]: a Metaspace with prepend_scheme "first" acts on the piece that
// begins where the whole text began, before it was normalized. Hugging Face keeps the place of
// every byte for that; here each piece knows how many of its leading bytes stand for the first
// character of the whole text.
struct Piece {
  std::string_view text;
  std::size_t origin = 0;

  bool at_origin() const { return origin > 0; }
  Piece part(std::size_t begin, std::size_t end) const {
    return {text.substr(begin, end - begin), origin - std::min(origin, begin)};
  }
};

using PieceSink = std::function<void(const Piece&)>;

// A piece that owns its text.
struct OwnedPiece {
  std::string text;
  std::size_t origin = 0;

  Piece view() const { return {text, origin}; }
};

}  // namespace shardwise::data
