// Cuts a piece at the matches of a pattern.
#pragma once

#include <memory>

#include "shardwise/data/pattern.h"
#include "shardwise/data/piece.h"
#include "shardwise/io/json_view.h"

namespace shardwise::data {

// What becomes of a match: left out, a piece of its own, joined with what is around it; kContiguous
// joins matches that touch.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

SplitBehavior read_behavior(const io::JsonView& view);

class Splitter {
 public:
  // `invert`: what lies between matches is taken for the matches.
  Splitter(std::unique_ptr<const Pattern> pattern, SplitBehavior behavior, bool invert = false);

  // Gives the parts in order, none of them empty.
  void split(const Piece& piece, const PieceSink& sink) const;

 private:
  std::unique_ptr<const Pattern> pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

}  // namespace shardwise::data
