#include "shardwise/data/splitter.h"

#include <utility>

#include "shardwise/io/quote.h"

namespace shardwise::data {
namespace {

// Whether the stretch `next` is joined to the one before it.
bool joins(SplitBehavior behavior, bool before_matched, bool next_matched) {
  switch (behavior) {
    case SplitBehavior::kRemoved:
    case SplitBehavior::kIsolated: return false;
    case SplitBehavior::kMergedWithPrevious: return !before_matched && next_matched;
    case SplitBehavior::kMergedWithNext: return before_matched && !next_matched;
    case SplitBehavior::kContiguous: return before_matched == next_matched;
  }
  return false;
}

}  // namespace

SplitBehavior read_behavior(const io::JsonView& view) {
  const std::string name = view.string();
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  view.fail(io::quoted(name) +
            " is no behavior; it must be Removed, Isolated, MergedWithPrevious, MergedWithNext or "
            "Contiguous");
}

Splitter::Splitter(std::unique_ptr<const Pattern> pattern, SplitBehavior behavior, bool invert)
    : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

void Splitter::split(const Piece& piece, const PieceSink& sink) const {
  Match held;  // what may still grow
  bool any = false;
  const auto give = [&] {
    const bool removed = behavior_ == SplitBehavior::kRemoved && held.matched;
    if (held.begin < held.end && !removed) sink(piece.part(held.begin, held.end));
  };
  pattern_->find(piece.text, [&](Match match) {
    match.matched = match.matched != invert_;
    if (any && joins(behavior_, held.matched, match.matched)) {
      held.end = match.end;
      held.matched = match.matched;
      return;
    }
    give();
    held = match;
    any = true;
  });
  give();
}

}  // namespace shardwise::data
