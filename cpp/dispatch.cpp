// Which instruction sets this machine can run, and the choice among them.
#include <array>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "kernels.h"

#if defined(ANISO_X86)
#include <cpuid.h>
#endif

namespace aniso {

namespace portable {
extern const Kernels kernels;
}
#if defined(ANISO_X86)
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}
namespace avx512vl {
extern const Kernels kernels;
}
#elif defined(ANISO_ARM)
namespace neon {
extern const Kernels kernels;
}
#endif

namespace {

#if defined(ANISO_X86)
// AMD's Zen 4 works on halves of 512 bits, one after the other, and brings a table into all of a register by a shuffle.
bool halves_are_faster() {
  unsigned version = 0, others[3];
  if (!__builtin_cpu_is("amd") || !__get_cpuid(1, &version, &others[0], &others[1], &others[2])) return false;
  const unsigned family = (version >> 8 & 15) + (version >> 20 & 255);
  return family == 0x19;  // also that of Zen 3, which has no AVX-512
}
#endif

struct Usable {
  std::array<const Kernels*, 4> list{};
  std::size_t count = 0;

  Usable() {
#if defined(ANISO_X86)
    __builtin_cpu_init();
    const bool avx2_usable = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                             __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
    const bool avx512_usable = avx2_usable && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                               __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi") &&
                               __builtin_cpu_supports("avx512vnni");
    if (avx512_usable) {
      list[count++] = &avx512::kernels;
      list[count++] = &avx512vl::kernels;
      if (halves_are_faster()) std::swap(list[0], list[1]);
    }
    if (avx2_usable) list[count++] = &avx2::kernels;
#elif defined(ANISO_ARM)
    list[count++] = &neon::kernels;
#endif
    list[count++] = &portable::kernels;
  }
};

const Usable& usable() {
  static const Usable once;
  return once;
}

}  // namespace

const Kernels* const* usable_kernels(std::size_t* count) {
  *count = usable().count;
  return usable().list.data();
}

const Kernels* find_kernels(const char* name) {
  const char* wanted = name;
  if (!*wanted) {
    const char* variable = std::getenv("ANISO_ISA");
    wanted = variable ? variable : "";
  }
  if (!*wanted) return usable().list[0];
  for (std::size_t i = 0; i < usable().count; ++i)
    if (std::strcmp(usable().list[i]->name, wanted) == 0) return usable().list[i];
  return nullptr;
}

}  // namespace aniso
