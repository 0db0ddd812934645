// Brute force: blocks of points stay in the cache while all queries of a thread pass by.
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "arrays.h"
#include "candidates.h"
#include "keys.h"
#include "threads.h"

using namespace nanobind::literals;

namespace aniso {
namespace {

constexpr std::size_t tile = 6;           // queries scored together
constexpr std::size_t group = 8 * tile;   // queries a thread takes at a time
constexpr std::size_t block_panels = 32;  // 512 points: 200 kB at 100 dimensions
constexpr std::size_t block_points = 16 * block_panels;

// ids[i], scores[i] = the k best of queries @ points.T + biases, best first, equals by number.
void exact_search(Array<const float, 2> queries, Array<const float, 3> panels, Array<const float, 1> biases,
                  Array<std::int64_t, 2> ids, Array<float, 2> scores, int threads, const std::string& isa) {
  const Kernels& kernels = kernels_named(isa);
  const std::size_t q = queries.shape(0), d = queries.shape(1), n = biases.shape(0), k = ids.shape(1);
  need(panels.shape(0) == (n + 15) / 16 && panels.shape(1) == d && panels.shape(2) == 16, "panels: (n / 16, d, 16)");
  need(n < std::size_t{1} << 32 && k >= 1 && k <= n, "k: 1 to n");
  need(ids.shape(0) == q && scores.shape(0) == q && scores.shape(1) == k, "ids and scores: (queries, k)");
  const std::size_t workers = thread_count(threads);
  nb::gil_scoped_release release;
  spread(q, group, workers, tile * block_points * sizeof(float) + block_points * sizeof(std::uint32_t),
         [&](std::size_t begin, std::size_t end, void* scratch) {
           float* values = static_cast<float*>(scratch);
           std::uint32_t* chosen = reinterpret_cast<std::uint32_t*>(values + tile * block_points);
           std::vector<Best> best(end - begin);
           for (Best& one : best) one.start(k);
           for (std::size_t first = 0; first < n; first += block_points) {
             const std::size_t count = std::min(block_points, n - first);
             const float* block = panels.data() + first * d;
             for (std::size_t i = begin; i < end; i += tile) {
               const std::size_t rows = std::min(tile, end - i);
               kernels.score_panels(block, d, (count + 15) / 16, queries.data() + i * d, rows, values, block_points);
               for (std::size_t r = 0; r < rows; ++r) {
                 float* row = values + r * block_points;
                 for (std::size_t p = 0; p < count; ++p) row[p] += biases.data()[first + p];
                 Best& one = best[i - begin + r];
                 const std::size_t found = kernels.select_at_least(row, count, one.least(), chosen);
                 for (std::size_t c = 0; c < found; ++c)
                   one.add(key_of(sortable(row[chosen[c]]), static_cast<std::uint32_t>(first) + chosen[c]));
               }
             }
           }
           for (std::size_t i = begin; i < end; ++i) {
             const std::vector<std::uint64_t>& keys = best[i - begin].sorted();
             need(keys.size() == k, "queries, panels and biases: numbers, also their products");
             for (std::size_t c = 0; c < k; ++c) {
               ids.data()[i * k + c] = number_of(keys[c]);
               scores.data()[i * k + c] = from_sortable(score_of(keys[c]));
             }
           }
         });
}

// out = x @ points.T, for the points in panels
void multiply(Array<const float, 2> x, Array<const float, 3> panels, Array<float, 2> out, int threads,
              const std::string& isa) {
  const Kernels& kernels = kernels_named(isa);
  const std::size_t n = x.shape(0), d = x.shape(1), columns = 16 * panels.shape(0);
  need(panels.shape(1) == d && panels.shape(2) == 16, "panels: (points / 16, d, 16)");
  need(out.shape(0) == n && out.shape(1) == columns, "out: (rows of x, 16 * panels)");
  const std::size_t workers = thread_count(threads);
  nb::gil_scoped_release release;
  spread(n, 40 * tile, workers, 0, [&](std::size_t begin, std::size_t end, void*) {
    for (std::size_t i = begin; i < end; i += tile)
      kernels.score_panels(panels.data(), d, panels.shape(0), x.data() + i * d, std::min(tile, end - i),
                           out.data() + i * columns, columns);
  });
}

}  // namespace

void bind_exact(nb::module_& module) {
  module.def("multiply", &multiply, "x"_a.noconvert(), "panels"_a.noconvert(), "out"_a.noconvert(), nb::kw_only(),
             "threads"_a = 1, "isa"_a = "", "out = x @ points.T, for points in panels.");
  module.def("exact_search", &exact_search, "queries"_a.noconvert(), "panels"_a.noconvert(), "biases"_a.noconvert(),
             "ids"_a.noconvert(), "scores"_a.noconvert(), nb::kw_only(), "threads"_a = 1, "isa"_a = "",
             "The k best of queries @ points.T + biases, by brute force.");
}

}  // namespace aniso
