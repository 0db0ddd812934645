// The search of one query: score centroids, choose partitions, make tables, scan, keep the best candidates, rescore.
#include "search.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>

#include "keys.h"
#include "prefetch.h"

namespace aniso {

namespace {

constexpr std::size_t early = 128;            // points scanned before the threshold is first looked at
constexpr std::size_t partitions_ahead = 4;   // how far ahead of the scan codes are brought into the cache
constexpr std::size_t rows_together = 16;     // rows scored together with all queries of a few
constexpr std::size_t one_call = 64;          // most rows scored by one call of a kernel
constexpr std::size_t bytes_ahead = 1 << 17;  // of rows on their way into the L2 cache
constexpr float tiny = 1e-30f;                // a squared norm from which on its parts are exact enough

// Of the sizes of finite numbers, which compare as the whole numbers that their bits are: many at a time.
float largest_size(const float* values, std::size_t count) {
  std::int32_t most = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int32_t bits = std::bit_cast<std::int32_t>(values[i]) & 0x7fffffff;
    most = bits > most ? bits : most;
  }
  return std::bit_cast<float>(most);
}

}  // namespace

Search::Search(const View& view, const Kernels& kernels)
    : view_(view), kernels_(kernels), router_(view.routes, kernels) {}
Search::~Search() = default;

// Room for those of one scan.
std::size_t Search::most_hits() const { return std::min(view_.largest, Hit::most) + Hit::beyond; }

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
  router_.fit(workspace->route);
  workspace->table_floats.resize(view_.tables.m * 16);
  workspace->hits.resize(4 * most_hits());
  fit(workspace->query);
  return workspace;
}

void Search::give_back(std::unique_ptr<Workspace> workspace) {
  const std::lock_guard<std::mutex> lock(mutex_);
  spare_.push_back(std::move(workspace));
}

void Search::fit(Query& query) const {
  query.shifted.resize(view_.d + 1 + view_.tables.width);
  query.shifted[view_.d] = 1;
  query.whole.resize(view_.d);
  if (view_.rescore == Rescore::int8) query.words.resize(view_.d);
  query.tables.resize(view_.rows * 32);
  query.ordered.resize(few);
}

void Search::prepare(const float* from, Workspace& at, Query& query) const {
  float scale = 1;
  if (view_.unit_queries) {
    float squared = kernels_.dot_f32(from, from, view_.d);
    if (!(squared > tiny)) {  // squares are lost: take numbers that are not as small
      const auto absolute = [](float a, float b) { return std::fabs(a) < std::fabs(b); };
      const float most = view_.d ? std::fabs(*std::max_element(from, from + view_.d, absolute)) : 0;
      for (std::size_t j = 0; j < view_.d; ++j)
        query.shifted[j] = most > 0 ? static_cast<float>(static_cast<double>(from[j]) / static_cast<double>(most)) : 0;
      from = query.shifted.data();
      squared = kernels_.dot_f32(from, from, view_.d);
    }
    scale = squared > 0 ? 1 / std::sqrt(squared) : 0;
  }
  const std::size_t d = view_.d;
  float *whole = query.whole.data(), *shifted = query.shifted.data();
  for (std::size_t j = 0; j < d; ++j) whole[j] = from[j] * scale;
  if (view_.shift)
    for (std::size_t j = 0; j < d; ++j) shifted[j] = whole[j] - view_.shift[j];
  else
    std::copy(whole, whole + d, shifted);
  const float largest = largest_size(shifted, d);
  router_.set(at.route, shifted, largest);
  if (view_.rescore == Rescore::int8) {
    const float most = std::min(32767.0f, 2147483647.0f / (127.0f * static_cast<float>(d)) - 1);
    query.word_unit = largest > 0 ? largest / most : 1;
    std::int16_t* __restrict words = query.words.data();
    const auto write = [&](auto to_words) {
      using Number = decltype(to_words);
      for (std::size_t j = 0; j < d; ++j) {  // shifted up, as numbers below 0 are cut off towards it
        const Number up = static_cast<Number>(shifted[j]) * to_words + Number(32768.5);
        words[j] = static_cast<std::int16_t>(static_cast<std::int32_t>(up) - 32768);
      }
    };
    if (largest > 0 && largest < tiny)
      write(static_cast<double>(most) / static_cast<double>(largest));  // which does not fit a float
    else
      write(largest > 0 ? most / largest : 1.0f);
  }
  query.squared = kernels_.dot_f32(query.shifted.data(), query.shifted.data(), view_.d);
  query.length = std::sqrt(query.squared);
  at.end(&Stages::prepare);
}

