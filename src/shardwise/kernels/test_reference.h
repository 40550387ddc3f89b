// For this module's tests: 16-bit numbers computed from their definition in double arithmetic,
// random data, threads, and a shard with awkward chunks. Uses none of the code under test.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "shardwise/kernels/types.h"

namespace shardwise::kernels::testing {

inline const std::vector<DType>& all_dtypes() {
  static const std::vector<DType> dtypes = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
  return dtypes;
}

// IEEE 754 binary formats by their numbers: mantissa bits and largest exponent.
struct Format {
  int mantissa;
  int max_exponent;
};

inline Format format_of(DType dtype) {
  return dtype == DType::kFloat16 ? Format{10, 15} : Format{7, 127};
}

// Value of a 16-bit pattern.
inline double decode16(std::uint16_t bits, DType dtype) {
  const Format f = format_of(dtype);
  const int exponent_bits = 15 - f.mantissa;
  const int exponent = (bits >> f.mantissa) & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << f.mantissa) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) {
    return sign * std::ldexp(fraction, 1 - f.max_exponent - f.mantissa);
  }
  return sign * std::ldexp((1 << f.mantissa) + fraction, exponent - f.max_exponent - f.mantissa);
}

// Nearest pattern, ties to even (nearbyint rounds that way by default). NaN gives some NaN.
inline std::uint16_t encode16(double value, DType dtype) {
  const Format f = format_of(dtype);
  const int exponent_bits = 15 - f.mantissa;
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const auto infinity = static_cast<std::uint16_t>(((1 << exponent_bits) - 1) << f.mantissa);
  if (std::isnan(value)) {
    return sign | infinity | static_cast<std::uint16_t>(1 << (f.mantissa - 1));
  }
  value = std::fabs(value);
  if (std::isinf(value)) {
    return sign | infinity;
  }
  const int lowest = 1 - f.max_exponent;
  const int exponent = value == 0.0 ? lowest : std::max(std::ilogb(value), lowest);
  const double units = std::nearbyint(std::ldexp(value, f.mantissa - exponent));
  // `units` counts steps of this exponent; a carry runs into the exponent field by itself.
  const double pattern = units + std::ldexp(exponent - lowest, f.mantissa);
  return sign | static_cast<std::uint16_t>(std::min(pattern, static_cast<double>(infinity)));
}

// An array of one dtype.
struct Array {
  DType dtype = DType::kFloat32;
  std::vector<std::uint8_t> bytes;

  Array() = default;
  Array(DType type, const std::vector<float>& values)
      : dtype(type), bytes(values.size() * element_size(type)) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      set(i, values[i]);
    }
  }
  std::size_t size() const { return bytes.size() / element_size(dtype); }
  void set(std::size_t i, float value) {
    if (dtype == DType::kFloat32) {
      std::memcpy(bytes.data() + 4 * i, &value, 4);
    } else if (dtype == DType::kFloat64) {
      const double wide = value;
      std::memcpy(bytes.data() + 8 * i, &wide, 8);
    } else {
      const std::uint16_t bits = encode16(value, dtype);
      std::memcpy(bytes.data() + 2 * i, &bits, 2);
    }
  }
  // The same numbers, rounded to another dtype.
  Array in(DType type) const {
    Array other(type, std::vector<float>(size()));
    for (std::size_t i = 0; i < size(); ++i) {
      other.set(i, static_cast<float>(get(i)));
    }
    return other;
  }
  double get(std::size_t i) const {
    if (dtype == DType::kFloat32) {
      float value = 0;
      std::memcpy(&value, bytes.data() + 4 * i, 4);
      return value;
    }
    if (dtype == DType::kFloat64) {
      double value = 0;
      std::memcpy(&value, bytes.data() + 8 * i, 8);
      return value;
    }
    return decode16(pattern(i), dtype);
  }
  std::uint16_t pattern(std::size_t i) const {
    std::uint16_t bits = 0;
    std::memcpy(&bits, bytes.data() + 2 * i, 2);
    return bits;
  }
  void* data() { return bytes.data(); }
  const void* data() const { return bytes.data(); }
  friend bool operator==(const Array&, const Array&) = default;
};

