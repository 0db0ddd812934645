// The scan: sums of table lookups for every point of a run of blocks, and only the promising points leave it.
// Definition: struct Scan in kernels.h; the layout of blocks is drawn in src/aniso/layout.py.
#pragma once
#include "bytes.h"
#include "kernels.h"

namespace aniso::ANISO_ISA {
namespace {

// Wide: the codes that a register holds. Registers of them are scanned together, as many as find room beside their
// sums.
#if defined(__AVX512VBMI__) && !defined(ANISO_NARROW)
using Wide = U8x2;
constexpr std::size_t registers = 3;
#elif defined(__AVX512VBMI__)
using Wide = U8;
constexpr std::size_t registers = 6;
#else
using Wide = U8;
constexpr std::size_t registers = 3;
#endif

// Adds the lookups of Count registers of neighbouring blocks, group by group: a group's sums fit 8 bits by the making
// of the tables. A register of two blocks of which there is only one more (`single`) holds that twice. Meanwhile as
// many bytes from `ahead` on come into the cache, up to the line at `last`.
template <class Bytes, std::size_t Count>
inline void sum_blocks(const Scan& s, const std::uint8_t* codes, bool single, Sums<Bytes>* out,
                       const std::uint8_t* ahead, const std::uint8_t* last) {
  constexpr std::size_t step = Count * sizeof(Bytes);
  Sums<Bytes> sums[Count];
#pragma GCC unroll 6
  for (std::size_t b = 0; b < Count; ++b) sums[b] = Sums<Bytes>::zero();
  const std::uint8_t* table = s.tables;
  const std::uint8_t* end = codes + s.rows * block;
  const std::size_t apart = s.rows * block, apart_in_last = single ? 0 : apart;
  while (codes < end) {
    const std::uint8_t* stop = codes + s.group_rows * block < end ? codes + s.group_rows * block : end;
    Bytes group[Count] = {};
    for (; codes < stop; codes += block, table += 32) {
      const Bytes low = load_table<Bytes>(table), high = load_table<Bytes>(table + 16);
      ahead = ahead < last ? ahead : last;
#pragma GCC unroll 3
      for (std::size_t line = 0; line < step; line += 64) __builtin_prefetch(ahead + line, 0, 2);
      ahead += step;
#pragma GCC unroll 6
      for (std::size_t b = 0; b < Count; ++b) {
        const Bytes both =
            load_blocks<Bytes>(codes + b * sizeof(Bytes) * s.rows, b + 1 < Count ? apart : apart_in_last);
        group[b] += lookup(low, low_nibbles(both)) + lookup(high, high_nibbles(both));
      }
    }
#pragma GCC unroll 6
    for (std::size_t b = 0; b < Count; ++b) sums[b].add(group[b]);
  }
#pragma GCC unroll 6
  for (std::size_t b = 0; b < Count; ++b) {
    sums[b].settle();
    out[b] = sums[b];
  }
}

#if defined(__AVX512VBMI__)
// Where registers push the numbers of a mask together: 16 or 8 pairs at a time.
inline std::uint32_t reached(__m512i sums, __m512i least) { return _mm512_cmpge_epu16_mask(sums, least); }
inline std::uint32_t reached(__m256i sums, __m256i least) { return _mm256_cmpge_epu16_mask(sums, least); }
inline Hit* push(Hit* to, std::uint32_t mask, __m512i pairs) {
  _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(static_cast<__mmask16>(mask), pairs));
  return to + __builtin_popcount(mask);
}
inline Hit* push(Hit* to, std::uint32_t mask, __m256i pairs) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_maskz_compress_epi32(static_cast<__mmask8>(mask), pairs));
  return to + __builtin_popcount(mask);
}
inline __m512i low_pairs(__m512i a, __m512i b) { return _mm512_unpacklo_epi16(a, b); }
inline __m256i low_pairs(__m256i a, __m256i b) { return _mm256_unpacklo_epi16(a, b); }
inline __m512i high_pairs(__m512i a, __m512i b) { return _mm512_unpackhi_epi16(a, b); }
inline __m256i high_pairs(__m256i a, __m256i b) { return _mm256_unpackhi_epi16(a, b); }
inline __m512i register_of(U16x2 v) { return reinterpret_cast<__m512i>(v); }
inline __m256i register_of(U16 v) { return reinterpret_cast<__m256i>(v); }
#endif

