#include "shardwise/io/nearest_names.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace shardwise::io {
namespace {

constexpr std::size_t kLongestName = 200;
constexpr std::size_t kMostNames = 3;

// Levenshtein's distance by the method of Wagner and Fischer, one row at a time.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::vector<std::string_view> nearest_names(std::string_view wanted,
                                            const std::vector<std::string_view>& names) {
  std::vector<std::pair<std::size_t, std::string_view>> found;
  for (const std::string_view name : names) {
    const std::size_t longer = std::max(name.size(), wanted.size());
    if (longer <= kLongestName) {
      const std::size_t steps = distance(wanted, name);
      if (2 * steps <= longer) {
        found.emplace_back(steps, name);
      }
    }
  }
  std::ranges::sort(found);
  std::vector<std::string_view> result;
  for (std::size_t i = 0; i < std::min(found.size(), kMostNames); ++i) {
    result.push_back(found[i].second);
  }
  return result;
}

}  // namespace shardwise::io
