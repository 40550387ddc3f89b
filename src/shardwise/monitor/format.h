// Numbers as text for people and for JSON.
#pragma once

#include <cstdint>
#include <string>

namespace shardwise::monitor {

// The fewest digits that read back as the same double; "NaN", "Infinity", "-Infinity".
std::string exact(double value);

// `count` significant digits, trailing zeros kept so that the width is steady: 4 -> "2.300".
// "NaN", "inf", "-inf".
std::string digits(double value, int count);

// One decimal and an exponent: "3.0e-04".
std::string scientific(double value);

// Three digits and a unit: "950", "12.3k", "1.20M".
std::string scaled(double value);

// "950 MiB", from 1024 of them "1.20 GiB".
std::string binary_bytes(std::int64_t bytes);

// A whole number with thin groups for reading: "1 234 567".
std::string grouped(std::int64_t value);

// The two largest units: "45s", "1m20s", "2h05m", "3d04h". "?" when not finite or negative.
std::string duration(double seconds);

}  // namespace shardwise::monitor
