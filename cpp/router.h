// Which partitions are worth a look: scores groups of 8 partitions, then the partitions of the nearest groups, in 8
// bits. Serves the search, and the assignment of points when an index is built.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels.h"

namespace aniso {

// How many partitions a query is worth, against the mean of all queries: exp(offset + level * best + gap * (best -
// deep)), at most a factor of `Router::furthest` apart, where best and deep are the scores of the first and of the
// `Router::depth`th partition. A query whose nearest partitions score high, or stand out, needs few. All zero: every
// query is worth the same.
struct Effort {
  float offset = 0, level = 0, gap = 0;
  bool varies() const { return offset != 0 || level != 0 || gap != 0; }
};

// What makes routing scores of different queries comparable: score * scale + shift.
struct Yardstick {
  float scale = 1, shift = 0;
};

struct Routes {
  std::size_t p, d;
  Centroids partitions;                    // in the order that they give, partitions (or groups) are searched
  const float *base_scales, *base_biases;  // the part of a point's score that its centroid gives, as above
  Centroids groups;                        // one for every 8 partitions, or none at all: then every partition is scored
  Effort effort;
};

struct Chosen {
  std::uint32_t partition;
  float base;  // the part of its points' scores that the centroid gives
};

// The working memory of one thread.
struct Route {
  std::vector<std::uint8_t> bytes;  // the query
  float unit = 0;                   // what 1 in `bytes` stands for
  std::vector<std::int32_t> scores;
  std::vector<float> order;
  std::vector<std::uint32_t> list, found;
  std::vector<std::uint64_t> keys, ordered;
  float guess = 2;  // standard deviations above the mean where the best partitions are expected to start
};

class Router {
 public:
  Router(const Routes& routes, const Kernels& kernels) : routes_(routes), kernels_(kernels) {}

  void fit(Route& at) const;

  // The query to route, whose largest absolute value is known.
  void set(Route& at, const float* query, float largest) const;

  static constexpr std::size_t lead = 8;  // partitions that are put in order: the threshold of a scan should rise early

  static constexpr std::size_t depth = 32;  // the partition whose score tells how far the best one stands out
  static constexpr double furthest = 4;     // times fewer, or more, partitions than were asked for

  // The best `count` partitions for the query, the first few in order; fewer or more where efforts vary.
  void choose(Route& at, std::size_t count, const Yardstick& yardstick, std::vector<Chosen>& chosen) const;

 private:
  struct Spread {
    float mean, deviation;
  };
  Spread spread_of(const Route& at, std::size_t count) const;
  void collect(Route& at, std::size_t count, float least) const;
  void gather(Route& at, std::size_t count, std::size_t wanted) const;
  std::size_t order(Route& at, std::size_t count) const;
  std::size_t worth(const Route& at, std::size_t count, const Yardstick& yardstick) const;
  std::size_t choose_blocks(Route& at, std::size_t count) const;

  Routes routes_;
  const Kernels& kernels_;
};

}  // namespace aniso
