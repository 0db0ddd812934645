// The search: from a query to the rescored answers. Holds pointers to arrays that Python owns.
// search.cpp answers one query; batch.cpp answers many, so that the codes of a partition serve several at a time.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "candidates.h"
#include "kernels.h"
#include "router.h"

namespace aniso {

constexpr std::size_t block = 32;  // points in a block of codes

enum class Rescore : int { none = 0, float32 = 1, float16 = 2, int8 = 3 };

// All an index is to the search. n points, m subspaces; a slot is a place for a point in a block of 32.
struct View {
  std::size_t n, d;
  Routes routes;
  bool l2;             // scores are -|q - x|^2, else <q, x>
  bool unit_queries;   // queries are divided by their norms
  const float* shift;  // (d) or null: centroids, codes and int8 points are of x - shift, and meet q - shift
  const std::int64_t* first_blocks;  // of each partition
  const std::int32_t* sizes;         // points in each partition
  std::size_t largest;               // of the sizes
  Tables tables;
  std::size_t rows, group_rows;
  const std::uint8_t* codes;      // (blocks, rows, 32)
  const std::int32_t* slot_rows;  // (blocks * 32) the point in each slot
  Rescore rescore;
  const void* points;     // (n rows) for rescoring; the layout of int8 rows is in src/aniso/layout.py
  std::size_t row_bytes;  // from one row to the next
};

// The points that may be found, by a bit or by a byte for each: whichever is not null; all where both are.
struct Filter {
  const std::uint8_t* bits = nullptr;    // bit row % 8 of byte row / 8
  const std::uint8_t* bytes = nullptr;   // 0 or not, for each place
  std::size_t length = 0;                // of bytes; places from there on are not to be found
  const std::int32_t* places = nullptr;  // the place of each row; null: its number
  explicit operator bool() const { return bits || bytes; }
};

// What a search is asked for.
struct Wish {
  std::size_t k, partitions, candidates;
  Filter filter;
};

// Seconds spent in each stage of searches.
struct Stages {
  double prepare = 0, route = 0, tables = 0, scan = 0, rescore = 0;
  double scanned = 0, hits = 0;  // points scanned, and points that passed the threshold
};

// A query and what is known of it so far.
struct Query {
  std::vector<float> shifted;       // d, a 1, and zeros for tables that read past it
  std::vector<float> whole;         // the query as float points meet it
  std::vector<std::int16_t> words;  // the query for int8 points
  std::vector<std::uint8_t> tables;
  std::vector<Chosen> chosen;  // the best first
  Candidates candidates;
  std::vector<std::uint64_t> ordered;           // the best of them
  std::vector<std::uint32_t> rows;              // of the candidates
  float word_unit = 0;                          // what 1 in `words` stands for
  float squared = 0, length = 0;                // |shifted|^2 and |shifted|
  double zero = 0, step = 1, inverse_step = 1;  // a candidate's integer score i stands for the score zero + i * step

  // What a partition's centroid gives in such integers, relative to that of the first partition chosen.
  std::int64_t units(float base) const {
    const double difference = static_cast<double>(base) - static_cast<double>(chosen[0].base);
    const double exact = difference * inverse_step;
    constexpr double reach = Candidates::reach;
    const double within = exact > -reach ? std::min(exact, reach) : -reach;  // also what is not a number
    return static_cast<std::int64_t>(within + reach + 0.5) - static_cast<std::int64_t>(reach);
  }
};

// Where the scores of the last candidates of recent queries lay: the scan of the next starts with a threshold just
// below. A guess: it changes how fast a search is, never what it finds.
class Floor {
 public:
  // For a query of length 1, relative to what the centroids of its nearest partitions give.
  bool known() const { return seen_ >= 16; }
  float guess() const { return mean_ - margin(); }
  float margin() const { return 3 * spread_; }  // that it lies below their mean
  void learn(float value) {
    const float share = seen_ < 64 ? 1 / static_cast<float>(++seen_) : 1.0f / 64;
    const float off = value > mean_ ? value - mean_ : mean_ - value;
    spread_ += ((seen_ > 1 ? off : 0) - spread_) * share;
    mean_ += (value - mean_) * share;
  }
  // There was no last candidate, as fewer were found than asked for.
  void forget() { seen_ = 0; }
  // Another number of partitions or candidates: what was learnt no longer holds.
  void suit(std::size_t partitions, std::size_t candidates) {
    if (partitions == partitions_ && candidates == candidates_) return;
    *this = Floor{};
    partitions_ = partitions;
    candidates_ = candidates;
  }

