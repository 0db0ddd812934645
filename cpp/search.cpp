// The search of one query: score centroids, choose partitions, make tables, scan, keep the best candidates, rescore.
#include "search.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

namespace aniso {

namespace {

constexpr std::size_t scan_points = 256;  // points scanned between two looks at the candidates
constexpr std::size_t block = 32;
constexpr std::int64_t estimate_bias = std::int64_t{1} << 31;  // added to integer scores to store them unsigned
constexpr double furthest = 1 << 30;                           // integer scores of centroids stay within this

std::size_t bytes_per_value(Rescore rescore) {
  switch (rescore) {
    case Rescore::float32: return 4;
    case Rescore::float16: return 2;
    case Rescore::int8: return 1;
    case Rescore::none: break;
  }
  return 0;
}

// An unsigned number that sorts as the float does.
std::uint32_t sortable(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

float from_sortable(std::uint32_t bits) {
  return std::bit_cast<float>(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
}

// Larger is better; among equal scores the lower number is.
std::uint64_t key_of(std::uint32_t score, std::uint32_t number) {
  return static_cast<std::uint64_t>(score) << 32 | (0xffffffffu - number);
}

std::uint32_t number_of(std::uint64_t key) { return 0xffffffffu - static_cast<std::uint32_t>(key); }

}  // namespace

struct Workspace {
  std::vector<float> query;         // d, a 1, and zeros for tables that read past it
  std::vector<std::uint8_t> bytes;  // the query for the centroids
  std::vector<std::int16_t> words;  // the query for int8 points
  std::vector<std::int32_t> centroid_scores;
  std::vector<float> order;
  std::vector<std::uint32_t> chosen;
  std::vector<std::uint64_t> partitions;  // keys
  std::vector<float> table_floats;
  std::vector<std::uint8_t> tables;
  std::vector<Hit> hits;
  std::vector<std::uint64_t> candidates;  // keys
  float query_unit = 0;                   // what 1 in `bytes` stands for
  float word_unit = 0;                    // what 1 in `words` stands for
  double zero = 0, step = 1;              // a candidate's integer score i stands for the score zero + i * step
  float guess = 2;                        // standard deviations above the mean where the partitions to search start
};

Search::Search(const View& view, const Kernels& kernels) : view_(view), kernels_(kernels) {}
Search::~Search() = default;

std::unique_ptr<Workspace> Search::borrow() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!spare_.empty()) {
      std::unique_ptr<Workspace> workspace = std::move(spare_.back());
      spare_.pop_back();
      return workspace;
    }
  }
  auto workspace = std::make_unique<Workspace>();
  workspace->query.resize(view_.d + 1 + view_.tables.width);
  workspace->query[view_.d] = 1;
  workspace->bytes.assign(view_.centroids.d4, 64);
  workspace->words.resize(view_.d);
  workspace->centroid_scores.resize(view_.centroids.blocks * 8);
  workspace->order.resize(view_.centroids.blocks * 8);
  workspace->chosen.resize(view_.p);
  workspace->table_floats.resize(view_.tables.m * 16);
  workspace->tables.resize(view_.rows * 32);
  workspace->hits.resize(scan_points);
  return workspace;
}

void Search::give_back(std::unique_ptr<Workspace> workspace) {
  const std::lock_guard<std::mutex> lock(mutex_);
  spare_.push_back(std::move(workspace));
}

std::size_t Search::choose_partitions(Workspace& at, std::size_t count) {
  const std::size_t p = view_.p;
  kernels_.score_centroids(view_.centroids, at.bytes.data(), at.centroid_scores.data());
  float sum, squares;
  kernels_.scale_scores(at.centroid_scores.data(), view_.order_scales, view_.order_biases, at.query_unit, p,
                        at.order.data(), &sum, &squares);
  std::size_t found = 0;
  if (count < p) {
    // Collect a few more than needed, above a threshold guessed from mean and deviation and from the last query.
    const float mean = sum / static_cast<float>(p);
    const float deviation = std::sqrt(std::max(squares / static_cast<float>(p) - mean * mean, 0.0f));
    for (int attempt = 0; attempt < 16; ++attempt) {
      found = kernels_.select_at_least(at.order.data(), p, mean + at.guess * deviation, at.chosen.data(), p);
      if (found >= count) break;
      at.guess -= 0.25f;
    }
    if (found > count + count / 2 + 8) at.guess += 0.05f;
  }
  if (found < count) {
    found = p;
    for (std::size_t i = 0; i < p; ++i) at.chosen[i] = static_cast<std::uint32_t>(i);
  }
  at.partitions.resize(found);
  for (std::size_t i = 0; i < found; ++i) at.partitions[i] = key_of(sortable(at.order[at.chosen[i]]), at.chosen[i]);
  if (found > count)
    std::nth_element(at.partitions.begin(), at.partitions.begin() + static_cast<std::ptrdiff_t>(count),
                     at.partitions.end(), std::greater<>());
  at.partitions.resize(std::min(found, count));
  std::sort(at.partitions.begin(), at.partitions.end(), std::greater<>());
  return at.partitions.size();
}

