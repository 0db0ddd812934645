// Scores and numbers packed into one integer that sorts best first: how candidates and results are ordered everywhere.
#pragma once
#include <bit>
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

}  // namespace aniso
