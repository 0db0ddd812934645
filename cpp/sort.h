// A few keys in order, without a branch that depends on them.
#pragma once
#include "bytes.h"
#include "kernels.h"
#include "simd.h"

namespace aniso::ANISO_ISA {
namespace {

constexpr std::size_t key_lanes = vector_bytes / sizeof(std::uint64_t);
typedef std::int64_t I64 __attribute__((vector_size(vector_bytes)));

// How many of all keys are above each of Count registers of them. Signed numbers: what sorts unsigned has its highest
// bit turned.
template <std::size_t Count>
inline void rank(const std::uint64_t* keys, std::size_t count, const I64* mine, I64* above) {
  constexpr std::uint64_t highest = std::uint64_t{1} << 63;
  for (std::size_t c = 0; c < Count; ++c) above[c] = I64{};
  for (std::size_t j = 0; j < count; ++j) {
    const I64 other = static_cast<std::int64_t>(keys[j] ^ highest) - I64{};
#pragma GCC unroll 4
    for (std::size_t c = 0; c < Count; ++c) {
#if defined(__AVX512F__)
      const __mmask8 less =
          _mm512_cmpgt_epi64_mask(reinterpret_cast<__m512i>(other), reinterpret_cast<__m512i>(mine[c]));
      above[c] = reinterpret_cast<I64>(_mm512_mask_add_epi64(
          reinterpret_cast<__m512i>(above[c]), less, reinterpret_cast<__m512i>(above[c]), _mm512_set1_epi64(1)));
#else
      above[c] -= other > mine[c];  // true is -1
#endif
    }
  }
}

void sort_keys(const std::uint64_t* keys, std::size_t count, std::uint64_t* out) {
  constexpr std::size_t together = 4, step = together * key_lanes;
  constexpr std::uint64_t highest = std::uint64_t{1} << 63;
  for (std::size_t i = 0; i < count; ++i) out[i] = 0;
  for (std::size_t i = 0; i < count; i += step) {
    std::uint64_t own[step];
    const std::size_t here = count - i < step ? count - i : step;
    for (std::size_t l = 0; l < step; ++l) own[l] = (l < here ? keys[i + l] : 0) ^ highest;
    I64 mine[together], above[together];
    __builtin_memcpy(mine, own, sizeof own);
    if (here <= key_lanes)
      rank<1>(keys, count, mine, above);
    else
      rank<together>(keys, count, mine, above);
    std::int64_t ranks[step];
    __builtin_memcpy(ranks, above, sizeof ranks);
    for (std::size_t l = 0; l < here; ++l) out[ranks[l]] = keys[i + l];
  }
}

}  // namespace
}  // namespace aniso::ANISO_ISA
