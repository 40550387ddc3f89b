#include "shardwise/monitor/format.h"

#include <charconv>
#include <cmath>
#include <cstdio>

namespace shardwise::monitor {
namespace {

// "" for finite numbers.
std::string not_finite(double value, const char* infinity) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? std::string("-") + infinity : infinity;
  return "";
}

template <typename... Arguments>
std::string print(const char* format, Arguments... arguments) {
  char text[64];
  const int size = std::snprintf(text, sizeof(text), format, arguments...);
  return std::string(text, static_cast<std::size_t>(size));
}

}  // namespace

std::string exact(double value) {
  if (!std::isfinite(value)) return not_finite(value, "Infinity");
  char text[32];
  const std::to_chars_result end = std::to_chars(text, text + sizeof(text), value);
  return std::string(text, end.ptr);
}

std::string digits(double value, int count) {
  if (!std::isfinite(value)) return not_finite(value, "inf");
  std::string text = print("%#.*g", count, value);
  if (text.back() == '.') text.pop_back();  // "1234." has no decimals left
  return text;
}

std::string scientific(double value) {
  return std::isfinite(value) ? print("%.1e", value) : not_finite(value, "inf");
}

std::string scaled(double value) {
  if (!std::isfinite(value)) return not_finite(value, "inf");
  static constexpr const char* kUnits[] = {"", "k", "M", "G", "T", "P", "E"};
  std::size_t unit = 0;
  // 999.5 would be printed as 1000.
  for (; std::fabs(value) >= 999.5 && unit + 1 < std::size(kUnits); ++unit) value /= 1000;
  const double size = std::fabs(value);
  const int decimals = size < 9.995 ? 2 : size < 99.95 ? 1 : 0;
  return print("%.*f%s", size >= 1e6 ? 0 : decimals, std::fmin(std::fmax(value, -1e9), 1e9),
               kUnits[unit]);
}

std::string binary_bytes(std::int64_t bytes) {
  const double mebibytes = static_cast<double>(bytes) / (1 << 20);
  return mebibytes < 1024 ? print("%.0f MiB", mebibytes) : print("%.2f GiB", mebibytes / 1024);
}

std::string grouped(std::int64_t value) {
  std::string text = std::to_string(value);
  const std::size_t first = value < 0 ? 1 : 0;
  for (std::size_t at = text.size(); at > first + 3;) {
    at -= 3;
    text.insert(at, " ");
  }
  return text;
}

std::string duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  const double whole = std::round(seconds);
  if (whole < 60) return print("%ds", static_cast<int>(whole));
  if (whole < 3600) {
    return print("%dm%02ds", static_cast<int>(whole) / 60, static_cast<int>(whole) % 60);
  }
  const double minutes = std::round(seconds / 60);
  if (minutes < 24 * 60) {
    return print("%dh%02dm", static_cast<int>(minutes) / 60, static_cast<int>(minutes) % 60);
  }
  const double hours = std::fmin(std::round(seconds / 3600), 1e9);
  return print("%dd%02dh", static_cast<int>(hours) / 24, static_cast<int>(hours) % 24);
}

}  // namespace shardwise::monitor
