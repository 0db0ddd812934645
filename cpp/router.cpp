// Scores groups and partitions in 8 bits and selects the best.
#include "router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "keys.h"

namespace aniso {

namespace {

// The z that a standard normal number exceeds with probability `share` below 1/2 (Abramowitz and Stegun, 26.2.22:
// within 0.003).
float normal_quantile(float share) {
  const float t = std::sqrt(-2 * std::log(share));
  return t - (2.30753f + 0.27061f * t) / (1 + 0.99229f * t + 0.04481f * t * t);
}

}  // namespace

void Router::fit(Route& at) const {
  const std::size_t places = 8 * std::max(routes_.partitions.blocks, routes_.groups.blocks);
  at.bytes.assign(routes_.partitions.d4, 64);
  at.scores.resize(places);
  at.order.resize(places);
  at.found.resize(places + 8);
  at.list.reserve(places / 8);
}

void Router::set(Route& at, const float* query, float largest) const {
  at.unit = largest > 0 ? largest / 63 : 1;
  auto write = [&](auto inverse) {
    using Number = decltype(inverse);
    std::uint8_t* __restrict bytes = at.bytes.data();
    for (std::size_t j = 0; j < routes_.d; ++j)
      bytes[j] = static_cast<std::uint8_t>(static_cast<int>(static_cast<Number>(query[j]) * inverse + Number(64.5)));
  };
  if (largest > 0 && largest < 1e-30f)
    write(63.0 / static_cast<double>(largest));  // 1 / unit does not fit a float
  else
    write(1 / at.unit);
}

Router::Spread Router::spread_of(const Route& at, std::size_t count) const {
  float sum, squares;
  kernels_.sum_squares(at.order.data(), count, &sum, &squares);
  const float mean = sum / static_cast<float>(count);
  return {mean, std::sqrt(std::max(squares / static_cast<float>(count) - mean * mean, 0.0f))};
}

// Leaves in at.keys the places in at.order with a score of at least `least`, with their scores, in order of places. A
// score that is not a number (of a query whose products overflow) is taken, so that there are always enough.
void Router::collect(Route& at, std::size_t count, float least) const {
  const std::size_t found = kernels_.select_not_below(at.order.data(), count, least, at.found.data());
  at.keys.resize(found);
  for (std::size_t i = 0; i < found; ++i) at.keys[i] = key_of(sortable(at.order[at.found[i]]), at.found[i]);
}

// Leaves in at.keys at least the `wanted` best of `count` scores in at.order, or all if there are fewer.
void Router::gather(Route& at, std::size_t count, std::size_t wanted) const {
  if (wanted >= count) {
    collect(at, count, -std::numeric_limits<float>::infinity());
    return;
  }
  // Collect a few more than needed, above a threshold guessed from mean and deviation and from the last query.
  const Spread spread = spread_of(at, count);
  for (int attempt = 0; attempt < 16; ++attempt) {
    collect(at, count, spread.mean + at.guess * spread.deviation);
    if (at.keys.size() >= wanted) break;
    at.guess -= 0.2f;
  }
  if (at.keys.size() < wanted) collect(at, count, -std::numeric_limits<float>::infinity());
  if (at.keys.size() > wanted + wanted / 3 + 8) at.guess += 0.05f;
  at.guess = std::clamp(at.guess, -6.0f, 6.0f);
}

// Puts the best `count` of at.keys first, in order, or all where they are few; returns how many.
std::size_t Router::order(Route& at, std::size_t count) const {
  if (at.keys.size() <= std::max(count, few))
    count = at.keys.size();
  else
    keep_best(at.keys.data(), at.keys.size(), count);
  at.ordered.resize(count);
  kernels_.sort_keys(at.keys.data(), count, at.ordered.data());
  std::copy(at.ordered.begin(), at.ordered.end(), at.keys.begin());
  return count;
}

// How many partitions the query is worth where `count` is the mean. The first `depth` of at.keys are in order.
std::size_t Router::worth(const Route& at, std::size_t count, const Yardstick& yardstick) const {
  const float best = from_sortable(score_of(at.keys[0]));
  const float gap = (best - from_sortable(score_of(at.keys[depth - 1]))) * yardstick.scale;
  const Effort& effort = routes_.effort;
  const float log = effort.offset + effort.level * (best * yardstick.scale + yardstick.shift) + effort.gap * gap;
  if (!std::isfinite(log)) return count;  // of a query whose products overflow
  const double most = std::log(furthest);
  const double times = std::exp(std::clamp(static_cast<double>(log), -most, most));
  return std::max<std::size_t>(1, static_cast<std::size_t>(static_cast<double>(count) * times + 0.5));
}

// Lists the blocks of 8 partitions that are worth scoring, those of the nearest groups; returns how many partitions
// that are. The last block, which may have places without a partition at its end, comes last.
std::size_t Router::choose_blocks(Route& at, std::size_t count) const {
  const Centroids& groups = routes_.groups;
  const std::size_t blocks = routes_.partitions.blocks, wanted = blocks / 6 + 3 * count / 10 + 1;
  const bool all = groups.blocks == 0 || wanted >= blocks / 2;
  at.list.resize(all ? blocks : groups.blocks);
  std::iota(at.list.begin(), at.list.end(), 0u);
  if (all) return routes_.p;
  kernels_.score_centroids(groups, at.bytes.data(), at.unit, at.list.data(), at.list.size(), at.scores.data(),
                           at.order.data());
  // As many groups as lie above the quantile of a normal distribution: about `wanted`, more where many are near.
  const Spread spread = spread_of(at, blocks);
  const float share = static_cast<float>(wanted) / static_cast<float>(blocks);
  collect(at, blocks, spread.mean + normal_quantile(share) * spread.deviation);
  if (at.keys.size() < (wanted + 1) / 2) {
    gather(at, blocks, wanted);
    keep_best(at.keys.data(), at.keys.size(), wanted);
    at.keys.resize(std::min(wanted, at.keys.size()));
    // By place, as equal partitions are taken by their place in the list.
    std::sort(at.keys.begin(), at.keys.end(), [](auto a, auto b) { return number_of(a) < number_of(b); });
  }
  at.list.resize(at.keys.size());
  for (std::size_t i = 0; i < at.list.size(); ++i) at.list[i] = number_of(at.keys[i]);
  const auto last = std::find(at.list.begin(), at.list.end(), static_cast<std::uint32_t>(blocks - 1));
  if (last == at.list.end()) return 8 * at.list.size();
  std::swap(*last, at.list.back());
  return 8 * at.list.size() - (8 * blocks - routes_.p);
}

void Router::choose(Route& at, std::size_t count, const Yardstick& yardstick, std::vector<Chosen>& chosen) const {
  const bool varies = routes_.effort.varies() && count < routes_.p;
  const std::size_t places = choose_blocks(at, varies ? count + count / 2 : count), blocks = at.list.size();
  kernels_.score_centroids(routes_.partitions, at.bytes.data(), at.unit, at.list.data(), blocks, at.scores.data(),
                           at.order.data());
  gather(at, places, varies ? std::max(count + count / 2, depth) : count);
  std::size_t ordered = order(at, varies ? depth : lead), wanted = count;
  if (varies && at.keys.size() >= depth) wanted = worth(at, count, yardstick);
  if (wanted > at.keys.size()) {
    gather(at, places, wanted);
    ordered = order(at, lead);
  }
  if (wanted < at.keys.size()) {
    if (wanted > ordered) keep_best(at.keys.data() + ordered, at.keys.size() - ordered, wanted - ordered);
    at.keys.resize(wanted);
  }
  chosen.resize(at.keys.size());
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const std::uint32_t place = number_of(at.keys[i]), partition = 8 * at.list[place / 8] + place % 8;
    const float scale = routes_.base_scales[partition] * at.unit;
    chosen[i] = {partition, static_cast<float>(at.scores[place]) * scale + routes_.base_biases[partition]};
  }
}

}  // namespace aniso
