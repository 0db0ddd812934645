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
      __builtin_prefetch(ahead);
      if constexpr (step > 64) __builtin_prefetch(ahead + 64);
      if constexpr (step > 128) __builtin_prefetch(ahead + 128);
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
inline std::size_t take(const Sums<Bytes>& sums, std::uint16_t least, std::size_t points, std::uint32_t first,
                        Hit* hits) {
  std::uint64_t mask = sums.at_least(least);
  if (points < sizeof(Bytes)) mask &= (std::uint64_t{1} << points) - 1;
  if (__builtin_expect(!mask, 1)) return 0;
  std::uint16_t values[2][sizeof(Bytes) / 2];
  sums.store(values[0], values[1]);
  std::size_t count = 0;
  for (; mask; mask &= mask - 1) {
    const std::uint32_t i = static_cast<std::uint32_t>(__builtin_ctzll(mask));
    hits[count++] = {first + i, values[i & 1][i >> 1]};
  }
  return count;
}

// A scan under way: what it has come to.
struct Passage {
  const std::uint8_t* codes;
  std::uint32_t slot;
  std::size_t points;  // that are left
  const std::uint8_t* ahead;

  void move(std::size_t bytes, std::size_t rows) {
    codes += bytes * rows;
    ahead += bytes * rows;
    slot += static_cast<std::uint32_t>(bytes);
    points -= points < bytes ? points : bytes;
  }
};

template <class Bytes, std::size_t Count>
inline std::size_t scan_blocks(const Scan& s, Passage& at, std::uint16_t least, Hit* hits, const std::uint8_t* last) {
  Sums<Bytes> sums[Count];
  sum_blocks<Bytes, Count>(s, at.codes, at.points + block <= Count * sizeof(Bytes), sums, at.ahead, last);
  std::size_t count = 0;
  for (std::size_t b = 0; b < Count; ++b) {
    count += take(sums[b], least, at.points, at.slot, hits + count);
    at.move(sizeof(Bytes), s.rows);
  }
  return count;
}

std::size_t scan(const Scan& s, std::size_t first_block, std::size_t points, std::uint32_t least, Hit* hits,
                 const std::uint8_t* ahead, const std::uint8_t* last) {
  if (least > 65535) return 0;
  const std::uint16_t limit = static_cast<std::uint16_t>(least);
  Passage at{s.codes + first_block * s.rows * block, static_cast<std::uint32_t>(first_block * block), points, ahead};
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
    *s.counts[i] += take(sums[i], static_cast<std::uint16_t>(s.least[i]), at.points, at.slot, s.hits[i] + *s.counts[i]);
  }
  at.move(sizeof(Bytes), s.rows);
}

void scan_four(const ScanFour& s, std::size_t first_block, std::size_t points) {
  const std::uint8_t* codes = s.codes + first_block * s.rows * block;
  Passage at{codes, static_cast<std::uint32_t>(first_block * block), points, codes};
  for (std::size_t i = 0; i < 4; ++i) *s.counts[i] = 0;
  while (at.points > sizeof(Wide) - block) scan_four_blocks<Wide>(s, at);
  while (at.points) scan_four_blocks<U8>(s, at);
}

}  // namespace
}  // namespace aniso::ANISO_ISA
