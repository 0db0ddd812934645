// Fills one table of kernels. CMake compiles this file once per instruction set, with ANISO_ISA naming the namespace;
// everything but the table itself is local to the object.
#include "kernels.h"

#include "assign.h"
#include "encode.h"
#include "sums.h"

#define ANISO_TEXT_OF(x) #x
#define ANISO_TEXT(x) ANISO_TEXT_OF(x)

namespace aniso::ANISO_ISA {

extern const Kernels kernels;
const Kernels kernels = {
    ANISO_TEXT(ANISO_ISA), panel,       assign_scratch, assign, encode_scratch, encode,
    dot_decoded,           sum_by_code, sum_by_group,
};

}  // namespace aniso::ANISO_ISA
