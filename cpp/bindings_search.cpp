// The boundary of the search: checks the arrays of an index once, holds them, and searches.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <atomic>
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

constexpr const char* too_few = "fewer than k points are in the partitions";

// What a fast call returns None for: anything but plain whole numbers within the limits.
bool whole_number(nb::handle value, std::size_t most, std::size_t& out) {
  if (!PyLong_CheckExact(value.ptr())) return false;
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
  if (overflow || number < 1 || static_cast<unsigned long long>(number) > most) return false;
  out = static_cast<std::size_t>(number);
  return true;
}

// A borrowed buffer, given back at the end of the scope.
struct Borrowed {
  Py_buffer view{};
  bool held;
  Borrowed(nb::handle from, int flags) : held(PyObject_GetBuffer(from.ptr(), &view, flags) == 0) {
    if (!held) PyErr_Clear();
  }
  ~Borrowed() {
    if (held) PyBuffer_Release(&view);
  }
  // Whether it is one contiguous axis of that type, at least so long.
  bool is_vector(char type, Py_ssize_t bytes, std::size_t least) const {
    return held && view.ndim == 1 && view.itemsize == bytes && view.format && view.format[0] == type &&
           !view.format[1] && static_cast<std::size_t>(view.shape[0]) >= least;
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
};

// Borrows the arrays of an index; the members keep them alive.
class Searcher {
 public:
  Searcher(std::size_t n, std::size_t d, bool l2, bool unit_queries, std::optional<Array<const float, 1>> shift,
           Array<const std::int8_t, 4> centroids, Array<const std::int32_t, 1> centroid_sums,
           Array<const float, 2> scales, std::optional<Array<const std::int8_t, 4>> groups,
           std::optional<Array<const std::int32_t, 1>> group_sums, std::optional<Array<const float, 2>> group_scales,
           Array<const std::int64_t, 1> first_blocks, Array<const std::int32_t, 1> sizes,
           Array<const float, 3> codewords, Array<const std::int32_t, 1> firsts, std::size_t group,
           Array<const std::uint8_t, 3> codes, Array<const std::int32_t, 1> slot_rows, nb::object points,
           std::optional<Array<const std::int64_t, 1>> row_ids, std::optional<Array<const float, 1>> effort,
           const std::string& isa)
      : kept_(nb::make_tuple(shift, centroids, centroid_sums, scales, groups, group_sums, group_scales, first_blocks,
                             sizes, codewords, firsts, codes, slot_rows, points, row_ids)),
        empty_(nb::module_::import_("numpy").attr("empty")),
        int64_(nb::module_::import_("numpy").attr("dtype")("int64")),
        float32_(nb::module_::import_("numpy").attr("dtype")("float32")),
        n_(n),
        d_(d),
        partitions_(sizes.shape(0)),
        kernels_(kernels_named(isa)) {
    View view{};
    const std::size_t p = sizes.shape(0), blocks = codes.shape(0);
    const std::size_t m = codewords.shape(0), width = codewords.shape(1), rows = codes.shape(1);
    need(n >= 1 && n < std::size_t{1} << 31 && d >= 1, "n: 1 to 2^31 - 1, d: at least 1");
    view.n = n;
    view.d = d;
    view.routes.p = p;
    view.routes.d = d;
    view.l2 = l2;
    view.unit_queries = unit_queries;
    need(!shift || shift->shape(0) == d, "shift: one per dimension");
    view.shift = data_or_null(shift);

    view.routes.partitions = centroids_of(centroids, centroid_sums, scales, d);
    need(p >= 1 && centroids.shape(0) == (p + 7) / 8, "centroids: one per partition, padded to 8");
    need(scales.shape(0) == 4, "scales: order and base of the partitions");
    view.routes.base_scales = scales.data() + 2 * scales.shape(1);
    view.routes.base_biases = scales.data() + 3 * scales.shape(1);
    if (effort) {
      need(effort->shape(0) == 3, "effort: offset, level and gap");
      for (std::size_t i = 0; i < 3; ++i) need(std::isfinite(effort->data()[i]), "effort: finite numbers");
      view.routes.effort = {effort->data()[0], effort->data()[1], effort->data()[2]};
    }
    view.routes.groups = groups_of(groups, group_sums, group_scales, centroids, d);

    need(codewords.shape(2) == 16 && m >= 1 && width >= 1, "codewords: (m, width, 16)");
    need(firsts.shape(0) == m, "firsts: one per subspace");
    need(group >= 2 && group % 2 == 0 && group <= 64, "group: an even number of subspaces up to 64");
    need((m + group - 1) / group <= 257, "too many subspaces: their sums must fit 16 bits");
    for (std::size_t i = 0; i < m; ++i)
      need(firsts.data()[i] >= 0 && static_cast<std::size_t>(firsts.data()[i]) <= d, "firsts must lie in 0 .. d");
    view.tables = {codewords.data(), firsts.data(), m, width, group};

    need(rows == (m + 1) / 2 && codes.shape(2) == 32, "codes: (blocks, ceil(m / 2), 32)");
    need(blocks <= std::size_t{1} << 27, "codes: at most 2^27 blocks, whose slots 32 bits can number");
    need(slot_rows.shape(0) == blocks * 32, "slot_rows: one per slot");
    need(first_blocks.shape(0) == p, "first_blocks: one per partition");
    for (std::size_t i = 0; i < p; ++i) {
      const std::int64_t first = first_blocks.data()[i], size = sizes.data()[i];
      need(size >= 0 && first >= 0 && first <= static_cast<std::int64_t>(blocks) &&
               (size + 31) / 32 <= static_cast<std::int64_t>(blocks) - first,
           "a partition runs past the blocks");
      view.largest = std::max(view.largest, static_cast<std::size_t>(size));
      for (std::int64_t s = first * 32; s < first * 32 + size; ++s)
        need(slot_rows.data()[s] >= 0 && static_cast<std::size_t>(slot_rows.data()[s]) < n,
             "slot_rows names a point that does not exist");
    }
    view.first_blocks = first_blocks.data();
    view.sizes = sizes.data();
    view.rows = rows;
    view.group_rows = group / 2;
    view.codes = codes.data();
    view.slot_rows = slot_rows.data();

    set_points(view, points);
    need(!row_ids || row_ids->shape(0) >= n, "row_ids: one per point");
    row_ids_ = data_or_null(row_ids);
    rescores_ = view.rescore != Rescore::none;
    search_ = std::make_unique<Search>(view, kernels_);
  }

