// The boundary of the search: checks the arrays of an index once, holds them, and searches.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
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
        partitions_(sizes.shape(0)) {
    View view{};
    const std::size_t p = sizes.shape(0), blocks = codes.shape(0);
    const std::size_t m = codewords.shape(0), width = codewords.shape(1), rows = codes.shape(1);
    need(n >= 1 && n < std::size_t{1} << 31 && d >= 1, "n: 1 to 2^31, d: at least 1");
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
    if (groups) {
      need(group_sums && group_scales, "groups: with their sums and scales");
      view.routes.groups = centroids_of(*groups, *group_sums, *group_scales, d);
      need(groups->shape(1) == centroids.shape(1), "groups: as long as the centroids");
      need(groups->shape(0) == (centroids.shape(0) + 7) / 8, "groups: one for every 8 partitions, padded to 8");
    }

    need(codewords.shape(2) == 16 && m >= 1 && width >= 1, "codewords: (m, width, 16)");
    need(firsts.shape(0) == m, "firsts: one per subspace");
    need(group >= 2 && group % 2 == 0 && group <= 64, "group: an even number of subspaces up to 64");
    need((m + group - 1) / group <= 257, "too many subspaces: their sums must fit 16 bits");
    for (std::size_t i = 0; i < m; ++i)
      need(firsts.data()[i] >= 0 && static_cast<std::size_t>(firsts.data()[i]) <= d, "firsts must lie in 0 .. d");
    view.tables = {codewords.data(), firsts.data(), m, width, group};

    need(rows == (m + 1) / 2 && codes.shape(2) == 32, "codes: (blocks, ceil(m / 2), 32)");
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
    search_ = std::make_unique<Search>(view, kernels_named(isa));
  }

  // One query without a conversion: a tuple of new arrays ids and scores, or None where the caller has to look closer
  // (the query is not one contiguous float32 vector of d finite values, a number is not a plain int within limits,
  // `allowed` is not a bit and `mask` not a bool for every point, or has fewer than k set).
  nb::object answer(nb::handle query, nb::handle k, nb::handle partitions, nb::handle candidates, nb::handle allowed,
                    nb::handle mask, nb::handle places) {
    Wish wish{};
    if (!whole_number(k, n_, wish.k) || !whole_number(partitions, std::size_t{1} << 31, wish.partitions) ||
        !whole_number(candidates, 2 * n_, wish.candidates))
      return nb::none();
    Borrowed from(query, PyBUF_ND | PyBUF_FORMAT);
    if (!from.is_vector('f', 4, d_) || from.view.shape[0] != static_cast<Py_ssize_t>(d_)) return nb::none();
    const float* values = static_cast<const float*>(from.view.buf);
    if (!finite(values)) return nb::none();
    std::optional<Borrowed> bits, bytes, numbers;
    if (!allowed.is_none()) {
      if (!bits.emplace(allowed, PyBUF_ND | PyBUF_FORMAT).is_vector('B', 1, (n_ + 7) / 8)) return nb::none();
      wish.filter.bits = static_cast<const std::uint8_t*>(bits->view.buf);
    } else if (!mask.is_none()) {
      const std::size_t least = places.is_none() ? n_ : 0;
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
      spread(q, std::clamp<std::size_t>(q / workers / 2 + 1, 16, 8192), workers, 0, work);
    need(complete, too_few);
  }

 private:
  void set_points(View& view, nb::object points) {
    if (points.is_none()) {
      view.rescore = Rescore::none;
      return;
    }
    auto array = nb::cast<nb::ndarray<nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu>>(points);
    std::size_t width = view.d;
    if (array.dtype() == nb::dtype<float>()) {
      view.rescore = Rescore::float32;
    } else if (array.dtype() == nb::dtype<std::uint16_t>()) {
      view.rescore = Rescore::float16;
    } else if (array.dtype() == nb::dtype<std::int8_t>()) {
      view.rescore = Rescore::int8;
      width = (view.d + 3) / 4 * 4 + 2 * sizeof(float);
    } else {
      throw std::invalid_argument("points: float32, uint16 (the bits of float16) or int8");
    }
    need(array.shape(0) >= view.n && array.shape(1) == width, "points: (n, d), or rows of int8 with scale and bias");
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

  bool finite(const float* query) const {
    float sum = 0;
    for (std::size_t j = 0; j < d_; ++j) sum += query[j] * 0.0f;  // 0 unless a value is not finite
    return sum == 0;
  }

  void check_query(const float* query, std::size_t row) const {
    if (finite(query)) return;
    for (std::size_t j = 0; j < d_; ++j)
      if (!std::isfinite(query[j]))
        throw std::invalid_argument("queries row " + std::to_string(row) + ", dimension " + std::to_string(j) +
                                    " is not finite: " + std::to_string(query[j]));
  }

  nb::tuple kept_;  // the arrays, kept alive
  nb::object empty_, int64_, float32_;
  std::size_t n_, d_, partitions_;
  const std::int64_t* row_ids_ = nullptr;
  bool rescores_ = false;
  std::unique_ptr<Search> search_;
};

std::size_t count_set(Array<const bool, 1> mask, const std::string& isa) {
  return kernels_named(isa).count_set(reinterpret_cast<const std::uint8_t*>(mask.data()), mask.shape(0));
}

// What is wrong with the rows that slots name, and which row that is: "" where each of n rows stands in 1 to `most`
// partitions, once in each, and slots that are not in use name a row too. The arrays may hold anything.
nb::tuple check_slots(std::size_t n, Array<const std::int64_t, 1> first_blocks, Array<const std::int32_t, 1> sizes,
                      Array<const std::int32_t, 1> slot_rows, int most) {
  const std::size_t p = sizes.shape(0), slots = slot_rows.shape(0);
  need(n < std::size_t{1} << 31 && first_blocks.shape(0) == p, "n: below 2^31; first_blocks: one per partition");
  for (std::size_t s = 0; s < slots; ++s) {
    const std::int32_t row = slot_rows.data()[s];
    if (row < 0 || static_cast<std::size_t>(row) >= std::max<std::size_t>(n, 1)) return nb::make_tuple("beyond", row);
  }
  struct Seen {
    std::uint32_t last = 0;  // the number of the last partition that it was seen in, from 1 on
    std::int32_t count = 0;
  };
  std::vector<Seen> seen(std::max<std::size_t>(n, 1));
  for (std::size_t i = 0; i < p; ++i) {
    const std::int64_t first = first_blocks.data()[i], size = sizes.data()[i];
    need(first >= 0 && size >= 0 && first <= static_cast<std::int64_t>(slots / 32) &&
             size <= static_cast<std::int64_t>(slots) - 32 * first,
         "a partition runs past the slots");
    for (std::int64_t s = 32 * first; s < 32 * first + size; ++s) {
      Seen& here = seen[static_cast<std::size_t>(slot_rows.data()[s])];
      if (here.last == i + 1 || ++here.count > most) return nb::make_tuple("often", slot_rows.data()[s]);
      here.last = static_cast<std::uint32_t>(i + 1);
    }
  }
  for (std::size_t row = 0; row < n; ++row)
    if (!seen[row].count) return nb::make_tuple("missing", row);
  return nb::make_tuple("", 0);
}

// Where a mask is true. Few places are meant to be: 64 bytes become a bit each, and the bits that are set are visited.
void places_set(Array<const bool, 1> mask, Array<std::int64_t, 1> places) {
  const std::uint8_t* bytes = reinterpret_cast<const std::uint8_t*>(mask.data());
  const std::size_t length = mask.shape(0), room = places.shape(0);
  std::size_t count = 0;
  for (std::size_t first = 0; first < length; first += 64) {
    std::uint8_t rest[64] = {};
    if (length - first < 64) std::memcpy(rest, bytes + first, length - first);
    const std::uint8_t* here = length - first < 64 ? rest : bytes + first;
    std::uint64_t set = 0;
    for (int i = 0; i < 8; ++i) {
      std::uint64_t eight;
      std::memcpy(&eight, here + 8 * i, 8);
      // The high bit of each byte that is not 0; a product brings the eight together.
      constexpr std::uint64_t low = 0x7f7f7f7f7f7f7f7f;
      const std::uint64_t high = (((eight & low) + low) | eight) & ~low;
      set |= (high >> 7) * 0x0102040810204080 >> 56 << 8 * i;
    }
    for (; set; set &= set - 1) {
      need(count < room, "places: one for each that is true");
      places.data()[count++] = static_cast<std::int64_t>(first) + std::countr_zero(set);
    }
  }
  need(count == room, "places: one for each that is true");
}

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
                     Array<const std::int32_t, 1> sums, Array<const std::uint32_t, 1> list,
                     Array<std::int32_t, 1> scores, const std::string& isa) {
  const std::size_t blocks = centroids.shape(0), d4 = centroids.shape(1) * 4;
  need(centroids.shape(2) == 8 && centroids.shape(3) == 4 && d4 % 8 == 0, "centroids: (blocks, d4 / 4, 8, 4)");
  need(query.shape(0) == d4, "query: d4 bytes");
  need(sums.shape(0) == 8 * blocks && scores.shape(0) == 8 * list.shape(0), "sums and scores: 8 per block");
  for (std::size_t i = 0; i < list.shape(0); ++i) need(list.data()[i] < blocks, "list: numbers of blocks");
  for (std::size_t j = 0; j < d4; ++j) need(query.data()[j] < 128, "query bytes: 0 to 127");
  for (std::size_t i = 0; i < centroids.size(); ++i)
    need(centroids.data()[i] >= -63 && centroids.data()[i] <= 63, "centroid bytes: -63 to 63");
  kernels_named(isa).score_centroids({centroids.data(), sums.data(), blocks, d4}, query.data(), list.data(),
                                     list.shape(0), scores.data());
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
                                 reinterpret_cast<Hit*>(hits.data()), codes.data(), codes.data());
}