std::size_t Search::scan_partitions(Workspace& at, std::size_t count, std::size_t candidates) {
  float offset, step;
  kernels_.make_tables(view_.tables, at.query.data(), at.table_floats.data(), at.tables.data(), &offset, &step);
  const Scan scan{view_.codes, at.tables.data(), view_.rows, view_.group_rows};
  const double inverse = 1.0 / step;

  // Candidate scores are integers in units of the tables' step, relative to the centroid of the first partition.
  const std::size_t room = 2 * candidates + block;
  at.candidates.resize(room + scan_points);
  std::uint64_t* keys = at.candidates.data();
  std::size_t found = 0;
  std::int64_t threshold = std::numeric_limits<std::int32_t>::min();
  double base_zero = 0;
  auto prune = [&] {
    std::nth_element(keys, keys + candidates - 1, keys + found, std::greater<>());
    found = candidates;
    threshold = static_cast<std::int64_t>(keys[candidates - 1] >> 32) - estimate_bias;
  };
  auto base_of = [&](std::uint32_t p) {
    return static_cast<double>(at.centroid_scores[p]) * view_.base_scales[p] * at.query_unit + view_.base_biases[p];
  };
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t p = number_of(at.partitions[i]);
    if (i + 1 < count) {
      const std::uint32_t next = number_of(at.partitions[i + 1]);
      const std::uint8_t* codes = view_.codes + static_cast<std::size_t>(view_.first_blocks[next]) * view_.rows * block;
      for (std::size_t line = 0; line < 8; ++line) __builtin_prefetch(codes + 64 * line);
    }
    const double base_score = base_of(p);
    if (i == 0) {
      base_zero = base_score;
      at.zero = base_score + offset;
      at.step = step;
    }
    const std::int64_t base =
        static_cast<std::int64_t>(std::clamp(std::nearbyint((base_score - base_zero) * inverse), -furthest, furthest));
    std::size_t first = static_cast<std::size_t>(view_.first_blocks[p]);
    for (std::size_t left = static_cast<std::size_t>(view_.sizes[p]); left;) {
      const std::size_t points = std::min(left, scan_points);
      const std::uint32_t least = static_cast<std::uint32_t>(std::clamp<std::int64_t>(threshold - base, 0, 1 << 20));
      const std::size_t hits = kernels_.scan(scan, first, points, least, at.hits.data());
      for (std::size_t h = 0; h < hits; ++h)
        keys[found++] = key_of(static_cast<std::uint32_t>(base + at.hits[h].sum + estimate_bias), at.hits[h].slot);
      if (found >= room) prune();
      first += scan_points / block;
      left -= points;
    }
  }
  if (found > candidates) prune();
  return found;
}

// A row of points prefetched and scored; what is stored decides how.
float Search::score_row(const Workspace& at, std::uint32_t row, std::int64_t estimate, float squared) const {
  const std::size_t d = view_.d;
  switch (view_.rescore) {
    case Rescore::float32: {
      const float* x = static_cast<const float*>(view_.points) + row * d;
      return view_.l2 ? -kernels_.distance_f32(x, at.query.data(), d) : kernels_.dot_f32(x, at.query.data(), d);
    }
    case Rescore::float16: {
      const std::uint16_t* x = static_cast<const std::uint16_t*>(view_.points) + row * d;
      return view_.l2 ? -kernels_.distance_f16(x, at.query.data(), d) : kernels_.dot_f16(x, at.query.data(), d);
    }
    case Rescore::int8: {
      const std::int8_t* x = static_cast<const std::int8_t*>(view_.points) + row * d;
      const float dot = static_cast<float>(kernels_.dot_i8(x, at.words.data(), d)) * at.word_unit;
      const float score = dot * view_.point_scales[row];
      return view_.l2 ? 2 * (score + view_.point_biases[row]) - squared : score;
    }
    case Rescore::none: break;
  }
  const float score = static_cast<float>(at.zero + static_cast<double>(estimate) * at.step);
  return view_.l2 ? 2 * score - squared : score;
}

