// The kernels, as a table of function pointers: one table per instruction set, filled by kernels.cpp.
// Every comment is the kernel's definition in NumPy; tests/reference.py holds the same definitions as code.
// Kernels work on rows [begin, end) so that the caller can spread rows over threads, and allocate nothing:
// the caller passes scratch memory, 64-byte aligned.
#pragma once
#include <cstddef>
#include <cstdint>

namespace aniso {

// codes[i] = argmin_k cost[i, k],  costs[i] = min_k cost[i, k],  the lowest k among equals, where
//   g = points @ codewords.T
//   cost = squared_norms[None, :] + g * (linear[:, None] + quadratic[:, None] * g)
// linear = -2, quadratic = 0 is the nearest codeword; other values give the score-aware loss.
// The codewords come packed (see pack_codewords) in panels of Kernels::panel codewords.
struct Assign {
  const float* points;         // (n, d)
  const float* panels;         // (ceil(k / panel), d, panel)
  const float* squared_norms;  // (ceil(k / panel) * panel), +inf where padded
  const float* linear;         // (n)
  const float* quadratic;      // (n)
  std::size_t d, panel_count;
  std::int32_t* codes;  // (n) out
  float* costs;         // (n) out
};

// A set of codebooks: codebook m holds k codewords over dimensions starts[m] .. starts[m + 1] - 1.
struct Codebooks {
  const float* codewords;      // (m, k, width), zeros past starts[m + 1] - starts[m]
  const float* squared_norms;  // (m, k) times unit^2
  const std::int32_t* starts;  // (m + 1)
  std::size_t m, k, width, d;
  float unit;  // a power of two near 1 / the largest norm of a codeword: products of lengths stay in range
};

// Coordinate descent over the codes of each point: sweep the subspaces, give each the codeword that is best
// with all others held, until a sweep changes nothing. With y = decode(codes), u = point / |point|,
// v = residual + penalty * <residual, u> * u, N = <y, v>, D = |y|^2 + penalty * <y, u>^2:
//   scaled = false  minimises D - 2 N       (the score-aware loss of y, penalty = eta - 1)
//   scaled = true   maximises N^2 / D, N > 0 (the same loss of s * y under the best scale s = N / D)
// warm = false starts from the nearest codeword of each subspace; warm = true from the codes as given.
struct Encode {
  const float* residuals;  // (n, d) what is coded
  const float* points;     // (n, d) the direction of the parallel error
  const float* penalty;    // (n) eta - 1
  Codebooks books;
  bool scaled, warm;
  int sweeps;
  std::uint8_t* codes;  // (n, m) in and out
};

// Additive codes: y = sum_m codewords[m, codes[m]], every codeword as long as a point. Iterated local search:
// coordinate descent as above, then `restarts` times: `kicks` random codes are replaced, the descent runs again, and
// the outcome stays where it is better. With T = <y, x> and B = |y|^2:
//   scaled = false  minimises B + penalty (T / |x|)^2 - 2 (1 + penalty) T
//   scaled = true   maximises T^2 / B, T > 0
// The random numbers depend on the seed and the point's values alone. warm = false starts with the codewords in turn,
// each the nearest to what those before it leave.
struct EncodeAdditive {
  const float* points;   // (n, d)
  const float* penalty;  // (n) eta - 1
  const float* columns;  // (d, m * k) the codewords, transposed; m * k a multiple of 16
  const float* gram;     // (m * k, m * k) their inner products
  std::size_t m, k, d;   // k a multiple of 16
  bool scaled, warm;
  int sweeps, restarts, kicks;
  std::uint64_t seed;
  std::uint8_t* codes;  // (n, m) in and out
};

// out[i] = <values[i], decode(codes)[i]>
struct DotDecoded {
  const float* values;  // (n, d)
  const std::uint8_t* codes;
  Codebooks books;
  float* out;  // (n)
};

// for subspaces [begin, end):  out[m, c] = sum_{i: codes[i, m] == c} weights[i] * values[i, starts[m]:starts[m+1]]
struct SumByCode {
  const float* values;   // (n, d)
  const float* weights;  // (n)
  const std::uint8_t* codes;
  Codebooks books;
  std::size_t n;
  double* out;  // (m, k, width)
};

// for groups [begin, end):  sums[c] = sum_{i: groups[i] == c} weights[i] * values[i];  totals[c] = sum weights[i]
struct SumByGroup {
  const float* values;         // (n, d)
  const float* weights;        // (n)
  const std::int32_t* groups;  // (n)
  std::size_t n, d;
  double* sums;    // (k, d)
  double* totals;  // (k)
};

// What a query costs to prepare for the scan. With q extended by a 1 (for a bias that codes can carry):
//   T[m, c] = sum_j q[firsts[m] + j] * codewords[m, j, c];  low = T.min(axis=1)
//   step = max over groups of sum_m(T.max(axis=1) - low) / (255 - group / 2);  tables = rint((T - low) / step)
// so that the tables of a group (`group` subspaces in their order) add up to at most 255.
// Returns sum(low) in *offset and step in *step; a step of 0 (all tables constant) is given as 1.
struct Tables {
  const float* codewords;      // (m, width, 16), zeros where padded
  const std::int32_t* firsts;  // (m)
  std::size_t m, width, group;
};

// scores[p] = <query, centroid p> as exact integers. Query bytes are 0 .. 127 (64 is zero), centroid bytes -63 .. 63:
//   scores = centroids.astype(int32) @ (query.astype(int32) - 64);  order = scores * scales * factor + biases
// Centroids lie in blocks of 8: (p / 8, j / 4, p % 8, j % 4), j < d4 = d padded to a multiple of 8. Blocks are scored
// in the order of a list: scores[8 * i + lane] belongs to centroid 8 * list[i] + lane.
struct Centroids {
  const std::int8_t* bytes;      // (p / 8, d4 / 4, 8, 4)
  const std::int32_t* sums;      // (p) 64 * centroids.sum(axis=1)
  const float *scales, *biases;  // (p)
  std::size_t blocks, d4;
};

// The scan of a run of blocks: sums[i] = tables[m, codes[i, m]].sum(over m), and every i < points with
// sums[i] >= least, in any order, as (sum, i). Layout of blocks: src/aniso/layout.py.
struct Scan {
  const std::uint8_t* codes;   // (blocks, rows, 32)
  const std::uint8_t* tables;  // (2 * rows, 16)
  std::size_t rows, group_rows;
};

struct Hit {
  static constexpr std::size_t most = std::size_t{1} << 16;  // points of one scan
  static constexpr std::size_t beyond = 16;                  // hits for which there is room after the last point's

