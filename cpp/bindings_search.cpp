// The boundary of the search: checks the arrays of an index once, holds them, and searches.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cmath>
#include <optional>
#include <vector>

#include "arrays.h"
#include "search.h"
#include "threads.h"

using namespace nanobind::literals;

namespace aniso {
namespace {

template <class T>
T* data_or_null(const std::optional<Array<T, 1>>& array) {
  return array ? array->data() : nullptr;
}

// Borrows the arrays of an index; the members keep them alive.
class Searcher {
 public:
  Searcher(std::size_t n, std::size_t d, bool l2, bool unit_queries, Array<const std::int8_t, 4> centroids,
           Array<const std::int32_t, 1> centroid_sums, Array<const float, 2> scales,
           Array<const std::int64_t, 1> first_blocks, Array<const std::int32_t, 1> sizes,
           Array<const float, 3> codewords, Array<const std::int32_t, 1> firsts, std::size_t group,
           Array<const std::uint8_t, 3> codes, Array<const std::int32_t, 1> slot_rows, nb::object points,
           std::optional<Array<const float, 1>> point_scales, std::optional<Array<const float, 1>> point_biases,
           const std::string& isa)
      : centroids_(centroids),
        centroid_sums_(centroid_sums),
        scales_(scales),
        first_blocks_(first_blocks),
        sizes_(sizes),
        codewords_(codewords),
        firsts_(firsts),
        codes_(codes),
        slot_rows_(slot_rows),
        points_(points),
        point_scales_(point_scales),
        point_biases_(point_biases) {
    const std::size_t p = sizes.shape(0), p8 = (p + 7) / 8 * 8, d4 = centroids.shape(1) * 4;
    const std::size_t m = codewords.shape(0), width = codewords.shape(1), rows = codes.shape(1);
    const std::size_t blocks = codes.shape(0);
    need(n >= 1 && n < std::size_t{1} << 31 && d >= 1, "n: 1 to 2^31, d: at least 1");
    need(p >= 1 && centroids.shape(0) == p8 / 8 && centroids.shape(2) == 8 && centroids.shape(3) == 4,
         "centroids: (ceil(p / 8), d4 / 4, 8, 4)");
    need(d4 >= d && d4 % 8 == 0, "centroids: dimensions padded to a multiple of 8");
    need(centroid_sums.shape(0) == p8, "centroid_sums: one per centroid, padded to 8");
    need(scales.shape(0) == 4 && scales.shape(1) == p8, "scales: (4, partitions padded to 8)");
    need(first_blocks.shape(0) == p, "first_blocks: one per partition");
    need(codewords.shape(2) == 16 && m >= 1 && width >= 1, "codewords: (m, width, 16)");
    need(firsts.shape(0) == m, "firsts: one per subspace");
    need(group >= 2 && group % 2 == 0 && group <= 64, "group: an even number of subspaces up to 64");
    need((m + group - 1) / group <= 257, "too many subspaces: their sums must fit 16 bits");
    need(rows == (m + 1) / 2 && codes.shape(2) == 32, "codes: (blocks, ceil(m / 2), 32)");
    need(slot_rows.shape(0) == blocks * 32, "slot_rows: one per slot");
    for (std::size_t i = 0; i < m; ++i)
      need(firsts.data()[i] >= 0 && static_cast<std::size_t>(firsts.data()[i]) <= d, "firsts must lie in 0 .. d");
    for (std::size_t i = 0; i < p; ++i) {
      const std::int64_t first = first_blocks.data()[i], size = sizes.data()[i];
      need(size >= 0 && first >= 0 && first <= static_cast<std::int64_t>(blocks) &&
               (size + 31) / 32 <= static_cast<std::int64_t>(blocks) - first,
           "a partition runs past the blocks");
      for (std::int64_t s = first * 32; s < first * 32 + size; ++s)
        need(slot_rows.data()[s] >= 0 && static_cast<std::size_t>(slot_rows.data()[s]) < n,
             "slot_rows names a point that does not exist");
    }
    View view{};
    view.n = n;
    view.d = d;
    view.p = p;
    view.l2 = l2;
    view.unit_queries = unit_queries;
    view.centroids = {centroids.data(), centroid_sums.data(), p8 / 8, d4};
    view.order_scales = scales.data();
    view.order_biases = scales.data() + p8;
    view.base_scales = scales.data() + 2 * p8;
    view.base_biases = scales.data() + 3 * p8;
    view.first_blocks = first_blocks.data();
    view.sizes = sizes.data();
    view.blocks = blocks;
    view.tables = {codewords.data(), firsts.data(), m, width, group};
    view.rows = rows;
    view.group_rows = group / 2;
    view.codes = codes.data();
    view.slot_rows = slot_rows.data();
    set_points(view, points);
    view.point_scales = data_or_null(point_scales);
    view.point_biases = data_or_null(point_biases);
    if (view.rescore == Rescore::int8) {
      need(point_scales && point_scales->shape(0) == n, "point_scales: one per int8 point");
      need(!l2 || (point_biases && point_biases->shape(0) == n), "point_biases: one per int8 point with l2");
    }
    search_ = std::make_unique<Search>(view, kernels_named(isa));
    n_ = n;
    d_ = d;
  }

