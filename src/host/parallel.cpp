// SPDX-License-Identifier: Apache-2.0
#include "host/parallel.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <new>
#include <vector>

#include "core/float_state.h"

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
  std::vector<pthread_t> threads;

  bool add_thread() noexcept;  // into room that `threads` has
  void serve();
};

namespace {

constexpr int kSpins = 100;  // some microseconds of watching for the next phase of an operation
// Eight times what an operation needs.  The system's default follows the host program's limit.
constexpr size_t kStackBytes = 256 * 1024;

// Signals are the host program's: its handlers must not run on our threads, which inherit the mask.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

bool Crew::add_thread() noexcept {
  const auto entry = [](void* crew) -> void* {
    static_cast<Crew*>(crew)->serve();
    return nullptr;
  };
  pthread_attr_t sized;
  if (pthread_attr_init(&sized)) return false;
  pthread_attr_setstacksize(&sized, kStackBytes);
  pthread_t thread;
  int error = pthread_create(&thread, &sized, entry, this);
  // A program with much thread-local data needs larger stacks: its default has room.
  if (error == EINVAL) error = pthread_create(&thread, nullptr, entry, this);
  pthread_attr_destroy(&sized);
  if (!error) threads.push_back(thread);
  return !error;
}

void Crew::serve() {
  FloatState::set_default();
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

Crew* Pool::start() noexcept {
  // After a fork the child has the object but none of its threads, and a mutex in any state.
  if (crew_ && process_ != getpid()) static_cast<void>(crew_.release());
  if (crew_) return crew_.get();
  try {
    auto crew = std::make_unique<Crew>();
    crew->threads.reserve(static_cast<size_t>(threads_) - 1);
    crew_ = std::move(crew);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  process_ = getpid();
  const SignalsBlocked blocked;
  // At the system's limit the threads there are do the work.
  for (int32_t i = 1; i < threads_ && crew_->add_thread(); ++i) {
  }
  return crew_.get();
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
  for (const pthread_t thread : crew_->threads) pthread_join(thread, nullptr);
  crew_.reset();
}

void Pool::run(Job& job) {
  Crew* const started = start();
  if (!started) {
    job.work(0);
    if (job.error) std::rethrow_exception(job.error);
    return;
  }
  Crew& crew = *started;
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
