// The vocabulary of the table-lookup kernels: 32 bytes, one per point of a block.
// Only `lookup` and `Sums::at_least` need intrinsics; the rest is the compiler's vector extension.
#pragma once
#include <cstddef>
#include <cstdint>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON) && defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace aniso::ANISO_ISA {
namespace {

constexpr std::size_t block = 32;  // points in a block

typedef std::uint8_t U8 __attribute__((vector_size(block)));
typedef std::uint16_t U16 __attribute__((vector_size(block)));  // half a block

inline U8 load_bytes(const std::uint8_t* from) {
  U8 v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}

// A table of 16 bytes, laid out for `lookup`.
inline U8 load_table(const std::uint8_t* table) {
#if defined(__AVX2__)
  return reinterpret_cast<U8>(_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table))));
#else
  U8 v;
  __builtin_memcpy(&v, table, 16);
  __builtin_memcpy(reinterpret_cast<std::uint8_t*>(&v) + 16, table, 16);
  return v;
#endif
}

// table[index] for each of 32 indices below 16
inline U8 lookup(U8 table, U8 index) {
#if defined(__AVX2__)
  return reinterpret_cast<U8>(_mm256_shuffle_epi8(reinterpret_cast<__m256i>(table), reinterpret_cast<__m256i>(index)));
#elif defined(__ARM_NEON) && defined(__aarch64__)
  uint8x16_t t, low, high;
  __builtin_memcpy(&t, &table, 16);
  __builtin_memcpy(&low, &index, 16);
  __builtin_memcpy(&high, reinterpret_cast<const std::uint8_t*>(&index) + 16, 16);
  low = vqtbl1q_u8(t, low);
  high = vqtbl1q_u8(t, high);
  U8 out;
  __builtin_memcpy(&out, &low, 16);
  __builtin_memcpy(reinterpret_cast<std::uint8_t*>(&out) + 16, &high, 16);
  return out;
#else
  U8 out;
  for (std::size_t i = 0; i < block; ++i) out[i] = table[index[i]];
  return out;
#endif
}

inline U8 low_nibbles(U8 v) { return v & 15; }
inline U8 high_nibbles(U8 v) { return v >> 4; }

// Sums of 32 points as 16-bit numbers: points 0, 2, 4 .. in even, 1, 3, 5 .. in odd.
struct Sums {
  U16 even, odd;  // not set to zero unless asked: an array of them is cleared by a slow instruction

  static Sums zero() { return {U16{}, U16{}}; }

  void add(U8 v) {
    const U16 pairs = reinterpret_cast<U16>(v);
    even += pairs & 255;
    odd += pairs >> 8;
  }

  // Bit i is set where the sum of point i is at least `least`.
  std::uint32_t at_least(std::uint16_t least) const {
#if defined(__AVX2__)
    const __m256i limit = _mm256_set1_epi16(static_cast<short>(least));
    const __m256i e = reinterpret_cast<__m256i>(even), o = reinterpret_cast<__m256i>(odd);
    const __m256i e_mask = _mm256_cmpeq_epi16(_mm256_max_epu16(e, limit), e);
    const __m256i o_mask = _mm256_cmpeq_epi16(_mm256_max_epu16(o, limit), o);
    const __m256i mask = _mm256_blendv_epi8(e_mask, o_mask, _mm256_set1_epi16(static_cast<short>(0xff00)));
    return static_cast<std::uint32_t>(_mm256_movemask_epi8(mask));
#else
    std::uint32_t mask = 0;
    for (std::size_t i = 0; i < block / 2; ++i) {
      mask |= static_cast<std::uint32_t>(even[i] >= least) << (2 * i);
      mask |= static_cast<std::uint32_t>(odd[i] >= least) << (2 * i + 1);
    }
    return mask;
#endif
  }

  void store(std::uint16_t* to_even, std::uint16_t* to_odd) const {
    __builtin_memcpy(to_even, &even, sizeof even);
    __builtin_memcpy(to_odd, &odd, sizeof odd);
  }
};

}  // namespace
}  // namespace aniso::ANISO_ISA
