// SPDX-License-Identifier: Apache-2.0
#include "host/parallel.h"

#include <signal.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace fovea {

// What the workers share.  A worker that wakes after the caller ran out of items finds `places` 0
// and sleeps on: a call never waits for a thread the system did not schedule.
struct Crew {
  std::mutex mutex;
  std::condition_variable wake, done;
  std::atomic<uint64_t> round{0};
  host::Pool::Job* job = nullptr;  // this and what follows: under mutex
  int64_t places = 0;              // workers that may still join
  int32_t joined = 0;              // workers that have
  int32_t active = 0;              // workers inside the job
  bool stop = false;
  std::vector<std::thread> threads;

  void serve();
};

namespace {

constexpr int kSpins = 100;  // some microseconds of watching for the next phase of an operation

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

void Crew::serve() {
  uint64_t seen = 0;
  for (;;) {
    for (int i = 0; i < kSpins && round.load(std::memory_order_relaxed) == seen; ++i) relax();
    std::unique_lock lock(mutex);
    wake.wait(lock, [&] { return stop || round.load(std::memory_order_relaxed) != seen; });
    if (stop) return;
    seen = round.load(std::memory_order_relaxed);
    if (!places) continue;
    --places, ++active;
    const int32_t worker = ++joined;
    host::Pool::Job* mine = job;
    lock.unlock();
    mine->work(worker);
    lock.lock();
    if (!--active) done.notify_one();
  }
}

namespace host {

void Pool::Job::work(int32_t worker) noexcept {
  while (!failed.load(std::memory_order_relaxed)) {
    const int64_t i = next.fetch_add(1, std::memory_order_relaxed);
    if (i >= count) return;
    try {
      call(body, i, worker);
    } catch (...) {
      if (!failed.exchange(true)) error = std::current_exception();
    }
  }
}

Pool::Pool() = default;
Pool::~Pool() {
  stop();
}

void Pool::set_threads(int32_t threads) {
  if (threads == threads_) return;
  stop();
  threads_ = threads;
}

void Pool::start() {
  // After a fork the child has the object but none of its threads, and a mutex in any state.
  if (crew_ && process_ != getpid()) static_cast<void>(crew_.release());
  if (crew_) return;
  crew_ = std::make_unique<Crew>();
  process_ = getpid();
  // Signals are the host program's: its handlers must not run on our threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    for (int32_t i = 1; i < threads_; ++i) crew_->threads.emplace_back(&Crew::serve, crew_.get());
  } catch (const std::system_error&) {
    // The system's limit is reached: the threads there are do the work.
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Pool::stop() noexcept {
  if (!crew_) return;
  if (process_ != getpid()) {
    static_cast<void>(crew_.release());
    return;
  }
  {
    std::lock_guard lock(crew_->mutex);
    crew_->stop = true;
  }
  crew_->wake.notify_all();
  for (std::thread& thread : crew_->threads) thread.join();
  crew_.reset();
}

void Pool::run(Job& job) {
  start();
  Crew& crew = *crew_;
  {
    std::lock_guard lock(crew.mutex);
    crew.job = &job;
    crew.places = job.count - 1;
    crew.joined = 0;
    crew.round.fetch_add(1, std::memory_order_relaxed);
  }
  crew.wake.notify_all();
  job.work(0);
  {
    std::unique_lock lock(crew.mutex);
    crew.places = 0;
    crew.done.wait(lock, [&] { return crew.active == 0; });
    crew.job = nullptr;
  }
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace host
}  // namespace fovea
