// The kernels of search.
#include <algorithm>
#include <array>
#include <numeric>

#include "../../cpp/kernels.h"
#include "inputs.h"
#include "journal.h"

namespace aniso {
namespace {

void compare_panels(const Kernels& kernels, Journal& journal) {
  Random random(5);
  for (int trial = 0; trial < 100; ++trial) {
    const int most = trial % 2 ? 9 : 0;
    const std::size_t d = random.size(1, 40), count = random.size(0, 5), rows = random.size(0, 6);
    const std::size_t stride = 16 * count + random.size(0, 3);
    const Floats panels = random.floats(count * d * 16, most), queries = random.floats(rows * d, most);
    auto out = output<float>(rows * stride);
    kernels.score_panels(panels.data(), d, count, queries.data(), rows, out.data(), stride);
    // No product is above 4, so that 4 d bounds the sum of their sizes.
    const double off = most ? 0 : 2 * static_cast<double>(d) * epsilon * 4 * static_cast<double>(d);
    journal.record("score_panels", out, std::vector<double>(rows * stride, off));
  }
}

void compare_tables(const Kernels& kernels, Journal& journal) {
  Random random(6);
  for (int trial = 0; trial < 100; ++trial) {
    const int most = trial % 2 ? 9 : 0;
    const std::size_t m = random.size(1, 40), width = random.size(1, 9), group = 2 * random.size(1, 6);
    Floats words = random.floats(m * width * 16, most), query = random.floats(20 + width, most);
    if (trial % 20 == 0) std::fill(words.begin(), words.end(), 1.0f);  // tables that are constant
    const float length = std::ldexp(1.0f, static_cast<int>(random.whole(-40, 40)));
    for (float& value : query) value *= length;
    const auto firsts = random.wholes<std::int32_t>(m, 0, 20);
    auto floats = output<float>(16 * m), offset = output<float>(1), step = output<float>(1);
    auto tables = output<std::uint8_t>(16 * m);
    kernels.make_tables({words.data(), firsts.data(), m, width, group}, query.data(), floats.data(), tables.data(),
                        offset.data(), step.data());
    const double off = most ? 0 : 1e-4 * static_cast<double>(length);
    journal.record("make_tables", offset, {off + (most ? 0 : 1e-5 * std::fabs(offset[0]))});
    journal.record("make_tables", step, {1e-5 * static_cast<double>(step[0])});
    journal.record("make_tables", tables, std::vector<double>(16 * m, 1));  // where rint is nearly a tie
    journal.record_choices("make_tables", tables);
  }
}

void compare_centroids(const Kernels& kernels, Journal& journal) {
  Random random(7);
  for (int trial = 0; trial < 100; ++trial) {
    const bool extreme = trial % 4 == 0;
    const std::size_t blocks = random.size(1, 12), d4 = 8 * random.size(1, 40), count = random.size(0, 30);
    auto centroids = random.wholes<std::int8_t>(blocks * d4 * 8, -63, 63);
    auto query = random.wholes<std::uint8_t>(d4, 0, 127);
    if (extreme) {
      const std::int8_t value = trial % 8 ? 63 : -63;
      std::fill(centroids.begin(), centroids.end(), value);
      std::fill(query.begin(), query.end(), std::uint8_t{127});
    }
    std::vector<std::int32_t> sums(blocks * 8);
    for (std::size_t i = 0; i < centroids.size(); ++i) sums[i / (8 * d4) * 8 + i / 4 % 8] += 64 * centroids[i];
    const auto list = random.wholes<std::uint32_t>(count, 0, static_cast<int>(blocks) - 1);
    auto scores = output<std::int32_t>(count * 8);
    auto order = output<float>(count * 8);
    const Floats scales = random.floats(blocks * 8, 0), biases = random.floats(blocks * 8, 0);
    const float factor = random.real();
    kernels.score_centroids({centroids.data(), sums.data(), scales.data(), biases.data(), blocks, d4}, query.data(),
                            factor, list.data(), count, scores.data(), order.data());
    journal.record("score_centroids", scores);
    std::vector<double> tolerance(count * 8);
    for (std::size_t i = 0; i < count * 8; ++i) {
      const double scale = scales.data()[list[i / 8] * 8 + i % 8];
      tolerance[i] = 2 * 3 * epsilon * (std::fabs(static_cast<double>(scores.data()[i]) * scale * factor) + 2);
    }
    journal.record("score_centroids", order, tolerance);
  }
}

std::vector<std::uint32_t> numbers_of(const std::vector<Hit>& hits) {
  std::vector<std::uint32_t> numbers;
  for (const Hit& hit : hits) numbers.insert(numbers.end(), {hit.place, hit.sum});
  return numbers;
}

void compare_scan(const Kernels& kernels, Journal& journal) {
  Random random(8);
  for (int trial = 0; trial < 300; ++trial) {
    const bool largest = trial % 30 == 0;  // 257 groups of 255 are 65535, all that 16 bits hold
    const std::size_t rows = largest ? 257 : random.size(1, 31), group_rows = largest ? 1 : random.size(1, 5);
    const std::size_t first = random.size(0, 3), points = random.size(0, 300), blocks = first + (points + 31) / 32;
    const Bytes codes = random.wholes<std::uint8_t>(blocks * rows * 32, 0, 255);
    const std::int64_t entry = trial % 3 ? 255 / (2 * static_cast<std::int64_t>(group_rows)) : 255;  // 255 wraps round
    Bytes tables[4];
    for (Bytes& table : tables) {
      table = largest ? Bytes(32 * rows) : random.wholes<std::uint8_t>(32 * rows, 0, entry);
      for (std::size_t i = 0; i < table.size() && largest; ++i) table[i] = i / 16 % 2 ? 55 : 200;
    }
    const std::int64_t most = static_cast<std::int64_t>(rows) * std::min<std::int64_t>(2 * entry, 255);
    const std::int64_t edges[] = {0, 1, 65535, 65536, 0xffffffff, most / 2, most / 3, random.whole(0, most)};
    std::vector<Hit> hits[4];
    std::size_t counts[4];
    ScanFour four{codes.data(), {}, rows, group_rows, {}, {}, {}};
    for (std::size_t i = 0; i < 4; ++i) {
      hits[i].assign(points + more, {untouched, untouched});
      four.tables[i] = tables[i].data();
      four.least[i] = static_cast<std::uint32_t>(edges[random.size(0, 7)]);
      four.hits[i] = hits[i].data();
      four.counts[i] = &counts[i];
    }
    kernels.scan_four(four, first, points);
    for (std::size_t i = 0; i < 4; ++i) {
      journal.record("scan_four", std::vector<std::uint64_t>{counts[i]});
      journal.record("scan_four", numbers_of(hits[i]));
      std::vector<Hit> one(points + more, {untouched, untouched});
      const std::size_t count = kernels.scan({codes.data(), tables[i].data(), rows, group_rows}, first, points,
                                             four.least[i], one.data(), codes.data(), codes.data() + codes.size());
      journal.record("scan", std::vector<std::uint64_t>{count});
      journal.record("scan", numbers_of(one));
    }
  }
}

// What a kernel gives for rows of float16.
template <class Kernel>
Floats scored(Kernel kernel, const std::vector<std::uint16_t>& halves, std::size_t d, const float* query) {
  std::vector<std::uint32_t> numbers(halves.size() / d);
  std::iota(numbers.begin(), numbers.end(), 0u);
  Floats out(numbers.size());
  kernel({halves.data(), 2 * d, d, numbers.data()}, query, numbers.size(), out.data());
  return out;
}

void compare_rows(const Kernels& kernels, Journal& journal) {
  Random random(9);
  const float one = 1, zero = 0;
  for (int trial = 0; trial < 400; ++trial) {
    const int most = trial % 2 ? 9 : 0;
    const std::size_t d = random.size(1, trial % 4 ? 140 : 20);
    Floats row = random.floats(d, most), query = random.floats(d, most), halves;
    std::vector<std::uint16_t> half(d);
    for (std::size_t j = 0; j < d; ++j) {
      half[j] = static_cast<std::uint16_t>(random.whole(0, 1) << 15 | random.whole(0, most ? 0 : 0x43ff));
      if (most) half[j] = static_cast<std::uint16_t>(half[j] | 0x3c00 | random.whole(0, 3) << 8);  // 1, 1.25, 1.5, 1.75
    }
    halves = scored(kernels.dot_rows_f16, half, 1, &one);  // every float16 is compared below
    const float length = most ? std::array{1.0f, 0x1p-140f, 0x1p100f}[trial / 2 % 3] : 1;  // tiny and huge, yet exact
    for (float& value : row) value *= length;
    if (trial % 10 == 0)
      row[random.size(0, d - 1)] = std::array<float, 3>{infinity, -infinity, std::nanf("")}[trial / 10 % 3];
    if (trial % 10 == 2) query[random.size(0, d - 1)] = 1e-30f;
    const double off = most ? 0 : 2 * 1e-7 * static_cast<double>(d + 2);
    auto distance = [&](const Floats& x) {
      double sum = 0;
      for (std::size_t j = 0; j < d; ++j) sum += (static_cast<double>(x[j]) - query[j]) * (x[j] - query[j]);
      return sum;
    };
    const double least = most ? 0 : 1e-30;
    const std::uint32_t first = 0;
    const Rows wide{row.data(), 4 * d, d, &first}, narrow{half.data(), 2 * d, d, &first};
    const double dot_off = off * dot_of_sizes(row.data(), query.data(), d) + least;
    const double half_off = off * dot_of_sizes(halves.data(), query.data(), d) + least;
    float out;
    journal.record("dot_f32", Floats{kernels.dot_f32(row.data(), query.data(), d)}, {dot_off});
    kernels.dot_rows_f32(wide, query.data(), 1, &out);
    journal.record("dot_rows_f32", Floats{out}, {dot_off});
    kernels.dot_rows_f16(narrow, query.data(), 1, &out);
    journal.record("dot_rows_f16", Floats{out}, {half_off});
    kernels.distance_rows_f32(wide, query.data(), 1, &out);
    journal.record("distance_rows_f32", Floats{out}, {off * distance(row) + least});
    kernels.distance_rows_f16(narrow, query.data(), 1, &out);
    journal.record("distance_rows_f16", Floats{out}, {off * distance(halves) + least});
    const std::size_t long_d = random.size(0, 300), count = random.size(1, 9);
    auto bytes = random.wholes<std::int8_t>(count * long_d, -128, 127);
    auto shorts = random.wholes<std::int16_t>(long_d, -32768, 32767);
    if (trial % 20 == 0) std::fill(bytes.begin(), bytes.end(), std::int8_t{-128});
    if (trial % 40 == 0) std::fill(shorts.begin(), shorts.end(), std::int16_t{-32768});
    std::vector<std::uint32_t> numbers(count);
    for (std::uint32_t& number : numbers) number = static_cast<std::uint32_t>(random.size(0, count - 1));
    std::vector<std::int32_t> dots(count);
    kernels.dot_rows_i8({bytes.data(), long_d, long_d, numbers.data()}, shorts.data(), count, dots.data());
    journal.record("dot_rows_i8", dots);
  }
  std::vector<std::uint16_t> all(65536);  // every float16 there is
  std::iota(all.begin(), all.end(), std::uint16_t{0});
  journal.record("dot_rows_f16", scored(kernels.dot_rows_f16, all, 1, &one));
  journal.record("distance_rows_f16", scored(kernels.distance_rows_f16, all, 1, &zero));
}

void compare_scores(const Kernels& kernels, Journal& journal) {
  Random random(10);
  const float special[] = {infinity, -infinity, std::nanf(""), 0.0f, -0.0f, 0.5f, -0.5f, 3e38f};
  for (int trial = 0; trial < 300; ++trial) {
    const int most = trial % 2 ? 9 : 0;
    const std::size_t n = random.size(0, 70);
    const Floats scales = random.floats(n, most);
    auto sum = output<float>(1), squares = output<float>(1);
    double sizes = 0;
    for (std::size_t i = 0; i < n && !most; ++i) sizes += std::fabs(scales[i]);
    const double off = most ? 0 : 2 * 1e-7 * static_cast<double>(n + 2);
    kernels.sum_squares(scales.data(), n, sum.data(), squares.data());
    journal.record("sum_squares", sum, {off * sizes});
    journal.record("sum_squares", squares, {off * dot(scales.data(), scales.data(), n)});

    Floats values = random.floats(n, most);
    for (float& value : values)
      if (!random.whole(0, 3)) value = special[random.size(0, 7)];
    const float least = random.whole(0, 1) || !n ? special[random.size(0, 7)] : values[random.size(0, n - 1)];
    auto chosen = output<std::uint32_t>(n), all = output<std::uint32_t>(n);
    const std::size_t found = kernels.select_at_least(values.data(), n, least, chosen.data());
    journal.record("select_at_least", std::vector<std::uint64_t>{found});
    journal.record("select_at_least", chosen);
    const std::size_t kept = kernels.select_not_below(values.data(), n, least, all.data());
    std::fill(all.data() + kept, all.data() + n + 8, 0u);  // what lies beyond is anything, for 8 more than asked
    journal.record("select_not_below", std::vector<std::uint64_t>{kept});
    journal.record("select_not_below", all);

    auto keys = random.wholes<std::uint64_t>(n, 1, most ? 9 : std::numeric_limits<std::int64_t>::max());
    for (std::size_t i = 0; i < n; i += 2) keys[i] |= std::uint64_t{1} << 63;
    auto ordered = output<std::uint64_t>(n);
    kernels.sort_keys(keys.data(), n, ordered.data());
    journal.record("sort_keys", ordered);
  }
}

void compare_counts(const Kernels& kernels, Journal& journal) {
  Random random(7);
  for (const std::size_t length : {0, 1, 127, 128, 129, 4096, 128 * 255, 128 * 256 + 5, 100000}) {
    Bytes bytes(length);
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random.whole(0, 2));
    journal.record("count_set", std::vector<std::uint64_t>{kernels.count_set(bytes.data(), length)});
    auto places = output<std::int64_t>(length);
    const std::size_t set = kernels.places_set(bytes.data(), length, places.data(), length);
    journal.record("places_set", std::vector<std::uint64_t>{set});
    for (std::size_t i = 0; i < set; ++i)
      journal.record("places_set", std::vector<std::uint64_t>{static_cast<std::uint64_t>(places.data()[i])});
    Bytes full(length, 255);
    journal.record("count_set", std::vector<std::uint64_t>{kernels.count_set(full.data(), length)});
  }
}

}  // namespace

void compare_search(const Kernels& kernels, Journal& journal) {
  compare_panels(kernels, journal);
  compare_tables(kernels, journal);
  compare_centroids(kernels, journal);
  compare_scan(kernels, journal);
  compare_rows(kernels, journal);
  compare_scores(kernels, journal);
  compare_counts(kernels, journal);
}

}  // namespace aniso
