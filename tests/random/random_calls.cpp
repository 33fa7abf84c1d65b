// SPDX-License-Identifier: Apache-2.0
// Random calls of every operation on every backend, from the contract table.  Of each call:
//   the query and the run give the same answer, and a refusal has a sentence that begins with the
//   op; no byte changes but those of outputs: guards around tensors and workspace, gaps, inputs;
//   two runs give the same bits, though all that no tensor names and what outputs and workspace
//   held before differ between them;
//   on CUDA the values are the host's, within rounding (one call in eight, finite inputs alone);
//   a call whose n-th `operator new` fails (one in eight) says so and has changed no byte.
//
//   FOVEA_RANDOM_CALLS=1000000    calls that run, for each backend (100000; sanitized builds 10000)
//   FOVEA_RANDOM_THREADS=16       threads, each with a context of its own (2)
//   FOVEA_RANDOM_SEED=123         that call alone, printed; a failure names it
//   FOVEA_RANDOM_FIRST=1000000    first seed (1)
//   FOVEA_RANDOM_WAIT=20          seconds until a call is taken for one that hangs (120)
//   FOVEA_RANDOM_OP=kl_           operations whose names begin so
//   FOVEA_RANDOM_EXACT=1          each tensor in an allocation of its own, without guards, once:
//   for
//                                 compute-sanitizer, which then sees each byte past an end
//   FOVEA_RANDOM_REFUSED=1        count the refusals by sentence
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <mutex>
#include <set>
#include <thread>

#include "harness/cases.h"
#include "random/allocations.h"
#include "random/draw.h"

namespace random_calls {
namespace {

int64_t environment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atoll(text) : otherwise;
}

constexpr int64_t kWorkspaceMost = 8 << 20;   // larger ones are the context's own, unguarded
constexpr uint8_t kPoison[2] = {0xff, 0x41};  // NaN or -1 in every type; numbers, absurd integers

enum Cover : uint8_t { kNothing, kInput, kOutput, kUpdated };

// Which call a thread is in: for whoever reports a crash or a hang.
struct Progress {
  std::atomic<uint64_t> seed{0};
  std::atomic<int64_t> since{0};
};
Progress progress[64];
thread_local int own_thread = 0;

void say(const char* what, uint64_t seed) {
  char text[128];
  const int n = std::snprintf(text, sizeof text, "\n%s in FOVEA_RANDOM_SEED=%llu\n", what,
                              static_cast<unsigned long long>(seed));
  if (write(2, text, static_cast<size_t>(n)) != n) return;
}
void on_signal(int number) {
  say(strsignal(number), progress[own_thread].seed);
  signal(number, SIG_DFL);
  raise(number);
}

int64_t now() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::string describe(const Call& call) {
  std::ostringstream out;
  out << call.op->name << " FOVEA_RANDOM_SEED=" << call.seed;
  for (const Tensor& x : call.tensors) {
    out << "\n  " << x.field->name << " dtype " << x.view.dtype << " (";
    for (int i = 0; i < x.view.ndim; ++i) out << (i ? ", " : "") << x.view.shape[i];
    out << ") strides (";
    for (int i = 0; i < x.view.ndim; ++i) out << (i ? ", " : "") << x.view.stride[i];
    out << ") at " << x.at;
    if (x.shares >= 0) out << ", memory of " << call.tensors[x.shares].field->name;
  }
  for (const Field& f : call.op->fields) {
    const char* at = call.params() + f.offset;
    if (f.kind == contract::i64)
      out << "\n  " << f.name << " " << *reinterpret_cast<const int64_t*>(at);
    if (f.kind == contract::i32)
      out << "\n  " << f.name << " " << *reinterpret_cast<const int32_t*>(at);
    if (f.kind == contract::f32)
      out << "\n  " << f.name << " " << *reinterpret_cast<const float*>(at);
  }
  return out.str();
}

struct Totals {
  std::mutex mutex;
  std::map<std::string, int64_t> ran, drawn;
  std::map<std::string, int64_t> refused;
  int64_t compared = 0;
  std::vector<std::string> failures;
};

// Bytes whose first lies where a tensor may.
class AlignedBytes {
 public:
  void assign(size_t size, uint8_t value) {
    room_.assign(size + kGuard, value);
    shift_ = static_cast<size_t>(-reinterpret_cast<uintptr_t>(room_.data()) & (kGuard - 1));
  }
  uint8_t* data() { return room_.data() + shift_; }
  uint8_t& operator[](int64_t i) { return data()[i]; }

