// The search of one query: score centroids, choose partitions, make tables, scan, keep the best candidates, rescore.
#include "search.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>

#include "candidates.h"
#include "keys.h"

namespace aniso {

namespace {

constexpr std::size_t block = 32;
constexpr std::uint32_t piece_points = 128;  // points scanned between two looks at the candidates
constexpr std::size_t pieces_ahead = 4;      // how far ahead of the scan codes are brought into the cache
constexpr double furthest = 1 << 30;         // integer scores of centroids stay within this

std::size_t bytes_per_value(Rescore rescore) {
  switch (rescore) {
    case Rescore::float32: return 4;
    case Rescore::float16: return 2;
    case Rescore::int8: return 1;
    case Rescore::none: break;
  }
  return 0;
}

}  // namespace

struct Workspace {
  std::vector<float> query;         // shifted; d, a 1, and zeros for tables that read past it
  std::vector<float> whole;         // the query as float points meet it
  std::vector<std::uint8_t> bytes;  // the query for the centroids
  std::vector<std::int16_t> words;  // the query for int8 points
  std::vector<std::int32_t> centroid_scores;
  std::vector<float> order;
  std::vector<std::uint32_t> chosen;
  std::vector<std::uint64_t> partitions;  // keys
  std::vector<float> table_floats;
  std::vector<std::uint8_t> tables;
  std::vector<Piece> pieces;
  std::vector<Hit> hits;
  Candidates candidates;
  std::vector<std::uint64_t>* keys = nullptr;  // of the candidates found
  float query_unit = 0;                        // what 1 in `bytes` stands for
  float word_unit = 0;                         // what 1 in `words` stands for
  double zero = 0, step = 1;                   // a candidate's integer score i stands for the score zero + i * step
  Stages* stages = nullptr;
  std::chrono::steady_clock::time_point last;

  // Ends a stage: adds the time since the last one ended.
  void end(double Stages::* stage) {
    if (!stages) return;
    const auto now = std::chrono::steady_clock::now();
    stages->*stage += std::chrono::duration<double>(now - last).count();
    last = now;
  }