// Of the first `points`, those with a sum of at least `least`; returns how many.
template <class Bytes>
inline std::size_t take(const Sums<Bytes>& sums, std::uint16_t least, std::size_t points, std::size_t first,
                        Hit* hits) {
#if defined(__AVX512VBMI__)
  // Without a loop over the hits, whose number cannot be predicted. Writes up to 16 hits past the last.
  using Words = typename Sums<Bytes>::Words;
  const auto limit = register_of(Words{} + least), even = register_of(sums.even), odd = register_of(sums.odd);
  std::uint32_t even_mask = reached(even, limit), odd_mask = reached(odd, limit);
  if (points < sizeof(Bytes)) {
    even_mask = _bzhi_u32(even_mask, static_cast<unsigned>(points + 1) / 2);
    odd_mask = _bzhi_u32(odd_mask, static_cast<unsigned>(points) / 2);
  }
  if (!(even_mask | odd_mask)) return 0;
  Words numbers;
  for (std::size_t i = 0; i < sizeof(Bytes) / 2; ++i) numbers[i] = static_cast<std::uint16_t>(2 * i);
  numbers += static_cast<std::uint16_t>(first);
  const auto even_places = register_of(numbers), odd_places = register_of(numbers + 1);
  Hit* to = push(hits, _pext_u32(even_mask, 0x0f0f0f0f), low_pairs(even, even_places));
  to = push(to, _pext_u32(even_mask, 0xf0f0f0f0), high_pairs(even, even_places));
  to = push(to, _pext_u32(odd_mask, 0x0f0f0f0f), low_pairs(odd, odd_places));
  to = push(to, _pext_u32(odd_mask, 0xf0f0f0f0), high_pairs(odd, odd_places));
  return static_cast<std::size_t>(to - hits);
#else
  std::uint64_t mask = sums.at_least(least);
  if (points < sizeof(Bytes)) mask &= (std::uint64_t{1} << points) - 1;
  if (__builtin_expect(!mask, 1)) return 0;
  std::uint16_t values[2][sizeof(Bytes) / 2];
  sums.store(values[0], values[1]);
  std::size_t count = 0;
  for (; mask; mask &= mask - 1) {
    const std::size_t i = static_cast<std::size_t>(__builtin_ctzll(mask));
    hits[count++] = {values[i & 1][i >> 1], static_cast<std::uint16_t>(first + i)};
  }
  return count;
#endif
}

// A scan under way: what it has come to.
struct Passage {
  const std::uint8_t* codes;
  std::size_t place;   // of the next point
  std::size_t points;  // that are left
  const std::uint8_t* ahead;

  void move(std::size_t bytes, std::size_t rows) {
    codes += bytes * rows;
    ahead += bytes * rows;
    place += bytes;
    points -= points < bytes ? points : bytes;
  }
};

template <class Bytes, std::size_t Count>
inline std::size_t scan_blocks(const Scan& s, Passage& at, std::uint16_t least, Hit* hits, const std::uint8_t* last) {
  Sums<Bytes> sums[Count];
  sum_blocks<Bytes, Count>(s, at.codes, at.points + block <= Count * sizeof(Bytes), sums, at.ahead, last);
  std::size_t count = 0;
#pragma GCC unroll 6
  for (std::size_t b = 0; b < Count; ++b) {
    count += take(sums[b], least, at.points, at.place, hits + count);
    at.move(sizeof(Bytes), s.rows);
  }
  return count;
}

