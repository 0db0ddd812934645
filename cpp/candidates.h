// The best candidates of a scan. A histogram of their integer scores gives, at every moment, a threshold that the best
// `keep` seen so far reach, so that the scan drops almost everything else without sorting anything.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "kernels.h"
#include "keys.h"

namespace aniso {

class Candidates {
 public:
  static constexpr std::int64_t bias = std::int64_t{1} << 31;     // added to scores to store them unsigned
  static constexpr double reach = 1 << 30;                        // the largest size of a base
  static constexpr std::int64_t none = -(std::int64_t{1} << 40);  // no floor
  // Buckets: enough that few pass a threshold that is rounded down. Above a floor lie few scores, and a small histogram
  // stays in the cache where many queries take turns.
  static constexpr std::int64_t buckets = 512, buckets_above_floor = 64;

  // A score below which nothing is even looked at, and how far above it scores are told apart. Whoever guesses one has
  // to ask in the end whether it was `low_enough`.
  struct Bottom {
    std::int64_t floor = none, reach = 0;
  };

  static std::int64_t integer_score(std::uint64_t key) { return static_cast<std::int64_t>(key >> 32) - bias; }

  // Keeps the best `keep`; without a floor, scores around 0 to `spread` are told apart best.
  void start(std::size_t keep, std::int64_t spread, const Bottom& bottom) {
    const bool bounded = bottom.floor != none;
    const std::int64_t span = bounded ? std::clamp(bottom.reach, buckets_above_floor, 2 * spread) : 2 * spread;
    keep_ = keep;
    shift_ = 0;
    while ((span >> shift_) > (bounded ? buckets_above_floor : buckets)) ++shift_;
    origin_ = bounded ? bottom.floor : -spread / 2;
    floor_ = threshold_ = bottom.floor;
    counts_.assign(static_cast<std::size_t>(span >> shift_) + 1, 0);
    lowest_ = above_ = size_ = 0;
  }

  // No score below this can be among the best.
  std::int64_t threshold() const { return threshold_; }

  // There is a threshold, or a floor.
  bool bounded() const { return threshold_ > none; }

  // Nothing among the best was lost to the floor.
  bool low_enough() const { return floor_ == none || size_ >= keep_; }

  // Adds every hit, found with the threshold, with the score base + sum, in the slot first + place.
  void add(const Hit* hits, std::size_t count, std::int64_t base, std::uint32_t first) {
    if (keys_.size() < size_ + count) keys_.resize(2 * (size_ + count));
    std::uint64_t* keys = keys_.data() + size_;
    size_ += count;
    above_ += count;
    // With a base within `reach` and an origin within half of it, all of this fits 32 bits.
    const std::uint32_t lowest = static_cast<std::uint32_t>(base + bias);
    const std::int32_t from_origin = static_cast<std::int32_t>(base - origin_);
    const std::int32_t last = static_cast<std::int32_t>(counts_.size()) - 1;
    std::uint32_t* counts = counts_.data();
    for (std::size_t i = 0; i < count; ++i) {
      keys[i] = key_of(lowest + hits[i].sum, first + hits[i].place);
      ++counts[std::clamp((from_origin + hits[i].sum) >> shift_, 0, last)];
    }
    raise_threshold();
    while (lowest_ + 1 == counts_.size() && shift_ <= 28) widen();
  }

  // Leaves the best `keep` keys, in no order. Tells `expect` the numbers of all that may be left, before they are
  // sorted out.
  template <class Expect>
  void finish(const Expect& expect) {
    std::uint64_t* keys = keys_.data();
    const std::uint64_t least = static_cast<std::uint64_t>(std::max(threshold_ + bias, std::int64_t{0})) << 32;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < size_; ++i) {
      const std::uint64_t key = keys[i];
      keys[kept] = key;
      kept += key >= least;
    }
    for (std::size_t i = 0; i < kept; ++i) expect(number_of(keys[i]));
    keep_best(keys, kept, keep_);
    size_ = std::min(kept, keep_);
  }

  std::uint64_t* keys() { return keys_.data(); }
  const std::uint64_t* keys() const { return keys_.data(); }
  std::size_t size() const { return size_; }

 private:
  void raise_threshold() {
    while (above_ - counts_[lowest_] >= keep_) above_ -= counts_[lowest_++];
    if (lowest_) threshold_ = std::max(threshold_, origin_ + (static_cast<std::int64_t>(lowest_) << shift_));
  }

  // The threshold got to the last bucket, which holds all that is higher: buckets become four times as wide.
  void widen() {
    shift_ += 2;
    std::fill(counts_.begin(), counts_.end(), 0);
    const std::int64_t last = static_cast<std::int64_t>(counts_.size()) - 1;
    for (std::size_t i = 0; i < size_; ++i)
      ++counts_[static_cast<std::size_t>(
          std::clamp<std::int64_t>((integer_score(keys_[i]) - origin_) >> shift_, 0, last))];
    lowest_ = 0;
    above_ = size_;
    raise_threshold();
  }

  std::size_t keep_ = 0;
  int shift_ = 0;
  std::int64_t origin_ = 0, floor_ = none, threshold_ = none;
  std::vector<std::uint32_t> counts_;
  std::size_t lowest_ = 0;           // the bucket of the threshold
  std::size_t above_ = 0;            // candidates in that bucket and above
  std::vector<std::uint64_t> keys_;  // room; the first size_ are in use
  std::size_t size_ = 0;
};

// The best keys of many, of which all are seen.
class Best {
 public:
  void start(std::size_t keep) {
    keep_ = keep;
    least_ = 0;
    keys_.clear();
    room_ = 2 * keep + 64;
  }

  void add(std::uint64_t key) {
    if (key < least_) return;
    keys_.push_back(key);
    if (keys_.size() < room_) return;
    const auto last = keys_.begin() + static_cast<std::ptrdiff_t>(keep_) - 1;
    std::nth_element(keys_.begin(), last, keys_.end(), std::greater<>());
    least_ = *last;
    keys_.resize(keep_);
  }

  // No lower score can be among them.
  float least() const { return least_ ? from_sortable(score_of(least_)) : -std::numeric_limits<float>::infinity(); }

  // The best, best first: `keep`, or as many as there were.
  const std::vector<std::uint64_t>& sorted() {
    std::sort(keys_.begin(), keys_.end(), std::greater<>());
    if (keys_.size() > keep_) keys_.resize(keep_);
    return keys_;
  }

 private:
  std::size_t keep_ = 1, room_ = 0;
  std::uint64_t least_ = 0;
  std::vector<std::uint64_t> keys_;
};

}  // namespace aniso