 private:
  std::vector<uint8_t> room_;
  size_t shift_ = 0;
};

// One thread's context and memory.
class Runner {
 public:
  Runner(fovea_backend backend, Totals& totals, Budget budget)
      : ctx_(backend),
        totals_(totals),
        budget_(budget),
        room_(budget.bytes + kWorkspaceMost + 8 * kGuard),
        arena_(ctx_, static_cast<size_t>(room_)) {
    if (backend == FOVEA_CUDA) {
      host_ = std::make_unique<harness::Context>(FOVEA_HOST);
      harness::must(fovea_context_set_threads(*host_, 1), "set_threads");
      void* pinned = nullptr;
      harness::must(fovea_alloc(ctx_, FOVEA_MEMORY_HOST, static_cast<size_t>(room_), &pinned),
                    "alloc");
      staging_ = static_cast<uint8_t*>(pinned);
    } else {
      own_staging_.resize(static_cast<size_t>(room_));
      staging_ = own_staging_.data();
    }
  }
  ~Runner() {
    if (own_staging_.empty()) fovea_free(ctx_, staging_);
  }

  // Whether the call ran.
  bool run(const Op& op, uint64_t seed, bool print) {
    call_ = Draw(op, seed, budget_).make();
    if (print) std::printf("%s\n", describe(call_).c_str()), std::fflush(stdout);
    prepare();
    const bool compared = host_ && seed % 8 == 0 && call_.tame && !wild();
    if (compared) run_forward(image_.data());
    point(base());
    if (ctx_.backend == FOVEA_HOST)
      harness::must(fovea_context_set_threads(ctx_, 1 + static_cast<int>(seed / 512 % 2)),
                    "set_threads");
    size_t bytes = 0;
    const fovea_status asked = op.query(ctx_, call_.params(), &bytes);
    sentence(asked, "query");
    if (asked != FOVEA_OK) {
      refused_ = fovea_last_error();
      if (print) std::printf("%s\n", refused_.c_str());
      const fovea_status ran = op.call(ctx_, call_.params());
      if (ran != asked || refused_ != fovea_last_error())
        failed("the query answers " + refused_ + "; the run " + fovea_last_error());
      return false;
    }
    refused_.clear();
    const int64_t work = static_cast<int64_t>(bytes);
    if (seed % 8 == 1) short_of_memory(work);
    for (int i = 0; i < 2; ++i) {
      if (!once(i, work, i == 0 || seed % 4 != 0)) return true;
      if (print) std::printf("%s\n", fovea_context_last_kernel(ctx_));
    }
    if (!call_.bits_may_differ) same_bits();
    if (compared && call_.tame) same_values();
    return true;
  }
  const std::string& refused() const { return refused_; }
  bool exact(const Op& op, uint64_t seed, bool print);

