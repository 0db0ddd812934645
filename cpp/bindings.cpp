// The boundary between Python and the kernels: types, shapes, bounds, the GIL, threads. No arithmetic.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "arrays.h"
#include "kernels.h"
#include "threads.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace aniso {
namespace {

// Memory that was freed goes back to the system. Of the allocators, glibc's keeps much of it, the more the larger the
// arrays were, and has a call for this.
void release_memory() {
#ifdef __GLIBC__
  nb::gil_scoped_release release;
  malloc_trim(0);
#endif
}

constexpr std::size_t chunk_rows = 1024;  // rows a thread takes at a time

std::vector<std::string> isas() {
  std::size_t count;
  const Kernels* const* list = usable_kernels(&count);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < count; ++i) names.emplace_back(list[i]->name);
  return names;
}

std::string isa() { return kernels_named("").name; }

// Codewords (k, d) to panels (ceil(k / panel), d, panel): codeword c is column c % panel of panel c / panel.
std::vector<float> pack_codewords(const Array<const float, 2>& codewords, std::size_t panel) {
  const std::size_t k = codewords.shape(0), d = codewords.shape(1), panels = (k + panel - 1) / panel;
  std::vector<float> packed(panels * d * panel, 0.0f);
  for (std::size_t c = 0; c < k; ++c)
    for (std::size_t j = 0; j < d; ++j) packed[(c / panel * d + j) * panel + c % panel] = codewords.data()[c * d + j];
  return packed;
}

void check_assign(const Array<const float, 2>& points, const Array<const float, 2>& codewords,
                  const Array<std::int32_t, 1>& codes, const Array<float, 1>& costs) {
  const std::size_t n = points.shape(0), k = codewords.shape(0);
  need(codewords.shape(1) == points.shape(1), "codewords and points differ in dimensions");
  need(k >= 1 && k < std::size_t{1} << 30, "codewords: 1 to 2^30");
  need(codes.shape(0) == n && costs.shape(0) == n, "codes and costs: one per point");
}

// Fills what both kinds of assignment share, and runs it.
void run_assign(const Kernels& kernels, const Array<const float, 2>& points, const Array<const float, 2>& codewords,
                const float* squared_norms, Assign a, std::size_t workers) {
  const std::size_t k = codewords.shape(0);
  a.points = points.data();
  a.d = points.shape(1);
  const std::vector<float> panels = pack_codewords(codewords, kernels.panel);
  a.panels = panels.data();
  a.panel_count = (k + kernels.panel - 1) / kernels.panel;
  std::vector<float> norms(a.panel_count * kernels.panel, std::numeric_limits<float>::infinity());
  std::copy_n(squared_norms, k, norms.begin());
  a.squared_norms = norms.data();
  spread(points.shape(0), chunk_rows, workers, kernels.assign_scratch(),
         [&](std::size_t begin, std::size_t end, void* scratch) { kernels.assign(a, begin, end, scratch); });
}

void assign(Array<const float, 2> points, Array<const float, 2> codewords, Array<const float, 1> squared_norms,
            Array<const float, 1> linear, Array<const float, 1> quadratic, Array<std::int32_t, 1> codes,
            Array<float, 1> costs, int threads, const std::string& isa) {
  const Kernels& kernels = kernels_named(isa);
  const std::size_t n = points.shape(0);
  check_assign(points, codewords, codes, costs);
  need(squared_norms.shape(0) == codewords.shape(0), "squared_norms: one per codeword");
  need(linear.shape(0) == n && quadratic.shape(0) == n, "linear and quadratic: one per point");
  const std::size_t workers = thread_count(threads);
  nb::gil_scoped_release release;
  Assign a{};
  a.linear = linear.data();
  a.quadratic = quadratic.data();
  a.codes = codes.data();
  a.costs = costs.data();
  run_assign(kernels, points, codewords, squared_norms.data(), a, workers);
}

