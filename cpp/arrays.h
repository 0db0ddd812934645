// What both files of bindings share: array types, checks, and the choice of kernels.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "kernels.h"

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

inline std::size_t thread_count(int threads) {
  need(threads >= 1, "threads must be at least 1");
  return std::min(static_cast<std::size_t>(threads), std::size_t{1024});
}

void bind_search(nb::module_& module);  // bindings_search.cpp
void bind_exact(nb::module_& module);   // bindings_exact.cpp
void bind_linear(nb::module_& module);  // bindings_linear.cpp

}  // namespace aniso
