// Ranges of work spread over threads. No sum runs over more than one range, so that results do not depend on them.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

namespace aniso {

// Scratch memory for one thread, aligned for any vector.
class Scratch {
 public:
  explicit Scratch(std::size_t bytes) : data_(std::aligned_alloc(64, (bytes + 127) / 64 * 64)) {
    if (!data_) throw std::bad_alloc();
  }
  ~Scratch() { std::free(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  void* data() const { return data_; }

 private:
  void* data_;
};

// Calls work(begin, end, scratch) for chunks of [0, count) on up to `threads` threads; the caller is one of them. What
// one of them throws, the caller does once all have stopped.
template <class Work>
void spread(std::size_t count, std::size_t chunk, std::size_t threads, std::size_t scratch_bytes, Work work) {
  const std::size_t chunks = (count + chunk - 1) / chunk;
  if (threads > chunks) threads = chunks;
  if (threads == 0) return;
  std::atomic<std::size_t> next{0};
  std::vector<std::unique_ptr<Scratch>> scratch;
  for (std::size_t t = 0; t < threads; ++t) scratch.push_back(std::make_unique<Scratch>(scratch_bytes));
  std::exception_ptr thrown;
  std::mutex mutex;
  auto run = [&](std::size_t t) noexcept {
    try {
      for (std::size_t c; (c = next.fetch_add(1)) < chunks;) {
        const std::size_t begin = c * chunk;
        work(begin, begin + chunk < count ? begin + chunk : count, scratch[t]->data());
      }
    } catch (...) {
      next = chunks;
      const std::lock_guard<std::mutex> lock(mutex);
      if (!thrown) thrown = std::current_exception();
    }
  };
  std::vector<std::thread> others;
  try {
    others.reserve(threads);
    for (std::size_t t = 1; t < threads; ++t) others.emplace_back(run, t);
  } catch (...) {
    // The system refused a thread: those that started, and this one, do all the work.
  }
  run(0);
  for (std::thread& other : others) other.join();
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace aniso
