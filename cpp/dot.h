// Inner products of one query: lookup tables, centroids in 8 bits, single rows.
// Integer kernels are exact, so every instruction set agrees to the bit. Definitions: kernels.h.
#pragma once
#include "bytes.h"
#include "kernels.h"
#include "simd.h"

namespace aniso::ANISO_ISA {
namespace {

constexpr std::size_t table_vectors = 16 / lanes;  // vectors that hold the 16 entries of a table

inline float smallest(F32 v) {
  typedef float F4 __attribute__((vector_size(16)));
  F4 parts[sizeof v / sizeof(F4)];
  __builtin_memcpy(parts, &v, sizeof v);
  F4 four = parts[0];
  for (std::size_t i = 1; i < sizeof v / sizeof(F4); ++i) four = parts[i] < four ? parts[i] : four;
  const float a = four[0] < four[1] ? four[0] : four[1], b = four[2] < four[3] ? four[2] : four[3];
  return a < b ? a : b;
}

// bytes[i] = values[i] * factor + 0.5, whole and below 256. Told that they do not overlap, the compiler takes many at
// once.
inline void to_bytes(const float* __restrict values, float factor, std::size_t count, std::uint8_t* __restrict bytes) {
  for (std::size_t i = 0; i < count; ++i)
    bytes[i] = static_cast<std::uint8_t>(static_cast<std::int32_t>(values[i] * factor + 0.5f));
}

void make_tables(const Tables& t, const float* query, float* floats, std::uint8_t* tables, float* offset, float* step) {
  float low_sum = 0, widest = 0;
  for (std::size_t first = 0; first < t.m; first += t.group) {
    const std::size_t stop = first + t.group < t.m ? first + t.group : t.m;
    float spans = 0;
    for (std::size_t m = first; m < stop; ++m) {
      const float* q = query + t.firsts[m];
      const float* words = t.codewords + m * t.width * 16;
      F32 sums[table_vectors] = {};
      for (std::size_t j = 0; j < t.width; ++j)
        for (std::size_t v = 0; v < table_vectors; ++v) sums[v] += q[j] * load(words + j * 16 + v * lanes);
      F32 least = sums[0], most = sums[0];
      for (std::size_t v = 1; v < table_vectors; ++v) {
        least = sums[v] < least ? sums[v] : least;
        most = sums[v] > most ? sums[v] : most;
      }
      const float low = smallest(least), high = -smallest(-most);
      low_sum += low;
      spans += high - low;
      for (std::size_t v = 0; v < table_vectors; ++v) store(floats + m * 16 + v * lanes, sums[v] - low);
    }
    widest = spans > widest ? spans : widest;
  }
  const float room = 255.0f - 0.5f * static_cast<float>(t.group);
  const float unit = widest > 0 ? widest / room : 1.0f;
  to_bytes(floats, 1.0f / unit, t.m * 16, tables);
  *offset = low_sum;
  *step = unit;
}

// Scores of `Count` blocks side by side, so that a load of the query serves them all; meanwhile those of `next` come
// into the cache where they are far: neighbours come by themselves.
template <std::size_t Count, bool Far>
inline void score_blocks(const Centroids& c, const std::uint8_t* query, float factor, const std::uint32_t* list,
                         const std::uint32_t* next, std::int32_t* scores, float* order) {
  const std::size_t quads = c.d4 / 4;
#if defined(__AVX2__)
  const std::int8_t *centroids[Count], *ahead[Count];
  for (std::size_t k = 0; k < Count; ++k) {
    centroids[k] = c.bytes + list[k] * quads * 32;
    ahead[k] = c.bytes + next[k] * quads * 32;
  }
  __m256i totals[Count];
#if defined(__AVX512VNNI__)
  // Eight centroids by two quads fill a register; two sums of each block, so that none waits for the other.
  const __m512i halves = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
  auto eight = [&](std::size_t i) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(query + 4 * i));
    return _mm512_permutexvar_epi32(halves, _mm512_castsi128_si512(bytes));
  };
  __m512i even[Count], odd[Count];
#pragma GCC unroll 4
  for (std::size_t k = 0; k < Count; ++k) even[k] = odd[k] = _mm512_setzero_si512();
  std::size_t i = 0;
  for (; i + 4 <= quads; i += 4) {
    const __m512i q0 = eight(i), q1 = eight(i + 2);
#pragma GCC unroll 4
    for (std::size_t k = 0; k < Count; ++k) {
      const std::int8_t* here = centroids[k] + i * 32;
      if constexpr (Far) __builtin_prefetch(ahead[k] + i * 32, 0, 2);
      if constexpr (Far) __builtin_prefetch(ahead[k] + i * 32 + 64, 0, 2);
      even[k] = _mm512_dpbusd_epi32(even[k], q0, _mm512_loadu_si512(here));
      odd[k] = _mm512_dpbusd_epi32(odd[k], q1, _mm512_loadu_si512(here + 64));
    }
  }
  if (i < quads) {
    const __m512i q0 = eight(i);
#pragma GCC unroll 4
    for (std::size_t k = 0; k < Count; ++k)
      even[k] = _mm512_dpbusd_epi32(even[k], q0, _mm512_loadu_si512(centroids[k] + i * 32));
  }
#pragma GCC unroll 4
  for (std::size_t k = 0; k < Count; ++k) {
    const __m512i both = _mm512_add_epi32(even[k], odd[k]);
    totals[k] = _mm256_add_epi32(_mm512_castsi512_si256(both), _mm512_extracti64x4_epi64(both, 1));
  }
#else
  const __m256i ones = _mm256_set1_epi16(1);
  auto quad = [&](std::size_t i) {
    std::int32_t four;
    __builtin_memcpy(&four, query + 4 * i, 4);
    return _mm256_set1_epi32(four);
  };
  auto at = [](const std::int8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); };
  for (std::size_t k = 0; k < Count; ++k) totals[k] = _mm256_setzero_si256();
  for (std::size_t i = 0; i < quads; i += 2) {
    const __m256i q0 = quad(i), q1 = quad(i + 1);
#pragma GCC unroll 4
    for (std::size_t k = 0; k < Count; ++k) {
      const std::int8_t* here = centroids[k] + i * 32;
      if constexpr (Far) __builtin_prefetch(ahead[k] + i * 32, 0, 2);
      // Two products of at most 127 * 63 twice: 32004 fits 16 bits.
      const __m256i pair =
          _mm256_add_epi16(_mm256_maddubs_epi16(q0, at(here)), _mm256_maddubs_epi16(q1, at(here + 32)));
      totals[k] = _mm256_add_epi32(totals[k], _mm256_madd_epi16(pair, ones));
    }
  }
