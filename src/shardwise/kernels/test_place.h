// For tests of the layers' functions: the same cases run on the CPU and on CUDA, against references
// in double.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "shardwise/kernels/test_reference.h"

namespace shardwise::kernels::testing {

// Where a case runs, and the memory of that place.
class TestPlace {
 public:
  TestPlace() = default;
  TestPlace(const TestPlace&) = delete;
  TestPlace& operator=(const TestPlace&) = delete;
  virtual ~TestPlace() = default;

  // A copy that begins `shift` bytes past a multiple of 256 and lives as long as the pointer.
  virtual std::shared_ptr<void> upload(const void* host, std::size_t bytes, std::size_t shift) = 0;
  // Waits for the place's work first.
  virtual void download(const void* from, void* host, std::size_t bytes) = 0;

  std::vector<DType> dtypes() const {
    std::vector<DType> all = all_dtypes();
    if (!place.cuda) {
      all.push_back(DType::kFloat64);
    }
    return all;
  }

  Place place;
};

// The CPU; with threads where `parallel` is given.
class CpuPlace : public TestPlace {
 public:
  explicit CpuPlace(const ParallelFor* parallel = nullptr) { place.parallel_for = parallel; }
  std::shared_ptr<void> upload(const void* host, std::size_t bytes, std::size_t shift) override {
    const std::shared_ptr<void> memory(
        ::operator new(bytes + shift + 1, std::align_val_t(256)),
        [](void* p) { ::operator delete(p, std::align_val_t(256)); });
    void* data = static_cast<char*>(memory.get()) + shift;
    if (bytes > 0) {
      std::memcpy(data, host, bytes);
    }
    return {memory, data};
  }
  void download(const void* from, void* host, std::size_t bytes) override {
    if (bytes > 0) {
      std::memcpy(host, from, bytes);
    }
  }
};

// A vector's copy in the memory of a place.
template <typename T>
class Placed {
 public:
  Placed(TestPlace& place, std::vector<T> host)
      : place_(place),
        host_(std::move(host)),
        data_(place.upload(host_.data(), host_.size() * sizeof(T), 0)) {}
  T* data() const { return static_cast<T*>(data_.get()); }
  const std::vector<T>& fetch() {
    place_.download(data_.get(), host_.data(), host_.size() * sizeof(T));
    return host_;
  }

 private:
  TestPlace& place_;
  std::vector<T> host_;
  std::shared_ptr<void> data_;
};

// An array's copy, `shift` elements past an aligned address.
class PlacedArray {
 public:
  PlacedArray(TestPlace& place, Array host, std::int64_t shift = 0)
      : place_(place),
        host_(std::move(host)),
        data_(place.upload(host_.data(), host_.bytes.size(), shift * element_size(host_.dtype))) {}
  void* data() const { return data_.get(); }
  const Array& fetch() {
    place_.download(data_.get(), host_.data(), host_.bytes.size());
    return host_;
  }

 private:
  TestPlace& place_;
  Array host_;
  std::shared_ptr<void> data_;
};

// Largest relative error of rounding to the dtype, and half of its smallest number.
inline double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return 0x1p-11;
    case DType::kBFloat16: return 0x1p-8;
    case DType::kFloat64: return 0x1p-53;
    case DType::kFloat32: break;
  }
  return 0x1p-24;
}
inline double half_of_smallest(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return 0x1p-25;
    case DType::kBFloat16: return 0x1p-134;
    case DType::kFloat64: return 0.0;
    case DType::kFloat32: break;
  }
  return 0x1p-150;
}

// A number computed in double, and how far the computation under test may be from it before its
// result is rounded to the array's dtype.
struct Expected {
  double value;
  double error;
};

inline void expect_close(const Array& found, const std::vector<Expected>& expected,
                         const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto [value, error] = expected[i];
    const double rounding = unit_roundoff(found.dtype) * (std::abs(value) + error);
    const double bound = error + rounding + half_of_smallest(found.dtype);
    ASSERT_LE(std::abs(found.get(i) - value), bound)
        << what << ", element " << i << ": " << found.get(i) << " for " << value;
  }
}

inline Array random_array(DType dtype, std::int64_t n, unsigned seed, float low, float high) {
  return {dtype, random_floats(static_cast<std::size_t>(n), seed, low, high)};
}

// Enough to see that nothing was written: no result of a test.
inline Array untouched(DType dtype, std::int64_t n) {
  return {dtype, std::vector<float>(static_cast<std::size_t>(n), -77.0F)};
}

}  // namespace shardwise::kernels::testing
