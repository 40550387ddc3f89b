#include "shardwise/config/suggest.h"

#include <algorithm>
#include <cctype>

#include "shardwise/base/check.h"

namespace shardwise::config {
namespace {

constexpr std::size_t kMostNames = 3;
// Names longer than this are not compared: no key is.
constexpr std::size_t kLongestName = 100;

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

// Whether such a document may have this key.
bool allowed(const Node& node, bool job) {
  return job || node.field == nullptr || !node.field->of_job;
}

std::vector<std::string> names_of(const Node& section, bool job) {
  std::vector<std::string> names;
  for (const auto& [name, node] : section.by_name) {
    if (name != "*" && name != "[]" && allowed(*node, job)) {
      names.push_back(name);
    }
  }
  return names;
}

void collect(const Node& node, bool job, std::vector<const Node*>& out) {
  for (const auto& child : node.children) {
    if (allowed(*child, job)) {
      out.push_back(child.get());
      collect(*child, job, out);
    }
  }
}

std::vector<const Node*> all_nodes(bool job) {
  std::vector<const Node*> nodes;
  collect(schema().root(), job, nodes);
  return nodes;
}

bool has_name(const Node& node, const std::string& name) {
  if (node.field == nullptr) {
    return false;
  }
  const auto lists = [&](const std::vector<std::string>& names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  return node.last_name() == name || lists(node.field->aliases) || lists(node.field->old_names);
}

std::string parent_path(const Node& node) {
  const std::size_t dot = node.path.rfind('.');
  return dot == std::string::npos ? "" : node.path.substr(0, dot);
}

// "stage belongs under zero_optimization", or "" when it exists nowhere or in too many places.
std::string place_of(const Node& section, const std::string& key, bool job) {
  std::vector<std::string> places;
  for (const Node* node : all_nodes(job)) {
    if (has_name(*node, key) && parent_path(*node) != section.path) {
      const std::string parent = parent_path(*node);
      places.push_back(parent.empty() ? "at the top level" : "under " + parent);
    }
  }
  const bool helpful = !places.empty() && places.size() <= kMostNames;
  return helpful ? concat(key, " belongs ", join_or(places)) : "";
}

std::string anywhere(const std::string& key, bool job) {
  std::vector<std::string> paths;
  std::vector<std::string> names;
  for (const Node* node : all_nodes(job)) {
    if (node->field != nullptr) {
      names.push_back(node->last_name());
      paths.push_back(node->path);
    }
  }
  std::vector<std::string> found;
  for (const std::string& name : nearest(key, names)) {
    for (std::size_t i = 0; i < names.size(); ++i) {
      const bool listed = std::find(found.begin(), found.end(), paths[i]) != found.end();
      if (names[i] == name && !listed && found.size() < kMostNames) {
        found.push_back(paths[i]);
      }
    }
  }
  return found.empty() ? "" : concat("did you mean ", join_or(found), "?");
}

std::string listing(const Node& section, bool job) {
  constexpr std::size_t kMostListed = 12;
  std::vector<std::string> names;
  for (const auto& child : section.children) {
    if (allowed(*child, job)) {
      names.push_back(child->last_name());
    }
  }
  std::string text = "known here: ";
  for (std::size_t i = 0; i < names.size() && i < kMostListed; ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  const std::size_t rest = names.size() > kMostListed ? names.size() - kMostListed : 0;
  return rest == 0 ? text : concat(text, " and ", rest, " more");
}

}  // namespace

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

std::string advice(const Node& section, const std::string& key, bool job) {
  const Node* nested = key.find('.') == std::string::npos ? nullptr : schema().find(key);
  if (nested != nullptr && allowed(*nested, job)) {
    return concat("write it nested, as ", nested->last_name(), " inside ", parent_path(*nested));
  }
  const std::vector<std::string> near = nearest(key, names_of(section, job));
  std::string text = near.empty() ? "" : concat("did you mean ", join_or(near), "?");
  const bool same_name = !near.empty() && fold(near.front()) == fold(key);
  const std::string place = same_name ? "" : place_of(section, key, job);
  if (!place.empty()) {
    text = text.empty() ? place : concat(place, "; or ", text);
  }
  text = text.empty() ? anywhere(key, job) : text;
  return text.empty() ? listing(section, job) : text;
}

std::string advice_for_path(std::string_view path, bool job) {
  const Node* section = &schema().root();
  for (const std::string& part : split_path(path)) {
    const auto found = section->by_name.find(part);
    if (found == section->by_name.end() || !allowed(*found->second, job)) {
      return advice(*section, part, job);
    }
    section = found->second;
  }
  return "";
}

std::string join_or(const std::vector<std::string>& parts) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    text += i == 0 ? "" : i + 1 == parts.size() ? " or " : ", ";
    text += parts[i];
  }
  return text;
}

}  // namespace shardwise::config