inline std::vector<float> random_floats(std::size_t n, unsigned seed, float low, float high) {
  std::mt19937 engine(seed);
  std::vector<float> values(n);
  for (float& value : values) {
    value = low + (high - low) * (static_cast<float>(engine() >> 8) * 0x1p-24F);
  }
  return values;
}

// Splits into pieces of `grain`, every piece on a thread of its own.
inline ParallelFor threads_for_test() {
  return [](std::int64_t n, std::int64_t grain,
            const std::function<void(std::int64_t, std::int64_t)>& body) {
    std::vector<std::thread> threads;
    for (std::int64_t begin = 0; begin < n; begin += grain) {
      threads.emplace_back([&body, begin, end = std::min(n, begin + grain)] { body(begin, end); });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  };
}

// How a shard with 16-bit masters stores its arrays.
struct Narrow {
  DType gradient, master, state;
};

inline std::vector<Narrow> all_narrow() {
  std::vector<Narrow> cases;
  for (DType master : {DType::kFloat16, DType::kBFloat16}) {
    for (DType gradient : {DType::kFloat32, master}) {
      for (DType state : {DType::kFloat32, master}) {
        cases.push_back({gradient, master, state});
      }
    }
  }
  return cases;
}

// A shard whose chunks have awkward lengths and offsets, with gaps that nobody may touch. Chunk i
// belongs to parameter i.
struct TestShard {
  Array master;
  Array state0;
  Array state1;
  Array gradient;
  Array parameter;
  bool parameter_is_master = false;
  std::vector<Chunk> chunks;

  TestShard(DType gradient_dtype, DType parameter_dtype, bool shares_master, int groups)
      : parameter_is_master(shares_master) {
    std::int64_t offset = 3;
    for (std::int32_t length : {1, 7, 8, 16, 0, 33, 64, 1000, 2051, 5, 4096}) {
      const auto index = static_cast<std::int32_t>(chunks.size());
      chunks.push_back(Chunk{offset, length, 0, index % groups, index});
      offset += length + index % 5;
    }
    const auto n = static_cast<std::size_t>(offset + 9);
    master = Array(DType::kFloat32, random_floats(n, 1, -1.0F, 1.0F));
    state0 = Array(DType::kFloat32, random_floats(n, 2, -0.1F, 0.1F));
    state1 = Array(DType::kFloat32, random_floats(n, 3, 1e-4F, 0.01F));
    gradient = Array(gradient_dtype, random_floats(n, 4, -0.3F, 0.3F));
    parameter = Array(parameter_dtype, random_floats(n, 5, -1.0F, 1.0F));
  }
  // The same shard with 16-bit masters, which are the parameters.
  void narrow(DType master_dtype, DType state_dtype) {
    master = master.in(master_dtype);
    state0 = state0.in(state_dtype);
    state1 = state1.in(state_dtype);
    parameter = parameter.in(master_dtype);
    parameter_is_master = true;
  }
  ShardPointers pointers() {
    ShardPointers p;
    p.master = master.data();
    p.master_dtype = master.dtype;
    p.state_dtype = state0.dtype;
    p.parameter = parameter_is_master ? master.data() : parameter.data();
    p.parameter_dtype = parameter.dtype;
    p.state[0] = state0.data();
    p.state[1] = state1.data();
    p.gradient = gradient.data();
    p.gradient_dtype = gradient.dtype;
    return p;
  }
  // chunk of element i, or −1 for a gap
  std::vector<int> owners() const {
    std::vector<int> owner(master.size(), -1);
    for (std::size_t c = 0; c < chunks.size(); ++c) {
      for (int i = 0; i < chunks[c].length; ++i) {
        owner[chunks[c].offset + i] = static_cast<int>(c);
      }
    }
    return owner;
  }
};

}  // namespace shardwise::kernels::testing