void gram(Array<const float, 2> codewords, Array<float, 2> out, int threads, const std::string& isa) {
  const Kernels& kernels = kernels_named(isa);
  const std::size_t k = codewords.shape(0), d = codewords.shape(1), columns = out.shape(1);
  need(out.shape(0) == k && columns >= k && columns % 32 == 0, "out: (k, a multiple of 32 of at least k)");
  const std::size_t workers = thread_count(threads);
  nb::gil_scoped_release release;
  spread(k, 16, workers, 0, [&](std::size_t begin, std::size_t end, void*) {
    for (std::size_t i = begin; i < end; ++i)
      for (std::size_t j = 0; j < columns; ++j)
        out.data()[i * columns + j] =
            j < k ? kernels.dot_f32(codewords.data() + i * d, codewords.data() + j * d, d) : 0.0f;
  });
}

struct CheckedBooks {
  std::vector<float> squared_norms;
  Codebooks books;
};

CheckedBooks check_books(const Array<const float, 3>& codewords, const Array<const std::int32_t, 1>& starts,
                         std::size_t d) {
  const std::size_t m = codewords.shape(0), k = codewords.shape(1), width = codewords.shape(2);
  need(m >= 1 && k >= 1 && k <= 256 && width >= 1, "codewords: (subspaces, 1 to 256, width), none empty");
  need(starts.shape(0) == m + 1, "starts: one more than subspaces");
  need(starts.data()[0] == 0 && static_cast<std::size_t>(starts.data()[m]) == d, "starts must run from 0 to d");
  for (std::size_t i = 0; i < m; ++i) {
    const std::int64_t size = std::int64_t{starts.data()[i + 1]} - starts.data()[i];
    need(size >= 1 && size <= static_cast<std::int64_t>(width), "starts must rise by 1 to width");
  }
  std::vector<double> squares(m * k, 0.0);
  for (std::size_t i = 0; i < m * k; ++i)
    for (std::size_t j = 0; j < width; ++j) {
      const double value = codewords.data()[i * width + j];
      squares[i] += value * value;
    }
  // A power of two, so that multiplying by it rounds nothing.
  const double largest = *std::max_element(squares.begin(), squares.end());
  const double unit = largest > 0 && std::isfinite(largest) ? std::ldexp(1.0, -std::ilogb(std::sqrt(largest))) : 1.0;
  CheckedBooks checked;
  for (const double square : squares) checked.squared_norms.push_back(static_cast<float>(square * unit * unit));
  checked.books = {codewords.data(),        checked.squared_norms.data(), starts.data(), m, k, width, d,
                   static_cast<float>(unit)};
  return checked;
}

void check_codes(const Array<const std::uint8_t, 2>& codes, const Codebooks& books, std::size_t n) {
  need(codes.shape(0) == n && codes.shape(1) == books.m, "codes: (points, subspaces)");
  if (books.k == 256) return;
  const std::uint8_t* data = codes.data();
  std::uint8_t largest = 0;
  for (std::size_t i = 0; i < n * books.m; ++i) largest = std::max(largest, data[i]);
  need(n == 0 || largest < books.k, "codes name a codeword that does not exist");
}

void encode(Array<const float, 2> residuals, Array<const float, 2> points, Array<const float, 1> penalty,
            Array<const float, 3> codewords, Array<const std::int32_t, 1> starts, Array<std::uint8_t, 2> codes,
            bool scaled, bool warm, int sweeps, int threads, const std::string& isa) {
  const Kernels& kernels = kernels_named(isa);
  const std::size_t n = residuals.shape(0), d = residuals.shape(1);
  need(points.shape(0) == n && points.shape(1) == d, "residuals and points differ in shape");
  need(penalty.shape(0) == n, "penalty: one per point");
  const std::size_t workers = thread_count(threads);
  nb::gil_scoped_release release;
  const CheckedBooks checked = check_books(codewords, starts, d);
  if (warm) check_codes(Array<const std::uint8_t, 2>(codes), checked.books, n);
  need(codes.shape(0) == n && codes.shape(1) == checked.books.m, "codes: (points, subspaces)");
  const Encode e{residuals.data(), points.data(), penalty.data(), checked.books, scaled, warm, sweeps, codes.data()};
  spread(n, chunk_rows, workers, kernels.encode_scratch(checked.books),
         [&](std::size_t begin, std::size_t end, void* scratch) { kernels.encode(e, begin, end, scratch); });
}