 private:
  void point(uint8_t* arena) {
    for (Tensor& x : call_.tensors) call_.slot(x).data = x.null ? nullptr : arena + x.at;
  }
  // Whether rounding decides what is computed: large scores, a slope times a position of 2^31, or
  // what a family says.
  bool wild() const {
    bool slopes = false, places = false, rough = false;
    for (const Tensor& x : call_.tensors) {
      slopes |= x.field->name == "alibi";
      places |= x.field->name == "query_position" || x.field->name == "key_position";
    }
    each_facts(*call_.op, [&](const Facts& f) { rough = rough || (f.rough && f.rough(call_)); });
    if ((slopes && places) || rough) return true;
    for (const Field& f : call_.op->fields)
      if (f.kind == contract::f32 && f.name.find("scale") == 0 &&
          *reinterpret_cast<const float*>(call_.params() + f.offset) > 1)
        return true;
    return false;
  }
  uint8_t* base() const { return static_cast<uint8_t*>(arena_.data); }
  void failed(const std::string& what) {
    std::lock_guard lock(totals_.mutex);
    totals_.failures.push_back(what + "\n" + describe(call_));
  }
  void sentence(fovea_status status, const char* step) {
    const std::string text = fovea_last_error(), begin = std::string(call_.op->name) + ": ";
    const std::string named = std::string(call_.op->name) + " on cuda: ";  // no kernel takes it
    const bool right = status == FOVEA_OK
                           ? text.empty()
                           : status <= FOVEA_OUT_OF_MEMORY &&
                                 (text.rfind(begin, 0) == 0 || text.rfind(named, 0) == 0);
    if (!right) failed(std::string(step) + " answers " + fovea_status_name(status) + ": " + text);
  }

  // The image of all inputs, and what every byte of the arena is to the call.
  void prepare() {
    const auto size = static_cast<size_t>(call_.bytes);
    image_.assign(size, 0), cover_.assign(size, kNothing);
    fill(call_, image_.data());
    for (const Tensor& x : call_.tensors) {
      const uint8_t what = !x.field->output           ? kInput
                           : x.input || x.shares >= 0 ? kUpdated
                                                      : kOutput;
      const int64_t bytes = oracle::bytes_of(x.view.dtype);
      each_element(x.view, [&](const auto&, int64_t at) {
        uint8_t* cover = cover_.data() + x.at + at * bytes;
        if (*cover < what) std::memset(cover, what, static_cast<size_t>(bytes));
      });
    }
  }

  // Uploads; `given`: with a workspace of exactly the bytes asked for.  The end of the arena in
  // use.
  int64_t upload(int way, int64_t work, bool given) {
    const int64_t bytes = call_.bytes;
    const int64_t end = given ? bytes + (work + kGuard - 1) / kGuard * kGuard + kGuard : bytes;
    for (int64_t i = 0; i < bytes; ++i) staging_[i] = cover_[i] & kInput ? image_[i] : kPoison[way];
    std::memset(staging_ + bytes, kPoison[way], static_cast<size_t>(end - bytes));
    harness::must(fovea_copy(ctx_, base(), staging_, static_cast<size_t>(end)), "copy");
    harness::must(fovea_context_set_workspace(ctx_, given && work ? base() + bytes : nullptr,
                                              given ? static_cast<size_t>(work) : 0),
                  "set_workspace");
    return end;
  }

  void download(int64_t end) {
    if (fovea_copy(ctx_, staging_, base(), static_cast<size_t>(end)) == FOVEA_OK &&
        fovea_context_synchronize(ctx_) == FOVEA_OK)
      return;
    failed(std::string("the device failed: ") + fovea_last_error());
    throw std::runtime_error("the device failed");
  }

  // The call with one allocation that fails, if it makes so many.
  void short_of_memory(int64_t work) {
    if (work > kWorkspaceMost) return;
    upload(0, work, true);
    news_left = static_cast<int64_t>(harness::hash(call_.seed) % 24);
    const fovea_status status = call_.op->call(ctx_, call_.params());
    const bool met = news_left < 0;
    news_left = -1;
    sentence(status, "a run short of memory");
    if (status == FOVEA_OK) return;
    if (status != FOVEA_OUT_OF_MEMORY || !met)
      failed(std::string("short of memory, the run answers ") + fovea_last_error());
    download(call_.bytes);
    for (int64_t i = 0; i < call_.bytes; ++i)
      if (staging_[i] != (cover_[i] & kInput ? image_[i] : kPoison[0]))
        return failed("a run short of memory has changed byte " + std::to_string(i));
  }