  // One query without a conversion: a tuple of new arrays ids and scores, or None where the caller has to look closer
  // (the query is not one contiguous float32 vector of d numbers with a norm below 1e15, a number is not a plain int
  // within limits, `allowed` is not a bit and `mask` not a bool for every point, or has fewer than k set).
  nb::object answer(nb::handle query, nb::handle k, nb::handle partitions, nb::handle candidates, nb::handle allowed,
                    nb::handle mask, nb::handle places) {
    Wish wish{};
    if (!whole_number(k, n_, wish.k) || !whole_number(partitions, std::size_t{1} << 31, wish.partitions) ||
        !whole_number(candidates, 2 * n_, wish.candidates))
      return nb::none();
    Borrowed from(query, PyBUF_ND | PyBUF_FORMAT);
    if (!from.is_vector('f', 4, d_) || from.view.shape[0] != static_cast<Py_ssize_t>(d_)) return nb::none();
    const float* values = static_cast<const float*>(from.view.buf);
    const float squared = kernels_.dot_f32(values, values, d_);
    if (!(squared < 1e30f)) return nb::none();  // too long, or not a number
    std::optional<Borrowed> bits, bytes, numbers;
    if (!allowed.is_none()) {
      if (!bits.emplace(allowed, PyBUF_ND | PyBUF_FORMAT).is_vector('B', 1, (n_ + 7) / 8)) return nb::none();
      wish.filter.bits = static_cast<const std::uint8_t*>(bits->view.buf);
    } else if (!mask.is_none()) {
      const std::size_t least = places.is_none() ? n_ : 1;  // an empty one may have no address
      if (!bytes.emplace(mask, PyBUF_ND | PyBUF_FORMAT).is_vector('?', 1, least)) return nb::none();
      wish.filter.bytes = static_cast<const std::uint8_t*>(bytes->view.buf);
      wish.filter.length = static_cast<std::size_t>(bytes->view.shape[0]);
      if (!places.is_none()) {
        if (!numbers.emplace(places, PyBUF_ND | PyBUF_FORMAT).is_vector('i', 4, n_)) return nb::none();
        wish.filter.places = static_cast<const std::int32_t*>(numbers->view.buf);
      }
    }
    if (!enough(wish)) return nb::none();
    nb::object ids = new_array(k, int64_), scores = new_array(k, float32_);
    Borrowed to_ids(ids, PyBUF_WRITABLE), to_scores(scores, PyBUF_WRITABLE);
    need(to_ids.held && to_scores.held, "numpy.empty gave no memory");
    std::size_t found;
    {
      nb::gil_scoped_release release;
      found = search_->one(values, wish, static_cast<std::int64_t*>(to_ids.view.buf),
                           static_cast<float*>(to_scores.view.buf));
      if (found == wish.k) name_rows(static_cast<std::int64_t*>(to_ids.view.buf), wish.k);
    }
    need(found == wish.k, too_few);
    return nb::make_tuple(ids, scores);
  }

