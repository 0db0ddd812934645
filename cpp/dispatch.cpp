// Which instruction sets this machine can run, and the choice among them.
#include <array>
#include <cstdlib>
#include <cstring>

#include "kernels.h"

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
#elif defined(ANISO_ARM)
namespace neon {
extern const Kernels kernels;
}
#endif

namespace {

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
    if (avx512_usable) list[count++] = &avx512::kernels;
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
