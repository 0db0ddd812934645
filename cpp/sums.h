// Sums over points by the code they chose, and dot products with decoded points: the two halves of every codebook
// update. Sums run over the points in their order, whoever computes them, so that results never depend on threads.
#pragma once
#include "kernels.h"

namespace aniso::ANISO_ISA {
namespace {

void dot_decoded(const DotDecoded& a, std::size_t begin, std::size_t end) {
  const Codebooks& books = a.books;
  for (std::size_t i = begin; i < end; ++i) {
    const float* values = a.values + i * books.d;
    const std::uint8_t* codes = a.codes + i * books.m;
    float sum = 0;
    for (std::size_t m = 0; m < books.m; ++m) {
      const float* word = books.codewords + (m * books.k + codes[m]) * books.width;
      const std::int32_t start = books.starts[m], stop = books.starts[m + 1];
      for (std::int32_t j = start; j < stop; ++j) sum += values[j] * word[j - start];
    }
    a.out[i] = sum;
  }
}

void sum_by_code(const SumByCode& a, std::size_t begin, std::size_t end) {
  const Codebooks& books = a.books;
  for (std::size_t i = 0; i < a.n; ++i) {
    const float* values = a.values + i * books.d;
    const std::uint8_t* codes = a.codes + i * books.m;
    const double weight = a.weights[i];
    for (std::size_t m = begin; m < end; ++m) {
      double* out = a.out + (m * books.k + codes[m]) * books.width;
      const std::int32_t start = books.starts[m], stop = books.starts[m + 1];
      for (std::int32_t j = start; j < stop; ++j) out[j - start] += weight * values[j];
    }
  }
}

void sum_by_group(const SumByGroup& a, std::size_t begin, std::size_t end) {
  for (std::size_t i = 0; i < a.n; ++i) {
    const std::size_t g = static_cast<std::size_t>(a.groups[i]);
    if (g < begin || g >= end) continue;
    const float* values = a.values + i * a.d;
    const double weight = a.weights[i];
    double* sums = a.sums + g * a.d;
    for (std::size_t j = 0; j < a.d; ++j) sums[j] += weight * values[j];
    a.totals[g] += weight;
  }
}

}  // namespace
}  // namespace aniso::ANISO_ISA