  // Uploads, runs and reads back.
  bool once(int way, int64_t work, bool given) {
    const int64_t bytes = call_.bytes;
    given = given && work <= kWorkspaceMost;
    const int64_t end = upload(way, work, given);
    const fovea_status status = call_.op->call(ctx_, call_.params());
    sentence(status, "run");
    if (status != FOVEA_OK)
      failed(std::string("the query answers FOVEA_OK, the run ") + fovea_last_error());
    download(end);
    if (status != FOVEA_OK) return false;
    after_[way].assign(staging_, staging_ + bytes);
    unchanged(way, given ? bytes + work : bytes, end);
    return true;
  }

  void unchanged(int way, int64_t work_end, int64_t end) {
    const uint8_t poison = kPoison[way];
    for (int64_t i = 0; i < call_.bytes; ++i) {
      if (cover_[i] & kOutput) continue;
      const uint8_t wanted = cover_[i] == kInput ? image_[i] : poison;
      if (staging_[i] == wanted) continue;
      return failed("byte " + std::to_string(i) +
                    (cover_[i] == kInput ? ", an input," : ", which no tensor names,") +
                    " was changed");
    }
    for (int64_t i = work_end; i < end; ++i)
      if (staging_[i] != poison)
        return failed("byte " + std::to_string(i - work_end) + " behind the workspace was changed");
  }

  // Bits, but for what neither run wrote, and NaN of any sign.
  void same_bits() {
    if (after_[0].size() != after_[1].size()) return;
    for (const Tensor& x : call_.tensors) {
      if (!x.field->output) continue;
      const int64_t size = oracle::bytes_of(x.view.dtype);
      int64_t number = 0, wrong = -1;
      each_element(x.view, [&](const auto&, int64_t at) {
        const uint8_t *a = after_[0].data() + x.at + at * size,
                      *b = after_[1].data() + x.at + at * size;
        const int64_t i = number++;
        if (wrong >= 0 || !std::memcmp(a, b, static_cast<size_t>(size))) return;
        bool unwritten = true;
        for (int64_t n = 0; n < size; ++n) unwritten &= a[n] == kPoison[0] && b[n] == kPoison[1];
        if (unwritten) return;
        if (oracle::is_float(x.view.dtype) && std::isnan(oracle::decode(x.view.dtype, a)) &&
            std::isnan(oracle::decode(x.view.dtype, b)))
          return;
        wrong = i;
      });
      if (wrong >= 0)
        return failed(x.field->name + ": element " + std::to_string(wrong) +
                      " differs between runs, " + fovea_context_last_kernel(ctx_));
    }
  }

  void same_values();
  void run_forward(uint8_t* arena);