void encode_additive(Array<const float, 2> points, Array<const float, 1> penalty, Array<const float, 3> codewords,
                     Array<const float, 2> gram, Array<std::uint8_t, 2> codes, bool scaled, bool warm, int sweeps,
                     int restarts, int kicks, std::uint64_t seed, int threads, const std::string& isa) {
  const Kernels& kernels = kernels_named(isa);
  const std::size_t n = points.shape(0), d = points.shape(1), m = codewords.shape(0), k = codewords.shape(1);
  const std::size_t words = m * k;
  need(m >= 1 && k >= 16 && k <= 256 && k % 16 == 0, "codewords: (codebooks, 16 to 256 by 16, dimensions)");
  need(codewords.shape(2) == d, "codewords and points differ in dimensions");
  need(gram.shape(0) == words && gram.shape(1) == words, "gram: (codewords, codewords)");
  need(penalty.shape(0) == n, "penalty: one per point");
  need(codes.shape(0) == n && codes.shape(1) == m, "codes: (points, codebooks)");
  const std::size_t workers = thread_count(threads);
  nb::gil_scoped_release release;
  if (warm && k < 256)
    for (std::size_t i = 0; i < n * m; ++i) need(codes.data()[i] < k, "codes name a codeword that does not exist");
  std::vector<float> columns(d * words);
  for (std::size_t c = 0; c < words; ++c)
    for (std::size_t j = 0; j < d; ++j) columns[j * words + c] = codewords.data()[c * d + j];
  const EncodeAdditive e{points.data(), penalty.data(), columns.data(), gram.data(), m,     k,    d,
                         scaled,        warm,           sweeps,         restarts,    kicks, seed, codes.data()};
  spread(n, 64, workers, kernels.encode_additive_scratch(e),
         [&](std::size_t begin, std::size_t end, void* scratch) { kernels.encode_additive(e, begin, end, scratch); });
}

void dot_decoded(Array<const float, 2> values, Array<const std::uint8_t, 2> codes, Array<const float, 3> codewords,
                 Array<const std::int32_t, 1> starts, Array<float, 1> out, int threads, const std::string& isa) {
  const Kernels& kernels = kernels_named(isa);
  const std::size_t n = values.shape(0), d = values.shape(1);
  need(out.shape(0) == n, "out: one per point");
  const std::size_t workers = thread_count(threads);
  nb::gil_scoped_release release;
  const CheckedBooks checked = check_books(codewords, starts, d);
  check_codes(codes, checked.books, n);
  const DotDecoded a{values.data(), codes.data(), checked.books, out.data()};
  spread(n, chunk_rows, workers, 0,
         [&](std::size_t begin, std::size_t end, void*) { kernels.dot_decoded(a, begin, end); });
}

void sum_by_code(Array<const float, 2> values, Array<const float, 1> weights, Array<const std::uint8_t, 2> codes,
                 Array<const float, 3> codewords, Array<const std::int32_t, 1> starts, Array<double, 3> out,
                 int threads, const std::string& isa) {
  const Kernels& kernels = kernels_named(isa);
  const std::size_t n = values.shape(0), d = values.shape(1);
  need(weights.shape(0) == n, "weights: one per point");
  need(out.shape(0) == codewords.shape(0) && out.shape(1) == codewords.shape(1) && out.shape(2) == codewords.shape(2),
       "out: shaped like codewords");
  const std::size_t workers = thread_count(threads);
  nb::gil_scoped_release release;
  const CheckedBooks checked = check_books(codewords, starts, d);
  check_codes(codes, checked.books, n);
  std::fill_n(out.data(), out.size(), 0.0);
  const SumByCode a{values.data(), weights.data(), codes.data(), checked.books, n, out.data()};
  const std::size_t m = checked.books.m;
  spread(m, (m + workers - 1) / workers, workers, 0,
         [&](std::size_t begin, std::size_t end, void*) { kernels.sum_by_code(a, begin, end); });
}

