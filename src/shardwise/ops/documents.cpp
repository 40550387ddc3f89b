#include "shardwise/ops/documents.h"

#include <ATen/ATen.h>
#include <ATen/TensorSubclassLikeUtils.h>

#include <algorithm>

#include "shardwise/base/check.h"

namespace shardwise::ops {
namespace {

at::Tensor all_tokens(const Documents& documents, std::int64_t count) {
  return at::arange(count, documents.offsets.options());
}

// The last of several that begin at one token is the one that is not empty.
at::Tensor numbers_of(const Documents& documents, const at::Tensor& tokens) {
  return at::bucketize(tokens, documents.offsets, /*out_int32=*/true, /*right=*/true) - 1;
}

void check_values(const Documents& documents, std::int64_t batch, std::int64_t sequence) {
  const at::Tensor offsets = documents.offsets.contiguous();
  const auto* const values = offsets.const_data_ptr<std::int32_t>();
  const std::int64_t count = offsets.size(0) - 1;
  SW_USER_CHECK(UsageError, values[0] == 0 && values[count] == batch * sequence,
                "documents: offsets go from ", values[0], " to ", values[count],
                "; they must go from 0 to the number of tokens, ", batch * sequence);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t length = std::int64_t{values[i + 1]} - values[i];
    SW_USER_CHECK(UsageError, length >= 0 && length <= documents.longest, "documents: number ", i,
                  " goes from token ", values[i], " to ", values[i + 1],
                  "; offsets must not fall, and no document may be longer than `longest`, ",
                  documents.longest);
    SW_USER_CHECK(UsageError, values[i] % sequence + length <= sequence, "documents: number ", i,
                  ", tokens ", values[i], " to ", values[i + 1], ", crosses a row of ", sequence,
                  " tokens; every row must begin a document");
  }
}

}  // namespace

void check_documents(const Documents& documents, std::int64_t batch, std::int64_t sequence,
                     at::Device device) {
  const at::Tensor& offsets = documents.offsets;
  SW_USER_CHECK(UsageError,
                offsets.defined() && offsets.dim() == 1 && offsets.scalar_type() == at::kInt &&
                    offsets.sym_numel() >= 1 && offsets.device() == device,
                "documents: offsets must be int32 [documents + 1] on ", device, "; they are ",
                offsets.defined()
                    ? concat(offsets.scalar_type(), offsets.sizes(), " on ", offsets.device())
                    : "not there");
  if (device.is_cpu() && !at::isTensorSubclassLike(offsets) && batch * sequence > 0) {
    check_values(documents, batch, sequence);
  }
  // What can be said of offsets on a device, which are not read.
  const std::int64_t count = offsets.size(0) - 1;
  SW_USER_CHECK(
      UsageError,
      documents.longest >= 0 && count * std::min(documents.longest, sequence) >= batch * sequence,
      "documents: `longest` is ", documents.longest, ", but ", count, " documents have ",
      batch * sequence, " tokens; it must be the tokens of the longest document");
}

at::Tensor document_numbers(const Documents& documents, std::int64_t batch, std::int64_t sequence) {
  return numbers_of(documents, all_tokens(documents, batch * sequence)).view({batch, sequence});
}

at::Tensor document_positions(const Documents& documents, std::int64_t batch,
                              std::int64_t sequence) {
  const at::Tensor tokens = all_tokens(documents, batch * sequence);
  const at::Tensor begins = at::index_select(documents.offsets, 0, numbers_of(documents, tokens));
  return (tokens - begins).to(at::kLong).view({batch, sequence});
}

}  // namespace shardwise::ops