  harness::Context ctx_;
  Totals& totals_;
  const Budget budget_;
  const int64_t room_;
  harness::Memory arena_;
  std::unique_ptr<harness::Context> host_;
  std::vector<uint8_t> own_staging_;
  uint8_t* staging_ = nullptr;
  Call call_;
  std::string refused_;
  AlignedBytes image_;
  std::vector<uint8_t> cover_, after_[2];
};

// What a backward reads of its forward (o, lse, ...), computed by the host: arbitrary numbers in
// their place would make exp(score - lse) anything.  All fields of one name are one thing.
void Runner::run_forward(uint8_t* arena) {
  std::string name = call_.op->name;
  const size_t at = name.find("_backward");
  if (at == std::string::npos) return;
  name.replace(at, 9, "_forward");
  const Op* forward = nullptr;
  for (const Op& op : contract::ops())
    if (name == op.name) forward = &op;
  if (!forward) return;
  contract::Params params(*forward);
  std::vector<std::vector<uint64_t>> spare;
  point(arena);
  for (const Field& f : forward->fields) {
    const Field* mine = call_.op->find(f.name);
    if (mine && mine->kind == f.kind && f.kind != contract::size) {
      const size_t bytes = f.kind == contract::tensor ? sizeof(fovea_tensor)
                           : f.kind == contract::i64  ? 8
                                                      : 4;
      std::memcpy(&params.at<char>(f.offset), call_.params() + mine->offset, bytes);
    } else if (f.required) {  // an output that the backward does not read: shaped as its gradient
      const Field* gradient = call_.op->find(call_.op->find("dout") ? "dout" : "d" + f.name);
      fovea_tensor& o = params[f.name];
      o = *reinterpret_cast<fovea_tensor*>(call_.params() + gradient->offset);
      spare.emplace_back(1 + elements_of(o));
      o = fovea_contiguous(spare.back().data(), static_cast<fovea_dtype>(o.dtype), o.ndim, o.shape);
    }
  }
  if (forward->call(*host_, params.data()) != FOVEA_OK) call_.tame = false;  // a stride of 0, say
}

// Whether a row has one key at most, by what the call says without its lengths.
bool one_key(const Call& call) {
  const Field* most = call.op->find("key_max");
  if (most && *reinterpret_cast<const int64_t*>(call.params() + most->offset) == 1) return true;
  return std::any_of(call.tensors.begin(), call.tensors.end(), [](const Tensor& x) {
    return (x.field->name == "k" || x.field->name == "a_k") && x.view.shape[1] == 1;
  });
}

// With one key a score's gradient is 0: what a backend gives for it, and for what is summed from
// it, is the rounding of exp(score - lse).
bool of_rounding(const Call& call, const std::string& output) {
  static const std::set<std::string> sums = {"dq",   "dk",   "dbias", "dweight", "dmix_before",
                                             "da_q", "db_q", "da_k",  "db_k"};
  return sums.count(output) && one_key(call);
}

// The square of how far apart outputs may be, beside their own.  Weights of 4 bits differ by a
// third where backends meet the keys of a row in other tiles, and so round them under other maxima.
double share_of(const Call& call) {
  const Field* format = call.op->find("p_format");
  const int32_t p = format ? *reinterpret_cast<const int32_t*>(call.params() + format->offset) : 0;
  return p == FOVEA_P_FORMAT_E2M1_TWO || p == FOVEA_P_FORMAT_E2M1_ONE ? 0.06 : 0.01;
}

// The host's answer to the same call: each output within a tenth of its own size in the mean.
// Coarse on purpose: what rounding allows is conformance's to say; this finds another function.
void Runner::same_values() {
  AlignedBytes bytes;
  bytes.assign(static_cast<size_t>(call_.bytes), kPoison[1]);
  uint8_t* at = bytes.data();
  for (int64_t i = 0; i < call_.bytes; ++i)
    if (cover_[i] & kInput) at[i] = image_[i];
  point(at);
  if (call_.op->call(*host_, call_.params()) != FOVEA_OK)
    return failed(std::string("CUDA runs what the host refuses: ") + fovea_last_error());
  for (const Tensor& x : call_.tensors) {
    if (!x.field->output || !oracle::is_float(x.view.dtype)) continue;
    if (of_rounding(call_, x.field->name)) continue;
    const int64_t size = oracle::bytes_of(x.view.dtype);
    double apart = 0, whole = 0, count = 0;
    bool finite = true;
    each_element(x.view, [&](const auto&, int64_t i) {
      const double a = oracle::decode(x.view.dtype, after_[1].data() + x.at + i * size);
      const double b = oracle::decode(x.view.dtype, at + x.at + i * size);
      if (a == b || (std::isnan(a) && std::isnan(b))) return;
      finite &= std::isfinite(a) && std::isfinite(b);
      apart += (a - b) * (a - b), whole += a * a + b * b, ++count;
    });
    // A gradient of nothing is rounding: 0.01 an element.
    if (!finite || apart <= share_of(call_) * whole + 1e-4 * count) continue;
    return failed(x.field->name + " is not the host's: " + std::to_string(std::sqrt(apart)) +
                  " of " + std::to_string(std::sqrt(whole)) + ", " +
                  fovea_context_last_kernel(ctx_));
  }
  std::lock_guard lock(totals_.mutex);
  ++totals_.compared;
}

// Tensors and workspace in allocations that end where they end.
bool Runner::exact(const Op& op, uint64_t seed, bool print) {
  call_ = Draw(op, seed, budget_).make();
  if (print) std::printf("%s\n", describe(call_).c_str()), std::fflush(stdout);
  prepare();
  std::vector<std::unique_ptr<harness::Memory>> memory;
  for (Tensor& x : call_.tensors) {
    memory.emplace_back();
    if (x.shares >= 0) continue;
    const int64_t lead = x.at % kGuard;
    memory.back() = std::make_unique<harness::Memory>(
        ctx_, static_cast<size_t>(std::max<int64_t>(1, lead + x.span)));
    call_.slot(x).data = static_cast<uint8_t*>(memory.back()->data) + lead;
  }
  for (Tensor& x : call_.tensors)
    if (x.shares >= 0) call_.slot(x).data = call_.slot(call_.tensors[x.shares]).data;
  size_t bytes = 0;
  if (op.query(ctx_, call_.params(), &bytes) != FOVEA_OK ||
      bytes > static_cast<size_t>(kWorkspaceMost))
    return false;
  for (size_t i = 0; i < call_.tensors.size(); ++i) {
    const Tensor& x = call_.tensors[i];
    if (!memory[i] || !x.span || !x.input) continue;
    harness::must(
        fovea_copy(ctx_, call_.slot(x).data, image_.data() + x.at, static_cast<size_t>(x.span)),
        "copy");
  }
  std::unique_ptr<harness::Memory> workspace;
  if (bytes) {
    workspace = std::make_unique<harness::Memory>(ctx_, bytes);
    harness::must(fovea_context_set_workspace(ctx_, workspace->data, bytes), "set_workspace");
  }
  const fovea_status status = op.call(ctx_, call_.params());
  if (status != FOVEA_OK) failed(std::string("the run answers ") + fovea_last_error());
  if (fovea_context_synchronize(ctx_) != FOVEA_OK) {
    failed(std::string("the device failed: ") + fovea_last_error());
    throw std::runtime_error("the device failed");
  }
  harness::must(fovea_context_set_workspace(ctx_, nullptr, 0), "set_workspace");
  return true;
}

// Without those of which no call is served, tests/unsupported.txt.
std::vector<const Op*> chosen_ops(fovea_backend backend) {
  const char* prefix = std::getenv("FOVEA_RANDOM_OP");
  std::vector<const Op*> list;
  for (const Op& op : contract::ops())
    if ((!prefix || !std::strncmp(op.name, prefix, std::strlen(prefix))) &&
        !harness::unsupported_is_allowed(std::string(harness::name_of(backend)) + " " + op.name +
                                         "/"))
      list.push_back(&op);
  return list;
}

class Campaign {
 public:
  explicit Campaign(fovea_backend backend) : backend_(backend), ops_(chosen_ops(backend)) {}