  std::uint16_t sum;
  std::uint16_t place;  // from the first point on
};

// The same scan for four queries at once, each with its own tables, threshold and hits, so that codes are unpacked
// once.
struct ScanFour {
  const std::uint8_t* codes;
  const std::uint8_t* tables[4];
  std::size_t rows, group_rows;
  std::uint32_t least[4];
  Hit* hits[4];
  std::size_t* counts[4];  // out: how many hits
};

// Rows of d values, picked by their numbers: row i begins numbers[i] * stride bytes after the first of all.
struct Rows {
  const void* first;
  std::size_t stride, d;
  const std::uint32_t* numbers;
};

struct Kernels {
  const char* name;
  std::size_t panel;  // codewords per panel of `assign`
  std::size_t (*assign_scratch)();
  void (*assign)(const Assign&, std::size_t begin, std::size_t end, void* scratch);
  std::size_t (*encode_scratch)(const Codebooks&);
  void (*encode)(const Encode&, std::size_t begin, std::size_t end, void* scratch);
  std::size_t (*encode_additive_scratch)(const EncodeAdditive&);
  void (*encode_additive)(const EncodeAdditive&, std::size_t begin, std::size_t end, void* scratch);
  void (*dot_decoded)(const DotDecoded&, std::size_t begin, std::size_t end);
  void (*sum_by_code)(const SumByCode&, std::size_t begin, std::size_t end);
  void (*sum_by_group)(const SumByGroup&, std::size_t begin, std::size_t end);
  // out[i, p] = <queries[i], point p>, for rows <= 6 and points in panels of 16: (panels, d, 16). Sums run over the
  // dimensions in their order, so that a score does not depend on what else is computed with it.
  void (*score_panels)(const float* panels, std::size_t d, std::size_t count, const float* queries, std::size_t rows,
                       float* out, std::size_t out_stride);
  // `floats` is scratch of 16 m floats; tables gets 16 m bytes.
  void (*make_tables)(const Tables&, const float* query, float* floats, std::uint8_t* tables, float* offset,
                      float* step);
  void (*score_centroids)(const Centroids&, const std::uint8_t* query, float factor, const std::uint32_t* list,
                          std::size_t count, std::int32_t* scores, float* order);
  // Meanwhile brings as many bytes as it reads, from `ahead` on and not beyond the line at `last` (any addresses), into
  // the cache.
  std::size_t (*scan)(const Scan&, std::size_t first_block, std::size_t points, std::uint32_t least, Hit* hits,
                      const std::uint8_t* ahead, const std::uint8_t* last);
  void (*scan_four)(const ScanFour&, std::size_t first_block, std::size_t points);
  // <row, query>
  float (*dot_f32)(const float* row, const float* query, std::size_t d);
  // out[i] = <row i, query>, or |row i - query|^2, for `count` rows stored as float32 or as the bits of float16; the
  // product for rows of int8 and a query of int16, which is an exact integer as long as it fits 32 bits.
  void (*dot_rows_f32)(const Rows&, const float* query, std::size_t count, float* out);
  void (*dot_rows_f16)(const Rows&, const float* query, std::size_t count, float* out);
  void (*distance_rows_f32)(const Rows&, const float* query, std::size_t count, float* out);
  void (*distance_rows_f16)(const Rows&, const float* query, std::size_t count, float* out);
  void (*dot_rows_i8)(const Rows&, const std::int16_t* query, std::size_t count, std::int32_t* out);
  // sum(values) and sum(values ** 2)
  void (*sum_squares)(const float* values, std::size_t count, float* sum, float* squares);
  // the numbers i < count with scores[i] >= least, in order, fast where they are few; returns how many there are
  std::size_t (*select_at_least)(const float* scores, std::size_t count, float least, std::uint32_t* out);
  // the numbers of the bytes that are not 0, in order, fast where they are few; returns how many there are, or room + 1
  // where there are more than `room`
  std::size_t (*places_set)(const std::uint8_t* bytes, std::size_t length, std::int64_t* places, std::size_t room);
  // the numbers i < count where not scores[i] < least, in order, fast where they are many; returns how many there are.
  // Out has room for count + 8 numbers.
  std::size_t (*select_not_below)(const float* scores, std::size_t count, float least, std::uint32_t* out);
  // out[rank] = keys, where rank = (keys[None, :] > keys[:, None]).sum(axis=1); out is 0 elsewhere. So the largest come
  // first, and where a key repeats, zeros follow it. For few keys: it compares each with all, and never branches.
  void (*sort_keys)(const std::uint64_t* keys, std::size_t count, std::uint64_t* out);
  // how many bytes are not 0
  std::size_t (*count_set)(const std::uint8_t* bytes, std::size_t length);
};

// The instruction sets this machine can run, best first; dispatch.cpp.
const Kernels* const* usable_kernels(std::size_t* count);
// The one named, the one named by the environment variable ANISO_ISA where name is empty, else the best.
// Null where the name is unknown or the machine cannot run it.
const Kernels* find_kernels(const char* name);

}  // namespace aniso
