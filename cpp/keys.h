// Scores and numbers packed into one integer that sorts best first: how candidates and results are ordered everywhere.
#pragma once
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace aniso {

// An unsigned number that sorts as the float does.
inline std::uint32_t sortable(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

inline float from_sortable(std::uint32_t bits) {
  return std::bit_cast<float>(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
}

// Larger is better; among equal scores the lower number is.
inline std::uint64_t key_of(std::uint32_t score, std::uint32_t number) {
  return static_cast<std::uint64_t>(score) << 32 | (0xffffffffu - number);
}

inline std::uint32_t score_of(std::uint64_t key) { return static_cast<std::uint32_t>(key >> 32); }

inline std::uint32_t number_of(std::uint64_t key) { return 0xffffffffu - static_cast<std::uint32_t>(key); }

constexpr std::size_t few = 64;  // keys that are put in order by comparing each with all (Kernels::sort_keys)

// Puts the largest `keep` of the keys first, in no order. What is compared decides no branch, as it cannot be
// predicted: several times as fast as std::nth_element on a hundred keys.
inline void keep_best(std::uint64_t* keys, std::size_t count, std::size_t keep) {
  // The largest are keys[0 .. first - 1] and some of keys[first .. end - 1].
  std::size_t first = 0, end = count;
  const auto part = [&](auto before) {
    std::size_t at = first;
    for (std::size_t i = first; i < end; ++i) {
      const std::uint64_t key = keys[i];
      keys[i] = keys[at];
      keys[at] = key;
      at += before(key);
    }
    return at;
  };
  while (first < keep && keep < end) {
    const std::uint64_t a = keys[first], b = keys[first + (end - first) / 2], c = keys[end - 1];
    const std::uint64_t middle = std::max(std::min(a, b), std::min(std::max(a, b), c));
    const std::size_t at = part([middle](std::uint64_t key) { return key > middle; });
    if (keep <= at)
      end = at;
    else if (at > first)
      first = at;
    else
      first = std::min(keep, part([middle](std::uint64_t key) { return key == middle; }));
  }
}

}  // namespace aniso
