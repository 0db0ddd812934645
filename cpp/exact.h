// Exact inner products of a few queries with many points, for brute force. Definition: score_panels in kernels.h.
#pragma once
#include "kernels.h"
#include "simd.h"

namespace aniso::ANISO_ISA {
namespace {

constexpr std::size_t exact_panel = 16;
constexpr std::size_t exact_vectors = exact_panel / lanes;

template <std::size_t Rows>
void score_rows(const float* panel_data, std::size_t d, const float* queries, float* out, std::size_t out_stride) {
  F32 sums[Rows][exact_vectors] = {};
  for (std::size_t j = 0; j < d; ++j) {
    F32 points[exact_vectors];
    for (std::size_t v = 0; v < exact_vectors; ++v) points[v] = load(panel_data + j * exact_panel + v * lanes);
#pragma GCC unroll 8
    for (std::size_t r = 0; r < Rows; ++r)
      for (std::size_t v = 0; v < exact_vectors; ++v) sums[r][v] += broadcast(queries[r * d + j]) * points[v];
  }
  for (std::size_t r = 0; r < Rows; ++r)
    for (std::size_t v = 0; v < exact_vectors; ++v) store(out + r * out_stride + v * lanes, sums[r][v]);
}

void score_panels(const float* panels, std::size_t d, std::size_t count, const float* queries, std::size_t rows,
                  float* out, std::size_t out_stride) {
  for (std::size_t p = 0; p < count; ++p, panels += d * exact_panel, out += exact_panel) {
    std::size_t r = 0;
    if (rows == 6) {
      score_rows<6>(panels, d, queries, out, out_stride);
      continue;
    }
    for (; r + 3 <= rows; r += 3) score_rows<3>(panels, d, queries + r * d, out + r * out_stride, out_stride);
    for (; r < rows; ++r) score_rows<1>(panels, d, queries + r * d, out + r * out_stride, out_stride);
  }
}

}  // namespace
}  // namespace aniso::ANISO_ISA
