// The field lists as a tree, for walking a document and for looking up paths.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/config/field.h"

namespace shardwise::config {

// One level of the tree: a section, a map or list (whose one child is named "*" or "[]"), or a key.
struct Node {
  std::string path;              // "" for the document itself
  const Field* field = nullptr;  // none for the document and for the values of maps and lists
  std::vector<std::unique_ptr<Node>> children;        // in the order of the field list
  std::map<std::string, Node*, std::less<>> by_name;  // children by name, other and old names

  // The child that a key of the document stands for, the "*" child if it has no name of its own;
  // null when it is unknown.
  const Node* child(std::string_view name) const;
  // Whether the document may have an object here.
  bool has_keys() const { return !children.empty(); }
  std::string last_name() const;
};

class Schema {
 public:
  Schema();

  const Node& root() const { return root_; }
  const std::deque<Field>& fields() const { return list_.fields(); }

  // The node with this path; other and old names of its parts work too. Null when there is none.
  const Node* find(std::string_view path) const;
  // The field with exactly this path. An InternalError when there is none: for our own code.
  const Field& field(std::string_view path) const;

 private:
  void insert(const Field& field);

  FieldList list_;
  Node root_;
  std::map<std::string, const Field*, std::less<>> by_path_;
};

// Built once, never changed.
const Schema& schema();

// "zero_optimization", "stage": the parts of a path; "layer_specs[]" gives "layer_specs", "[]".
std::vector<std::string> split_path(std::string_view path);

}  // namespace shardwise::config
