// Results of kernels, written on one machine and compared on another.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

class Journal {
 public:
  Journal() : writing_(true) {}
  explicit Journal(std::string expected) : bytes_(std::move(expected)), writing_(false) {}

  // Values within `tolerance`, one for each or 0 past its end. Infinities are equal, and so are NaNs.
  template <class T>
  void record(const std::string& kernel, const std::vector<T>& values, const std::vector<double>& tolerance = {}) {
    Tally& tally = tallies_[kernel];
    const std::vector<T> expected = exchange(kernel, values);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double mine = static_cast<double>(values[i]), other = static_cast<double>(expected[i]);
      if (mine == other || (std::isnan(mine) && std::isnan(other))) continue;
      const double allowed = i < tolerance.size() ? tolerance[i] : 0, share = std::fabs(mine - other) / allowed;
      if (share <= 1) {
        tally.worst = std::fmax(tally.worst, share);
      } else if (tally.wrong++ < 3) {
        std::printf("%s: %.9g, expected %.9g +- %.3g (call %zu, value %zu)\n", kernel.c_str(), mine, other, allowed,
                    tally.calls, i);
      }
    }
  }

  // Choices between floats: rounding may turn those that are nearly ties, at most one in 1,000 of all there are.
  template <class T>
  void record_choices(const std::string& kernel, const std::vector<T>& values) {
    Tally& tally = tallies_[kernel];
    const std::vector<T> expected = exchange(kernel, values);
    tally.choices += expected.size();
    for (std::size_t i = 0; i < expected.size(); ++i) tally.others += values[i] != expected[i];
  }

  // Prints a line for each kernel; returns whether all are as expected.
  bool report() const {
    bool good = at_ == bytes_.size();
    if (!good) std::printf("%zu bytes of results were expected, %zu were made\n", bytes_.size(), at_);
    for (const auto& [kernel, tally] : tallies_) {
      const bool fine = !tally.wrong && tally.others * 1000 <= tally.choices;
      std::printf("  %-16s %6zu calls %8zu values: ", kernel.c_str(), tally.calls, tally.values);
      if (tally.wrong) std::printf("%zu WRONG, the others ", tally.wrong);
      if (tally.worst > 0)
        std::printf("within %.2f of the tolerance", tally.worst);
      else
        std::printf("equal");
      if (tally.choices) std::printf(", %zu of %zu choices differ", tally.others, tally.choices);
      std::printf("%s\n", fine ? "" : "  FAILED");
      good = good && fine;
    }
    return good;
  }

  const std::string& bytes() const { return bytes_; }

 private:
  struct Tally {
    std::size_t calls = 0, values = 0, wrong = 0, choices = 0, others = 0;
    double worst = 0;  // the largest share of a tolerance that was needed
  };

  // Writes the values and returns none, or reads what the other machine made of the same call.
  template <class T>
  std::vector<T> exchange(const std::string& kernel, const std::vector<T>& values) {
    Tally& tally = tallies_[kernel];
    ++tally.calls;
    tally.values += values.size();
    const std::string header = kernel + ' ' + std::to_string(values.size()) + ' ' + std::to_string(sizeof(T)) + '\n';
    const std::size_t size = values.size() * sizeof(T);
    if (writing_) {
      bytes_ += header;
      bytes_.append(reinterpret_cast<const char*>(values.data()), size);
      return {};
    }
    if (bytes_.compare(at_, header.size(), header) != 0 || bytes_.size() - at_ < header.size() + size) {
      std::printf("the results of call %zu of %s are missing: the two programs differ, or one failed\n", tally.calls,
                  kernel.c_str());
      std::exit(1);
    }
    at_ += header.size();
    std::vector<T> expected(values.size());
    if (size) std::memcpy(expected.data(), bytes_.data() + at_, size);
    at_ += size;
    return expected;
  }

  std::string bytes_;
  bool writing_;
  std::size_t at_ = 0;
  std::map<std::string, Tally> tallies_;
};