std::size_t Search::rescore(Workspace& at, std::size_t found, std::size_t k, std::int64_t* ids, float* scores) const {
  std::uint64_t* keys = at.candidates.data();
  const std::size_t bytes = view_.d * bytes_per_value(view_.rescore);
  const char* points = static_cast<const char*>(view_.points);
  for (std::size_t i = 0; i < found; ++i) {
    const std::uint32_t row = static_cast<std::uint32_t>(view_.slot_rows[number_of(keys[i])]);
    if (bytes) {
      const char* first = points + row * bytes;
      for (std::size_t b = 0; b < bytes; b += 64) __builtin_prefetch(first + b);
      __builtin_prefetch(first + bytes - 1);
    }
    keys[i] = (keys[i] & 0xffffffff00000000u) | (0xffffffffu - row);
  }
  const float squared = view_.l2 ? kernels_.dot_f32(at.query.data(), at.query.data(), view_.d) : 0;
  if (view_.rescore == Rescore::none) {
    // A point in two partitions has two estimates: the better one counts.
    std::sort(keys, keys + found, [](std::uint64_t a, std::uint64_t b) {
      return number_of(a) != number_of(b) ? number_of(a) < number_of(b) : a > b;
    });
    auto same = [](std::uint64_t a, std::uint64_t b) { return number_of(a) == number_of(b); };
    found = static_cast<std::size_t>(std::unique(keys, keys + found, same) - keys);
  }
  for (std::size_t i = 0; i < found; ++i) {
    const std::uint32_t row = number_of(keys[i]);
    const std::int64_t estimate = static_cast<std::int64_t>(keys[i] >> 32) - estimate_bias;
    keys[i] = key_of(sortable(score_row(at, row, estimate, squared)), row);
  }
  // A point in two partitions is there twice with one score, so the best 2 k keys hold the best k points.
  const std::size_t keep = std::min(found, 2 * k);
  if (keep < found) std::nth_element(keys, keys + keep, keys + found, std::greater<>());
  std::sort(keys, keys + keep, std::greater<>());
  std::size_t count = 0;
  for (std::size_t i = 0; i < keep && count < k; ++i) {
    if (i && keys[i] == keys[i - 1]) continue;
    ids[count] = number_of(keys[i]);
    scores[count++] = from_sortable(static_cast<std::uint32_t>(keys[i] >> 32));
  }
  return count;
}

std::size_t Search::one(const float* query, std::size_t k, std::size_t partitions, std::size_t candidates,
                        std::int64_t* ids, float* scores) {
  std::unique_ptr<Workspace> workspace = borrow();
  Workspace& at = *workspace;
  float scale = 1;
  if (view_.unit_queries) {
    const float squared = kernels_.dot_f32(query, query, view_.d);
    scale = squared > 0 ? 1 / std::sqrt(squared) : 0;
  }
  float largest = 0;
  for (std::size_t j = 0; j < view_.d; ++j) {
    at.query[j] = query[j] * scale;
    largest = std::max(largest, std::fabs(at.query[j]));
  }
  at.query_unit = largest > 0 ? largest / 63 : 1;
  const float inverse = 1 / at.query_unit;
  for (std::size_t j = 0; j < view_.d; ++j)
    at.bytes[j] = static_cast<std::uint8_t>(static_cast<int>(at.query[j] * inverse + 64.5f));
  if (view_.rescore == Rescore::int8) {
    const float most = std::min(32767.0f, 2147483647.0f / (127.0f * static_cast<float>(view_.d)) - 1);
    at.word_unit = largest > 0 ? largest / most : 1;
    const float to_words = 1 / at.word_unit;
    for (std::size_t j = 0; j < view_.d; ++j)
      at.words[j] = static_cast<std::int16_t>(std::nearbyint(at.query[j] * to_words));
  }
  k = std::min(k, view_.n);
  candidates = std::max(candidates, k);
  std::size_t count = 0;
  for (partitions = std::min(std::max<std::size_t>(partitions, 1), view_.p);;
       partitions = std::min(4 * partitions, view_.p), candidates *= 2) {
    const std::size_t chosen = choose_partitions(at, partitions);
    const std::size_t found = scan_partitions(at, chosen, candidates);
    count = rescore(at, found, k, ids, scores);
    if (count >= k || (partitions == view_.p && candidates >= 2 * view_.n)) break;
  }
  give_back(std::move(workspace));
  return count;
}

}  // namespace aniso
