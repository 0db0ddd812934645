// Every kernel on random inputs, compared between machines (`make neon`): `compare write` writes what the portable
// kernels of this machine make of them; `compare check` reads that and compares what all kernels that this machine can
// run make of the same inputs. Integers, and floats where every sum is exact, must be equal to the bit; other floats
// must agree within the tolerances of tests/test_kernels.py and tests/test_search_kernels.py, twice, because both
// round.
#include <cstdio>
#include <string>

#include "../../cpp/kernels.h"
#include "journal.h"

namespace aniso {

static_assert(sizeof(Kernels) == 28 * sizeof(void*), "struct Kernels has changed: compare the new entries too");

void compare_training(const Kernels& kernels, Journal& journal);  // training.cpp
void compare_search(const Kernels& kernels, Journal& journal);    // search.cpp

namespace {

int write() {
  Journal journal;
  compare_training(*find_kernels("portable"), journal);
  compare_search(*find_kernels("portable"), journal);
  const std::string& bytes = journal.bytes();
  return std::fwrite(bytes.data(), 1, bytes.size(), stdout) == bytes.size() ? 0 : 1;
}

int check() {
  std::string expected;
  char part[65536];
  while (const std::size_t size = std::fread(part, 1, sizeof part, stdin)) expected.append(part, size);
  bool good = true;
  std::size_t count;
  const Kernels* const* list = usable_kernels(&count);
  for (std::size_t i = 0; i < count; ++i) {
    Journal journal(expected);
    compare_training(*list[i], journal);
    compare_search(*list[i], journal);
    std::printf("%s, against the portable kernels of the machine that wrote:\n", list[i]->name);
    good = journal.report() && good;
  }
  std::printf("%s\n", good ? "all as expected" : "FAILED");
  return good ? 0 : 1;
}

}  // namespace
}  // namespace aniso

int main(int count, char** arguments) {
  const std::string task = count == 2 ? arguments[1] : "";
  if (task == "write") return aniso::write();
  if (task == "check") return aniso::check();
  std::fprintf(stderr, "usage: compare write | compare check\n");
  return 2;
}