  nb::dict profile(Array<const float, 2> queries, std::size_t k, std::size_t partitions, std::size_t candidates) {
    need(queries.shape(1) == d_, "queries and index differ in dimensions");
    const Wish wish = checked(k, partitions, candidates, {});
    std::vector<std::int64_t> ids(k);
    std::vector<float> scores(k);
    Stages stages;
    for (std::size_t i = 0; i < queries.shape(0); ++i) {
      check_query(queries.data() + i * d_, i);
      search_->one(queries.data() + i * d_, wish, ids.data(), scores.data(), &stages);
    }
    nb::dict out;
    out["prepare"] = stages.prepare;
    out["route"] = stages.route;
    out["tables"] = stages.tables;
    out["scan"] = stages.scan;
    out["rescore"] = stages.rescore;
    out["scanned"] = stages.scanned;
    out["hits"] = stages.hits;
    return out;
  }

  void route(Array<const float, 2> queries, std::size_t partitions, Array<std::int32_t, 2> chosen, int threads) {
    need(queries.shape(1) == d_, "queries and index differ in dimensions");
    need(chosen.shape(0) == queries.shape(0) && chosen.shape(1) == partitions_, "chosen: (queries, partitions)");
    const std::size_t q = queries.shape(0), workers = thread_count(threads);
    nb::gil_scoped_release release;
    for (std::size_t i = 0; i < q; ++i) check_query(queries.data() + i * d_, i);
    spread(q, 16, workers, 0, [&](std::size_t begin, std::size_t end, void*) {
      for (std::size_t i = begin; i < end; ++i) {
        std::int32_t* own = chosen.data() + i * partitions_;
        std::fill(own + search_->route(queries.data() + i * d_, partitions, own), own + partitions_, -1);
      }
    });
  }

  void among(Array<const float, 2> queries, Array<const std::int64_t, 1> rows, Array<std::int64_t, 2> ids,
             Array<float, 2> scores, int threads) {
    const std::size_t q = queries.shape(0), k = ids.shape(1), count = rows.shape(0), workers = thread_count(threads);
    need(rescores_, "the index keeps no points to score");
    need(queries.shape(1) == d_, "queries and index differ in dimensions");
    need(ids.shape(0) == q && scores.shape(0) == q && scores.shape(1) == k, "ids and scores: (queries, k)");
    need(k >= 1 && k <= count && count <= n_, "rows: at least k, at most n");
    for (std::size_t i = 0; i < count; ++i)
      need(rows.data()[i] >= 0 && static_cast<std::size_t>(rows.data()[i]) < n_, "rows: 0 to below n");
    nb::gil_scoped_release release;
    for (std::size_t i = 0; i < q; ++i) check_query(queries.data() + i * d_, i);
    spread(q, 16, workers, 0, [&](std::size_t begin, std::size_t end, void*) {
      search_->among(queries.data() + begin * d_, end - begin, rows.data(), count, k, ids.data() + begin * k,
                     scores.data() + begin * k);
      name_rows(ids.data() + begin * k, (end - begin) * k);
    });
  }

