// Additive codes by iterated local search. A vector holds codewords of one codebook; one point at a time.
// Definition: struct EncodeAdditive in kernels.h.
#pragma once
#include "kernels.h"
#include "simd.h"

namespace aniso::ANISO_ISA {
namespace {

// Where the search of one point stands.
struct Place {
  float t, b;           // <y, x> and |y|^2
  float* rest;          // (m * k) <codeword, y without the part of its own codebook>
  std::uint8_t* codes;  // (m)
};

// What all places of a point share.
struct Target {
  const EncodeAdditive& e;
  const float* dots;               // (m * k) <codeword, x>
  float penalty, inverse_squared;  // eta - 1 and 1 / |x|^2
  float unit;                      // a power of two near 1 / |x|^2: products of lengths stay in range

  // Larger is better.
  float value(float t, float b) const {
    if (e.scaled) return t > 0 && b > 0 ? t * unit * t / b : 0.0f;
    return 2 * (1 + penalty) * t - b - penalty * (t * inverse_squared) * t;
  }

  F32 value(F32 t, F32 b) const {
    if (e.scaled) return (t > F32{}) & (b > F32{}) ? t * unit * t / b : F32{};
    return 2 * (1 + penalty) * t - b - penalty * (t * inverse_squared) * t;
  }
};

constexpr std::size_t column_vectors = 8;

std::size_t encode_additive_scratch(const EncodeAdditive& e) {
  const std::size_t words = e.m * e.k;
  return sizeof(float) * (3 * words + 64) + 2 * (e.m + 64);
}

// dots[c] = <x, codeword c>
void dot_columns(const EncodeAdditive& e, const float* x, float* dots) {
  const std::size_t words = e.m * e.k;
  std::size_t c = 0;
  for (; c + column_vectors * lanes <= words; c += column_vectors * lanes) {
    F32 sums[column_vectors] = {};
    for (std::size_t j = 0; j < e.d; ++j)
      for (std::size_t v = 0; v < column_vectors; ++v) sums[v] += x[j] * load(e.columns + j * words + c + v * lanes);
    for (std::size_t v = 0; v < column_vectors; ++v) store(dots + c + v * lanes, sums[v]);
  }
  for (; c < words; c += lanes) {
    F32 sum{};
    for (std::size_t j = 0; j < e.d; ++j) sum += x[j] * load(e.columns + j * words + c);
    store(dots + c, sum);
  }
}

// rest += gram[codeword], except for the codewords of its own codebook.
void add_codeword(const EncodeAdditive& e, std::size_t codebook, std::size_t codeword, float* rest) {
  const std::size_t words = e.m * e.k;
  const float* gram = e.gram + codeword * words;
  const std::size_t first = codebook * e.k;
  for (std::size_t c = 0; c < first; c += lanes) store(rest + c, load(rest + c) + load(gram + c));
  for (std::size_t c = first + e.k; c < words; c += lanes) store(rest + c, load(rest + c) + load(gram + c));
}

void replace(const Target& target, Place& at, std::size_t codebook, std::size_t code) {
  const EncodeAdditive& e = target.e;
  const std::size_t words = e.m * e.k, first = codebook * e.k;
  const std::size_t before = first + at.codes[codebook], after = first + code;
  at.t += target.dots[after] - target.dots[before];
  at.b += e.gram[after * words + after] + 2 * at.rest[after] - e.gram[before * words + before] - 2 * at.rest[before];
  const float* add = e.gram + after * words;
  const float* take = e.gram + before * words;
  auto shift = [&](std::size_t c) { store(at.rest + c, load(at.rest + c) + (load(add + c) - load(take + c))); };
  for (std::size_t c = 0; c < first; c += lanes) shift(c);
  for (std::size_t c = first + e.k; c < words; c += lanes) shift(c);
  at.codes[codebook] = static_cast<std::uint8_t>(code);
}

// The best codeword of one codebook while all others stay.
bool improve_codebook(const Target& target, Place& at, std::size_t codebook, const float* squared_norms) {
  const EncodeAdditive& e = target.e;
  const std::size_t first = codebook * e.k, now = first + at.codes[codebook];
  const float t_rest = at.t - target.dots[now], b_rest = at.b - squared_norms[now] - 2 * at.rest[now];
  F32 best = broadcast(-__builtin_inff());
  I32 best_code{};
  for (std::size_t c = 0; c < e.k; c += lanes) {
    const F32 t = t_rest + load(target.dots + first + c);
    const F32 b = b_rest + load(squared_norms + first + c) + 2 * load(at.rest + first + c);
    const F32 value = target.value(t, b);
    const I32 better = value > best;
    best = better ? value : best;
    best_code = better ? broadcast(static_cast<std::int32_t>(c)) + lane_numbers() : best_code;
  }
  float most = best[0];
  std::int32_t code = best_code[0];
  for (std::size_t l = 1; l < lanes; ++l)
    if (best[l] > most || (best[l] == most && best_code[l] < code)) {
      most = best[l];
      code = best_code[l];
    }
  const float present = target.value(at.t, at.b);
  // A gain within rounding is none: it could be taken back and forth for ever.
  if (code == at.codes[codebook] || most <= present + 1e-6f * (present < 0 ? -present : present)) return false;
  replace(target, at, codebook, static_cast<std::size_t>(code));
  return true;
}

void descend_additive(const Target& target, Place& at, const float* squared_norms) {
  for (int sweep = 0; sweep < target.e.sweeps; ++sweep) {
    bool changed = false;
    for (std::size_t m = 0; m < target.e.m; ++m) changed |= improve_codebook(target, at, m, squared_norms);
    if (!changed) break;
  }
}

// t, b and rest from the codes.
void arrive(const Target& target, Place& at) {
  const EncodeAdditive& e = target.e;
  const std::size_t words = e.m * e.k;
  at.t = at.b = 0;
  for (std::size_t c = 0; c < words; ++c) at.rest[c] = 0;
  for (std::size_t m = 0; m < e.m; ++m) {
    const std::size_t word = m * e.k + at.codes[m];
    at.t += target.dots[word];
    at.b += e.gram[word * words + word] + 2 * at.rest[word];  // rest holds the codebooks before m
    add_codeword(e, m, word, at.rest);
  }
}

// Codebook by codebook, the codeword nearest to what those before it leave of the point.
void choose_in_turn(const Target& target, Place& at, const float* squared_norms) {
  const EncodeAdditive& e = target.e;
  for (std::size_t c = 0; c < e.m * e.k; ++c) at.rest[c] = 0;
  for (std::size_t m = 0; m < e.m; ++m) {
    std::size_t best = 0;
    float least = __builtin_inff();
    for (std::size_t c = 0; c < e.k; ++c) {
      const std::size_t word = m * e.k + c;
      const float cost = squared_norms[word] + 2 * at.rest[word] - 2 * target.dots[word];
      if (cost < least) {
        least = cost;
        best = c;
      }
    }
    at.codes[m] = static_cast<std::uint8_t>(best);
    add_codeword(e, m, m * e.k + best, at.rest);
  }
}

inline std::uint64_t next_random(std::uint64_t& state) {  // splitmix64
  state += 0x9e3779b97f4a7c15u;
  std::uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

void encode_additive(const EncodeAdditive& e, std::size_t begin, std::size_t end, void* scratch) {
  const std::size_t words = e.m * e.k;
  float* dots = static_cast<float*>(scratch);
  float* squared_norms = dots + words;
  Place at{0, 0, squared_norms + words, nullptr};
  at.codes = reinterpret_cast<std::uint8_t*>(at.rest + words);
  std::uint8_t* best_codes = at.codes + e.m;
  for (std::size_t c = 0; c < words; ++c) squared_norms[c] = e.gram[c * words + c];
  for (std::size_t i = begin; i < end; ++i) {
    const float* x = e.points + i * e.d;
    std::uint8_t* codes = e.codes + i * e.m;
    dot_columns(e, x, dots);
    float squared = 0;
    std::uint64_t state = e.seed;
    for (std::size_t j = 0; j < e.d; ++j) {
      squared += x[j] * x[j];
      std::uint32_t bits;
      __builtin_memcpy(&bits, x + j, sizeof bits);
      state = (state ^ bits) * 0x100000001b3u;
    }
    std::uint32_t exponent;
    __builtin_memcpy(&exponent, &squared, sizeof exponent);
    exponent = (254u << 23) - (exponent & 0x7f800000u);
    float unit;
    __builtin_memcpy(&unit, &exponent, sizeof unit);
    const Target target{e, dots, e.penalty[i], squared > 0 ? 1 / squared : 0.0f, unit};
    if (e.warm)
      __builtin_memcpy(at.codes, codes, e.m);
    else
      choose_in_turn(target, at, squared_norms);
    arrive(target, at);
    descend_additive(target, at, squared_norms);
    __builtin_memcpy(best_codes, at.codes, e.m);
    float best = target.value(at.t, at.b);
    for (int restart = 0; restart < e.restarts; ++restart) {
      for (int kick = 0; kick < e.kicks; ++kick) {
        const std::uint64_t random = next_random(state);
        replace(target, at, random % e.m, (random >> 32) % e.k);
      }
      descend_additive(target, at, squared_norms);
      const float value = target.value(at.t, at.b);
      if (value > best) {
        best = value;
        __builtin_memcpy(best_codes, at.codes, e.m);
      } else {
        for (std::size_t m = 0; m < e.m; ++m)
          if (at.codes[m] != best_codes[m]) replace(target, at, m, best_codes[m]);
      }
    }
    __builtin_memcpy(codes, best_codes, e.m);
  }
}

}  // namespace
}  // namespace aniso::ANISO_ISA
