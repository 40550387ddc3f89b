#include "shardwise/config/suggest.h"

#include <algorithm>
#include <map>

#include "shardwise/base/check.h"
#include "shardwise/base/suggest.h"

namespace shardwise::config {
namespace {

constexpr std::size_t kMostNames = 3;

// The key of ours that other libraries call `key`, or "".
std::string our_name(const std::string& key) {
  static const std::map<std::string, std::string> names = {
      {"learning_rate", "lr"}, {"epsilon", "eps"},     {"adam_epsilon", "eps"},
      {"beta1", "betas"},      {"beta2", "betas"},     {"adam_beta1", "betas"},
      {"adam_beta2", "betas"}, {"wd", "weight_decay"}, {"max_grad_norm", "gradient_clipping"}};
  const auto found = names.find(key);
  return found == names.end() ? "" : found->second;
}

// Whether such a document may have this key.
bool allowed(const Node& node, bool job) {
  return job || node.field == nullptr || !node.field->of_job;
}

bool counts(const std::vector<std::string>& settings, const Node& node) {
  return settings.empty() ||
         std::find(settings.begin(), settings.end(), node.last_name()) != settings.end();
}

std::vector<std::string> names_of(const Node& section, bool job,
                                  const std::vector<std::string>& settings) {
  std::vector<std::string> names;
  for (const auto& [name, node] : section.by_name) {
    if (name != "*" && name != "[]" && allowed(*node, job) && counts(settings, *node)) {
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

std::string listing(const Node& section, bool job, const std::vector<std::string>& settings) {
  constexpr std::size_t kMostListed = 12;
  std::vector<std::string> names;
  for (const auto& child : section.children) {
    const bool idle = child->field != nullptr && (child->field->status == Status::kNoEffect ||
                                                  child->field->status == Status::kUnavailable);
    if (allowed(*child, job) && counts(settings, *child) && (settings.empty() || !idle)) {
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

std::string advice(const Node& section, const std::string& key, bool job,
                   const std::vector<std::string>& settings) {
  const Node* nested = key.find('.') == std::string::npos ? nullptr : schema().find(key);
  if (nested != nullptr && allowed(*nested, job)) {
    return concat("write it nested, as ", nested->last_name(), " inside ", parent_path(*nested));
  }
  const std::string ours = our_name(key);
  const auto own = section.by_name.find(ours);
  if (own != section.by_name.end() && counts(settings, *own->second)) {
    return concat("did you mean ", ours, "?");
  }
  if (const std::string place = ours.empty() ? "" : place_of(section, ours, job); !place.empty()) {
    return place;
  }
  std::vector<std::string> near = nearest(key, names_of(section, job, settings));
  if (near.empty()) {  // a setting of another type: what is said of that name helps on
    near = nearest(key, names_of(section, job, {}));
  }
  std::string text = near.empty() ? "" : concat("did you mean ", join_or(near), "?");
  const bool same = !near.empty() && same_name(near.front(), key);
  const std::string place = same ? "" : place_of(section, key, job);
  if (!place.empty()) {
    text = text.empty() ? place : concat(place, "; or ", text);
  }
  text = text.empty() ? anywhere(key, job) : text;
  return text.empty() ? listing(section, job, settings) : text;
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

}  // namespace shardwise::config