  float guess = 2;  // standard deviations above the mean where the partitions to search start
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
  workspace->whole.resize(view_.d);
  workspace->query[view_.d] = 1;
  workspace->bytes.assign(view_.centroids.d4, 64);
  workspace->words.resize(view_.d);
  workspace->centroid_scores.resize(view_.centroids.blocks * 8);
  workspace->order.resize(view_.centroids.blocks * 8);
  workspace->chosen.resize(view_.p);
  workspace->table_floats.resize(view_.tables.m * 16);
  workspace->tables.resize(view_.rows * 32);
  workspace->hits.resize(piece_points);
  return workspace;
}

void Search::give_back(std::unique_ptr<Workspace> workspace) {
  const std::lock_guard<std::mutex> lock(mutex_);
  spare_.push_back(std::move(workspace));
}

void Search::choose_partitions(Workspace& at, std::size_t count) {
  const std::size_t p = view_.p;
  kernels_.score_centroids(view_.centroids, at.bytes.data(), at.centroid_scores.data());
  at.end(&Stages::centroids);
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
  // The best few first, so that the threshold rises early; the order of the others changes nothing.
  const auto lead =
      at.partitions.begin() + std::min<std::ptrdiff_t>(8, static_cast<std::ptrdiff_t>(at.partitions.size()));
  std::partial_sort(at.partitions.begin(), lead, at.partitions.end(), std::greater<>());
  at.end(&Stages::choose);
}

void Search::list_pieces(Workspace& at) {
  at.pieces.clear();
  for (const std::uint64_t key : at.partitions) {
    const std::uint32_t p = number_of(key);
    std::uint32_t first = static_cast<std::uint32_t>(view_.first_blocks[p]);
    for (std::uint32_t left = static_cast<std::uint32_t>(view_.sizes[p]); left;) {
      const std::uint32_t points = std::min(left, piece_points);
      at.pieces.push_back({first, points, p});
      first += piece_points / block;
      left -= points;
    }
  }
  const std::size_t early = std::min<std::size_t>(pieces_ahead, at.pieces.size());
  for (std::size_t i = 0; i < early; ++i)
    for (std::size_t b = 0; b < piece_points * view_.rows; b += 64) __builtin_prefetch(codes_of(at.pieces[i]) + b);
}

const std::uint8_t* Search::codes_of(const Piece& piece) const {
  return view_.codes + static_cast<std::size_t>(piece.first_block) * view_.rows * block;
}

void Search::scan_partitions(Workspace& at, std::size_t candidates) {
  list_pieces(at);
  float offset, step;
  kernels_.make_tables(view_.tables, at.query.data(), at.table_floats.data(), at.tables.data(), &offset, &step);
  at.end(&Stages::tables);
  const Scan scan{view_.codes, at.tables.data(), view_.rows, view_.group_rows};

  // Candidate scores are integers in units of the tables' step, relative to the centroid of the first partition.
  const std::size_t groups = (view_.rows + view_.group_rows - 1) / view_.group_rows;
  at.candidates.start(candidates, static_cast<std::int64_t>(255 * groups));
  auto base_of = [&](std::uint32_t p) {
    return static_cast<double>(at.centroid_scores[p]) * view_.base_scales[p] * at.query_unit + view_.base_biases[p];
  };
  const double zero = base_of(number_of(at.partitions[0])), inverse = 1.0 / step;
  at.zero = zero + offset;
  at.step = step;
  std::int64_t base = 0;
  std::uint32_t partition = 0xffffffffu;
  for (std::size_t i = 0; i < at.pieces.size(); ++i) {
    const Piece& piece = at.pieces[i];
    if (piece.partition != partition) {
      partition = piece.partition;
      const double units = std::nearbyint((base_of(partition) - zero) * inverse);
      base = static_cast<std::int64_t>(std::clamp(units, -furthest, furthest));
    }
    const std::uint8_t* ahead = codes_of(at.pieces[std::min(i + pieces_ahead, at.pieces.size() - 1)]);
    const std::int64_t least = std::clamp<std::int64_t>(at.candidates.threshold() - base, 0, 1 << 20);
    const std::size_t hits =
        kernels_.scan(scan, piece.first_block, piece.points, static_cast<std::uint32_t>(least), at.hits.data(), ahead);
    at.candidates.add(at.hits.data(), hits, base);
    if (at.stages) {
      at.stages->scanned += static_cast<double>(piece.points);
      at.stages->hits += static_cast<double>(hits);
    }
  }
  at.keys = &at.candidates.finish();
  at.end(&Stages::scan);
}

// A row of points prefetched and scored; what is stored decides how.
float Search::score_row(const Workspace& at, std::uint32_t row, std::int64_t estimate, float squared) const {
  const std::size_t d = view_.d;
  switch (view_.rescore) {
    case Rescore::float32: {
      const float* x = static_cast<const float*>(view_.points) + row * d;
      return view_.l2 ? -kernels_.distance_f32(x, at.whole.data(), d) : kernels_.dot_f32(x, at.whole.data(), d);
    }
    case Rescore::float16: {
      const std::uint16_t* x = static_cast<const std::uint16_t*>(view_.points) + row * d;
      return view_.l2 ? -kernels_.distance_f16(x, at.whole.data(), d) : kernels_.dot_f16(x, at.whole.data(), d);
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

std::size_t Search::rescore(Workspace& at, std::size_t k, std::int64_t* ids, float* scores) const {
  std::uint64_t* keys = at.keys->data();
  std::size_t found = at.keys->size();
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
    // A point in two partitions has two estimates: their mean counts.
    std::sort(keys, keys + found, [](std::uint64_t a, std::uint64_t b) {
      return number_of(a) != number_of(b) ? number_of(a) < number_of(b) : a > b;
    });
    std::size_t kept = 0;
    for (std::size_t i = 0; i < found; ++i) {
      const bool twice = i + 1 < found && number_of(keys[i]) == number_of(keys[i + 1]);
      const std::uint64_t other = keys[i + twice];
      const std::uint64_t mean = (static_cast<std::uint64_t>(score_of(keys[i])) + score_of(other)) / 2;
      keys[kept++] = key_of(static_cast<std::uint32_t>(mean), number_of(keys[i]));
      i += twice;
    }
    found = kept;
  }
  for (std::size_t i = 0; i < found; ++i) {
    const std::uint32_t row = number_of(keys[i]);
    const std::int64_t estimate = static_cast<std::int64_t>(keys[i] >> 32) - Candidates::bias;
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
    scores[count++] = from_sortable(score_of(keys[i]));
  }
  return count;
}

std::size_t Search::one(const float* query, std::size_t k, std::size_t partitions, std::size_t candidates,
                        std::int64_t* ids, float* scores, Stages* stages) {
  std::unique_ptr<Workspace> workspace = borrow();
  Workspace& at = *workspace;
  at.stages = stages;
  if (stages) at.last = std::chrono::steady_clock::now();
  float scale = 1;
  if (view_.unit_queries) {
    const float squared = kernels_.dot_f32(query, query, view_.d);
    scale = squared > 0 ? 1 / std::sqrt(squared) : 0;
  }
  float largest = 0;
  for (std::size_t j = 0; j < view_.d; ++j) {
    at.whole[j] = query[j] * scale;
    at.query[j] = view_.shift ? at.whole[j] - view_.shift[j] : at.whole[j];
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
  at.end(&Stages::prepare);
  k = std::min(k, view_.n);
  candidates = std::max(candidates, k);
  std::size_t count = 0;
  for (partitions = std::min(std::max<std::size_t>(partitions, 1), view_.p);;
       partitions = std::min(4 * partitions, view_.p), candidates *= 2) {
    choose_partitions(at, partitions);
    scan_partitions(at, candidates);
    count = rescore(at, k, ids, scores);
    at.end(&Stages::rescore);
    if (count >= k || (partitions == view_.p && candidates >= 2 * view_.n)) break;
  }
  give_back(std::move(workspace));
  return count;
}

}  // namespace aniso
