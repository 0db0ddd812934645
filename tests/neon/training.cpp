// The kernels of training.
#include <algorithm>

#include "../../cpp/kernels.h"
#include "inputs.h"
#include "journal.h"

namespace aniso {
namespace {

void compare_assign(const Kernels& kernels, Journal& journal) {
  Random random(1);
  for (int trial = 0; trial < 120; ++trial) {
    const bool whole = trial % 2;
    const std::size_t n = random.size(0, 110), d = random.size(1, 40), k = random.size(1, trial % 5 ? 40 : 260);
    const std::size_t panel = kernels.panel, panels = (k + panel - 1) / panel, begin = random.size(0, n);
    const Floats points = random.floats(n * d, whole ? 2 : 0), words = random.floats(k * d, whole ? 2 : 0);
    Floats packed(panels * d * panel), norms(panels * panel, infinity), linear(n), quadratic(n);
    for (std::size_t c = 0; c < k; ++c) {
      for (std::size_t j = 0; j < d; ++j) packed[(c / panel * d + j) * panel + c % panel] = words[c * d + j];
      norms[c] = static_cast<float>(dot(&words[c * d], &words[c * d], d));
    }
    for (std::size_t i = 0; i < n; ++i) {
      linear[i] = static_cast<float>(random.whole(-4, 4));
      quadratic[i] = whole ? static_cast<float>(random.whole(-1, 3)) : std::fabs(random.real());
    }
    auto codes = output<std::int32_t>(n);
    auto costs = output<float>(n);
    auto memory = scratch(kernels.assign_scratch());
    kernels.assign({points.data(), packed.data(), norms.data(), linear.data(), quadratic.data(), d, panels,
                    codes.data(), costs.data()},
                   begin, n, memory.data());
    if (whole) {
      journal.record("assign", codes);
      journal.record("assign", costs);
      continue;
    }
    std::vector<double> tolerance(n);
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t c = 0; c < k; ++c) {
        const double g = std::fabs(dot(&points[i * d], &words[c * d], d));
        const double off = static_cast<double>(d + 4) * epsilon * dot_of_sizes(&points[i * d], &words[c * d], d);
        const double slope = std::fabs(linear[i]) + 2 * std::fabs(quadratic[i]) * (g + off);
        tolerance[i] = std::max(tolerance[i], 2 * (off * slope + 8 * epsilon * (norms[c] + g * slope)));
      }
    journal.record_choices("assign", codes);
    journal.record("assign", costs, tolerance);
  }
}

struct Books {
  Floats words, norms;
  std::vector<std::int32_t> starts{0};
  std::size_t m, k, width = 0, d;
  float unit;