#endif
  const __m256 unit = _mm256_set1_ps(factor);
  for (std::size_t k = 0; k < Count; ++k) {
    const std::size_t first = list[k] * std::size_t{8};
    const __m256i shift = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(c.sums + first));
    const __m256i score = _mm256_sub_epi32(totals[k], shift);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(scores + k * 8), score);
    const __m256 scaled =
        _mm256_mul_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(score), _mm256_loadu_ps(c.scales + first)), unit);
    _mm256_storeu_ps(order + k * 8, _mm256_add_ps(scaled, _mm256_loadu_ps(c.biases + first)));
  }
#else
  static_cast<void>(next);
  for (std::size_t k = 0; k < Count; ++k) {
    const std::int8_t* centroids = c.bytes + list[k] * quads * 32;
    const std::size_t first = list[k] * std::size_t{8};
    std::int32_t sums[8] = {};
    for (std::size_t i = 0; i < quads; ++i)
      for (std::size_t p = 0; p < 8; ++p)
        for (std::size_t j = 0; j < 4; ++j)
          sums[p] += static_cast<std::int32_t>(query[4 * i + j]) * centroids[(i * 8 + p) * 4 + j];
    for (std::size_t p = 0; p < 8; ++p) {
      scores[k * 8 + p] = sums[p] - c.sums[first + p];
      order[k * 8 + p] = static_cast<float>(scores[k * 8 + p]) * c.scales[first + p] * factor + c.biases[first + p];
    }
  }
#endif
}

