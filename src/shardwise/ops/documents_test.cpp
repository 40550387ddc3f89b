#include "shardwise/ops/documents.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "shardwise/base/error.h"

namespace shardwise::ops {
namespace {

Documents of(at::ArrayRef<int> offsets, std::int64_t longest) {
  return {.offsets = at::tensor(offsets, at::kInt), .longest = longest};
}

TEST(Documents, NumberAndPlaceOfEachToken) {
  // Of 2, 0, 3 and, in the second row, 0, 0, 1, 4 and 0 tokens.
  const Documents documents = of({0, 2, 2, 5, 5, 5, 6, 10, 10}, 4);
  check_documents(documents, 2, 5, at::kCPU);
  const at::Tensor numbers = at::tensor({0, 0, 2, 2, 2, 5, 6, 6, 6, 6}, at::kInt).view({2, 5});
  const at::Tensor places = at::tensor({0, 1, 0, 1, 2, 0, 0, 1, 2, 3}, at::kLong).view({2, 5});
  EXPECT_TRUE(at::equal(document_numbers(documents, 2, 5), numbers));
  EXPECT_TRUE(at::equal(document_positions(documents, 2, 5), places));
}

TEST(Documents, FillTheirRows) {
  check_documents(of({0}, 0), 0, 5, at::kCPU);
  check_documents(of({0, 5, 10}, 7), 2, 5, at::kCPU);
  EXPECT_THROW(check_documents(of({0, 5, 9}, 5), 2, 5, at::kCPU), UsageError);
  EXPECT_THROW(check_documents(of({1, 5, 10}, 5), 2, 5, at::kCPU), UsageError);
  EXPECT_THROW(check_documents(of({0, 5, 10}, 4), 2, 5, at::kCPU), UsageError);
  EXPECT_THROW(check_documents(of({0, 4, 10}, 6), 2, 5, at::kCPU), UsageError);
  EXPECT_THROW(check_documents(of({0, 5, 3, 10}, 7), 2, 5, at::kCPU), UsageError);
  EXPECT_THROW(check_documents({.offsets = at::zeros({3}), .longest = 5}, 2, 5, at::kCPU),
               UsageError);
}

// Of offsets on a device nothing is read, so that nothing waits.
TEST(Documents, AreCheckedByTheirNumberWhereOffsetsAreOnADevice) {
  const auto on_device = [](std::int64_t longest) {
    return Documents{.offsets = at::empty({3}, at::TensorOptions(at::kInt).device(at::kMeta)),
                     .longest = longest};
  };
  check_documents(on_device(5), 2, 5, at::kMeta);
  check_documents(on_device(std::numeric_limits<std::int64_t>::max()), 2, 5, at::kMeta);
  EXPECT_THROW(check_documents(on_device(4), 2, 5, at::kMeta), UsageError);
  EXPECT_THROW(check_documents(on_device(0), 2, 5, at::kMeta), UsageError);
  EXPECT_THROW(check_documents(on_device(-1), 2, 5, at::kMeta), UsageError);
}

}  // namespace
}  // namespace shardwise::ops