  void search(Array<const float, 2> queries, std::size_t partitions, std::size_t candidates, Array<std::int64_t, 2> ids,
              Array<float, 2> scores, int threads) {
    const std::size_t q = queries.shape(0), k = ids.shape(1);
    need(queries.shape(1) == d_, "queries and index differ in dimensions");
    need(k >= 1 && k <= n_, "k: 1 to n");
    need(candidates >= 1 && candidates <= 2 * n_, "candidates: 1 to 2 n");
    need(ids.shape(0) == q && scores.shape(0) == q && scores.shape(1) == k, "ids and scores: (queries, k)");
    const std::size_t workers = thread_count(threads);
    nb::gil_scoped_release release;
    for (std::size_t i = 0; i < q; ++i) check_query(queries.data() + i * d_, i);
    auto work = [&](std::size_t begin, std::size_t end, void*) {
      for (std::size_t i = begin; i < end; ++i)
        search_->one(queries.data() + i * d_, k, partitions, candidates, ids.data() + i * k, scores.data() + i * k);
    };
    if (q == 1 || workers == 1)
      work(0, q, nullptr);
    else
      spread(q, 16, workers, 0, work);
  }

 private:
  void set_points(View& view, nb::object points) {
    if (points.is_none()) {
      view.rescore = Rescore::none;
      return;
    }
    auto array = nb::cast<nb::ndarray<nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu>>(points);
    need(array.shape(0) == view.n && array.shape(1) == view.d, "points: (n, d)");
    view.points = array.data();
    if (array.dtype() == nb::dtype<float>())
      view.rescore = Rescore::float32;
    else if (array.dtype() == nb::dtype<std::int8_t>())
      view.rescore = Rescore::int8;
    else if (array.dtype() == nb::dtype<std::uint16_t>())
      view.rescore = Rescore::float16;
    else
      throw std::invalid_argument("points: float32, uint16 (the bits of float16) or int8");
  }

  void check_query(const float* query, std::size_t row) const {
    float sum = 0;
    for (std::size_t j = 0; j < d_; ++j) sum += query[j] * 0.0f;  // 0 unless a value is not finite
    if (sum == 0) return;
    for (std::size_t j = 0; j < d_; ++j)
      if (!std::isfinite(query[j]))
        throw std::invalid_argument("queries row " + std::to_string(row) + ", dimension " + std::to_string(j) +
                                    " is not finite: " + std::to_string(query[j]));
  }

  Array<const std::int8_t, 4> centroids_;
  Array<const std::int32_t, 1> centroid_sums_;
  Array<const float, 2> scales_;
  Array<const std::int64_t, 1> first_blocks_;
  Array<const std::int32_t, 1> sizes_;
  Array<const float, 3> codewords_;
  Array<const std::int32_t, 1> firsts_;
  Array<const std::uint8_t, 3> codes_;
  Array<const std::int32_t, 1> slot_rows_;
  nb::object points_;
  std::optional<Array<const float, 1>> point_scales_, point_biases_;
  std::unique_ptr<Search> search_;
  std::size_t n_, d_;
};

}  // namespace

void bind_search(nb::module_& module) {
  nb::class_<Searcher>(module, "Searcher", "A borrowed view of an index's arrays that answers queries.")
      .def(nb::init<std::size_t, std::size_t, bool, bool, Array<const std::int8_t, 4>, Array<const std::int32_t, 1>,
                    Array<const float, 2>, Array<const std::int64_t, 1>, Array<const std::int32_t, 1>,
                    Array<const float, 3>, Array<const std::int32_t, 1>, std::size_t, Array<const std::uint8_t, 3>,
                    Array<const std::int32_t, 1>, nb::object, std::optional<Array<const float, 1>>,
                    std::optional<Array<const float, 1>>, const std::string&>(),
           nb::kw_only(), "n"_a, "d"_a, "l2"_a, "unit_queries"_a, "centroids"_a.noconvert(),
           "centroid_sums"_a.noconvert(), "scales"_a.noconvert(), "first_blocks"_a.noconvert(), "sizes"_a.noconvert(),
           "codewords"_a.noconvert(), "firsts"_a.noconvert(), "group"_a, "codes"_a.noconvert(),
           "slot_rows"_a.noconvert(), "points"_a.none(), "point_scales"_a.noconvert().none(),
           "point_biases"_a.noconvert().none(), "isa"_a = "")
      .def("search", &Searcher::search, "queries"_a.noconvert(), "partitions"_a, "candidates"_a, "ids"_a.noconvert(),
           "scores"_a.noconvert(), nb::kw_only(), "threads"_a = 1, "The k best points of each query, best first.");
}

}  // namespace aniso
