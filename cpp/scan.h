// The scan: sums of table lookups for every point of a run of blocks, and only the promising points leave it.
// Definition: struct Scan in kernels.h; the layout of blocks is drawn in src/aniso/layout.py.
#pragma once
#include "bytes.h"
#include "kernels.h"

namespace aniso::ANISO_ISA {
namespace {

// Adds the lookups of Blocks neighbouring blocks, group by group: a group's sums fit 8 bits by the making of the
// tables. Meanwhile as many bytes from `ahead` on come into the cache, up to the line at `last`. Three blocks fill the
// registers of AVX2.
template <std::size_t Blocks>
inline void sum_blocks(const Scan& s, const std::uint8_t* codes, Sums* out, const std::uint8_t* ahead,
                       const std::uint8_t* last) {
  Sums sums[Blocks];
#pragma GCC unroll 4
  for (std::size_t b = 0; b < Blocks; ++b) sums[b] = Sums::zero();
  const std::uint8_t* table = s.tables;
  const std::uint8_t* end = codes + s.rows * block;
  while (codes < end) {
    const std::uint8_t* stop = codes + s.group_rows * block < end ? codes + s.group_rows * block : end;
    U8 group[Blocks] = {};
    for (; codes < stop; codes += block, table += 32) {
      const U8 low = load_table(table), high = load_table(table + 16);
      ahead = ahead < last ? ahead : last;
      __builtin_prefetch(ahead);
      if constexpr (Blocks > 2) __builtin_prefetch(ahead + 64);
      ahead += Blocks * block;
#pragma GCC unroll 4
      for (std::size_t b = 0; b < Blocks; ++b) {
        const U8 both = load_bytes(codes + b * s.rows * block);
        group[b] += lookup(low, low_nibbles(both)) + lookup(high, high_nibbles(both));
      }
    }
#pragma GCC unroll 4
    for (std::size_t b = 0; b < Blocks; ++b) sums[b].add(group[b]);
  }
  for (std::size_t b = 0; b < Blocks; ++b) out[b] = sums[b];
}

inline std::size_t take(const Sums& sums, std::uint16_t least, std::uint32_t valid, std::uint32_t first, Hit* hits) {
  std::uint32_t mask = sums.at_least(least) & valid;
  if (__builtin_expect(!mask, 1)) return 0;
  std::uint16_t values[2][block / 2];
  sums.store(values[0], values[1]);
  std::size_t count = 0;
  for (; mask; mask &= mask - 1) {
    const std::uint32_t i = static_cast<std::uint32_t>(__builtin_ctz(mask));
    hits[count++] = {first + i, values[i & 1][i >> 1]};
  }
  return count;
}

inline std::uint32_t valid_slots(std::size_t points) { return points >= block ? ~0u : (1u << points) - 1; }

std::size_t scan(const Scan& s, std::size_t first_block, std::size_t points, std::uint32_t least, Hit* hits,
                 const std::uint8_t* ahead, const std::uint8_t* last) {
  if (least > 65535) return 0;
  const std::uint16_t limit = static_cast<std::uint16_t>(least);
  const std::uint8_t* codes = s.codes + first_block * s.rows * block;
  std::uint32_t slot = static_cast<std::uint32_t>(first_block * block);
  std::size_t count = 0;
  while (points) {
    Sums sums[3];
    // A rest of four blocks goes as two pairs: a block alone leaves registers idle.
    const std::size_t left = (points + block - 1) / block, blocks = left == 4 ? 2 : left < 3 ? left : 3;
    switch (blocks) {
      case 1: sum_blocks<1>(s, codes, sums, ahead, last); break;
      case 2: sum_blocks<2>(s, codes, sums, ahead, last); break;
      default: sum_blocks<3>(s, codes, sums, ahead, last); break;
    }
    for (std::size_t b = 0; b < blocks; ++b, slot += block) {
      count += take(sums[b], limit, valid_slots(points), slot, hits + count);
      points -= points < block ? points : block;
    }
    codes += blocks * s.rows * block;
    ahead += blocks * s.rows * block;
  }
  return count;
}

void scan_four(const ScanFour& s, std::size_t first_block, std::size_t points) {
  const std::uint8_t* codes = s.codes + first_block * s.rows * block;
  std::uint32_t slot = static_cast<std::uint32_t>(first_block * block);
  for (std::size_t i = 0; i < 4; ++i) *s.counts[i] = 0;
  for (; points; points -= points < block ? points : block, slot += block) {
    Sums sums[4] = {Sums::zero(), Sums::zero(), Sums::zero(), Sums::zero()};
    const std::uint8_t* end = codes + s.rows * block;
    for (std::size_t at = 0; codes < end;) {
      const std::uint8_t* stop = codes + s.group_rows * block < end ? codes + s.group_rows * block : end;
      U8 group[4] = {};
      for (; codes < stop; codes += block, at += 32) {
        const U8 both = load_bytes(codes), low = low_nibbles(both), high = high_nibbles(both);
#pragma GCC unroll 4
        for (std::size_t i = 0; i < 4; ++i)
          group[i] += lookup(load_table(s.tables[i] + at), low) + lookup(load_table(s.tables[i] + at + 16), high);
      }
#pragma GCC unroll 4
      for (std::size_t i = 0; i < 4; ++i) sums[i].add(group[i]);
    }
    const std::uint32_t valid = valid_slots(points);
    for (std::size_t i = 0; i < 4; ++i)
      if (s.least[i] <= 65535)
        *s.counts[i] += take(sums[i], static_cast<std::uint16_t>(s.least[i]), valid, slot, s.hits[i] + *s.counts[i]);
  }
}

}  // namespace
}  // namespace aniso::ANISO_ISA