void Search::choose_partitions(Workspace& at, Query& query, std::size_t count) const {
  // Scores of l2 become squared distances, others those of a query of length 1.
  const Yardstick yardstick = view_.l2           ? Yardstick{2, -query.squared}
                              : query.length > 0 ? Yardstick{1 / query.length, 0}
                                                 : Yardstick{};
  router_.choose(at.route, count, yardstick, query.chosen);
  std::erase_if(query.chosen, [&](const Chosen& chosen) {
    __builtin_prefetch(view_.first_blocks + chosen.partition);  // for the scan
    return view_.sizes[chosen.partition] == 0;
  });
  at.end(&Stages::route);
}

std::size_t Search::code_bytes(std::uint32_t partition) const {
  return (static_cast<std::size_t>(view_.sizes[partition]) + block - 1) / block * block * view_.rows;
}

const std::uint8_t* Search::codes_of(std::uint32_t partition) const {
  return view_.codes + static_cast<std::size_t>(view_.first_blocks[partition]) * view_.rows * block;
}

void Search::bring_codes(std::uint32_t partition) const { prefetch_bytes(codes_of(partition), code_bytes(partition)); }

void Search::make_tables(Workspace& at, Query& query, std::size_t candidates, Floor* floor) const {
  float offset, step;
  kernels_.make_tables(view_.tables, query.shifted.data(), at.table_floats.data(), query.tables.data(), &offset, &step);
  // Candidate scores are integers in units of the tables' step, relative to the centroid of the first partition.
  const std::int64_t span = 255 * static_cast<std::int64_t>((view_.rows + view_.group_rows - 1) / view_.group_rows);
  query.zero = (query.chosen.empty() ? 0.0 : static_cast<double>(query.chosen[0].base)) + static_cast<double>(offset);
  query.step = step;
  query.inverse_step = 1.0 / query.step;
  Candidates::Bottom bottom;
  if (floor && floor->known() && !query.chosen.empty()) {
    const double score = level(query) + static_cast<double>(floor->guess() * query.length);
    const double units = (score - query.zero) * query.inverse_step;
    const double margin = static_cast<double>(floor->margin() * query.length) * query.inverse_step;
    if (2 * margin <= static_cast<double>(span) && std::isfinite(units)) {
      constexpr double most = Candidates::reach / 2;
      bottom.floor = static_cast<std::int64_t>(std::clamp(units, -most, most));
      bottom.reach = static_cast<std::int64_t>(2 * margin);
    } else {  // it tells nothing, as after a query unlike all others: others teach it anew
      floor->forget();
    }
  }
  query.candidates.start(candidates, span, bottom);
  at.end(&Stages::tables);
}

// What the centroids of the nearest partitions give, on average.
double Search::level(const Query& query) const {
  const std::size_t count = std::min(Router::lead, query.chosen.size());
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += static_cast<double>(query.chosen[i].base);
  return sum / static_cast<double>(count);
}

// Leaves the best candidates; meanwhile their rows' numbers come into the cache.
void Search::finish(Query& query) const {
  query.candidates.finish([this](std::uint32_t slot) { __builtin_prefetch(view_.slot_rows + slot, 0, 2); });
}

// Called with candidates that `finish` has left.
void Search::learn_floor(Floor& floor, const Query& query, std::size_t candidates) const {
  const std::uint64_t* keys = query.candidates.keys();
  const std::size_t count = query.candidates.size();
  if (count < candidates) return floor.forget();
  if (!(query.length > 0)) return;
  std::uint64_t last = keys[0];
  for (std::size_t i = 1; i < count; ++i) last = std::min(last, keys[i]);
  const std::int64_t least = Candidates::integer_score(last);
  const double score = query.zero + static_cast<double>(least) * query.step;
  const float value = static_cast<float>(score - level(query)) / query.length;
  if (std::isfinite(value) && std::isfinite(query.length)) floor.learn(value);
}

