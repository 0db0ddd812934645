// Many queries at a time: one by one where they share little, else together. Each query chooses its partitions; queries
// that begin with neighbouring partitions are taken together, and the codes of each partition serve all the queries
// that chose it, four at a time. Candidates are the best by integer score and slot, whatever the order of the scan, so
// results equal those of single queries.
#include <algorithm>
#include <numeric>

#include "search.h"

namespace aniso {

namespace {

constexpr std::size_t kept = 64;  // queries whose memory stays with the workspace

// How many queries' tables and candidates are kept at a time: what fits a cache of 2 MB.
std::size_t together(std::size_t candidates) { return std::clamp<std::size_t>((1 << 16) / candidates, 32, 256); }

// How many queries choose their partitions before any is scanned for: a few MB of choices, or just enough to scan.
std::size_t routed(const Wish& wish) {
  return std::max<std::size_t>((1 << 19) / wish.partitions, together(wish.candidates));
}

// Whether queries look at more than one partition in 25. Where they do not, they share so few that it costs more to go
// back and forth between their candidates than it saves to unpack codes once for four of them
// (docs/decisions/0012-batches-one-by-one.md).
bool worth_grouping(std::size_t partitions, std::size_t all) { return 25 * partitions > all; }

}  // namespace

std::size_t Search::share(std::size_t count, std::size_t partitions, std::size_t threads) const {
  // Queries that go together are few parts, as more of them share more; others small ones, so that threads end
  // together.
  if (worth_grouping(partitions, view_.routes.p)) return std::clamp<std::size_t>(count / threads / 2 + 1, 16, 8192);
  return std::clamp<std::size_t>(count / threads / 8 + 1, 16, 256);
}

std::size_t Search::many(const float* queries, std::size_t count, const Wish& asked, std::int64_t* ids, float* scores) {
  std::unique_ptr<Workspace> workspace = borrow();
  Workspace& at = *workspace;
  at.stages = nullptr;
  Wish wish = asked;
  wish.candidates = std::max(wish.candidates, wish.k);
  wish.partitions = std::min(std::max<std::size_t>(wish.partitions, 1), view_.routes.p);
  Floor& floor = at.floor_for(wish);
  floor.suit(wish.partitions, wish.candidates);
  // The first few queries go alone, and teach where scores end; all do where little would be shared.
  const bool alone = count < 32 || !worth_grouping(wish.partitions, view_.routes.p);
  std::size_t done = 0, least = wish.k;
  for (; done < count && (alone || !floor.known()); ++done)
    least = std::min(least, search(queries + done * view_.d, at, wish, ids + done * wish.k, scores + done * wish.k));
  for (const std::size_t step = routed(wish); done < count; done += step)
    least = std::min(least, route_and_scan(at, queries + done * view_.d, std::min(step, count - done), wish,
                                           ids + done * wish.k, scores + done * wish.k));
  if (at.queries.size() > kept) at.queries.resize(kept);
  if (count > kept) {
    at.routes = {};
    at.pairs = {};
  }
  give_back(std::move(workspace));
  return least;
}

// All queries choose their partitions, and are scanned for in the order of the best; returns the least number of points
// that one found.
std::size_t Search::route_and_scan(Workspace& at, const float* queries, std::size_t count, const Wish& wish,
                                   std::int64_t* ids, float* scores) const {
  const std::size_t chunk = together(wish.candidates);
  while (at.queries.size() < std::min(count, chunk)) fit(at.queries.emplace_back());
  at.routes.resize(count);
  at.turns.resize(count);
  std::iota(at.turns.begin(), at.turns.end(), 0u);
  for (std::size_t i = 0; i < count; ++i) {
    prepare(queries + i * view_.d, at, at.query);
    choose_partitions(at, at.query, wish.partitions);
    at.routes[i].swap(at.query.chosen);
  }
  std::sort(at.turns.begin(), at.turns.end(), [&](std::uint32_t a, std::uint32_t b) {
    const std::uint32_t first = at.routes[a].empty() ? 0 : at.routes[a][0].partition;
    const std::uint32_t other = at.routes[b].empty() ? 0 : at.routes[b][0].partition;
    return first != other ? first < other : a < b;
  });
  std::size_t least = wish.k;
  for (std::size_t begin = 0; begin < count; begin += chunk)
    least = std::min(
        least, scan_chunk(at, queries, at.turns.data() + begin, std::min(chunk, count - begin), wish, ids, scores));
  return least;
}

// The queries turns[0 .. count - 1], which chose at.routes; returns the least number of points that one found.
std::size_t Search::scan_chunk(Workspace& at, const float* queries, const std::uint32_t* turns, std::size_t count,
                               const Wish& wish, std::int64_t* ids, float* scores) const {
  // Sorted by partition, by counting: starts[p + 1] is first the number of pairs of p, then where the next begins.
  at.starts.assign(view_.routes.p + 2, 0);
  std::size_t total = 0, least = wish.k;
  for (std::size_t i = 0; i < count; ++i) {
    Query& query = at.queries[i];
    prepare(queries + turns[i] * view_.d, at, query);
    query.chosen.swap(at.routes[turns[i]]);
    make_tables(at, query, wish.candidates, &at.floor_for(wish));
    for (const Chosen& chosen : query.chosen) ++at.starts[chosen.partition + 2];
    total += query.chosen.size();
  }
  std::partial_sum(at.starts.begin(), at.starts.end(), at.starts.begin());
  at.pairs.resize(total);
  for (std::uint32_t i = 0; i < count; ++i)
    for (const Chosen& chosen : at.queries[i].chosen)
      at.pairs[at.starts[chosen.partition + 1]++] = {chosen.partition, i,
                                                     static_cast<std::int32_t>(at.queries[i].units(chosen.base))};
  scan_pairs(at, wish.filter);
  for (std::size_t i = 0; i < count; ++i) {
    Query& query = at.queries[i];
    std::int64_t* own_ids = ids + turns[i] * wish.k;
    float* own_scores = scores + turns[i] * wish.k;
    const bool enough = query.candidates.low_enough();
    if (enough) finish(query);
    if (!enough || rescore(query, wish.k, own_ids, own_scores) < wish.k)
      least = std::min(least, search(queries + turns[i] * view_.d, at, wish, own_ids, own_scores, enough));
    query.chosen.swap(at.routes[turns[i]]);
  }
  return least;
}

// Scans at.pairs, partition by partition, each for four queries at a time; meanwhile the codes of a later partition
// come into the cache.
void Search::scan_pairs(Workspace& at, const Filter& filter) const {
  const std::vector<Pair>& pairs = at.pairs;
  const std::size_t total = pairs.size();
  const auto end_of = [&](std::size_t place) { return at.starts[pairs[place].partition + 1]; };
  if (total) bring_codes(pairs[0].partition);
  if (total && end_of(0) < total) bring_codes(pairs[end_of(0)].partition);
  for (std::size_t first = 0; first < total;) {
    const std::size_t end = end_of(first), next = end < total ? end_of(end) : total;
    if (next < total) bring_codes(pairs[next].partition);
    for (; first < end; first += 4) scan_together(at, &pairs[first], std::min<std::size_t>(4, end - first), filter);
    first = end;
  }
}

// One partition for up to four queries.
void Search::scan_together(Workspace& at, const Pair* pairs, std::size_t count, const Filter& filter) const {
  if (count < 3) {
    for (std::size_t i = 0; i < count; ++i)  // what comes later is on its way already: name what is there
      scan_partition(at, at.queries[pairs[i].query], pairs[i].partition, pairs[i].base, filter, pairs[i].partition);
    return;
  }
  const std::size_t partition = pairs[0].partition;
  ScanFour four{view_.codes, {}, view_.rows, view_.group_rows, {}, {}, {}};
  std::size_t counts[4];
  std::int64_t bases[4];
  for (std::size_t i = 0; i < 4; ++i) {
    const Pair& pair = pairs[i < count ? i : 0];  // where there are three, the fourth finds nothing
    const Query& query = at.queries[pair.query];
    four.tables[i] = query.tables.data();
    four.hits[i] = at.hits.data() + i * most_hits();
    four.counts[i] = counts + i;
    bases[i] = pair.base;
  }
  std::size_t at_block = static_cast<std::size_t>(view_.first_blocks[partition]);
  std::size_t left = static_cast<std::size_t>(view_.sizes[partition]);
  while (left) {
    const std::size_t points = std::min(left, Hit::most);
    for (std::size_t i = 0; i < 4; ++i) {
      const std::int64_t threshold = at.queries[pairs[i < count ? i : 0].query].candidates.threshold();
      const std::int64_t least = std::clamp<std::int64_t>(threshold - bases[i], 0, 1 << 20);
      four.least[i] = i < count ? static_cast<std::uint32_t>(least) : 1 << 20;
    }
    kernels_.scan_four(four, at_block, points);
    for (std::size_t i = 0; i < count; ++i)
      take_hits(at.queries[pairs[i].query], four.hits[i], counts[i], bases[i],
                static_cast<std::uint32_t>(at_block * block), filter);
    at_block += points / block;
    left -= points;
  }
}

}  // namespace aniso
