// The best candidates of a scan. A histogram of their integer scores gives, at every moment, a threshold that the best
// `keep` seen so far reach, so that the scan drops almost everything else without sorting anything.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

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

  void add(std::int64_t score, std::uint32_t number) {
    const std::int64_t bucket = (score - origin_) >> shift_;
    const std::size_t at =
        static_cast<std::size_t>(std::clamp<std::int64_t>(bucket, 0, static_cast<std::int64_t>(counts_.size()) - 1));
    keys_.push_back(key_of(static_cast<std::uint32_t>(score + bias), number));
    ++counts_[at];
    above_ += at >= lowest_;
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
