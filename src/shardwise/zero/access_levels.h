// Who may change values that are open for a while, and whether somebody else did.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

namespace shardwise::zero {

inline constexpr int kReadOnly = -1;

// Contexts around the same values, nested. `flats`: the values as one-dimensional tensors of whole
// runs of 128 bytes, the same ones each time; undefined ones are passed over.
class AccessLevels {
 public:
  struct Change {
    std::size_t flat = 0;  // index in `flats`
    std::int64_t byte = 0;
  };

  bool any() const { return !levels_.empty(); }
  // The modifier of the innermost context.
  int modifier() const { return levels_.back(); }
  // Throws UsageError if the values, called `name`, cannot be opened for changes by the rank
  // `modifier` because another rank may change them already.
  void check_modifier(int modifier, const std::string& name) const;
  // Whether values were changed since they were opened although nobody may change them now.
  std::optional<Change> change(const std::vector<at::Tensor>& flats) const;
  void enter(int modifier, const std::vector<at::Tensor>& flats);
  // The modifier of the context that ends.
  int leave();
  // The values are what they should be from here on.
  void accept(const std::vector<at::Tensor>& flats);

 private:
  // Sums over runs of the values; none where the outermost context has a modifier.
  std::vector<at::Tensor> sums_;
  std::vector<int> levels_;  // modifiers, outermost first
};

}  // namespace shardwise::zero
