// The vocabulary of the floating-point kernels: vectors as wide as the instruction set has them, written with the
// compiler's vector extension so that + * < and ?: work lane by lane and every algorithm is written once.
// Only kernels.cpp includes this file: what it defines must stay inside that object (see docs/design.md).
#pragma once
#include <cstddef>
#include <cstdint>

namespace aniso::ANISO_ISA {
namespace {

#if defined(__AVX512F__)
constexpr std::size_t vector_bytes = 64;
#elif defined(__AVX__)
constexpr std::size_t vector_bytes = 32;
#else
constexpr std::size_t vector_bytes = 16;
#endif
constexpr std::size_t lanes = vector_bytes / sizeof(float);

typedef float F32 __attribute__((vector_size(vector_bytes)));
typedef std::int32_t I32 __attribute__((vector_size(vector_bytes)));  // also the mask: 0 or -1 in each lane

inline F32 load(const float* from) {
  F32 v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}

inline void store(float* to, F32 v) { __builtin_memcpy(to, &v, sizeof v); }

inline F32 broadcast(float x) { return x - F32{}; }

inline I32 broadcast(std::int32_t x) { return x - I32{}; }

inline I32 lane_numbers() {
  I32 v{};
  for (std::size_t i = 0; i < lanes; ++i) v[i] = static_cast<std::int32_t>(i);
  return v;
}

// The sum of all lanes, in pairs.
inline float total(F32 v) {
  float part[lanes];
  store(part, v);
#pragma GCC unroll 4
  for (std::size_t half = lanes / 2; half; half /= 2)
    for (std::size_t i = 0; i < half; ++i) part[i] += part[i + half];
  return part[0];
}

inline bool any(I32 mask) {
  I32 seen = mask;
  std::int32_t all = 0;
  for (std::size_t i = 0; i < lanes; ++i) all |= seen[i];
  return all != 0;
}

}  // namespace
}  // namespace aniso::ANISO_ISA