// Leaves the hits that may be found, in their order; returns how many. Only what passes the threshold of a scan is ever
// looked up, so that a filter costs little however large it is.
std::size_t Search::sift(Hit* hits, std::size_t count, std::uint32_t first, const Filter& filter) const {
  const auto keep = [&](auto allows) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const bool stays = allows(static_cast<std::uint32_t>(view_.slot_rows[first + hits[i].place]));
      hits[kept] = hits[i];
      kept += stays;
    }
    return kept;
  };
  if (filter.bits) return keep([&](std::uint32_t row) { return filter.bits[row / 8] >> row % 8 & 1; });
  if (!filter.places) return keep([&](std::uint32_t row) { return filter.bytes[row] != 0; });
  return keep([&](std::uint32_t row) {
    const std::size_t place = static_cast<std::uint32_t>(filter.places[row]);
    return place < filter.length && filter.bytes[place];
  });
}

void Search::take_hits(Query& query, Hit* hits, std::size_t count, std::int64_t base, std::uint32_t first,
                       const Filter& filter) const {
  if (!count) return;
  if (filter) count = sift(hits, count, first, filter);
  query.candidates.add(hits, count, base, first);
}

void Search::scan(Workspace& at, Query& query, const Filter& filter) const {
  for (std::size_t i = 0; i < query.chosen.size(); ++i) {
    // While a partition is scanned, the codes of a later one come into the cache, as many bytes as are read.
    const std::uint32_t later = query.chosen[std::min(i + partitions_ahead, query.chosen.size() - 1)].partition;
    const Chosen& chosen = query.chosen[i];
    scan_partition(at, query, chosen.partition, query.units(chosen.base), filter, later);
  }
  at.end(&Stages::scan);
}

// Scans a partition whose centroid gives `base`; meanwhile the codes of a later one come into the cache.
void Search::scan_partition(Workspace& at, Query& query, std::uint32_t partition, std::int64_t base,
                            const Filter& filter, std::uint32_t later) const {
  const Scan scan{view_.codes, query.tables.data(), view_.rows, view_.group_rows};
  const std::uint8_t *ahead = codes_of(later), *last = ahead + code_bytes(later) - 64;
  std::size_t at_block = static_cast<std::size_t>(view_.first_blocks[partition]);
  std::size_t left = static_cast<std::size_t>(view_.sizes[partition]);
  if (at.stages) at.stages->scanned += static_cast<double>(left);
  while (left) {
    // Without a threshold every point is a hit: the first points are few.
    const std::size_t points = std::min(left, query.candidates.bounded() ? Hit::most : early);
    const std::int64_t least = std::clamp<std::int64_t>(query.candidates.threshold() - base, 0, 1 << 20);
    const std::size_t hits =
        kernels_.scan(scan, at_block, points, static_cast<std::uint32_t>(least), at.hits.data(), ahead, last);
    take_hits(query, at.hits.data(), hits, base, static_cast<std::uint32_t>(at_block * block), filter);
    if (at.stages) at.stages->hits += static_cast<double>(hits);
    at_block += points / block;
    ahead += points * view_.rows;
    left -= points;
  }
}

// Up to `one_call` rows of points scored; what is stored decides how.
void Search::score_rows(const Query& query, const std::uint32_t* rows, std::size_t count, float* scores) const {
  const std::size_t d = view_.d;
  const Rows picked{view_.points, view_.row_bytes, d, rows};
  const float* whole = query.whole.data();
  switch (view_.rescore) {
    case Rescore::none: return;
    case Rescore::float32:
      (view_.l2 ? kernels_.distance_rows_f32 : kernels_.dot_rows_f32)(picked, whole, count, scores);
      break;
    case Rescore::float16:
      (view_.l2 ? kernels_.distance_rows_f16 : kernels_.dot_rows_f16)(picked, whole, count, scores);
      break;
    case Rescore::int8: {
      std::int32_t dots[one_call];
      kernels_.dot_rows_i8(picked, query.words.data(), count, dots);
      const char* end = static_cast<const char*>(view_.points) + (d + 3) / 4 * 4;
      for (std::size_t i = 0; i < count; ++i) {
        float scale, bias;
        std::memcpy(&scale, end + rows[i] * view_.row_bytes, sizeof scale);
        scores[i] = static_cast<float>(dots[i]) * query.word_unit * scale;
        if (!view_.l2) continue;
        std::memcpy(&bias, end + rows[i] * view_.row_bytes + sizeof scale, sizeof bias);
        scores[i] = 2 * (scores[i] + bias) - query.squared;
      }
      return;
    }
  }
  if (view_.l2)
    for (std::size_t i = 0; i < count; ++i) scores[i] = -scores[i];
}