  void search(Array<const float, 2> queries, std::size_t partitions, std::size_t candidates, Array<std::int64_t, 2> ids,
              Array<float, 2> scores, std::optional<Array<const std::uint8_t, 1>> allowed,
              std::optional<Array<const bool, 1>> mask, std::optional<Array<const std::int32_t, 1>> places,
              int threads) {
    const std::size_t q = queries.shape(0), k = ids.shape(1);
    need(queries.shape(1) == d_, "queries and index differ in dimensions");
    need(ids.shape(0) == q && scores.shape(0) == q && scores.shape(1) == k, "ids and scores: (queries, k)");
    Filter filter;
    if (allowed) {
      need(allowed->shape(0) >= (n_ + 7) / 8, "allowed: a bit for every point");
      filter.bits = allowed->data();
    } else if (mask) {
      need(places ? places->shape(0) >= n_ : mask->shape(0) >= n_, "mask or places: one for every point");
      need(mask->shape(0) >= 1, "mask: at least one place");
      filter = {nullptr, reinterpret_cast<const std::uint8_t*>(mask->data()), mask->shape(0), data_or_null(places)};
    }
    const Wish wish = checked(k, partitions, candidates, filter);
    const std::size_t workers = thread_count(threads);
    nb::gil_scoped_release release;
    for (std::size_t i = 0; i < q; ++i) check_query(queries.data() + i * d_, i);
    std::atomic<bool> complete{true};
    auto work = [&](std::size_t begin, std::size_t end, void*) {
      const std::size_t least = search_->many(queries.data() + begin * d_, end - begin, wish, ids.data() + begin * k,
                                              scores.data() + begin * k);
      if (least < k)
        complete = false;
      else
        name_rows(ids.data() + begin * k, (end - begin) * k);
    };
    if (q == 1 || workers == 1)
      work(0, q, nullptr);
    else
      spread(q, search_->share(q, partitions, workers), workers, 0, work);
    need(complete, too_few);
  }

 private:
  void set_points(View& view, nb::object points) {
    if (points.is_none()) {
      view.rescore = Rescore::none;
      return;
    }
    nb::ndarray<nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu> array;
    need(nb::try_cast(points, array, false), "points: a contiguous array (n, width)");  // a copy would not stay alive
    std::size_t width = view.d;
    if (array.dtype() == nb::dtype<float>()) {
      view.rescore = Rescore::float32;
    } else if (array.dtype() == nb::dtype<std::uint16_t>()) {
      view.rescore = Rescore::float16;
    } else if (array.dtype() == nb::dtype<std::int8_t>()) {
      view.rescore = Rescore::int8;
      width = (view.d + 3) / 4 * 4 + sizeof(float);  // l2 needs a bias too; other metrics may have one
      if (view.l2 || array.shape(1) == width + sizeof(float)) width += sizeof(float);
    } else {
      throw std::invalid_argument("points: float32, uint16 (the bits of float16) or int8");
    }
    need(array.shape(0) >= view.n && array.shape(1) == width,
         "points: (n, d), or rows of int8 with scale, and bias for l2");
    view.points = array.data();
    view.row_bytes = width * array.itemsize();
  }

  Wish checked(std::size_t k, std::size_t partitions, std::size_t candidates, const Filter& filter) const {
    need(k >= 1 && k <= n_, "k: 1 to n");
    need(candidates >= 1 && candidates <= 2 * n_, "candidates: 1 to 2 n");
    const Wish wish{k, partitions, candidates, filter};
    need(enough(wish), "allowed: at least k points");
    return wish;
  }

  // Whether the filter leaves k points, as far as that shows without looking at places: if not, the search would look
  // everywhere before it says so.
  bool enough(const Wish& wish) const {
    const auto reach = [&](std::size_t length, auto allows) {
      std::size_t count = 0;
      for (std::size_t i = 0; i < length && count < wish.k; ++i) count += allows(i);
      return count == wish.k;
    };
    const Filter& filter = wish.filter;
    if (filter.bits) return reach(n_, [&](std::size_t row) { return filter.bits[row / 8] >> row % 8 & 1; });
    if (filter.bytes) return reach(filter.length, [&](std::size_t place) { return filter.bytes[place] != 0; });
    return true;
  }

  nb::object new_array(nb::handle length, nb::handle dtype) const {
    PyObject* arguments[] = {length.ptr(), dtype.ptr()};
    PyObject* array = PyObject_Vectorcall(empty_.ptr(), arguments, 2, nullptr);
    if (!array) throw nb::python_error();
    return nb::steal(array);
  }

