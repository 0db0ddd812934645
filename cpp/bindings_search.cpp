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
  Searcher(std::size_t n, std::size_t d, bool l2, bool unit_queries, std::optional<Array<const float, 1>> shift,
           Array<const std::int8_t, 4> centroids, Array<const std::int32_t, 1> centroid_sums,
           Array<const float, 2> scales, Array<const std::int64_t, 1> first_blocks, Array<const std::int32_t, 1> sizes,
           Array<const float, 3> codewords, Array<const std::int32_t, 1> firsts, std::size_t group,
           Array<const std::uint8_t, 3> codes, Array<const std::int32_t, 1> slot_rows, nb::object points,
           std::optional<Array<const float, 1>> point_scales, std::optional<Array<const float, 1>> point_biases,
           const std::string& isa)
      : shift_(shift),
        centroids_(centroids),
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
    need(!shift || shift->shape(0) == d, "shift: one per dimension");
    view.shift = data_or_null(shift);
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

  void search_one(Array<const float, 1> query, std::size_t partitions, std::size_t candidates,
                  Array<std::int64_t, 1> ids, Array<float, 1> scores) {
    const std::size_t k = ids.shape(0);
    need(query.shape(0) == d_, "query and index differ in dimensions");
    need(k >= 1 && k <= n_ && scores.shape(0) == k, "ids and scores: 1 to n");
    need(candidates >= 1 && candidates <= 2 * n_, "candidates: 1 to 2 n");
    nb::gil_scoped_release release;
    check_query(query.data(), 0);
    search_->one(query.data(), k, partitions, candidates, ids.data(), scores.data());
  }

  nb::dict profile(Array<const float, 2> queries, std::size_t k, std::size_t partitions, std::size_t candidates) {
    need(queries.shape(1) == d_, "queries and index differ in dimensions");
    need(k >= 1 && k <= n_, "k: 1 to n");
    need(candidates >= 1 && candidates <= 2 * n_, "candidates: 1 to 2 n");
    std::vector<std::int64_t> ids(k);
    std::vector<float> scores(k);
    Stages stages;
    for (std::size_t i = 0; i < queries.shape(0); ++i) {
      check_query(queries.data() + i * d_, i);
      search_->one(queries.data() + i * d_, k, partitions, candidates, ids.data(), scores.data(), &stages);
    }
    nb::dict out;
    out["prepare"] = stages.prepare;
    out["centroids"] = stages.centroids;
    out["choose"] = stages.choose;
    out["tables"] = stages.tables;
    out["scan"] = stages.scan;
    out["rescore"] = stages.rescore;
    out["scanned"] = stages.scanned;
    out["hits"] = stages.hits;
    return out;
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

  std::optional<Array<const float, 1>> shift_;
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

// The kernels of the search one by one, for tests and benchmarks.

nb::tuple make_tables(Array<const float, 1> query, Array<const float, 3> codewords, Array<const std::int32_t, 1> firsts,
                      std::size_t group, Array<std::uint8_t, 2> tables, const std::string& isa) {
  const std::size_t m = codewords.shape(0), width = codewords.shape(1);
  need(codewords.shape(2) == 16 && width >= 1, "codewords: (m, width, 16)");
  need(firsts.shape(0) == m && tables.shape(0) == m && tables.shape(1) == 16, "firsts: (m), tables: (m, 16)");
  need(group >= 1 && group <= 64, "group: 1 to 64");
  for (std::size_t i = 0; i < m; ++i)
    need(firsts.data()[i] >= 0 && static_cast<std::size_t>(firsts.data()[i]) + width <= query.shape(0),
         "a table reads past the query");
  std::vector<float> floats(16 * m);
  float offset, step;
  kernels_named(isa).make_tables({codewords.data(), firsts.data(), m, width, group}, query.data(), floats.data(),
                                 tables.data(), &offset, &step);
  return nb::make_tuple(offset, step);
}

void score_centroids(Array<const std::uint8_t, 1> query, Array<const std::int8_t, 4> centroids,
                     Array<const std::int32_t, 1> sums, Array<std::int32_t, 1> scores, const std::string& isa) {
  const std::size_t blocks = centroids.shape(0), d4 = centroids.shape(1) * 4;
  need(centroids.shape(2) == 8 && centroids.shape(3) == 4 && d4 % 8 == 0, "centroids: (blocks, d4 / 4, 8, 4)");
  need(query.shape(0) == d4, "query: d4 bytes");
  need(sums.shape(0) == 8 * blocks && scores.shape(0) == 8 * blocks, "sums and scores: 8 per block");
  for (std::size_t j = 0; j < d4; ++j) need(query.data()[j] < 128, "query bytes: 0 to 127");
  for (std::size_t i = 0; i < centroids.size(); ++i)
    need(centroids.data()[i] >= -63 && centroids.data()[i] <= 63, "centroid bytes: -63 to 63");
  kernels_named(isa).score_centroids({centroids.data(), sums.data(), blocks, d4}, query.data(), scores.data());
}

std::size_t scan(Array<const std::uint8_t, 3> codes, Array<const std::uint8_t, 2> tables, std::size_t group,
                 std::size_t first_block, std::size_t points, std::uint32_t least, Array<std::uint32_t, 2> hits,
                 const std::string& isa) {
  static_assert(sizeof(Hit) == 2 * sizeof(std::uint32_t));
  const std::size_t rows = codes.shape(1);
  need(codes.shape(2) == 32, "codes: (blocks, rows, 32)");
  need(tables.shape(0) == 2 * rows && tables.shape(1) == 16, "tables: (2 rows, 16)");
  need(group >= 2 && group % 2 == 0, "group: an even number of subspaces");
  need(first_block <= codes.shape(0) && points <= 32 * (codes.shape(0) - first_block), "points run past the blocks");
  need(hits.shape(0) >= points && hits.shape(1) == 2, "hits: (points, 2)");
  return kernels_named(isa).scan({codes.data(), tables.data(), rows, group / 2}, first_block, points, least,
                                 reinterpret_cast<Hit*>(hits.data()), codes.data());
}

void score_rows(Array<const float, 1> query, nb::object points, bool distance, Array<float, 1> out,
                const std::string& isa) {
  const Kernels& kernels = kernels_named(isa);
  auto array = nb::cast<nb::ndarray<nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu>>(points);
  const std::size_t n = array.shape(0), d = array.shape(1);
  need(query.shape(0) == d && out.shape(0) == n, "query: (d), out: (n)");
  const float* q = query.data();
  if (array.dtype() == nb::dtype<float>()) {
    const float* x = static_cast<const float*>(array.data());
    for (std::size_t i = 0; i < n; ++i)
      out.data()[i] = distance ? kernels.distance_f32(x + i * d, q, d) : kernels.dot_f32(x + i * d, q, d);
  } else if (array.dtype() == nb::dtype<std::uint16_t>()) {
    const std::uint16_t* x = static_cast<const std::uint16_t*>(array.data());
    for (std::size_t i = 0; i < n; ++i)
      out.data()[i] = distance ? kernels.distance_f16(x + i * d, q, d) : kernels.dot_f16(x + i * d, q, d);
  } else if (array.dtype() == nb::dtype<std::int8_t>()) {
    need(!distance, "int8 rows: inner products only");
    need(d <= 4096, "int8 rows: up to 4096 dimensions");
    const std::int8_t* x = static_cast<const std::int8_t*>(array.data());
    std::vector<std::int16_t> words(d);
    for (std::size_t j = 0; j < d; ++j) {
      need(q[j] >= -4096 && q[j] <= 4096 && q[j] == std::floor(q[j]), "int8 rows: a query of whole numbers to 4096");
      words[j] = static_cast<std::int16_t>(q[j]);
    }
    for (std::size_t i = 0; i < n; ++i) out.data()[i] = static_cast<float>(kernels.dot_i8(x + i * d, words.data(), d));
  } else {
    throw std::invalid_argument("points: float32, uint16 (the bits of float16) or int8");
  }
}

}  // namespace