// Where there are no rows to score: gives the keys of candidates the scores that their codes give, and the rows;
// returns how many are left, as a point in two partitions has two estimates, whose mean counts.
std::size_t Search::score_estimates(Query& query, std::size_t count) const {
  std::uint64_t* keys = query.candidates.keys();
  for (std::size_t i = 0; i < count; ++i) keys[i] = key_of(score_of(keys[i]), query.rows[i]);
  std::sort(keys, keys + count, [](std::uint64_t a, std::uint64_t b) {
    return number_of(a) != number_of(b) ? number_of(a) < number_of(b) : a > b;
  });
  std::size_t kept = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const bool twice = i + 1 < count && number_of(keys[i]) == number_of(keys[i + 1]);
    const std::uint64_t other = keys[i + twice];
    const std::uint64_t mean = (static_cast<std::uint64_t>(score_of(keys[i])) + score_of(other)) / 2;
    const double estimate = static_cast<double>(static_cast<std::int64_t>(mean) - Candidates::bias);
    const float score = static_cast<float>(query.zero + estimate * query.step);
    keys[kept++] = key_of(sortable(view_.l2 ? 2 * score - query.squared : score), number_of(keys[i]));
    i += twice;
  }
  return kept;
}

// Gives the keys of candidates the scores of their rows, and the rows.
void Search::score_candidates(Query& query, std::size_t count) const {
  const std::size_t bytes = view_.row_bytes;
  // Of long rows fewer are scored by a call, so that later ones can be on their way.
  const std::size_t step = std::clamp<std::size_t>(bytes_ahead / bytes / 8 * 4, 4, one_call);
  const std::size_t ahead = std::max(bytes_ahead / bytes, 2 * step);
  const char* points = static_cast<const char*>(view_.points);
  const std::uint32_t* rows = query.rows.data();
  std::uint64_t* keys = query.candidates.keys();
  float scores[one_call];
  std::size_t brought = 0;
  for (std::size_t first = 0; first < count; first += step) {
    for (const std::size_t stop = std::min(count, first + ahead); brought < stop; ++brought)
      prefetch_bytes(points + rows[brought] * bytes, bytes);
    const std::size_t here = std::min(step, count - first);
    score_rows(query, rows + first, here, scores);
    for (std::size_t i = 0; i < here; ++i) keys[first + i] = key_of(sortable(scores[i]), rows[first + i]);
  }
}

// Scores the candidates that `finish` has left.
std::size_t Search::rescore(Query& query, std::size_t k, std::int64_t* ids, float* scores) const {
  std::uint64_t* keys = query.candidates.keys();
  std::size_t found = query.candidates.size();
  if (query.rows.size() < found) query.rows.resize(found);
  for (std::size_t i = 0; i < found; ++i)
    query.rows[i] = static_cast<std::uint32_t>(view_.slot_rows[number_of(keys[i])]);
  if (view_.rescore == Rescore::none)
    found = score_estimates(query, found);
  else
    score_candidates(query, found);
  // A point in two partitions is there twice with one score, so the best 2 k keys hold the best k points.
  const std::size_t keep = found <= few ? found : std::min(found, 2 * k);
  keep_best(keys, found, keep);
  const std::uint64_t* ordered = keys;
  if (keep <= few) {
    kernels_.sort_keys(keys, keep, query.ordered.data());
    ordered = query.ordered.data();
  } else {
    std::sort(keys, keys + keep, std::greater<>());
  }
  std::size_t count = 0;
  for (std::size_t i = 0; i < keep && count < k; ++i) {
    if (!ordered[i] || (i && ordered[i] == ordered[i - 1])) continue;
    ids[count] = number_of(ordered[i]);
    scores[count++] = from_sortable(score_of(ordered[i]));
  }
  return count;
}