  // Row numbers to the ids that the points were given.
  void name_rows(std::int64_t* ids, std::size_t count) const {
    if (!row_ids_) return;
    for (std::size_t i = 0; i < count; ++i) ids[i] = row_ids_[ids[i]];
  }

  void check_query(const float* query, std::size_t row) const {
    if (std::isfinite(kernels_.dot_f32(query, query, d_))) return;
    for (std::size_t j = 0; j < d_; ++j)
      if (!std::isfinite(query[j]))
        throw std::invalid_argument("queries row " + std::to_string(row) + ", dimension " + std::to_string(j) +
                                    " is not finite: " + std::to_string(query[j]));
  }

  nb::tuple kept_;  // the arrays, kept alive
  nb::object empty_, int64_, float32_;
  std::size_t n_, d_, partitions_;
  const Kernels& kernels_;
  const std::int64_t* row_ids_ = nullptr;
  bool rescores_ = false;
  std::unique_ptr<Search> search_;
};

}  // namespace

void bind_search(nb::module_& module) {
  nb::class_<Searcher>(module, "Searcher", "A borrowed view of an index's arrays that answers queries.")
      .def(nb::init<std::size_t, std::size_t, bool, bool, std::optional<Array<const float, 1>>,
                    Array<const std::int8_t, 4>, Array<const std::int32_t, 1>, Array<const float, 2>,
                    std::optional<Array<const std::int8_t, 4>>, std::optional<Array<const std::int32_t, 1>>,
                    std::optional<Array<const float, 2>>, Array<const std::int64_t, 1>, Array<const std::int32_t, 1>,
                    Array<const float, 3>, Array<const std::int32_t, 1>, std::size_t, Array<const std::uint8_t, 3>,
                    Array<const std::int32_t, 1>, nb::object, std::optional<Array<const std::int64_t, 1>>,
                    std::optional<Array<const float, 1>>, const std::string&>(),
           nb::kw_only(), "n"_a, "d"_a, "l2"_a, "unit_queries"_a, "shift"_a.noconvert().none(),
           "centroids"_a.noconvert(), "centroid_sums"_a.noconvert(), "scales"_a.noconvert(),
           "groups"_a.noconvert().none(), "group_sums"_a.noconvert().none(), "group_scales"_a.noconvert().none(),
           "first_blocks"_a.noconvert(), "sizes"_a.noconvert(), "codewords"_a.noconvert(), "firsts"_a.noconvert(),
           "group"_a, "codes"_a.noconvert(), "slot_rows"_a.noconvert(), "points"_a.none(),
           "row_ids"_a.noconvert().none(), "effort"_a.noconvert().none() = nb::none(), "isa"_a = "")
      .def("profile", &Searcher::profile, "queries"_a.noconvert(), "k"_a, "partitions"_a, "candidates"_a,
           "Seconds in each stage, points scanned and hits, summed over the queries, one after the other.")
      .def("route", &Searcher::route, "queries"_a.noconvert(), "partitions"_a, "chosen"_a.noconvert(), nb::kw_only(),
           "threads"_a = 1, "The partitions that searches of these queries would look at, each row filled up with -1.")
      .def("among", &Searcher::among, "queries"_a.noconvert(), "rows"_a.noconvert(), "ids"_a.noconvert(),
           "scores"_a.noconvert(), nb::kw_only(), "threads"_a = 1,
           "The k best of some rows, each once, for each query: all of them are scored.")
      .def("answer", &Searcher::answer, "query"_a.none(), "k"_a.none(), "partitions"_a.none(), "candidates"_a.none(),
           "allowed"_a.none() = nb::none(), "mask"_a.none() = nb::none(), "places"_a.none() = nb::none(),
           "New arrays of the ids and scores of one query's k best points, or None where arguments need a closer look.")
      .def("search", &Searcher::search, "queries"_a.noconvert(), "partitions"_a, "candidates"_a, "ids"_a.noconvert(),
           "scores"_a.noconvert(), nb::kw_only(), "allowed"_a.noconvert().none() = nb::none(),
           "mask"_a.noconvert().none() = nb::none(), "places"_a.noconvert().none() = nb::none(), "threads"_a = 1,
           "The k best points of each query, best first, among those whose bit is set in `allowed`, or whose place in "
           "`mask` is.");
}

}  // namespace aniso
