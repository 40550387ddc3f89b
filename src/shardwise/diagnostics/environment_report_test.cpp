#include "shardwise/diagnostics/environment_report.h"

#include <gtest/gtest.h>
#include <torch/version.h>

#include <cstring>

#include "shardwise/diagnostics/cuda_driver.h"

namespace shardwise::diagnostics {
namespace {

TEST(EnvironmentReport, SaysWhatWasFound) {
  const std::string report = environment_report();
  for (const char* name : {"torch ", "CUDA ", "CUDA driver", "NCCL", "Gloo", "kernels, CPU"}) {
    EXPECT_NE(report.find(name), std::string::npos) << name;
  }
  EXPECT_NE(report.find(TORCH_VERSION), std::string::npos);
  EXPECT_NE(report.find("libtorch"), std::string::npos);
  EXPECT_EQ(report.back(), '\n');
}

TEST(EnvironmentReport, TheCFunctionNeverWritesPastTheBuffer) {
  const int length = shardwise_environment_report(nullptr, 0);
  ASSERT_GT(length, 0);
  std::string buffer(static_cast<std::size_t>(length) + 10, 'x');
  EXPECT_EQ(shardwise_environment_report(buffer.data(), 8), length);
  EXPECT_EQ(std::strlen(buffer.c_str()), 7U);
  EXPECT_EQ(buffer[8], 'x');
  EXPECT_EQ(shardwise_environment_report(buffer.data(), static_cast<std::size_t>(length) + 1),
            length);
  EXPECT_EQ(std::string(buffer.c_str()), environment_report());
}

TEST(EnvironmentReport, CudaVersions) {
  EXPECT_EQ(cuda_version_text(13000), "13.0");
  EXPECT_EQ(cuda_version_text(12040), "12.4");
}

}  // namespace
}  // namespace shardwise::diagnostics
