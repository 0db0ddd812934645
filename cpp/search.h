// The search of one query, from the centroids to the rescored answers. Holds pointers to arrays that Python owns.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels.h"

namespace aniso {

enum class Rescore : int { none = 0, float32 = 1, float16 = 2, int8 = 3 };

// All an index is to the search. n points, p partitions, m subspaces; a slot is a place for a point in a block.
struct View {
  std::size_t n, d, p;
  bool l2;             // scores are -|q - x|^2, else <q, x>
  bool unit_queries;   // queries are divided by their norms
  const float* shift;  // (d) or null: centroids, codes and int8 points are of x - shift, and meet q - shift
  // An integer centroid score s = <query bytes, centroid bytes> stands for
  //   the order in which partitions are searched: s * order_scales * |query unit| + order_biases, and
  //   the part of a point's score that its centroid gives: s * base_scales * |query unit| + base_biases.
  ScoreCentroids centroids;
  const float *order_scales, *order_biases, *base_scales, *base_biases;  // (p padded to 8)
  const std::int64_t* first_blocks;                                      // (p)
  const std::int32_t* sizes;                                             // (p) points in each partition
  std::size_t blocks;
  Tables tables;
  std::size_t rows, group_rows;
  const std::uint8_t* codes;      // (blocks, rows, 32)
  const std::int32_t* slot_rows;  // (blocks * 32) the point in each slot
  Rescore rescore;
  const void* points;         // (n, d) for rescoring
  const float* point_scales;  // (n) of int8 points
  const float* point_biases;  // (n) of int8 points with l2: -|x|^2 / 2
};

// Seconds spent in each stage of searches.
struct Stages {
  double prepare = 0, centroids = 0, choose = 0, tables = 0, scan = 0, rescore = 0;
  double scanned = 0, hits = 0;  // points scanned, and points that passed the threshold
};

// Neighbouring blocks of one partition that are scanned together.
struct Piece {
  std::uint32_t first_block, points, partition;
};

struct Workspace;  // the working memory of one search, kept for the next

class Search {
 public:
  Search(const View& view, const Kernels& kernels);
  ~Search();

  // The k best of the candidates found in the nearest partitions, best first, equals by row; returns how many.
  // Searches more partitions than asked while fewer than k points were found.
  // Adds to `stages` where it is not null.
  std::size_t one(const float* query, std::size_t k, std::size_t partitions, std::size_t candidates, std::int64_t* ids,
                  float* scores, Stages* stages = nullptr);

 private:
  std::unique_ptr<Workspace> borrow();
  void give_back(std::unique_ptr<Workspace> workspace);
  void choose_partitions(Workspace& at, std::size_t count);
  void list_pieces(Workspace& at);
  const std::uint8_t* codes_of(const Piece& piece) const;
  void scan_partitions(Workspace& at, std::size_t candidates);
  float score_row(const Workspace& at, std::uint32_t row, std::int64_t estimate, float squared) const;
  std::size_t rescore(Workspace& at, std::size_t k, std::int64_t* ids, float* scores) const;

  View view_;
  const Kernels& kernels_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> spare_;
};

}  // namespace aniso
