// Fills one table of kernels. CMake compiles this file once per instruction set, with ANISO_ISA naming the namespace;
// everything but the table itself is local to the object.
#include "kernels.h"

#include "additive.h"
#include "assign.h"
#include "count.h"
#include "dot.h"
#include "encode.h"
#include "exact.h"
#include "places.h"
#include "rows.h"
#include "scan.h"
#include "sort.h"
#include "sums.h"

#define ANISO_TEXT_OF(x) #x
#define ANISO_TEXT(x) ANISO_TEXT_OF(x)

namespace aniso::ANISO_ISA {

extern const Kernels kernels;
const Kernels kernels = {
    ANISO_TEXT(ANISO_ISA),
    panel,
    assign_scratch,
    assign,
    encode_scratch,
    encode,
    encode_additive_scratch,
    encode_additive,
    dot_decoded,
    sum_by_code,
    sum_by_group,
    score_panels,
    make_tables,
    score_centroids,
    scan,
    scan_four,
    dot_f32,
    dot_rows_f32,
    dot_rows_f16,
    distance_rows_f32,
    distance_rows_f16,
    dot_rows_i8,
    sum_squares,
    select_at_least,
    places_set,
    select_not_below,
    sort_keys,
    count_set,
};

}  // namespace aniso::ANISO_ISA
