#include "shardwise/train/token_rows.h"

#include <ATen/ATen.h>

namespace shardwise::train {

models::Tokens token_rows(const at::Tensor& ids, const data::DocumentOffsets& documents) {
  if (documents.offsets.empty()) {
    return ids;
  }
  return {ids, ops::Documents{.offsets = at::tensor(documents.offsets, at::kInt),
                              .longest = documents.longest}};
}

}  // namespace shardwise::train
