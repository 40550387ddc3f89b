#include "shardwise/zero/access_levels.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "shardwise/base/check.h"
#include "shardwise/params/layout.h"

namespace shardwise::zero {
namespace {

// One sum of 32-bit words for each run of 128 bytes. Any change shows but one that keeps the sum of
// its run; a copy would show that too, at sixteen times the memory.
std::vector<at::Tensor> sums_of_runs(const std::vector<at::Tensor>& flats) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> sums;
  for (const at::Tensor& flat : flats) {
    sums.push_back(flat.defined() ? flat.view(at::kInt)
                                        .view({-1, params::kAlignmentBytes / 4})
                                        .sum(at::IntArrayRef{1}, /*keepdim=*/false, at::kLong)
                                  : at::Tensor());
  }
  return sums;
}

}  // namespace

void AccessLevels::check_modifier(int modifier, const std::string& name) const {
  for (const int outer : levels_) {
    SW_USER_CHECK(UsageError, outer == kReadOnly || modifier == kReadOnly || outer == modifier,
                  name, " is open for changes by rank ", outer,
                  " and cannot be opened inside for changes by rank ", modifier,
                  ": leave the outer GatheredParameters first, or use the same modifier_rank");
  }
}

std::optional<AccessLevels::Change> AccessLevels::change(
    const std::vector<at::Tensor>& flats) const {
  const bool read_only =
      std::all_of(levels_.begin(), levels_.end(), [](int level) { return level == kReadOnly; });
  if (sums_.empty() || !read_only) {
    return std::nullopt;
  }
  const std::vector<at::Tensor> now = sums_of_runs(flats);
  for (std::size_t i = 0; i < now.size(); ++i) {
    if (now[i].defined() && !at::equal(now[i], sums_[i])) {
      const auto run = at::ne(now[i], sums_[i]).nonzero()[0].item<std::int64_t>();
      return Change{i, run * params::kAlignmentBytes};
    }
  }
  return std::nullopt;
}

void AccessLevels::enter(int modifier, const std::vector<at::Tensor>& flats) {
  levels_.push_back(modifier);
  if (levels_.size() == 1 && modifier == kReadOnly) {
    sums_ = sums_of_runs(flats);
  }
}

int AccessLevels::leave() {
  const int modifier = levels_.back();
  levels_.pop_back();
  if (levels_.empty()) {
    sums_.clear();
  }
  return modifier;
}

void AccessLevels::accept(const std::vector<at::Tensor>& flats) {
  if (!sums_.empty()) {
    sums_ = sums_of_runs(flats);
  }
}

}  // namespace shardwise::zero
