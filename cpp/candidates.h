// The best candidates of a scan. A histogram of their integer scores gives, at every moment, a threshold that the best
// `keep` seen so far reach, so that the scan drops almost everything else without sorting anything.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "kernels.h"
#include "keys.h"

namespace aniso {

class Candidates {
 public:
  static constexpr std::int64_t bias = std::int64_t{1} << 31;  // added to scores to store them unsigned

  // Keeps the best `keep`; scores around 0 to `spread` are told apart best.
  void start(std::size_t keep, std::int64_t spread) {
    keep_ = keep;
    shift_ = 0;
    while ((2 * spread >> shift_) > 2048) ++shift_;
    origin_ = -spread / 2;
    counts_.assign(static_cast<std::size_t>(2 * spread >> shift_) + 1, 0);
    lowest_ = above_ = 0;
    keys_.clear();
  }

  // No score below this can be among the best.
  std::int64_t threshold() const {
    return lowest_ ? origin_ + (static_cast<std::int64_t>(lowest_) << shift_) : -(std::int64_t{1} << 40);
  }

  // Adds every hit with the score base + sum.
  void add(const Hit* hits, std::size_t count, std::int64_t base) {
    const std::size_t before = keys_.size();
    keys_.resize(before + count);
    std::uint64_t* keys = keys_.data() + before;
    const std::int64_t last = static_cast<std::int64_t>(counts_.size()) - 1;
    for (std::size_t i = 0; i < count; ++i) {
      const std::int64_t score = base + hits[i].sum;
      const std::size_t bucket =
          static_cast<std::size_t>(std::clamp<std::int64_t>((score - origin_) >> shift_, 0, last));
      keys[i] = key_of(static_cast<std::uint32_t>(score + bias), hits[i].slot);
      ++counts_[bucket];
      above_ += bucket >= lowest_;
    }
    while (above_ - counts_[lowest_] >= keep_) above_ -= counts_[lowest_++];
  }

  // Leaves the best `keep` keys, in no order.
  std::vector<std::uint64_t>& finish() {
    const std::int64_t least = threshold();
    if (keys_.size() > keep_) {
      auto below = [&](std::uint64_t key) { return static_cast<std::int64_t>(score_of(key)) - bias < least; };
      keys_.erase(std::remove_if(keys_.begin(), keys_.end(), below), keys_.end());
    }
    if (keys_.size() > keep_) {
      std::nth_element(keys_.begin(), keys_.begin() + static_cast<std::ptrdiff_t>(keep_), keys_.end(),
                       std::greater<>());
      keys_.resize(keep_);
    }
    return keys_;
  }

 private:
  std::size_t keep_ = 0;
  int shift_ = 0;
  std::int64_t origin_ = 0;
  std::vector<std::uint32_t> counts_;
  std::size_t lowest_ = 0;  // the bucket of the threshold
  std::size_t above_ = 0;   // candidates in that bucket and above
  std::vector<std::uint64_t> keys_;
};

}  // namespace aniso
