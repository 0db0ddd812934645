// Bytes brought into the L2 cache. On Zen 4 many more lines can be on their way there than into L1: rows for rescoring
// arrive in half the time (docs/decisions/0010-prefetch-into-l2.md).
#pragma once
#include <cstddef>
#include <cstdint>

namespace aniso {

inline void prefetch_bytes(const void* from, std::size_t bytes) {
  asm volatile("");  // else GCC takes a function that only prefetches for one without effect, and drops calls of it
  const char *first = static_cast<const char*>(from), *end = first + bytes;
  first -= reinterpret_cast<std::uintptr_t>(first) % 64;
  for (; first < end; first += 64) __builtin_prefetch(first, 0, 2);
}

}  // namespace aniso
