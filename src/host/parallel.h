// SPDX-License-Identifier: Apache-2.0
// The thread pool a host context owns.  Items are handed out one by one, so what an item computes
// must not depend on the worker that runs it: results are then the same for any number of threads.
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <type_traits>

namespace fovea {

struct Crew;

namespace host {

class Pool {
 public:
  Pool();
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Threads that run() may use, the caller's among them.
  void set_threads(int32_t threads);
  int32_t threads() const { return threads_; }

  // f(item, worker) for every item of [0, count), worker in [0, min(threads(), count)); the first
  // exception is rethrown when all workers have stopped.  Where threads cannot be had, those there
  // are do the work: nothing but f fails.  `cost` is the whole call's work in about
  // nanoseconds of one core: too little of it stays on the calling thread.
  template <class F>
  void run(int64_t count, double cost, F&& f) {
    if (threads_ < 2 || count < 2 || cost < kWakeCost) {
      for (int64_t i = 0; i < count; ++i) f(i, 0);
      return;
    }
    Job job;
    job.count = count;
    job.body = const_cast<void*>(static_cast<const void*>(&f));
    job.call = [](void* body, int64_t i, int32_t worker) {
      (*static_cast<std::remove_reference_t<F>*>(body))(i, worker);
    };
    run(job);
  }

  struct Job {
    int64_t count = 0;
    void* body = nullptr;
    void (*call)(void* body, int64_t item, int32_t worker) = nullptr;
    std::atomic<int64_t> next{0};
    std::atomic<bool> failed{false};
    std::exception_ptr error;
    void work(int32_t worker) noexcept;
  };

 private:
  static constexpr double kWakeCost = 20e3;  // two wake-ups of a sleeping thread

  void run(Job& job);
  // The threads, nullptr where memory for them is short.
  Crew* start() noexcept;
  void stop() noexcept;

  int32_t threads_ = 1;
  int32_t process_ = 0;
  std::unique_ptr<Crew> crew_;
};

}  // namespace host
}  // namespace fovea
