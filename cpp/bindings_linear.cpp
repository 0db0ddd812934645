// Small linear algebra in double precision whose bits depend on nothing but its inputs. A BLAS promises no such thing:
// its last bits change with its number of threads.
#include <nanobind/stl/string.h>

#include <cmath>
#include <cstdint>

#include "arrays.h"
#include "threads.h"

using namespace nanobind::literals;

namespace aniso {
namespace {

typedef double F64 __attribute__((vector_size(64)));
constexpr std::size_t wide = sizeof(F64) / sizeof(double);

double dot(const double* a, const double* b, std::size_t n) {
  F64 sums{};
  std::size_t i = 0;
  for (; i + wide <= n; i += wide) {
    F64 x, y;
    __builtin_memcpy(&x, a + i, sizeof x);
    __builtin_memcpy(&y, b + i, sizeof y);
    sums += x * y;
  }
  double sum = 0;
  for (std::size_t l = 0; l < wide; ++l) sum += sums[l];
  for (; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// out = x.T @ (weights[:, None] * y)
void moments(Array<const float, 2> x, Array<const float, 2> y, Array<const double, 1> weights, Array<double, 2> out,
             int threads) {
  const std::size_t n = x.shape(0), a = x.shape(1), b = y.shape(1);
  need(y.shape(0) == n && weights.shape(0) == n, "x, y and weights: one row per point");
  need(out.shape(0) == a && out.shape(1) == b, "out: (columns of x, columns of y)");
  const std::size_t workers = thread_count(threads);
  nb::gil_scoped_release release;
  spread(a, 8, workers, 0, [&](std::size_t begin, std::size_t end, void*) {
    for (std::size_t i = begin * b; i < end * b; ++i) out.data()[i] = 0;
    for (std::size_t p = 0; p < n; ++p)
      for (std::size_t i = begin; i < end; ++i) {
        const double factor = weights.data()[p] * x.data()[p * a + i];
        const float* row = y.data() + p * b;
        double* to = out.data() + i * b;
        for (std::size_t j = 0; j < b; ++j) to[j] += factor * row[j];
      }
  });
}

// Solves matrix @ out = right for a symmetric positive definite matrix, by Cholesky; the matrix becomes its factor.
// right and out are transposed, (columns, n).
void solve_spd(Array<double, 2> matrix, Array<double, 2> right, int threads) {
  const std::size_t n = matrix.shape(0), columns = right.shape(0);
  need(matrix.shape(1) == n && right.shape(1) == n, "matrix: (n, n), right: (columns, n)");
  const std::size_t workers = thread_count(threads);
  bool positive = true;
  {
    nb::gil_scoped_release release;
    double* l = matrix.data();
    for (std::size_t j = 0; j < n && positive; ++j) {
      const double pivot = l[j * n + j] - dot(l + j * n, l + j * n, j);
      positive = pivot > 0 && std::isfinite(pivot);
      if (!positive) break;
      l[j * n + j] = std::sqrt(pivot);
      const double inverse = 1 / l[j * n + j];
      for (std::size_t i = j + 1; i < n; ++i) l[i * n + j] = (l[i * n + j] - dot(l + i * n, l + j * n, j)) * inverse;
    }
    if (positive) {
      for (std::size_t i = 0; i < n; ++i)  // the upper half, so that both substitutions read rows
        for (std::size_t j = i + 1; j < n; ++j) l[i * n + j] = l[j * n + i];
      spread(columns, 8, workers, 0, [&](std::size_t begin, std::size_t end, void*) {
        for (std::size_t c = begin; c < end; ++c) {
          double* x = right.data() + c * n;
          for (std::size_t i = 0; i < n; ++i) x[i] = (x[i] - dot(l + i * n, x, i)) / l[i * n + i];
          for (std::size_t i = n; i-- > 0;) x[i] = (x[i] - dot(l + i * n + i + 1, x + i + 1, n - i - 1)) / l[i * n + i];
        }
      });
    }
  }
  need(positive, "matrix is not positive definite");
}

}  // namespace

void bind_linear(nb::module_& module) {
  module.def("moments", &moments, "x"_a.noconvert(), "y"_a.noconvert(), "weights"_a.noconvert(), "out"_a.noconvert(),
             nb::kw_only(), "threads"_a = 1, "out = x.T @ (weights[:, None] * y).");
  module.def("solve_spd", &solve_spd, "matrix"_a.noconvert(), "right"_a.noconvert(), nb::kw_only(), "threads"_a = 1,
             "Solves matrix @ x = right.T in place of right, for a symmetric positive definite matrix.");
}

}  // namespace aniso