  void run() {
    if (ops_.empty()) return;
    const int64_t one = environment("FOVEA_RANDOM_SEED", -1);
    const int threads =
        one >= 0
            ? 1
            : static_cast<int>(std::clamp<int64_t>(environment("FOVEA_RANDOM_THREADS", 2), 1, 63));
    wanted_ =
        one >= 0 ? 1 : environment("FOVEA_RANDOM_CALLS", harness::sanitized() ? 10000 : 100000);
    next_ = static_cast<uint64_t>(one >= 0 ? one : environment("FOVEA_RANDOM_FIRST", 1));
    for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGILL}) signal(number, on_signal);
    std::atomic<bool> over{false};
    const int64_t patience = environment("FOVEA_RANDOM_WAIT", 120);
    std::thread watch([&] {
      while (!over) {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        bool hangs = false;
        for (const Progress& p : progress) hangs |= p.since && now() - p.since > patience;
        if (!hangs) continue;
        // On a GPU the others may only be waiting for the one that hangs.
        for (const Progress& p : progress)
          if (p.since) say("a call has not ended", p.seed);
        std::abort();
      }
    });
    std::vector<std::thread> crew;
    const auto began = std::chrono::steady_clock::now();
    for (int i = 0; i < threads; ++i) crew.emplace_back([this, i, one] { work(i, one >= 0); });
    for (std::thread& t : crew) t.join();
    over = true;
    watch.join();
    report(std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(),
           one >= 0);
  }

 private:
  void work(int thread, bool one) {
    own_thread = thread + 1;
    Progress& mine = progress[own_thread];
    const bool exact = environment("FOVEA_RANDOM_EXACT", 0),
               count = environment("FOVEA_RANDOM_REFUSED", 0);
    const Budget budget = backend_ == FOVEA_HOST ? Budget{4e5, 1 << 20} : Budget{3e7, 4 << 20};
    std::map<std::string, int64_t> drawn, ran, refused;
    try {
      Runner runner(backend_, totals_, budget);
      while (ran_ < wanted_ && !stop_) {
        const uint64_t seed = next_++;
        mine.seed = seed, mine.since = now();
        const Op& op = *ops_[harness::hash(seed) % ops_.size()];
        ++drawn[op.name];
        if (exact ? runner.exact(op, seed, one) : runner.run(op, seed, one)) {
          ++ran[op.name], ++ran_;
        } else if (count) {
          ++refused[runner.refused()];
        }
        if (one) break;
        std::lock_guard lock(totals_.mutex);
        if (totals_.failures.size() >= 20) stop_ = true;
      }
    } catch (const std::exception& e) {
      stop_ = true;
      std::lock_guard lock(totals_.mutex);
      totals_.failures.push_back(std::string(e.what()) +
                                 " in FOVEA_RANDOM_SEED=" + std::to_string(mine.seed));
    }
    mine.since = 0;
    std::lock_guard lock(totals_.mutex);
    for (const auto& [name, n] : drawn) totals_.drawn[name] += n;
    for (const auto& [name, n] : ran) totals_.ran[name] += n;
    for (const auto& [name, n] : refused) totals_.refused[name] += n;
  }

  void report(double seconds, bool one) {
    for (const std::string& failure : totals_.failures) ADD_FAILURE() << failure;
    if (one) return;
    int64_t ran = 0, drawn = 0;
    for (const Op* op : ops_) {
      ran += totals_.ran[op->name], drawn += totals_.drawn[op->name];
      // A generator that is refused throughout tests nothing.
      if (totals_.failures.empty() && totals_.drawn[op->name] >= 50) {
        EXPECT_GE(totals_.ran[op->name] * 4, totals_.drawn[op->name]) << op->name;
      }
    }
    std::vector<std::pair<int64_t, std::string>> sentences;
    for (const auto& [text, n] : totals_.refused) sentences.push_back({n, text});
    std::sort(sentences.rbegin(), sentences.rend());
    for (size_t i = 0; i < std::min<size_t>(60, sentences.size()); ++i)
      std::printf("%6lld %s\n", static_cast<long long>(sentences[i].first),
                  sentences[i].second.c_str());
    std::printf(
        "%s: %lld calls drawn, %lld ran, %lld beside the host's, %zu failures, %.0f s; least: ",
        harness::name_of(backend_), static_cast<long long>(drawn), static_cast<long long>(ran),
        static_cast<long long>(totals_.compared), totals_.failures.size(), seconds);
    std::string least;
    double share = 2;
    for (const Op* op : ops_)
      if (const double s = static_cast<double>(totals_.ran[op->name]) /
                           static_cast<double>(std::max<int64_t>(1, totals_.drawn[op->name]));
          s < share)
        share = s, least = op->name;
    std::printf("%s, %.0f %% of its calls ran\n", least.c_str(), 100 * share);
  }

  const fovea_backend backend_;
  const std::vector<const Op*> ops_;
  Totals totals_;
  std::atomic<int64_t> ran_{0};
  int64_t wanted_ = 0;
  std::atomic<uint64_t> next_{1};
  std::atomic<bool> stop_{false};
};

TEST(random_calls, host) {
  Campaign(FOVEA_HOST).run();
}

TEST(random_calls, cuda) {
  int32_t count = 0;
  harness::must(fovea_device_count(FOVEA_CUDA, &count), "device_count");
  if (!count) GTEST_SKIP() << "no CUDA device here";
  Campaign(FOVEA_CUDA).run();
}

}  // namespace
}  // namespace random_calls