 private:
  float mean_ = 0, spread_ = 0;
  int seen_ = 0;
  std::size_t partitions_ = 0, candidates_ = 0;
};

// A partition that a query of a batch has chosen, and what its centroid gives (Query::units).
struct Pair {
  std::uint32_t partition, query;
  std::int32_t base;
};

// The working memory of one thread, kept for the next search.
struct Workspace {
  Route route;
  std::vector<float> table_floats;
  std::vector<Hit> hits;  // of up to four queries
  Query query;
  Floor floor, filtered_floor;  // of searches among all points, and among some
  Stages* stages = nullptr;
  std::chrono::steady_clock::time_point last;
  // For batches:
  std::vector<Query> queries;
  std::vector<std::vector<Chosen>> routes;  // of each query
  std::vector<std::uint32_t> turns, starts;
  std::vector<Pair> pairs;
  std::vector<Best> best;  // of each query, for `among`

  Floor& floor_for(const Wish& wish) { return wish.filter ? filtered_floor : floor; }

  // Ends a stage: adds the time since the last one ended.
  void end(double Stages::* stage) {
    if (!stages) return;
    const auto now = std::chrono::steady_clock::now();
    stages->*stage += std::chrono::duration<double>(now - last).count();
    last = now;
  }
};

class Search {
 public:
  Search(const View& view, const Kernels& kernels);
  ~Search();

  // The k best of the candidates found in the nearest partitions, best first, equals by row; returns how many.
  // Searches more partitions than asked while fewer than k points were found.
  // Adds to `stages` where it is not null.
  std::size_t one(const float* query, const Wish& wish, std::int64_t* ids, float* scores, Stages* stages = nullptr);

  // How many queries a thread takes at a time of a batch that several threads share.
  std::size_t share(std::size_t count, std::size_t partitions, std::size_t threads) const;

  // The same for many queries; ids and scores are (count, k). Results do not depend on how queries are batched. Returns
  // the least number of points that a query found.
  std::size_t many(const float* queries, std::size_t count, const Wish& wish, std::int64_t* ids, float* scores);

  // The k best of some rows for each of a few queries, scored as `one` scores its candidates: best first, equals by
  // row.
  void among(const float* queries, std::size_t count, const std::int64_t* rows, std::size_t row_count, std::size_t k,
             std::int64_t* ids, float* scores);

  // The partitions with points that a search would look at, the nearest few first; returns how many. There is room for
  // all there are.
  std::size_t route(const float* query, std::size_t partitions, std::int32_t* chosen);

 private:
  std::size_t most_hits() const;
  std::unique_ptr<Workspace> borrow();
  void give_back(std::unique_ptr<Workspace> workspace);
  void fit(Query& query) const;
  void prepare(const float* from, Workspace& at, Query& query) const;
  void choose_partitions(Workspace& at, Query& query, std::size_t count) const;
  void make_tables(Workspace& at, Query& query, std::size_t candidates, Floor* floor) const;
  double level(const Query& query) const;
  void learn_floor(Floor& floor, const Query& query, std::size_t candidates) const;
  std::size_t code_bytes(std::uint32_t partition) const;
  const std::uint8_t* codes_of(std::uint32_t partition) const;
  std::size_t sift(Hit* hits, std::size_t count, std::uint32_t first, const Filter& filter) const;
  void take_hits(Query& query, Hit* hits, std::size_t count, std::int64_t base, std::uint32_t first,
                 const Filter& filter) const;
  void scan(Workspace& at, Query& query, const Filter& filter) const;
  void scan_partition(Workspace& at, Query& query, std::uint32_t partition, std::int64_t base, const Filter& filter,
                      std::uint32_t later) const;
  std::size_t route_and_scan(Workspace& at, const float* queries, std::size_t count, const Wish& wish,
                             std::int64_t* ids, float* scores) const;
  std::size_t scan_chunk(Workspace& at, const float* queries, const std::uint32_t* turns, std::size_t count,
                         const Wish& wish, std::int64_t* ids, float* scores) const;
  void scan_pairs(Workspace& at, const Filter& filter) const;
  void scan_together(Workspace& at, const Pair* pairs, std::size_t count, const Filter& filter) const;
  void bring_codes(std::uint32_t partition) const;
  void finish(Query& query) const;
  void score_rows(const Query& query, const std::uint32_t* rows, std::size_t count, float* scores) const;
  std::size_t score_estimates(Query& query, std::size_t count) const;
  void score_candidates(Query& query, std::size_t count) const;
  std::size_t rescore(Query& query, std::size_t k, std::int64_t* ids, float* scores) const;
  // With `guessing`, the first scan starts at a guessed floor.
  std::size_t search(const float* from, Workspace& at, Wish wish, std::int64_t* ids, float* scores,
                     bool guessing = true) const;

  View view_;
  const Kernels& kernels_;
  Router router_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> spare_;
};

}  // namespace aniso
