// The boundary of the assignment of points to partitions, and the constants of the router that training needs.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "arrays.h"
#include "threads.h"

using namespace nanobind::literals;

namespace aniso {
namespace {

// The partition of each point and, where there is room for seconds, the one to spill into, with its cost as a multiple
// of the first's (the largest float where the first leaves nothing). Both are chosen among the `looked` partitions that
// the router finds nearest, by exact arithmetic.
void assign_partitions(Array<const float, 2> points, Array<const float, 2> assigners,
                       Array<const std::int8_t, 4> centroids, Array<const std::int32_t, 1> sums,
                       Array<const float, 2> scales, std::optional<Array<const std::int8_t, 4>> groups,
                       std::optional<Array<const std::int32_t, 1>> group_sums,
                       std::optional<Array<const float, 2>> group_scales, std::size_t looked, float strength,
                       Array<std::int32_t, 1> firsts, std::optional<Array<std::int32_t, 1>> seconds,
                       std::optional<Array<float, 1>> ratios, int threads, const std::string& isa) {
  const std::size_t n = points.shape(0), d = points.shape(1), p = assigners.shape(0);
  const Kernels& kernels = kernels_named(isa);
  need(assigners.shape(1) == d && p >= 1, "assigners: (p, d)");
  need(firsts.shape(0) == n && (!seconds || seconds->shape(0) == n), "firsts and seconds: one per point");
  need(ratios.has_value() == seconds.has_value() && (!ratios || ratios->shape(0) == n), "ratios: one per second");
  need(!seconds || p >= 2, "seconds: at least two partitions");
  need(looked >= 2, "looked: at least 2");
  need(strength >= 0, "strength: at least 0");
  Routes routes{p, d, centroids_of(centroids, sums, scales, d), nullptr, nullptr, {}, {}};
  need(centroids.shape(0) == (p + 7) / 8, "centroids: one per partition, padded to 8");
  routes.base_scales = routes.partitions.scales;
  routes.base_biases = routes.partitions.biases;
  routes.groups = groups_of(groups, group_sums, group_scales, centroids, d);
  const std::size_t workers = thread_count(threads);
  constexpr float most = std::numeric_limits<float>::max();
  nb::gil_scoped_release release;
  const Router router(routes, kernels);
  std::vector<float> squared(p);
  for (std::size_t c = 0; c < p; ++c)
    squared[c] = kernels.dot_f32(assigners.data() + c * d, assigners.data() + c * d, d);
  spread(n, 1024, workers, d * sizeof(float), [&](std::size_t begin, std::size_t end, void* scratch) {
    float* residual = static_cast<float*>(scratch);
    Route route;
    router.fit(route);
    std::vector<Chosen> near;
    std::vector<float> costs;
    for (std::size_t i = begin; i < end; ++i) {
      const float* x = points.data() + i * d;
      float largest = 0;
      for (std::size_t j = 0; j < d; ++j) largest = std::max(largest, std::fabs(x[j]));
      router.set(route, x, largest);
      router.choose(route, std::min(looked, p), {}, near);
      costs.resize(near.size());
      // Among equals the lowest number, whatever the order they come in.
      auto best_of = [&](std::uint32_t without) {
        std::size_t best = near.size();
        for (std::size_t c = 0; c < near.size(); ++c) {
          if (near[c].partition == without) continue;
          if (best == near.size() || costs[c] < costs[best] ||
              (costs[c] == costs[best] && near[c].partition < near[best].partition))
            best = c;
        }
        return best;
      };
      for (std::size_t c = 0; c < near.size(); ++c) {
        const std::size_t number = near[c].partition;
        costs[c] = squared[number] - 2 * kernels.dot_f32(x, assigners.data() + number * d, d);
      }
      const std::uint32_t first = near[best_of(static_cast<std::uint32_t>(p))].partition;
      firsts.data()[i] = static_cast<std::int32_t>(first);
      if (!seconds) continue;
      for (std::size_t j = 0; j < d; ++j) residual[j] = x[j] - assigners.data()[first * d + j];
      const float length = std::sqrt(kernels.dot_f32(residual, residual, d));
      const float inverse = length > 0 ? 1 / length : 0;
      const float own = kernels.dot_f32(x, residual, d) * inverse;
      for (std::size_t c = 0; c < near.size(); ++c) {
        const float* other = assigners.data() + static_cast<std::size_t>(near[c].partition) * d;
        const float along = own - kernels.dot_f32(other, residual, d) * inverse;
        costs[c] += strength * along * along;
      }
      const std::size_t second = best_of(first);
      seconds->data()[i] = static_cast<std::int32_t>(near[second].partition);
      const float cost = kernels.dot_f32(x, x, d) + costs[second], ratio = cost * inverse * inverse;
      ratios->data()[i] = ratio < most && length > 0 ? std::max(ratio, 0.0f) : most;
    }
  });
}

}  // namespace

void bind_route(nb::module_& module) {
  module.def("assign_partitions", &assign_partitions, "points"_a.noconvert(), "assigners"_a.noconvert(),
             "centroids"_a.noconvert(), "sums"_a.noconvert(), "scales"_a.noconvert(), "groups"_a.noconvert().none(),
             "group_sums"_a.noconvert().none(), "group_scales"_a.noconvert().none(), "looked"_a, "strength"_a,
             "firsts"_a.noconvert(), "seconds"_a.noconvert().none(), "ratios"_a.noconvert().none(), nb::kw_only(),
             "threads"_a = 1, "isa"_a = "",
             "The nearest assigner, the second of least cost |x-c|^2 + strength <x-c, r/|r|>^2, and that over |r|^2.");
  module.attr("EFFORT_DEPTH") = Router::depth;
  module.attr("EFFORT_FURTHEST") = Router::furthest;
}

}  // namespace aniso