void sum_by_group(Array<const float, 2> values, Array<const float, 1> weights, Array<const std::int32_t, 1> groups,
                  Array<double, 2> sums, Array<double, 1> totals, bool add, int threads, const std::string& isa) {
  const Kernels& kernels = kernels_named(isa);
  const std::size_t n = values.shape(0), d = values.shape(1), k = sums.shape(0);
  need(weights.shape(0) == n && groups.shape(0) == n, "weights and groups: one per point");
  need(sums.shape(1) == d && totals.shape(0) == k, "sums: (groups, d), totals: (groups)");
  const std::size_t workers = thread_count(threads);
  nb::gil_scoped_release release;
  for (std::size_t i = 0; i < n; ++i)
    need(groups.data()[i] >= 0 && static_cast<std::size_t>(groups.data()[i]) < k, "groups must lie in 0 .. k - 1");
  if (!add) {
    std::fill_n(sums.data(), sums.size(), 0.0);
    std::fill_n(totals.data(), totals.size(), 0.0);
  }
  const SumByGroup a{values.data(), weights.data(), groups.data(), n, d, sums.data(), totals.data()};
  if (k == 0) return;
  spread(k, (k + workers - 1) / workers, workers, 0,
         [&](std::size_t begin, std::size_t end, void*) { kernels.sum_by_group(a, begin, end); });
}

}  // namespace
}  // namespace aniso

NB_MODULE(_core, module) {
  using namespace aniso;
  module.doc() =
      "The kernels: arithmetic on arrays that NumPy owns. Outputs are arrays the caller allocated, but for "
      "Searcher.answer.";
  module.def("isas", &isas, "The instruction sets this machine can run, best first.");
  module.def("isa", &isa, "The instruction set in use: the best, or the one ANISO_ISA names.");
  module.def("release_memory", &release_memory, "Give memory that was freed back to the system; does what it can.");
  module.def("assign", &assign, "points"_a.noconvert(), "codewords"_a.noconvert(), "squared_norms"_a.noconvert(),
             "linear"_a.noconvert(), "quadratic"_a.noconvert(), "codes"_a.noconvert(), "costs"_a.noconvert(),
             nb::kw_only(), "threads"_a = 1, "isa"_a = "",
             "The cheapest codeword of each point; cost = |c|^2 + g (linear + quadratic g), g = <point, c>.");
  module.def("gram", &gram, "codewords"_a.noconvert(), "out"_a.noconvert(), nb::kw_only(), "threads"_a = 1,
             "isa"_a = "", "out[:, :k] = codewords @ codewords.T, the other columns 0.");
  module.def("encode", &encode, "residuals"_a.noconvert(), "points"_a.noconvert(), "penalty"_a.noconvert(),
             "codewords"_a.noconvert(), "starts"_a.noconvert(), "codes"_a.noconvert(), nb::kw_only(), "scaled"_a,
             "warm"_a, "sweeps"_a, "threads"_a = 1, "isa"_a = "",
             "Product codes by coordinate descent on the score-aware loss, or on that loss under the best scale.");
  module.def("encode_additive", &encode_additive, "points"_a.noconvert(), "penalty"_a.noconvert(),
             "codewords"_a.noconvert(), "gram"_a.noconvert(), "codes"_a.noconvert(), nb::kw_only(), "scaled"_a,
             "warm"_a, "sweeps"_a, "restarts"_a, "kicks"_a, "seed"_a, "threads"_a = 1, "isa"_a = "",
             "Additive codes by iterated local search.");
  module.def("dot_decoded", &dot_decoded, "values"_a.noconvert(), "codes"_a.noconvert(), "codewords"_a.noconvert(),
             "starts"_a.noconvert(), "out"_a.noconvert(), nb::kw_only(), "threads"_a = 1, "isa"_a = "",
             "out[i] = <values[i], decode(codes)[i]>.");
  module.def("sum_by_code", &sum_by_code, "values"_a.noconvert(), "weights"_a.noconvert(), "codes"_a.noconvert(),
             "codewords"_a.noconvert(), "starts"_a.noconvert(), "out"_a.noconvert(), nb::kw_only(), "threads"_a = 1,
             "isa"_a = "", "Weighted sums of each subspace's values over the points that chose each codeword.");
  module.def("sum_by_group", &sum_by_group, "values"_a.noconvert(), "weights"_a.noconvert(), "groups"_a.noconvert(),
             "sums"_a.noconvert(), "totals"_a.noconvert(), nb::kw_only(), "add"_a = false, "threads"_a = 1,
             "isa"_a = "",
             "Weighted sums of rows by group, and the sum of weights of each; add: to what sums and totals hold.");
  bind_route(module);
  bind_search(module);
  bind_stages(module);
  bind_exact(module);
  bind_linear(module);
}
