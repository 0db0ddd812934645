// The vocabulary of the table-lookup kernels: 32 bytes, one per point of a block, or 64, of two blocks at a time, where
// the instruction set is fast with them. Loads, `lookup` and `Sums::at_least` need intrinsics; the rest is the
// compiler's vector extension.
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

// The same row of neighbouring blocks, `apart` bytes from one to the next: one block, or two.
template <class Bytes>
inline Bytes load_blocks(const std::uint8_t* from, std::size_t) {
  return load_bytes(from);
}

// A table of 16 bytes, laid out for `lookup`.
template <class Bytes>
inline Bytes load_table(const std::uint8_t* table) {
#if defined(ANISO_NARROW)
  // By name: the newer encoding, which the compiler may take, occupies a unit that looks up (decision 11).
  __m256i v;
  asm("vbroadcasti128 %1, %0" : "=x"(v) : "m"(*reinterpret_cast<const __m128i_u*>(table)));
  return reinterpret_cast<U8>(v);
#elif defined(__AVX2__)
  return reinterpret_cast<U8>(_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table))));
#else
  U8 v;
  __builtin_memcpy(&v, table, 16);
  __builtin_memcpy(reinterpret_cast<std::uint8_t*>(&v) + 16, table, 16);
  return v;
#endif
}

#if defined(__AVX512VBMI__)

// Here a lookup reads the low 5 or 6 bits of an index. As the table is repeated to fill the register, only the low four
// count: what stands above them in the nibbles below is left there.
typedef std::uint8_t U8x2 __attribute__((vector_size(2 * block)));
typedef std::uint16_t U16x2 __attribute__((vector_size(2 * block)));

template <>
inline U8x2 load_blocks<U8x2>(const std::uint8_t* from, std::size_t apart) {
  const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  const __m256i second = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + apart));
  return reinterpret_cast<U8x2>(_mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1));
}

template <>
inline U8x2 load_table<U8x2>(const std::uint8_t* table) {
  return reinterpret_cast<U8x2>(_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table))));
}

inline U8 lookup(U8 table, U8 index) {
  return reinterpret_cast<U8>(
      _mm256_permutexvar_epi8(reinterpret_cast<__m256i>(index), reinterpret_cast<__m256i>(table)));
}

inline U8x2 lookup(U8x2 table, U8x2 index) {
  return reinterpret_cast<U8x2>(
      _mm512_permutexvar_epi8(reinterpret_cast<__m512i>(index), reinterpret_cast<__m512i>(table)));
}

inline U8 low_nibbles(U8 v) { return v; }
inline U8x2 low_nibbles(U8x2 v) { return v; }
inline U8 high_nibbles(U8 v) { return reinterpret_cast<U8>(reinterpret_cast<U16>(v) >> 4); }
inline U8x2 high_nibbles(U8x2 v) { return reinterpret_cast<U8x2>(reinterpret_cast<U16x2>(v) >> 4); }

#else

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

#endif

// Sums of points as 16-bit numbers: points 0, 2, 4 .. in even, 1, 3, 5 .. in odd. What is added to odd is added to even
// too, 256 times, until `settle` takes it out again: so nothing has to be masked on the way.
template <class Bytes>
struct Sums {
  typedef std::uint16_t Words __attribute__((vector_size(sizeof(Bytes))));
  static constexpr std::size_t half = sizeof(Bytes) / 2;

  Words even, odd;  // not set to zero unless asked: an array of them is cleared by a slow instruction

  static Sums zero() { return {Words{}, Words{}}; }

  void add(Bytes v) {
    const Words pairs = reinterpret_cast<Words>(v);
    even += pairs;
    odd += pairs >> 8;
  }

  void settle() { even -= odd << 8; }

#if !defined(__AVX512VBMI__)
  // Bit i is set where the sum of point i is at least `least`.
  std::uint64_t at_least(std::uint16_t least) const {
#if defined(__AVX2__)
    const __m256i limit = _mm256_set1_epi16(static_cast<short>(least));
    const __m256i e = reinterpret_cast<__m256i>(even), o = reinterpret_cast<__m256i>(odd);
    const __m256i e_mask = _mm256_cmpeq_epi16(_mm256_max_epu16(e, limit), e);
    const __m256i o_mask = _mm256_cmpeq_epi16(_mm256_max_epu16(o, limit), o);
    const __m256i mask = _mm256_blendv_epi8(e_mask, o_mask, _mm256_set1_epi16(static_cast<short>(0xff00)));
    return static_cast<std::uint32_t>(_mm256_movemask_epi8(mask));
#else
    std::uint16_t e[half], o[half];
    store(e, o);
    std::uint64_t mask = 0;
    for (std::size_t i = 0; i < half; ++i) {
      mask |= static_cast<std::uint64_t>(e[i] >= least) << (2 * i);
      mask |= static_cast<std::uint64_t>(o[i] >= least) << (2 * i + 1);
    }
    return mask;
#endif
  }

  void store(std::uint16_t* to_even, std::uint16_t* to_odd) const {
    __builtin_memcpy(to_even, &even, sizeof even);
    __builtin_memcpy(to_odd, &odd, sizeof odd);
  }
#endif
};

}  // namespace
}  // namespace aniso::ANISO_ISA
