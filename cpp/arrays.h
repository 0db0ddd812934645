// What the files of bindings share: array types, checks, and the choice of kernels.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>

#include "kernels.h"
#include "router.h"

namespace aniso {

namespace nb = nanobind;

template <class T, int Dimensions>
using Array = nb::ndarray<T, nb::numpy, nb::ndim<Dimensions>, nb::c_contig, nb::device::cpu>;

inline void need(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

inline const Kernels& kernels_named(const std::string& isa) {
  if (const Kernels* found = find_kernels(isa.c_str())) return *found;
  const char* variable = std::getenv("ANISO_ISA");
  const std::string wanted = !isa.empty() ? isa : variable ? variable : "";
  std::string message = (isa.empty() ? "ANISO_ISA=" : "isa=") + wanted + " cannot run on this machine; usable:";
  std::size_t count;
  const Kernels* const* list = usable_kernels(&count);
  for (std::size_t i = 0; i < count; ++i) message += std::string(" ") + list[i]->name;
  throw std::invalid_argument(message);
}

// Centroids with the scales and biases of their order, checked.
inline Centroids centroids_of(const Array<const std::int8_t, 4>& bytes, const Array<const std::int32_t, 1>& sums,
                              const Array<const float, 2>& scales, std::size_t d) {
  const std::size_t blocks = bytes.shape(0), d4 = bytes.shape(1) * 4;
  need(bytes.shape(2) == 8 && bytes.shape(3) == 4, "centroids: (blocks, d4 / 4, 8, 4)");
  need(d4 >= d && d4 % 8 == 0, "centroids: dimensions padded to a multiple of 8");
  need(sums.shape(0) == 8 * blocks, "centroid sums: one per centroid, padded to 8");
  need(scales.shape(0) >= 2 && scales.shape(1) == 8 * blocks, "scales: (2 or more, centroids padded to 8)");
  return {bytes.data(), sums.data(), scales.data(), scales.data() + 8 * blocks, blocks, d4};
}

// The centroids of groups of 8 partitions, checked, or none.
inline Centroids groups_of(const std::optional<Array<const std::int8_t, 4>>& bytes,
                           const std::optional<Array<const std::int32_t, 1>>& sums,
                           const std::optional<Array<const float, 2>>& scales,
                           const Array<const std::int8_t, 4>& centroids, std::size_t d) {
  if (!bytes) return {};
  need(sums && scales, "groups: with their sums and scales");
  need(bytes->shape(1) == centroids.shape(1), "groups: as long as the centroids");
  need(bytes->shape(0) == (centroids.shape(0) + 7) / 8, "groups: one for every 8 partitions, padded to 8");
  return centroids_of(*bytes, *sums, *scales, d);
}

inline std::size_t thread_count(int threads) {
  need(threads >= 1, "threads must be at least 1");
  return std::min(static_cast<std::size_t>(threads), std::size_t{1024});
}

void bind_route(nb::module_& module);   // bindings_route.cpp
void bind_search(nb::module_& module);  // bindings_search.cpp
void bind_stages(nb::module_& module);  // bindings_stages.cpp
void bind_exact(nb::module_& module);   // bindings_exact.cpp
void bind_linear(nb::module_& module);  // bindings_linear.cpp

}  // namespace aniso