// As many registers as wanted, up to Count.
template <std::size_t Count>
inline std::size_t scan_some(std::size_t wanted, const Scan& s, Passage& at, std::uint16_t least, Hit* hits,
                             const std::uint8_t* last) {
  if constexpr (Count > 1)
    if (wanted < Count) return scan_some<Count - 1>(wanted, s, at, least, hits, last);
  return scan_blocks<Wide, Count>(s, at, least, hits, last);
}

std::size_t scan(const Scan& s, std::size_t first_block, std::size_t points, std::uint32_t least, Hit* hits,
                 const std::uint8_t* ahead, const std::uint8_t* last) {
  if (least > 65535) return 0;
  const std::uint16_t limit = static_cast<std::uint16_t>(least);
  Passage at{s.codes + first_block * s.rows * block, 0, points, ahead};
  std::size_t count = 0;
  while (at.points) {
    // A rest is divided evenly, as a single one leaves registers idle.
    const std::size_t left = (at.points + sizeof(Wide) - 1) / sizeof(Wide);
    const std::size_t wanted = left > registers && left < 2 * registers ? (left + 1) / 2 : left;
    count += scan_some<registers>(wanted, s, at, limit, hits + count, last);
  }
  return count;
}

template <class Bytes, std::size_t Count>
inline void scan_four_blocks(const ScanFour& s, Passage& at) {
  Sums<Bytes> sums[4][Count];
#pragma GCC unroll 4
  for (std::size_t i = 0; i < 4; ++i)
#pragma GCC unroll 2
    for (std::size_t b = 0; b < Count; ++b) sums[i][b] = Sums<Bytes>::zero();
  const std::size_t apart = s.rows * block;
  const std::uint8_t *codes = at.codes, *end = codes + apart;
  for (std::size_t row = 0; codes < end;) {
    const std::uint8_t* stop = codes + s.group_rows * block < end ? codes + s.group_rows * block : end;
    Bytes group[4][Count] = {};
    for (; codes < stop; codes += block, row += 32) {
      Bytes low[Count], high[Count];
#pragma GCC unroll 2
      for (std::size_t b = 0; b < Count; ++b) {
        const Bytes both = load_blocks<Bytes>(codes + b * sizeof(Bytes) * s.rows, apart);
        low[b] = low_nibbles(both);
        high[b] = high_nibbles(both);
      }
#pragma GCC unroll 4
      for (std::size_t i = 0; i < 4; ++i) {
        const Bytes first = load_table<Bytes>(s.tables[i] + row), second = load_table<Bytes>(s.tables[i] + row + 16);
#pragma GCC unroll 2
        for (std::size_t b = 0; b < Count; ++b) group[i][b] += lookup(first, low[b]) + lookup(second, high[b]);
      }
    }
#pragma GCC unroll 4
    for (std::size_t i = 0; i < 4; ++i)
#pragma GCC unroll 2
      for (std::size_t b = 0; b < Count; ++b) sums[i][b].add(group[i][b]);
  }
#pragma GCC unroll 2
  for (std::size_t b = 0; b < Count; ++b) {
#pragma GCC unroll 4
    for (std::size_t i = 0; i < 4; ++i) {
      if (s.least[i] > 65535) continue;
      sums[i][b].settle();
      *s.counts[i] +=
          take(sums[i][b], static_cast<std::uint16_t>(s.least[i]), at.points, at.place, s.hits[i] + *s.counts[i]);
    }
    at.move(sizeof(Bytes), s.rows);
  }
}

void scan_four(const ScanFour& s, std::size_t first_block, std::size_t points) {
  const std::uint8_t* codes = s.codes + first_block * s.rows * block;
  Passage at{codes, 0, points, codes};
  for (std::size_t i = 0; i < 4; ++i) *s.counts[i] = 0;
#if defined(ANISO_NARROW)
  while (at.points > 2 * sizeof(Wide) - block) scan_four_blocks<Wide, 2>(s, at);
#endif
  while (at.points > sizeof(Wide) - block) scan_four_blocks<Wide, 1>(s, at);
  while (at.points) scan_four_blocks<U8, 1>(s, at);
}

}  // namespace
}  // namespace aniso::ANISO_ISA
