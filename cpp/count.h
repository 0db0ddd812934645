// How many bytes of a mask are set.
#pragma once
#include "bytes.h"

namespace aniso::ANISO_ISA {
namespace {

std::size_t count_set(const std::uint8_t* bytes, std::size_t length) {
  constexpr std::size_t step = 4 * block;
  std::size_t count = 0, i = 0;
  while (length - i >= step) {
    // Each lane counts up to 255 bytes.
    const std::size_t stop = i + step * ((length - i) / step < 255 ? (length - i) / step : 255);
    U8 counts[4] = {};
    for (; i < stop; i += step)
#pragma GCC unroll 4
      for (std::size_t b = 0; b < 4; ++b)
        counts[b] -= reinterpret_cast<U8>(load_bytes(bytes + i + b * block) != 0);  // true is -1
    Sums<U8> sums = Sums<U8>::zero();
    for (const U8& each : counts) sums.add(each);
    sums.settle();
    for (std::size_t lane = 0; lane < block / 2; ++lane)
      count += static_cast<std::size_t>(sums.even[lane]) + static_cast<std::size_t>(sums.odd[lane]);
  }
  for (; i < length; ++i) count += bytes[i] != 0;
  return count;
}

}  // namespace
}  // namespace aniso::ANISO_ISA
