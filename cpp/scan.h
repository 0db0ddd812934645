// The scan: sums of table lookups for every point of a run of blocks, and only the promising points leave it.
// Definition: struct Scan in kernels.h; the layout of blocks is drawn in src/aniso/layout.py.
#pragma once
#include "bytes.h"
#include "kernels.h"

namespace aniso::ANISO_ISA {
namespace {

// Adds the lookups of Blocks neighbouring blocks, group by group: a group's sums fit 8 bits by the making of the
// tables.
// Meanwhile the four blocks at `ahead` come into the cache.
template <std::size_t Blocks>
inline void sum_blocks(const Scan& s, const std::uint8_t* codes, Sums* sums, const std::uint8_t* ahead) {
  for (std::size_t b = 0; b < Blocks; ++b) sums[b] = Sums{};
  const std::uint8_t* table = s.tables;
  for (std::size_t row = 0; row < s.rows;) {
    const std::size_t stop = row + s.group_rows < s.rows ? row + s.group_rows : s.rows;
    U8 group[Blocks] = {};
    for (; row < stop; ++row, table += 32) {
      const U8 low = load_table(table), high = load_table(table + 16);
      __builtin_prefetch(ahead);
      __builtin_prefetch(ahead + 64);
      ahead += 4 * block;
#pragma GCC unroll 8
      for (std::size_t b = 0; b < Blocks; ++b) {
        const U8 both = load_bytes(codes + (b * s.rows + row) * block);
        group[b] += lookup(low, low_nibbles(both));
        group[b] += lookup(high, high_nibbles(both));
      }
    }
    for (std::size_t b = 0; b < Blocks; ++b) sums[b].add(group[b]);
  }
}

inline std::size_t take(const Sums& sums, std::uint32_t least, std::uint32_t valid, std::uint32_t first, Hit* hits) {
  std::uint32_t mask = sums.at_least(static_cast<std::uint16_t>(least)) & valid;
  if (!mask) return 0;
  std::uint16_t values[block];
  sums.store(values);
  std::size_t count = 0;
  for (; mask; mask &= mask - 1) {
    const std::uint32_t i = static_cast<std::uint32_t>(__builtin_ctz(mask));
    hits[count++] = {first + i, values[i]};
  }
  return count;
}

std::size_t scan(const Scan& s, std::size_t first_block, std::size_t points, std::uint32_t least, Hit* hits,
                 const std::uint8_t* ahead) {
  if (least > 65535) return 0;
  std::size_t count = 0;
  while (points) {
    const std::uint8_t* codes = s.codes + first_block * s.rows * block;
    const std::size_t blocks = (points + block - 1) / block;
    Sums sums[4];
    switch (blocks) {
      case 1: sum_blocks<1>(s, codes, sums, ahead); break;
      case 2: sum_blocks<2>(s, codes, sums, ahead); break;
      case 3: sum_blocks<3>(s, codes, sums, ahead); break;
      default: sum_blocks<4>(s, codes, sums, ahead); break;
    }
    for (std::size_t b = 0; b < (blocks < 4 ? blocks : 4); ++b, ++first_block) {
      const std::size_t here = points < block ? points : block;
      const std::uint32_t valid = here == block ? ~0u : (1u << here) - 1;
      count += take(sums[b], least, valid, static_cast<std::uint32_t>(first_block * block), hits + count);
      points -= here;
    }
  }
  return count;
}

}  // namespace
}  // namespace aniso::ANISO_ISA
