// The cheapest codeword for each point: a small matrix product with the choice fused into it, so that the
// (points, codewords) matrix is never written. Definition: struct Assign in kernels.h.
#pragma once
#include "kernels.h"
#include "simd.h"

namespace aniso::ANISO_ISA {
namespace {

constexpr std::size_t panel_vectors = 2;
constexpr std::size_t panel = panel_vectors * lanes;
constexpr std::size_t tile = 6;    // points in registers: 6 x 2 accumulators, 2 panel vectors and a broadcast fill 16
constexpr std::size_t group = 48;  // points that stay in the first-level cache while every panel passes by

struct Best {
  F32 cost[panel_vectors];
  I32 code[panel_vectors];
};

std::size_t assign_scratch() { return sizeof(Best) * group; }

template <std::size_t Rows>
void score_panel(const Assign& a, std::size_t row, const float* panel_data, std::size_t first_code, Best* best) {
  F32 sums[Rows][panel_vectors] = {};
  const float* points = a.points + row * a.d;
  for (std::size_t j = 0; j < a.d; ++j) {
    F32 words[panel_vectors];
    for (std::size_t v = 0; v < panel_vectors; ++v) words[v] = load(panel_data + j * panel + v * lanes);
#pragma GCC unroll 8
    for (std::size_t r = 0; r < Rows; ++r) {
      const F32 x = broadcast(points[r * a.d + j]);
      for (std::size_t v = 0; v < panel_vectors; ++v) sums[r][v] += x * words[v];
    }
  }
  for (std::size_t v = 0; v < panel_vectors; ++v) {
    const F32 squared_norms = load(a.squared_norms + first_code + v * lanes);
    const I32 code = broadcast(static_cast<std::int32_t>(first_code + v * lanes)) + lane_numbers();
#pragma GCC unroll 8
    for (std::size_t r = 0; r < Rows; ++r) {
      const F32 g = sums[r][v];
      const F32 cost = squared_norms + g * (a.linear[row + r] + a.quadratic[row + r] * g);
      const I32 better = cost < best[r].cost[v];
      best[r].cost[v] = better ? cost : best[r].cost[v];
      best[r].code[v] = better ? code : best[r].code[v];
    }
  }
}

void assign(const Assign& a, std::size_t begin, std::size_t end, void* scratch) {
  Best* best = static_cast<Best*>(scratch);
  for (std::size_t first = begin; first < end; first += group) {
    const std::size_t count = end - first < group ? end - first : group;
    for (std::size_t r = 0; r < count; ++r)
      for (std::size_t v = 0; v < panel_vectors; ++v) {
        best[r].cost[v] = broadcast(__builtin_inff());
        best[r].code[v] = I32{};
      }
    for (std::size_t p = 0; p < a.panel_count; ++p) {
      const float* panel_data = a.panels + p * a.d * panel;
      std::size_t r = 0;
      for (; r + tile <= count; r += tile) score_panel<tile>(a, first + r, panel_data, p * panel, best + r);
      for (; r < count; ++r) score_panel<1>(a, first + r, panel_data, p * panel, best + r);
    }
    for (std::size_t r = 0; r < count; ++r) {
      float cost = best[r].cost[0][0];
      std::int32_t code = best[r].code[0][0];
      for (std::size_t v = 0; v < panel_vectors; ++v)
        for (std::size_t l = 0; l < lanes; ++l) {
          const float other = best[r].cost[v][l];
          const std::int32_t other_code = best[r].code[v][l];
          if (other < cost || (other == cost && other_code < code)) {
            cost = other;
            code = other_code;
          }
        }
      a.codes[first + r] = code;
      a.costs[first + r] = cost;
    }
  }
}

}  // namespace
}  // namespace aniso::ANISO_ISA
