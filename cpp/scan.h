// The scan: sums of table lookups for every point of a run of blocks, and only the promising points leave it.
// Definition: struct Scan in kernels.h; the layout of blocks is drawn in src/aniso/layout.py.
#pragma once
#include "bytes.h"
#include "kernels.h"

namespace aniso::ANISO_ISA {
namespace {

#if defined(__AVX512VBMI__)
using Wide = U8x2;
#else
using Wide = U8;
#endif
constexpr std::size_t registers = 3;  // of codes scanned together, which fill those of AVX2

// Adds the lookups of Count registers of neighbouring blocks, group by group: a group's sums fit 8 bits by the making
// of the tables. A register of two blocks of which there is only one more (`single`) holds that twice. Meanwhile as
// many bytes from `ahead` on come into the cache, up to the line at `last`.
template <class Bytes, std::size_t Count>
inline void sum_blocks(const Scan& s, const std::uint8_t* codes, bool single, Sums<Bytes>* out,
                       const std::uint8_t* ahead, const std::uint8_t* last) {
  constexpr std::size_t step = Count * sizeof(Bytes);
  Sums<Bytes> sums[Count];
#pragma GCC unroll 4
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
      __builtin_prefetch(ahead, 0, 2);
      if constexpr (step > 64) __builtin_prefetch(ahead + 64, 0, 2);
      if constexpr (step > 128) __builtin_prefetch(ahead + 128, 0, 2);
      ahead += step;
#pragma GCC unroll 4
      for (std::size_t b = 0; b < Count; ++b) {
        const Bytes both =
            load_blocks<Bytes>(codes + b * sizeof(Bytes) * s.rows, b + 1 < Count ? apart : apart_in_last);
        group[b] += lookup(low, low_nibbles(both)) + lookup(high, high_nibbles(both));
      }
    }
#pragma GCC unroll 4
    for (std::size_t b = 0; b < Count; ++b) sums[b].add(group[b]);
  }
  for (std::size_t b = 0; b < Count; ++b) {
    sums[b].settle();
    out[b] = sums[b];
  }
}

// Of the first `points`, those with a sum of at least `least`; returns how many.
template <class Bytes>
inline std::size_t take(const Sums<Bytes>& sums, std::uint16_t least, std::size_t points, std::size_t first,
                        Hit* hits) {
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
}

#if defined(__AVX512VBMI__)
// Without a loop over the hits, whose number cannot be predicted: 16 sums at a time, those that count pushed together.
// Writes up to 16 hits past the last.
template <>
inline std::size_t take(const Sums<U8x2>& sums, std::uint16_t least, std::size_t points, std::size_t first, Hit* hits) {
  const __m512i limit = _mm512_set1_epi16(static_cast<short>(least));
  const __m512i even = reinterpret_cast<__m512i>(sums.even), odd = reinterpret_cast<__m512i>(sums.odd);
  std::uint32_t masks[2] = {_mm512_cmpge_epu16_mask(even, limit), _mm512_cmpge_epu16_mask(odd, limit)};
  if (points < 64) {
    masks[0] = _bzhi_u32(masks[0], static_cast<unsigned>(points + 1) / 2);
    masks[1] = _bzhi_u32(masks[1], static_cast<unsigned>(points) / 2);
  }
  if (!(masks[0] | masks[1])) return 0;
  U16x2 numbers;
  for (std::size_t i = 0; i < 32; ++i) numbers[i] = static_cast<std::uint16_t>(2 * i);
  numbers += static_cast<std::uint16_t>(first);
  Hit* to = hits;
  auto push = [&](std::uint32_t mask, __m512i pairs) {
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(static_cast<__mmask16>(mask), pairs));
    to += __builtin_popcount(mask);
  };
  for (int parity = 0; parity < 2; ++parity, numbers += 1) {
    const __m512i values = parity ? odd : even, places = reinterpret_cast<__m512i>(numbers);
    push(_pext_u32(masks[parity], 0x0f0f0f0f), _mm512_unpacklo_epi16(values, places));
    push(_pext_u32(masks[parity], 0xf0f0f0f0), _mm512_unpackhi_epi16(values, places));
  }
  return static_cast<std::size_t>(to - hits);
}
#endif

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
  for (std::size_t b = 0; b < Count; ++b) {
    count += take(sums[b], least, at.points, at.place, hits + count);
    at.move(sizeof(Bytes), s.rows);
  }
  return count;
}

std::size_t scan(const Scan& s, std::size_t first_block, std::size_t points, std::uint32_t least, Hit* hits,
                 const std::uint8_t* ahead, const std::uint8_t* last) {
  if (least > 65535) return 0;
  const std::uint16_t limit = static_cast<std::uint16_t>(least);
  Passage at{s.codes + first_block * s.rows * block, 0, points, ahead};
  std::size_t count = 0;
  while (at.points) {
    const std::size_t left = (at.points + sizeof(Wide) - 1) / sizeof(Wide);
    // A rest of one more register goes as two pairs where it can: one alone leaves registers idle.
    if (left >= registers && left != registers + 1)
      count += scan_blocks<Wide, registers>(s, at, limit, hits + count, last);
    else if (left >= 2)
      count += scan_blocks<Wide, 2>(s, at, limit, hits + count, last);
    else
      count += scan_blocks<Wide, 1>(s, at, limit, hits + count, last);
  }
  return count;
}

template <class Bytes>
inline void scan_four_blocks(const ScanFour& s, Passage& at) {
  Sums<Bytes> sums[4] = {Sums<Bytes>::zero(), Sums<Bytes>::zero(), Sums<Bytes>::zero(), Sums<Bytes>::zero()};
  const std::uint8_t *codes = at.codes, *end = codes + s.rows * block;
  for (std::size_t row = 0; codes < end;) {
    const std::uint8_t* stop = codes + s.group_rows * block < end ? codes + s.group_rows * block : end;
    Bytes group[4] = {};
    for (; codes < stop; codes += block, row += 32) {
      const Bytes both = load_blocks<Bytes>(codes, s.rows * block), low = low_nibbles(both), high = high_nibbles(both);
#pragma GCC unroll 4
      for (std::size_t i = 0; i < 4; ++i)
        group[i] +=
            lookup(load_table<Bytes>(s.tables[i] + row), low) + lookup(load_table<Bytes>(s.tables[i] + row + 16), high);
    }
#pragma GCC unroll 4
    for (std::size_t i = 0; i < 4; ++i) sums[i].add(group[i]);
  }
  for (std::size_t i = 0; i < 4; ++i) {
    if (s.least[i] > 65535) continue;
    sums[i].settle();
    *s.counts[i] +=
        take(sums[i], static_cast<std::uint16_t>(s.least[i]), at.points, at.place, s.hits[i] + *s.counts[i]);
  }
  at.move(sizeof(Bytes), s.rows);
}

void scan_four(const ScanFour& s, std::size_t first_block, std::size_t points) {
  const std::uint8_t* codes = s.codes + first_block * s.rows * block;
  Passage at{codes, 0, points, codes};
  for (std::size_t i = 0; i < 4; ++i) *s.counts[i] = 0;
  while (at.points > sizeof(Wide) - block) scan_four_blocks<Wide>(s, at);
  while (at.points) scan_four_blocks<U8>(s, at);
}

}  // namespace
}  // namespace aniso::ANISO_ISA
