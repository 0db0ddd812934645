// Where the bytes of a mask are set.
#pragma once
#include "bytes.h"

namespace aniso::ANISO_ISA {
namespace {

// Bit i is set where byte i of 32 is not 0.
inline std::uint64_t bits_set(const std::uint8_t* bytes) {
#if defined(__AVX2__)
  const __m256i zero = _mm256_cmpeq_epi8(reinterpret_cast<__m256i>(load_bytes(bytes)), _mm256_setzero_si256());
  return static_cast<std::uint32_t>(~_mm256_movemask_epi8(zero));
#else
  std::uint64_t eights[4], bits = 0;
  __builtin_memcpy(eights, bytes, sizeof eights);
  if (!(eights[0] | eights[1] | eights[2] | eights[3])) return 0;
  for (int i = 0; i < 4; ++i) {
    // The high bit of each byte that is not 0; a product brings the eight together.
    constexpr std::uint64_t low = 0x7f7f7f7f7f7f7f7f;
    const std::uint64_t high = (((eights[i] & low) + low) | eights[i]) & ~low;
    bits |= (high >> 7) * 0x0102040810204080 >> 56 << 8 * i;
  }
  return bits;
#endif
}

std::size_t places_set(const std::uint8_t* bytes, std::size_t length, std::int64_t* places, std::size_t room) {
  std::size_t count = 0, i = 0;
  for (; length - i >= 2 * block; i += 2 * block)
    for (std::uint64_t set = bits_set(bytes + i) | bits_set(bytes + i + block) << block; set; set &= set - 1) {
      if (count == room) return room + 1;
      places[count++] = static_cast<std::int64_t>(i) + __builtin_ctzll(set);
    }
  for (; i < length; ++i) {
    if (!bytes[i]) continue;
    if (count == room) return room + 1;
    places[count++] = static_cast<std::int64_t>(i);
  }
  return count;
}

}  // namespace
}  // namespace aniso::ANISO_ISA
