// The kernels, as a table of function pointers: one table per instruction set, filled by kernels.cpp.
// Every comment is the kernel's definition in NumPy; tests/reference.py holds the same definitions as code.
// Kernels work on rows [begin, end) so that the caller can spread rows over threads, and allocate nothing:
// the caller passes scratch memory, 64-byte aligned.
#pragma once
#include <cstddef>
#include <cstdint>

namespace aniso {

// codes[i] = argmin_k cost[i, k],  costs[i] = min_k cost[i, k],  the lowest k among equals, where
//   g = points @ codewords.T
//   cost = squared_norms[None, :] + g * (linear[:, None] + quadratic[:, None] * g)
// linear = -2, quadratic = 0 is the nearest codeword; other values give the score-aware loss.
// The codewords come packed (see pack_codewords) in panels of Kernels::panel codewords.
struct Assign {
  const float* points;         // (n, d)
  const float* panels;         // (ceil(k / panel), d, panel)
  const float* squared_norms;  // (ceil(k / panel) * panel), +inf where padded
  const float* linear;         // (n)
  const float* quadratic;      // (n)
  std::size_t d, panel_count;
  std::int32_t* codes;  // (n) out
  float* costs;         // (n) out
};

// A set of codebooks: codebook m holds k codewords over dimensions starts[m] .. starts[m + 1] - 1.
struct Codebooks {
  const float* codewords;      // (m, k, width), zeros past starts[m + 1] - starts[m]
  const float* squared_norms;  // (m, k)
  const std::int32_t* starts;  // (m + 1)
  std::size_t m, k, width, d;
};

// Coordinate descent over the codes of each point: sweep the subspaces, give each the codeword that is best
// with all others held, until a sweep changes nothing. With y = decode(codes), u = point / |point|,
// v = residual + penalty * <residual, u> * u, N = <y, v>, D = |y|^2 + penalty * <y, u>^2:
//   scaled = false  minimises D - 2 N       (the score-aware loss of y, penalty = eta - 1)
//   scaled = true   maximises N^2 / D, N > 0 (the same loss of s * y under the best scale s = N / D)
// warm = false starts from the nearest codeword of each subspace; warm = true from the codes as given.
struct Encode {
  const float* residuals;  // (n, d) what is coded
  const float* points;     // (n, d) the direction of the parallel error
  const float* penalty;    // (n) eta - 1
  Codebooks books;
  bool scaled, warm;
  int sweeps;
  std::uint8_t* codes;  // (n, m) in and out
};

// out[i] = <values[i], decode(codes)[i]>
struct DotDecoded {
  const float* values;  // (n, d)
  const std::uint8_t* codes;
  Codebooks books;
  float* out;  // (n)
};

// for subspaces [begin, end):  out[m, c] = sum_{i: codes[i, m] == c} weights[i] * values[i, starts[m]:starts[m+1]]
struct SumByCode {
  const float* values;   // (n, d)
  const float* weights;  // (n)
  const std::uint8_t* codes;
  Codebooks books;
  std::size_t n;
  double* out;  // (m, k, width)
};

// for groups [begin, end):  sums[c] = sum_{i: groups[i] == c} weights[i] * values[i];  totals[c] = sum weights[i]
struct SumByGroup {
  const float* values;         // (n, d)
  const float* weights;        // (n)
  const std::int32_t* groups;  // (n)
  std::size_t n, d;
  double* sums;    // (k, d)
  double* totals;  // (k)
};

struct Kernels {
  const char* name;
  std::size_t panel;  // codewords per panel of `assign`
  std::size_t (*assign_scratch)();
  void (*assign)(const Assign&, std::size_t begin, std::size_t end, void* scratch);
  std::size_t (*encode_scratch)(const Codebooks&);
  void (*encode)(const Encode&, std::size_t begin, std::size_t end, void* scratch);
  void (*dot_decoded)(const DotDecoded&, std::size_t begin, std::size_t end);
  void (*sum_by_code)(const SumByCode&, std::size_t begin, std::size_t end);
  void (*sum_by_group)(const SumByGroup&, std::size_t begin, std::size_t end);
};

// The instruction sets this machine can run, best first; dispatch.cpp.
const Kernels* const* usable_kernels(std::size_t* count);
// The one named, the one named by the environment variable ANISO_ISA where name is empty, else the best.
// Null where the name is unknown or the machine cannot run it.
const Kernels* find_kernels(const char* name);

}  // namespace aniso
