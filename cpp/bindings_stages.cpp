// The boundary of what a search consists of: its kernels one by one, for tests and benchmarks, and what is looked at
// before it, masks and slots.
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "arrays.h"

using namespace nanobind::literals;

namespace aniso {
namespace {

std::size_t count_set(Array<const bool, 1> mask, const std::string& isa) {
  return kernels_named(isa).count_set(reinterpret_cast<const std::uint8_t*>(mask.data()), mask.shape(0));
}

// The share of a mask that is set: of a large one that of pieces spread over it, each somewhere in its part so that no
// period of the mask is met again and again, unless that is small, where a little more or less would matter.
double share_set(Array<const bool, 1> mask) {
  constexpr std::size_t pieces = 128, piece = 64;
  constexpr double small = 0.125;
  const std::uint8_t* bytes = reinterpret_cast<const std::uint8_t*>(mask.data());
  const std::size_t length = mask.shape(0);
  const Kernels& kernels = kernels_named("");
  const auto share = [](std::size_t set, std::size_t of) { return static_cast<double>(set) / static_cast<double>(of); };
  if (length >= 4 * pieces * piece) {
    std::size_t set = 0;
    const std::size_t part = length / pieces, room = part - piece + 1;
    const auto at = [&](std::size_t i) { return bytes + i * part + (i * 0x9e3779b97f4a7c15 >> 32) % room; };
    for (std::size_t i = 0; i < pieces; ++i) {
      __builtin_prefetch(at(i));
      __builtin_prefetch(at(i) + piece - 1);
    }
    for (std::size_t i = 0; i < pieces; ++i) set += kernels.count_set(at(i), piece);
    if (share(set, pieces * piece) >= small) return share(set, pieces * piece);
  }
  return share(kernels.count_set(bytes, length), std::max<std::size_t>(length, 1));
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

void places_set(Array<const bool, 1> mask, Array<std::int64_t, 1> places, const std::string& isa) {
  const std::size_t room = places.shape(0);
  const std::size_t count = kernels_named(isa).places_set(reinterpret_cast<const std::uint8_t*>(mask.data()),
                                                          mask.shape(0), places.data(), room);
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
                     Array<const std::int32_t, 1> sums, Array<const float, 2> scales, float factor,
                     Array<const std::uint32_t, 1> list, Array<std::int32_t, 1> scores, Array<float, 1> order,
                     const std::string& isa) {
  const std::size_t d4 = centroids.shape(1) * 4;
  const Centroids checked = centroids_of(centroids, sums, scales, d4);
  need(query.shape(0) == d4, "query: d4 bytes");
  need(scores.shape(0) == 8 * list.shape(0) && order.shape(0) == scores.shape(0), "scores and order: 8 per block");
  std::uint32_t last = 0;  // of these extremes the compiler takes many numbers at a time
  std::int8_t least = 0, most = 0;
  for (std::size_t i = 0; i < list.shape(0); ++i) last = std::max(last, list.data()[i]);
  for (std::size_t i = 0; i < centroids.size(); ++i) least = std::min(least, centroids.data()[i]);
  for (std::size_t i = 0; i < centroids.size(); ++i) most = std::max(most, centroids.data()[i]);
  need(last < checked.blocks || !list.shape(0), "list: numbers of blocks");
  need(least >= -63 && most <= 63, "centroid bytes: -63 to 63");
  for (std::size_t j = 0; j < d4; ++j) need(query.data()[j] < 128, "query bytes: 0 to 127");
  kernels_named(isa).score_centroids(checked, query.data(), factor, list.data(), list.shape(0), scores.data(),
                                     order.data());
}

void sort_keys(Array<const std::uint64_t, 1> keys, Array<std::uint64_t, 1> out, const std::string& isa) {
  need(out.shape(0) == keys.shape(0), "out: one per key");
  need(keys.data() + keys.shape(0) <= out.data() || out.data() + out.shape(0) <= keys.data(), "out: not the keys");
  kernels_named(isa).sort_keys(keys.data(), keys.shape(0), out.data());
}

// Slots and sums, in the order of slots.
void write_hits(Hit* hits, std::size_t count, std::size_t first_block, std::uint32_t* out) {
  std::sort(hits, hits + count, [](const Hit& a, const Hit& b) { return a.place < b.place; });
  for (const Hit* hit = hits; hit != hits + count; ++hit) {
    *out++ = static_cast<std::uint32_t>(32 * first_block + hit->place);
    *out++ = hit->sum;
  }
}

std::size_t scan(Array<const std::uint8_t, 3> codes, Array<const std::uint8_t, 2> tables, std::size_t group,
                 std::size_t first_block, std::size_t points, std::uint32_t least, Array<std::uint32_t, 2> hits,
                 const std::string& isa) {
  const std::size_t rows = codes.shape(1);
  need(codes.shape(2) == 32, "codes: (blocks, rows, 32)");
  need(tables.shape(0) == 2 * rows && tables.shape(1) == 16, "tables: (2 rows, 16)");
  need(group >= 2 && group % 2 == 0, "group: an even number of subspaces");
  need(first_block <= codes.shape(0) && points <= 32 * (codes.shape(0) - first_block), "points run past the blocks");
  need(points <= Hit::most, "points: at most 65536 in one scan");
  need(hits.shape(0) >= points && hits.shape(1) == 2, "hits: (points, 2)");
  const auto found = std::make_unique_for_overwrite<Hit[]>(points + Hit::beyond);
  const std::size_t count = kernels_named(isa).scan({codes.data(), tables.data(), rows, group / 2}, first_block, points,
                                                    least, found.get(), codes.data(), codes.data());
  write_hits(found.get(), count, first_block, hits.data());
  return count;
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
  need(points <= Hit::most, "points: at most 65536 in one scan");
  need(hits.shape(0) == 4 && hits.shape(1) >= points && hits.shape(2) == 2, "hits: (4, points, 2)");
  std::unique_ptr<Hit[]> found[4];
  std::size_t counts[4];
  ScanFour four{codes.data(), {}, rows, group / 2, {}, {}, {}};
  for (std::size_t i = 0; i < 4; ++i) {
    four.tables[i] = tables.data() + i * 32 * rows;
    four.least[i] = least.data()[i];
    found[i] = std::make_unique_for_overwrite<Hit[]>(points + Hit::beyond);
    four.hits[i] = found[i].get();
    four.counts[i] = counts + i;
  }
  kernels_named(isa).scan_four(four, first_block, points);
  for (std::size_t i = 0; i < 4; ++i)
    write_hits(found[i].get(), counts[i], first_block, hits.data() + i * hits.shape(1) * 2);
  return nb::make_tuple(counts[0], counts[1], counts[2], counts[3]);
}

void score_rows(Array<const float, 1> query, nb::object points, Array<const std::uint32_t, 1> numbers, bool distance,
                Array<float, 1> out, const std::string& isa) {
  const Kernels& kernels = kernels_named(isa);
  auto array = nb::cast<nb::ndarray<nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu>>(points);
  const std::size_t n = numbers.shape(0), d = array.shape(1);
  need(query.shape(0) == d && out.shape(0) == n, "query: (d), numbers and out: (rows)");
  for (std::size_t i = 0; i < n; ++i) need(numbers.data()[i] < array.shape(0), "numbers: those of points");
  const Rows rows{array.data(), d * array.itemsize(), d, numbers.data()};
  const float* q = query.data();
  if (array.dtype() == nb::dtype<float>()) {
    (distance ? kernels.distance_rows_f32 : kernels.dot_rows_f32)(rows, q, n, out.data());
  } else if (array.dtype() == nb::dtype<std::uint16_t>()) {
    (distance ? kernels.distance_rows_f16 : kernels.dot_rows_f16)(rows, q, n, out.data());
  } else if (array.dtype() == nb::dtype<std::int8_t>()) {
    need(!distance, "int8 rows: inner products only");
    need(d <= 4096, "int8 rows: up to 4096 dimensions");
    std::vector<std::int16_t> words(d);
    for (std::size_t j = 0; j < d; ++j) {
      need(q[j] >= -4096 && q[j] <= 4096 && q[j] == std::floor(q[j]), "int8 rows: a query of whole numbers to 4096");
      words[j] = static_cast<std::int16_t>(q[j]);
    }
    std::vector<std::int32_t> dots(n);
    kernels.dot_rows_i8(rows, words.data(), n, dots.data());
    std::copy(dots.begin(), dots.end(), out.data());
  } else {
    throw std::invalid_argument("points: float32, uint16 (the bits of float16) or int8");
  }
}

}  // namespace

void bind_stages(nb::module_& module) {
  module.def(
      "check_slots", &check_slots, "n"_a, "first_blocks"_a.noconvert(), "sizes"_a.noconvert(),
      "slot_rows"_a.noconvert(), "most"_a,
      "What is wrong with the rows that slots name (beyond, often, missing or nothing), and a row of which it is.");
  module.def("places_set", &places_set, "mask"_a.noconvert(), "places"_a.noconvert(), nb::kw_only(), "isa"_a = "",
             "The places where a mask is true, of which there are as many as `places` has room for.");
  module.def("share_set", &share_set, "mask"_a.noconvert(),
             "The share of a mask that is set, from pieces of it where it is large.");
  module.def("count_set", &count_set, "mask"_a.noconvert(), nb::kw_only(), "isa"_a = "",
             "How many elements of a mask are true.");
  module.def("make_tables", &make_tables, "query"_a.noconvert(), "codewords"_a.noconvert(), "firsts"_a.noconvert(),
             "group"_a, "tables"_a.noconvert(), nb::kw_only(), "isa"_a = "",
             "Tables of a query in 8 bits; returns the sum of their lowest entries and the step of their units.");
  module.def("score_centroids", &score_centroids, "query"_a.noconvert(), "centroids"_a.noconvert(),
             "sums"_a.noconvert(), "scales"_a.noconvert(), "factor"_a, "list"_a.noconvert(), "scores"_a.noconvert(),
             "order"_a.noconvert(), nb::kw_only(), "isa"_a = "",
             "Integer inner products of a query in bytes with the packed centroids of some blocks, and as floats.");
  module.def("sort_keys", &sort_keys, "keys"_a.noconvert(), "out"_a.noconvert(), nb::kw_only(), "isa"_a = "",
             "The keys, the largest first; zeros follow a key that repeats, one for each repetition.");
  module.def("scan", &scan, "codes"_a.noconvert(), "tables"_a.noconvert(), "group"_a, "first_block"_a, "points"_a,
             "least"_a, "hits"_a.noconvert(), nb::kw_only(), "isa"_a = "",
             "Slots and sums of the points whose table entries add up to at least `least`; returns how many.");
  module.def("scan_four", &scan_four, "codes"_a.noconvert(), "tables"_a.noconvert(), "group"_a, "first_block"_a,
             "points"_a, "least"_a.noconvert(), "hits"_a.noconvert(), nb::kw_only(), "isa"_a = "",
             "The same for four queries at once; returns how many hits each has.");
  module.def(
      "score_rows", &score_rows, "query"_a.noconvert(), "points"_a.noconvert(), "numbers"_a.noconvert(), "distance"_a,
      "out"_a.noconvert(), nb::kw_only(), "isa"_a = "",
      "Inner products or squared distances of a query and the points of these numbers, as rescoring computes them.");
}

}  // namespace aniso
