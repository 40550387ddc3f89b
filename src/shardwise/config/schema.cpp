#include "shardwise/config/schema.h"

#include "shardwise/base/check.h"

namespace shardwise::config {
namespace {

Node* find_or_add(Node& parent, const std::string& name) {
  const auto found = parent.by_name.find(name);
  if (found != parent.by_name.end()) {
    return found->second;
  }
  Node* node = parent.children.emplace_back(std::make_unique<Node>()).get();
  const bool glue = !parent.path.empty() && name != "[]";
  node->path = parent.path + (glue ? "." : "") + name;
  parent.by_name.emplace(name, node);
  return node;
}

}  // namespace

const Node* Node::child(std::string_view name) const {
  const auto found = by_name.find(name);
  if (found != by_name.end() && name != "*" && name != "[]") {
    return found->second;
  }
  const auto any_name = by_name.find("*");
  return any_name == by_name.end() ? nullptr : any_name->second;
}

std::string Node::last_name() const {
  const std::size_t dot = path.rfind('.');
  return dot == std::string::npos ? path : path.substr(dot + 1);
}

Schema::Schema() {
  add_batch_fields(list_);
  add_optimizer_fields(list_);
  add_scheduler_fields(list_);
  add_gradient_fields(list_);
  add_precision_fields(list_);
  add_zero_fields(list_);
  add_offload_fields(list_);
  add_own_fields(list_);
  add_logging_fields(list_);
  add_parallel_fields(list_);
  add_compile_fields(list_);
  add_checkpoint_fields(list_);
  add_monitor_fields(list_);
  add_tuning_fields(list_);
  add_data_fields(list_);
  add_compression_fields(list_);
  add_job_fields(list_);
  for (const Field& field : list_.fields()) {
    insert(field);
  }
}

void Schema::insert(const Field& field) {
  SW_CHECK(by_path_.emplace(field.path, &field).second, field.path, " is declared twice");
  Node* parent = &root_;
  Node* node = &root_;
  for (const std::string& part : split_path(field.path)) {
    parent = node;
    node = find_or_add(*parent, part);
  }
  node->field = &field;
  for (const auto* names : {&field.aliases, &field.old_names}) {
    for (const std::string& name : *names) {
      SW_CHECK(parent->by_name.emplace(name, node).second, name, " is declared twice");
    }
  }
}

const Node* Schema::find(std::string_view path) const {
  const Node* node = &root_;
  for (const std::string& part : split_path(path)) {
    const auto found = node->by_name.find(part);
    if (found == node->by_name.end()) {
      return nullptr;
    }
    node = found->second;
  }
  return node;
}

const Field& Schema::field(std::string_view path) const {
  const auto found = by_path_.find(path);
  SW_CHECK(found != by_path_.end(), path, " is not in the field list");
  return *found->second;
}

const Schema& schema() {
  static const Schema instance;
  return instance;
}

std::vector<std::string> split_path(std::string_view path) {
  std::vector<std::string> parts;
  while (!path.empty()) {
    const std::size_t dot = path.find('.');
    std::string_view part = path.substr(0, dot);
    path = dot == std::string_view::npos ? std::string_view() : path.substr(dot + 1);
    const bool list = part.size() > 2 && part.substr(part.size() - 2) == "[]";
    parts.emplace_back(list ? part.substr(0, part.size() - 2) : part);
    if (list) {
      parts.emplace_back("[]");
    }
  }
  return parts;
}

}  // namespace shardwise::config
