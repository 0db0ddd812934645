// Rescoring: a query and rows picked by their numbers, four at a time, so that a load of the query serves them all and
// their sums are added up together. A row's score does not depend on the rows beside it.
#pragma once
#include "bytes.h"
#include "kernels.h"
#include "simd.h"

namespace aniso::ANISO_ISA {
namespace {

constexpr std::size_t at_once = 4;  // rows

// The rows from place `first` on; where fewer are left, the last stands in for the missing.
template <class Value>
inline void pick_rows(const Rows& r, std::size_t first, std::size_t count, const Value** rows) {
  for (std::size_t c = 0; c < at_once; ++c) {
    const std::size_t place = first + c < count ? first + c : count - 1;
    rows[c] = reinterpret_cast<const Value*>(static_cast<const char*>(r.first) + r.numbers[place] * r.stride);
  }
}

// The float32 of float16 bits.
inline float from_half(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000u) << 16;
  const std::uint32_t magnitude = h & 0x7fffu;
  if (magnitude < 0x0400u) {  // zero and subnormal: units of 2^-24
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return sign ? -value : value;
  }
  const std::uint32_t bits = sign | ((magnitude << 13) + ((magnitude >= 0x7c00u ? 224u : 112u) << 23));
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

inline float widen(float x) { return x; }
inline float widen(std::uint16_t half) { return from_half(half); }

// As many numbers as fill a register.
inline F32 load_wide(const float* from) { return load(from); }
inline F32 load_wide(const std::uint16_t* from) {
#if defined(__AVX512F__)
  return reinterpret_cast<F32>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
#elif defined(__F16C__) && defined(__AVX2__)
  return reinterpret_cast<F32>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#else
  F32 v;
  for (std::size_t l = 0; l < lanes; ++l) v[l] = from_half(from[l]);
  return v;
#endif
}

// What one dimension adds: a product, or a squared difference.
template <bool Distance, class V>
inline V term(V row, V query) {
  if constexpr (Distance) {
    const V difference = row - query;
    return difference * difference;
  } else {
    return row * query;
  }
}

// The sum of the lanes of each register, in pairs.
inline void add_lanes(const F32* sums, float* out) {
#if defined(__AVX2__)
  __m256 eight[at_once];
  for (std::size_t c = 0; c < at_once; ++c)
#if defined(__AVX512F__)
    eight[c] = _mm512_castps512_ps256(reinterpret_cast<__m512>(sums[c])) +
               _mm512_extractf32x8_ps(reinterpret_cast<__m512>(sums[c]), 1);
#else
    eight[c] = reinterpret_cast<__m256>(sums[c]);
#endif
  const __m256 all = _mm256_hadd_ps(_mm256_hadd_ps(eight[0], eight[1]), _mm256_hadd_ps(eight[2], eight[3]));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
#else
  for (std::size_t c = 0; c < at_once; ++c) out[c] = total(sums[c]);
#endif
}

template <bool Distance, class Value>
inline void reduce_rows(const Rows& r, const float* query, std::size_t count, float* out) {
  const std::size_t d = r.d;
  const I32 fresh = lane_numbers() >= static_cast<std::int32_t>(d < lanes ? 0 : lanes - d % lanes);
  for (std::size_t i = 0; i < count; i += at_once) {
    const Value* rows[at_once];
    pick_rows(r, i, count, rows);
    F32 sums[at_once] = {};
    std::size_t j = 0;
    for (; j + lanes <= d; j += lanes) {
      const F32 q = load(query + j);
#pragma GCC unroll 4
      for (std::size_t c = 0; c < at_once; ++c) sums[c] += term<Distance>(load_wide(rows[c] + j), q);
    }
    float scores[at_once], rest[at_once] = {};
    if (j < d && d >= lanes) {  // the last lanes, without those that were there already
      const F32 q = load(query + d - lanes);
      for (std::size_t c = 0; c < at_once; ++c) {
        const F32 last = term<Distance>(load_wide(rows[c] + d - lanes), q);
        sums[c] += reinterpret_cast<F32>(reinterpret_cast<I32>(last) & fresh);
      }
    } else {
      for (; j < d; ++j)
        for (std::size_t c = 0; c < at_once; ++c) rest[c] += term<Distance>(widen(rows[c][j]), query[j]);
    }
    add_lanes(sums, scores);
    for (std::size_t c = 0; c < at_once && i + c < count; ++c) out[i + c] = scores[c] + rest[c];
  }
}

void dot_rows_f32(const Rows& r, const float* query, std::size_t count, float* out) {
  reduce_rows<false, float>(r, query, count, out);
}
void dot_rows_f16(const Rows& r, const float* query, std::size_t count, float* out) {
  reduce_rows<false, std::uint16_t>(r, query, count, out);
}
void distance_rows_f32(const Rows& r, const float* query, std::size_t count, float* out) {
  reduce_rows<true, float>(r, query, count, out);
}
void distance_rows_f16(const Rows& r, const float* query, std::size_t count, float* out) {
  reduce_rows<true, std::uint16_t>(r, query, count, out);
}

#if defined(__AVX2__)
// Adds the products of 32 bytes, or 16, with as many words.
#if defined(__AVX512VNNI__)
typedef __m512i Products;
inline Products add_products(Products sum, const std::int8_t* row, const std::int16_t* query) {
  const __m512i x = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row)));
  return _mm512_dpwssd_epi32(sum, x, _mm512_loadu_si512(query));
}
inline __m256i eight_of(Products sum) {
  return _mm256_add_epi32(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
}
#else
typedef __m256i Products;
inline Products add_products(Products sum, const std::int8_t* row, const std::int16_t* query) {
  const __m256i x = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row)));
  const __m256i q = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(query));
  return _mm256_add_epi32(sum, _mm256_madd_epi16(x, q));
}
inline __m256i eight_of(Products sum) { return sum; }
#endif
#endif

void dot_rows_i8(const Rows& r, const std::int16_t* query, std::size_t count, std::int32_t* out) {
  const std::size_t d = r.d;
#if defined(__AVX2__)
  constexpr std::size_t step = sizeof(Products) / sizeof(std::int16_t);
  std::int16_t last[step];  // words of the query, without those that were there already
  for (std::size_t j = 0; d >= step && j < step; ++j) last[j] = j + d % step < step ? 0 : query[d - step + j];
#endif
  for (std::size_t i = 0; i < count; i += at_once) {
    const std::int8_t* rows[at_once];
    pick_rows(r, i, count, rows);
    std::int32_t scores[at_once] = {};
    std::size_t j = 0;
#if defined(__AVX2__)
    Products sums[at_once] = {};
    for (; j + step <= d; j += step)
#pragma GCC unroll 4
      for (std::size_t c = 0; c < at_once; ++c) sums[c] = add_products(sums[c], rows[c] + j, query + j);
    if (j < d && d >= step) {
      for (std::size_t c = 0; c < at_once; ++c) sums[c] = add_products(sums[c], rows[c] + d - step, last);
      j = d;
    }
    const __m256i two = _mm256_hadd_epi32(eight_of(sums[0]), eight_of(sums[1]));
    const __m256i all = _mm256_hadd_epi32(two, _mm256_hadd_epi32(eight_of(sums[2]), eight_of(sums[3])));
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(scores), four);
#endif
    for (; j < d; ++j)
      for (std::size_t c = 0; c < at_once; ++c) scores[c] += static_cast<std::int32_t>(rows[c][j]) * query[j];
    for (std::size_t c = 0; c < at_once && i + c < count; ++c) out[i + c] = scores[c];
  }
}

}  // namespace
}  // namespace aniso::ANISO_ISA
