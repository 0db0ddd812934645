// Which partitions are worth a look: scores groups of 8 partitions, then the partitions of the nearest groups, in 8
// bits. Serves the search, and the assignment of points when an index is built.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels.h"

namespace aniso {

// An integer centroid score s = <query bytes, centroid bytes> stands for s * scales * |query unit| + biases: the order
// in which partitions (or groups of them) are searched.
struct Centroids {
  ScoreCentroids bytes;
  const float *scales, *biases;  // (8 * blocks)
};

struct Routes {
  std::size_t p, d;
  Centroids partitions;
  const float *base_scales, *base_biases;  // the part of a point's score that its centroid gives, as above
  Centroids groups;                        // one for every 8 partitions, or none at all: then every partition is scored
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
  std::vector<std::uint64_t> keys;
  float guess = 2;  // standard deviations above the mean where the best partitions are expected to start
};

class Router {
 public:
  Router(const Routes& routes, const Kernels& kernels) : routes_(routes), kernels_(kernels) {}

  void fit(Route& at) const;

  // The query to route, whose largest absolute value is known.
  void set(Route& at, const float* query, float largest) const;

  static constexpr std::size_t lead = 8;  // partitions that are put in order: the threshold of a scan should rise early

  // The best `count` partitions for the query, the first few in order.
  void choose(Route& at, std::size_t count, std::vector<Chosen>& chosen) const;

 private:
  struct Spread {
    float mean, deviation;
  };
  Spread spread_of(const Route& at, std::size_t count) const;
  void collect(Route& at, std::size_t count, float least) const;
  void select(Route& at, std::size_t count, std::size_t wanted) const;
  std::size_t choose_blocks(Route& at, std::size_t count) const;

  Routes routes_;
  const Kernels& kernels_;
};

}  // namespace aniso
