#include "shardwise/base/suggest.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace shardwise {
namespace {

constexpr std::size_t kMostNames = 3;
// Names longer than this are not compared: no key or tensor is.
constexpr std::size_t kLongestName = 200;

std::string fold(std::string_view name) {
  std::string folded;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    folded.push_back(c == '-' || c == ' ' ? '_' : static_cast<char>(std::tolower(byte)));
  }
  return folded;
}

// How many edits still count as a slip of the hand.
int tolerance(std::size_t length) {
  return length <= 3 ? 1 : length <= 6 ? 2 : static_cast<int>(length / 3);
}

}  // namespace

bool same_name(std::string_view a, std::string_view b) { return fold(a) == fold(b); }

int edit_distance(std::string_view a, std::string_view b) {
  const std::size_t width = b.size() + 1;
  std::vector<int> before_last(width), last(width), row(width);
  for (std::size_t j = 0; j < width; ++j) {
    last[j] = static_cast<int>(j);
  }
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (std::size_t j = 1; j < width; ++j) {
      const int replace = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({replace, last[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
    }
    before_last.swap(last);
    last.swap(row);
  }
  return last[width - 1];
}

std::vector<std::string> nearest(std::string_view name,
                                 const std::vector<std::string>& candidates) {
  if (name.size() > kLongestName) {
    return {};
  }
  const std::string wanted = fold(name);
  std::vector<std::pair<int, std::string>> scored;
  for (const std::string& candidate : candidates) {
    if (candidate.size() > kLongestName) {
      continue;
    }
    const std::string other = fold(candidate);
    int distance = edit_distance(wanted, other);
    // A part of the name alone ("bucket_size", "hysteresis_") counts as near, but last.
    const bool contains = wanted.size() >= 5 && other.find(wanted) != std::string::npos;
    if (distance > tolerance(wanted.size()) && contains) {
      distance = 100 + static_cast<int>(other.size());
    }
    if (distance <= tolerance(wanted.size()) || distance >= 100) {
      scored.emplace_back(distance, candidate);
    }
  }
  std::stable_sort(scored.begin(), scored.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> names;
  for (const auto& [distance, candidate] : scored) {
    // Worse than twice the best is no longer likely.
    const bool close = distance <= std::max(1, 2 * scored.front().first);
    const bool listed = std::find(names.begin(), names.end(), candidate) != names.end();
    if (close && !listed && names.size() < kMostNames) {
      names.push_back(candidate);
    }
  }
  return names;
}

std::string join_or(const std::vector<std::string>& parts) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    text += i == 0 ? "" : i + 1 == parts.size() ? " or " : ", ";
    text += parts[i];
  }
  return text;
}

std::string suggest(std::string_view word, const std::vector<std::string>& known) {
  const std::vector<std::string> near = nearest(word, known);
  return near.empty() ? "" : " (did you mean " + join_or(near) + "?)";
}

}  // namespace shardwise