void score_centroids(const Centroids& c, const std::uint8_t* query, float factor, const std::uint32_t* list,
                     std::size_t count, std::int32_t* scores, float* order) {
  std::size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const std::uint32_t *here = list + i, *next = here + (i + 8 <= count ? 4 : 0);
    if (next[0] == here[3] + 1)
      score_blocks<4, false>(c, query, factor, here, next, scores + 8 * i, order + 8 * i);
    else
      score_blocks<4, true>(c, query, factor, here, next, scores + 8 * i, order + 8 * i);
  }
  for (; i < count; ++i) score_blocks<1, false>(c, query, factor, list + i, list + i, scores + 8 * i, order + 8 * i);
}

float dot_f32(const float* row, const float* query, std::size_t d) {
  F32 sums[4] = {};
  std::size_t j = 0;
  for (; j + 4 * lanes <= d; j += 4 * lanes)
    for (std::size_t v = 0; v < 4; ++v) sums[v] += load(row + j + v * lanes) * load(query + j + v * lanes);
  for (; j + lanes <= d; j += lanes) sums[0] += load(row + j) * load(query + j);
  float sum = 0;
  if (j < d && d >= lanes) {  // the last lanes, without those that were there already
    const I32 fresh = lane_numbers() >= static_cast<std::int32_t>(j + lanes - d);
    const F32 last = load(row + d - lanes) * load(query + d - lanes);
    sums[1] += reinterpret_cast<F32>(reinterpret_cast<I32>(last) & fresh);
    j = d;
  }
  for (; j < d; ++j) sum += row[j] * query[j];
  return sum + total((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

void sum_squares(const float* values, std::size_t count, float* sum, float* squares) {
  F32 total{}, total_squares{};
  std::size_t i = 0;
  float rest = 0, rest_squares = 0;
  for (; i + lanes <= count; i += lanes) {
    const F32 value = load(values + i);
    total += value;
    total_squares += value * value;
  }
  for (; i < count; ++i) {
    rest += values[i];
    rest_squares += values[i] * values[i];
  }
  for (std::size_t l = 0; l < lanes; ++l) {
    rest += total[l];
    rest_squares += total_squares[l];
  }
  *sum = rest;
  *squares = rest_squares;
}

std::size_t select_at_least(const float* scores, std::size_t count, float least, std::uint32_t* out) {
  std::size_t found = 0, i = 0;
#if defined(__AVX2__)
  const __m256 limit = _mm256_set1_ps(least);
  for (; i + 8 <= count; i += 8) {
    int mask = _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(scores + i), limit, _CMP_GE_OQ));
    for (; mask; mask &= mask - 1)
      out[found++] = static_cast<std::uint32_t>(i) + static_cast<std::uint32_t>(__builtin_ctz(mask));
  }
#endif
  for (; i < count; ++i)
    if (scores[i] >= least) out[found++] = static_cast<std::uint32_t>(i);
  return found;
}

#if defined(__AVX2__)
// places[mask]: the numbers of the bits of mask, in order.
struct Places {
  std::uint8_t of[256][8];
  constexpr Places() : of() {
    for (unsigned mask = 0; mask < 256; ++mask)
      for (unsigned bit = 0, count = 0; bit < 8; ++bit)
        if (mask >> bit & 1) of[mask][count++] = static_cast<std::uint8_t>(bit);
  }
};
constexpr Places places;
#endif

// Without a branch on what is found: which numbers are taken cannot be predicted.
std::size_t select_not_below(const float* scores, std::size_t count, float least, std::uint32_t* out) {
  std::size_t found = 0, i = 0;
#if defined(__AVX2__)
  const __m256 limit = _mm256_set1_ps(least);
  for (; i + 8 <= count; i += 8) {
    const int mask = _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(scores + i), limit, _CMP_NLT_UQ));
    const __m128i bits = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(places.of[mask]));
    const __m256i numbers = _mm256_add_epi32(_mm256_cvtepu8_epi32(bits), _mm256_set1_epi32(static_cast<int>(i)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + found), numbers);
    found += static_cast<std::size_t>(__builtin_popcount(static_cast<unsigned>(mask)));
  }
#endif
  for (; i < count; ++i) {
    out[found] = static_cast<std::uint32_t>(i);
    found += !(scores[i] < least);
  }
  return found;
}

}  // namespace
}  // namespace aniso::ANISO_ISA