void bind_search(nb::module_& module) {
  module.def("make_tables", &make_tables, "query"_a.noconvert(), "codewords"_a.noconvert(), "firsts"_a.noconvert(),
             "group"_a, "tables"_a.noconvert(), nb::kw_only(), "isa"_a = "",
             "Tables of a query in 8 bits; returns the sum of their lowest entries and the step of their units.");
  module.def("score_centroids", &score_centroids, "query"_a.noconvert(), "centroids"_a.noconvert(),
             "sums"_a.noconvert(), "scores"_a.noconvert(), nb::kw_only(), "isa"_a = "",
             "Integer inner products of a query in bytes with packed centroids.");
  module.def("scan", &scan, "codes"_a.noconvert(), "tables"_a.noconvert(), "group"_a, "first_block"_a, "points"_a,
             "least"_a, "hits"_a.noconvert(), nb::kw_only(), "isa"_a = "",
             "Slots and sums of the points whose table entries add up to at least `least`; returns how many.");
  module.def("score_rows", &score_rows, "query"_a.noconvert(), "points"_a.noconvert(), "distance"_a,
             "out"_a.noconvert(), nb::kw_only(), "isa"_a = "",
             "Inner products or squared distances of a query and rows, as rescoring computes them.");
  nb::class_<Searcher>(module, "Searcher", "A borrowed view of an index's arrays that answers queries.")
      .def(nb::init<std::size_t, std::size_t, bool, bool, std::optional<Array<const float, 1>>,
                    Array<const std::int8_t, 4>, Array<const std::int32_t, 1>, Array<const float, 2>,
                    Array<const std::int64_t, 1>, Array<const std::int32_t, 1>, Array<const float, 3>,
                    Array<const std::int32_t, 1>, std::size_t, Array<const std::uint8_t, 3>,
                    Array<const std::int32_t, 1>, nb::object, std::optional<Array<const float, 1>>,
                    std::optional<Array<const float, 1>>, const std::string&>(),
           nb::kw_only(), "n"_a, "d"_a, "l2"_a, "unit_queries"_a, "shift"_a.noconvert().none(),
           "centroids"_a.noconvert(), "centroid_sums"_a.noconvert(), "scales"_a.noconvert(),
           "first_blocks"_a.noconvert(), "sizes"_a.noconvert(), "codewords"_a.noconvert(), "firsts"_a.noconvert(),
           "group"_a, "codes"_a.noconvert(), "slot_rows"_a.noconvert(), "points"_a.none(),
           "point_scales"_a.noconvert().none(), "point_biases"_a.noconvert().none(), "isa"_a = "")
      .def("profile", &Searcher::profile, "queries"_a.noconvert(), "k"_a, "partitions"_a, "candidates"_a,
           "Seconds in each stage, points scanned and hits, summed over the queries, one after the other.")
      .def("search_one", &Searcher::search_one, "query"_a.noconvert(), "partitions"_a, "candidates"_a,
           "ids"_a.noconvert(), "scores"_a.noconvert(), "The k best points of one query, best first.")
      .def("search", &Searcher::search, "queries"_a.noconvert(), "partitions"_a, "candidates"_a, "ids"_a.noconvert(),
           "scores"_a.noconvert(), nb::kw_only(), "threads"_a = 1, "The k best points of each query, best first.");
}

}  // namespace aniso