nb::tuple scan_four(Array<const std::uint8_t, 3> codes, Array<const std::uint8_t, 3> tables, std::size_t group,
                    std::size_t first_block, std::size_t points, Array<const std::uint32_t, 1> least,
                    Array<std::uint32_t, 3> hits, const std::string& isa) {
  const std::size_t rows = codes.shape(1);
  need(codes.shape(2) == 32, "codes: (blocks, rows, 32)");
  need(tables.shape(0) == 4 && tables.shape(1) == 2 * rows && tables.shape(2) == 16, "tables: (4, 2 rows, 16)");
  need(group >= 2 && group % 2 == 0, "group: an even number of subspaces");
  need(first_block <= codes.shape(0) && points <= 32 * (codes.shape(0) - first_block), "points run past the blocks");
  need(least.shape(0) == 4, "least: (4)");
  need(hits.shape(0) == 4 && hits.shape(1) >= points && hits.shape(2) == 2, "hits: (4, points, 2)");
  std::size_t counts[4];
  ScanFour four{codes.data(), {}, rows, group / 2, {}, {}, {}};
  for (std::size_t i = 0; i < 4; ++i) {
    four.tables[i] = tables.data() + i * 32 * rows;
    four.least[i] = least.data()[i];
    four.hits[i] = reinterpret_cast<Hit*>(hits.data() + i * hits.shape(1) * 2);
    four.counts[i] = counts + i;
  }
  kernels_named(isa).scan_four(four, first_block, points);
  return nb::make_tuple(counts[0], counts[1], counts[2], counts[3]);
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
  module.def(
      "check_slots", &check_slots, "n"_a, "first_blocks"_a.noconvert(), "sizes"_a.noconvert(),
      "slot_rows"_a.noconvert(), "most"_a,
      "What is wrong with the rows that slots name (beyond, often, missing or nothing), and a row of which it is.");
  module.def("places_set", &places_set, "mask"_a.noconvert(), "places"_a.noconvert(),
             "The places where a mask is true, of which there are as many as `places` has room for.");
  module.def("count_set", &count_set, "mask"_a.noconvert(), nb::kw_only(), "isa"_a = "",
             "How many elements of a mask are true.");
  module.def("make_tables", &make_tables, "query"_a.noconvert(), "codewords"_a.noconvert(), "firsts"_a.noconvert(),
             "group"_a, "tables"_a.noconvert(), nb::kw_only(), "isa"_a = "",
             "Tables of a query in 8 bits; returns the sum of their lowest entries and the step of their units.");
  module.def("score_centroids", &score_centroids, "query"_a.noconvert(), "centroids"_a.noconvert(),
             "sums"_a.noconvert(), "list"_a.noconvert(), "scores"_a.noconvert(), nb::kw_only(), "isa"_a = "",
             "Integer inner products of a query in bytes with the packed centroids of some blocks.");
  module.def("scan", &scan, "codes"_a.noconvert(), "tables"_a.noconvert(), "group"_a, "first_block"_a, "points"_a,
             "least"_a, "hits"_a.noconvert(), nb::kw_only(), "isa"_a = "",
             "Slots and sums of the points whose table entries add up to at least `least`; returns how many.");
  module.def("scan_four", &scan_four, "codes"_a.noconvert(), "tables"_a.noconvert(), "group"_a, "first_block"_a,
             "points"_a, "least"_a.noconvert(), "hits"_a.noconvert(), nb::kw_only(), "isa"_a = "",
             "The same for four queries at once; returns how many hits each has.");
  module.def("score_rows", &score_rows, "query"_a.noconvert(), "points"_a.noconvert(), "distance"_a,
             "out"_a.noconvert(), nb::kw_only(), "isa"_a = "",
             "Inner products or squared distances of a query and rows, as rescoring computes them.");
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
