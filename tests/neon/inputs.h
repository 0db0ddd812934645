// The inputs of the comparisons, alike on every machine, and memory for outputs.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

using Bytes = std::vector<std::uint8_t>;
using Floats = std::vector<float>;

constexpr double epsilon = std::numeric_limits<float>::epsilon();
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr int untouched = 77;    // what outputs hold before a call
constexpr std::size_t more = 9;  // values past the end of outputs, which must stay untouched

struct alignas(64) Line {
  char bytes[64];
};

inline std::vector<Line> scratch(std::size_t bytes) { return std::vector<Line>(bytes / sizeof(Line) + 1); }

template <class T>
std::vector<T> output(std::size_t count) {
  return std::vector<T>(count + more, static_cast<T>(untouched));
}

inline double dot(const float* a, const float* b, std::size_t d) {
  double sum = 0;
  for (std::size_t j = 0; j < d; ++j) sum += static_cast<double>(a[j]) * b[j];
  return sum;
}

inline double dot_of_sizes(const float* a, const float* b, std::size_t d) {
  double sum = 0;
  for (std::size_t j = 0; j < d; ++j) sum += std::fabs(static_cast<double>(a[j]) * b[j]);
  return sum;
}

// The same numbers on every machine: integers, and floats that are exact multiples of a power of two.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t bits() {  // splitmix64
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  std::int64_t whole(std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(most - least + 1));
  }

  std::size_t size(std::size_t least, std::size_t most) {
    return static_cast<std::size_t>(whole(static_cast<std::int64_t>(least), static_cast<std::int64_t>(most)));
  }

  float real() { return static_cast<float>(whole(-(1 << 23), 1 << 23)) * 0x1p-22f; }  // -2 .. 2

  template <class T>
  std::vector<T> wholes(std::size_t count, std::int64_t least, std::int64_t most) {
    std::vector<T> values(count);
    for (T& value : values) value = static_cast<T>(whole(least, most));
    return values;
  }

  // Whole numbers of at most `most`, whose short sums are exact, or where most is 0 any floats.
  std::vector<float> floats(std::size_t count, int most = 0) {
    if (most) return wholes<float>(count, -most, most);
    std::vector<float> values(count);
    for (float& value : values) value = real();
    return values;
  }

 private:
  std::uint64_t state_;
};