  Codebooks view() const { return {words.data(), norms.data(), starts.data(), m, k, width, d, unit}; }
};

Books make_books(Random& random, bool whole) {
  Books books;
  books.m = random.size(1, 8);
  books.k = random.whole(0, 4) ? random.size(1, 33) : 256;
  std::vector<std::size_t> widths(books.m);
  for (std::size_t& width : widths) {
    width = random.size(1, 5);
    books.width = std::max(books.width, width);
    books.starts.push_back(books.starts.back() + static_cast<std::int32_t>(width));
  }
  books.d = static_cast<std::size_t>(books.starts.back());
  books.words = random.floats(books.m * books.k * books.width, whole ? 2 : 0);
  std::vector<double> squares;
  for (std::size_t c = 0; c < books.m * books.k; ++c) {
    float* word = &books.words[c * books.width];
    if (c < books.k && word[0] == 0) word[0] = 1;  // no decoded point is 0
    std::fill(word + widths[c / books.k], word + books.width, 0.0f);
    squares.push_back(dot(word, word, books.width));
  }
  const double unit = std::ldexp(1.0, -std::ilogb(std::sqrt(*std::max_element(squares.begin(), squares.end()))));
  for (const double square : squares) books.norms.push_back(static_cast<float>(square * unit * unit));
  books.unit = static_cast<float>(unit);
  return books;
}

// Points of lengths 0, 1, and 2 where `four`: their directions are exact.
Floats axis_points(Random& random, std::size_t n, std::size_t d, bool four) {
  Floats points(n * d);
  for (std::size_t i = 0; i < n; ++i) {
    if (!random.whole(0, 9)) continue;
    const std::size_t count = four && d >= 4 && random.whole(0, 1) ? 4 : 1, first = random.size(0, d - count);
    for (std::size_t j = 0; j < count; ++j) points[i * d + first + j] = random.whole(0, 1) ? 1.0f : -1.0f;
  }
  return points;
}

void compare_encode(const Kernels& kernels, Journal& journal) {
  Random random(2);
  for (int trial = 0; trial < 200; ++trial) {
    const bool whole = trial % 2, scaled = trial / 2 % 2, warm = trial / 4 % 2;
    const Books books = make_books(random, whole);
    const std::size_t n = random.size(0, 40), d = books.d, begin = random.size(0, n / 2);
    const float length = whole ? 1 : std::ldexp(1.0f, static_cast<int>(random.whole(-30, 30)));
    Floats residuals = random.floats(n * d, whole ? 2 : 0);
    Floats points = whole ? axis_points(random, n, d, !scaled) : random.floats(n * d);
    if (scaled)  // under the best scale the length of a point does not count
      for (float& value : residuals) value *= length;
    for (float& value : points) value *= length;
    const auto penalty = random.wholes<float>(n, 0, scaled ? 3 : 8);
    auto codes = output<std::uint8_t>(n * books.m);
    for (std::size_t i = 0; i < n * books.m; ++i) codes[i] = static_cast<std::uint8_t>(random.size(0, books.k - 1));
    auto memory = scratch(kernels.encode_scratch(books.view()));
    kernels.encode({residuals.data(), points.data(), penalty.data(), books.view(), scaled, warm,
                    static_cast<int>(random.whole(0, 6)), codes.data()},
                   begin, n, memory.data());
    whole ? journal.record("encode", codes) : journal.record_choices("encode", codes);
  }
}

void compare_encode_additive(const Kernels& kernels, Journal& journal) {
  Random random(3);
  for (int trial = 0; trial < 120; ++trial) {
    const bool whole = trial % 2, scaled = trial / 2 % 2, warm = trial / 4 % 2;
    const std::size_t n = random.size(0, 12), m = random.size(1, 5), d = random.size(1, whole ? 8 : 30);
    const std::size_t k = random.whole(0, 9) ? 16 * random.size(1, 3) : 256, total = m * k;
    Floats points = random.floats(n * d, 1), columns = random.floats(d * total, whole ? (scaled ? 1 : 2) : 0);
    if (whole && !scaled) points = axis_points(random, n, d, true);
    if (!whole) points = random.floats(n * d);
    Floats gram(total * total);
    for (std::size_t a = 0; a < total; ++a)
      for (std::size_t b = 0; b < total; ++b) {
        double sum = 0;
        for (std::size_t j = 0; j < d; ++j) sum += static_cast<double>(columns[j * total + a]) * columns[j * total + b];
        gram[a * total + b] = static_cast<float>(sum);
      }
    const auto penalty = random.wholes<float>(n, 0, scaled ? 3 : 8);
    auto codes = output<std::uint8_t>(n * m);
    for (std::size_t i = 0; i < n * m; ++i) codes[i] = static_cast<std::uint8_t>(random.size(0, k - 1));
    EncodeAdditive e{points.data(), penalty.data(), columns.data(), gram.data(), m, k, d, scaled, warm, 0, 0, 0, 0,
                     codes.data()};
    e.sweeps = static_cast<int>(random.whole(0, 6));
    e.restarts = static_cast<int>(random.whole(0, 3));
    e.kicks = static_cast<int>(random.whole(0, 3));
    e.seed = random.bits();
    auto memory = scratch(kernels.encode_additive_scratch(e));
    kernels.encode_additive(e, random.size(0, n / 2), n, memory.data());
    whole ? journal.record("encode_additive", codes) : journal.record_choices("encode_additive", codes);
  }
}

void compare_sums(const Kernels& kernels, Journal& journal) {
  Random random(4);
  for (int trial = 0; trial < 100; ++trial) {
    const int most = trial % 2 ? 9 : 0;
    const Books books = make_books(random, most);
    const std::size_t n = random.size(0, 70), d = books.d, begin = random.size(0, n), first = random.size(0, books.m);
    const Floats values = random.floats(n * d, most), weights = random.floats(n, most);
    const auto codes = random.wholes<std::uint8_t>(n * books.m, 0, static_cast<int>(books.k) - 1);
    const std::vector<double> rounding(books.m * books.k * books.width, most ? 0 : 1e-14 * 20 * 70);

    auto dots = output<float>(n);
    kernels.dot_decoded({values.data(), codes.data(), books.view(), dots.data()}, begin, n);
    std::vector<double> tolerance(n);
    const double longest = 2 * static_cast<double>(d) * epsilon;
    for (std::size_t i = 0; i < n && !most; ++i)
      for (std::size_t m = 0; m < books.m; ++m) {
        const std::size_t start = static_cast<std::size_t>(books.starts[m]);
        const float* word = &books.words[(m * books.k + codes[i * books.m + m]) * books.width];
        tolerance[i] += longest * dot_of_sizes(&values[i * d + start], word, books.starts[m + 1] - start);
      }
    journal.record("dot_decoded", dots, tolerance);

    auto by_code = output<double>(books.words.size());
    kernels.sum_by_code({values.data(), weights.data(), codes.data(), books.view(), n, by_code.data()}, first, books.m);
    journal.record("sum_by_code", by_code, rounding);

    const std::size_t k = random.size(1, 40);
    const auto groups = random.wholes<std::int32_t>(n, 0, static_cast<int>(k) - 1);
    auto by_group = output<double>(k * d), totals = output<double>(k);
    kernels.sum_by_group({values.data(), weights.data(), groups.data(), n, d, by_group.data(), totals.data()},
                         random.size(0, k / 2), k);
    journal.record("sum_by_group", by_group, std::vector<double>(k * d, most ? 0 : 1e-14 * 20 * 70));
    journal.record("sum_by_group", totals, std::vector<double>(k, most ? 0 : 1e-14 * 20 * 70));
  }
}

}  // namespace

void compare_training(const Kernels& kernels, Journal& journal) {
  compare_assign(kernels, journal);
  compare_encode(kernels, journal);
  compare_encode_additive(kernels, journal);
  compare_sums(kernels, journal);
}

}  // namespace aniso