std::size_t Search::search(const float* from, Workspace& at, Wish wish, std::int64_t* ids, float* scores,
                           bool guessing) const {
  const std::size_t all = view_.routes.p;
  Query& query = at.query;
  prepare(from, at, query);
  wish.candidates = std::max(wish.candidates, wish.k);
  wish.partitions = std::min(std::max<std::size_t>(wish.partitions, 1), all);
  Floor& floor = at.floor_for(wish);
  floor.suit(wish.partitions, wish.candidates);
  const std::size_t asked = wish.candidates;
  for (;; guessing = false) {
    choose_partitions(at, query, wish.partitions);
    for (std::size_t i = 0; i < std::min(partitions_ahead, query.chosen.size()); ++i)
      bring_codes(query.chosen[i].partition);
    make_tables(at, query, wish.candidates, guessing ? &floor : nullptr);
    scan(at, query, wish.filter);
    if (!query.candidates.low_enough()) continue;
    finish(query);
    if (wish.candidates == asked) learn_floor(floor, query, wish.candidates);
    const std::size_t count = rescore(query, wish.k, ids, scores);
    at.end(&Stages::rescore);
    if (count >= wish.k || (wish.partitions == all && wish.candidates >= 2 * view_.n)) return count;
    wish.partitions = std::min(4 * wish.partitions, all);
    wish.candidates *= 2;
  }
}

std::size_t Search::one(const float* query, const Wish& wish, std::int64_t* ids, float* scores, Stages* stages) {
  std::unique_ptr<Workspace> workspace = borrow();
  workspace->stages = stages;
  if (stages) workspace->last = std::chrono::steady_clock::now();
  const std::size_t count = search(query, *workspace, wish, ids, scores);
  give_back(std::move(workspace));
  return count;
}

void Search::among(const float* queries, std::size_t count, const std::int64_t* rows, std::size_t row_count,
                   std::size_t k, std::int64_t* ids, float* scores) {
  std::unique_ptr<Workspace> workspace = borrow();
  Workspace& at = *workspace;
  at.stages = nullptr;
  while (at.queries.size() < count) fit(at.queries.emplace_back());
  at.best.resize(std::max(at.best.size(), count));
  for (std::size_t q = 0; q < count; ++q) {
    prepare(queries + q * view_.d, at, at.queries[q]);
    at.best[q].start(k);
  }
  // A few rows at a time, which stay in the cache for all queries; meanwhile the next come.
  const char* points = static_cast<const char*>(view_.points);
  std::uint32_t numbers[rows_together];
  float found[rows_together];
  for (std::size_t first = 0; first < row_count; first += rows_together) {
    const std::size_t here = std::min(rows_together, row_count - first);
    for (std::size_t i = 0; i < here; ++i) {
      numbers[i] = static_cast<std::uint32_t>(rows[first + i]);
      if (first + i + rows_together < row_count)
        prefetch_bytes(points + static_cast<std::size_t>(rows[first + i + rows_together]) * view_.row_bytes,
                       view_.row_bytes);
    }
    for (std::size_t q = 0; q < count; ++q) {
      score_rows(at.queries[q], numbers, here, found);
      for (std::size_t i = 0; i < here; ++i) at.best[q].add(key_of(sortable(found[i]), numbers[i]));
    }
  }
  for (std::size_t q = 0; q < count; ++q)
    for (const std::uint64_t key : at.best[q].sorted()) {
      *ids++ = number_of(key);
      *scores++ = from_sortable(score_of(key));
    }
  give_back(std::move(workspace));
}

std::size_t Search::route(const float* query, std::size_t partitions, std::int32_t* chosen) {
  std::unique_ptr<Workspace> workspace = borrow();
  workspace->stages = nullptr;
  prepare(query, *workspace, workspace->query);
  choose_partitions(*workspace, workspace->query, std::min(std::max<std::size_t>(partitions, 1), view_.routes.p));
  const std::vector<Chosen>& found = workspace->query.chosen;
  for (std::size_t i = 0; i < found.size(); ++i) chosen[i] = static_cast<std::int32_t>(found[i].partition);
  const std::size_t count = found.size();
  give_back(std::move(workspace));
  return count;
}

}  // namespace aniso
