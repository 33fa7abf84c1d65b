#include "emu.h"
#include <cuda.h>
#define FOVEA_BUILDING
#include "ops/gla/backward_keys_sm90.cu"
#undef FOVEA_INSTANCE
#include "ops/gla/backward_keys_sm90.cuh"
#include <chrono>
Dim blockIdx{0}, gridDim{1}, blockDim{1};
namespace fovea::cuda { alignas(1024) unsigned char shared[232448]; inline unsigned char* emu_shared() { return shared; }
namespace sm90 { std::map<uint32_t, Bar> bars; } }
namespace emu {
Fiber* now; uint64_t progress; Group warps[16], wgs[4], named[8], all;
static Fiber fibers[512]; static unsigned count; static void* main_sp; static void (*body_)(void*); static void* arg_;
extern "C" void emu_swap(void** from, void* to);
asm(".text\n.globl emu_swap\nemu_swap:\npush %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\nmov %rsp,(%rdi)\nmov %rsi,%rsp\npop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");
static unsigned alive;
static void next() {  // round robin
  unsigned i = now - fibers; Fiber* old = now;
  static const int mode = getenv("SCHED") ? atoi(getenv("SCHED")) : 0;  // 0: in turn; else by chance
  static uint64_t seed = 88172645463325252ull + mode;
  static unsigned burst = 0, low = 0;
  if (!mode) do i = i + 1 == count ? 0 : i + 1; while (fibers[i].done && alive);
  else {  // some warps run far ahead
    if (burst == 0) { seed ^= seed << 13; seed ^= seed >> 7; seed ^= seed << 17; low = seed % (count / 32) * 32; burst = 32 * (1 + seed / 1000 % 40); }
    --burst;
    i = low + (i + 1) % 32; unsigned tries = 0;
    while (fibers[i].done && alive) { i = low + (i + 1) % 32; if (++tries == 32) { low = (low + 32) % count; i = low; tries = 0; } }
  }
  if (!alive) { void* sp; emu_swap(&sp, main_sp); }
  if (&fibers[i] == old) return;
  now = &fibers[i]; emu_swap(&old->sp, now->sp);
}
static uint64_t seen, idle;
void yield() {
  if (progress != seen) seen = progress, idle = 0;
  if (++idle > 20000u * count) { std::puts("deadlock"); for (int w = 0; w < 16; ++w) std::printf("warp %d waits %d\n", w, warps[w].count);
    for (int i = 0; i < 8; ++i) std::printf("named %d %d/%d\n", i, named[i].count, named[i].size); std::printf("all %d/%d\n", all.count, all.size); std::abort(); }
  next();
}
static void entry() { body_(arg_); now->done = true; --alive; ++progress; next(); std::abort(); }
void run(unsigned grid, unsigned threads, size_t bytes, void (*body)(void*), void* arg) {
  if (bytes > 227 * 1024) { std::puts("too much shared memory"); std::abort(); }
  gridDim.x = grid, blockDim.x = threads, count = threads, body_ = body, arg_ = arg;
  for (unsigned b = 0; b < grid; ++b) {
    blockIdx.x = b; fovea::cuda::sm90::bars.clear(); std::memset(fovea::cuda::shared, 0xff, sizeof fovea::cuda::shared);
    for (auto& w : warps) w = {}, w.size = 32; for (auto& w : wgs) w = {}, w.size = 128; for (auto& n : named) n = {}; all = {}; all.size = threads;
    for (unsigned i = 0; i < threads; ++i) {
      Fiber& f = fibers[i]; f.tid = {i}; f.done = false; if (!f.stack) f.stack = (char*)aligned_alloc(64, 1 << 18);
      void** sp = (void**)(f.stack + (1 << 18) - 64); *--sp = nullptr; *--sp = (void*)entry; for (int k = 0; k < 6; ++k) *--sp = nullptr; f.sp = sp; }
    alive = threads; now = &fibers[0]; emu_swap(&main_sp, now->sp);
  }
}
}
namespace fovea::cuda {
static DeviceInfo info;
const DeviceInfo& device_info(int) { info.arch = 90, info.multiprocessors = 3; return info; }
const DeviceInfo& device_info(const Context&) { info.arch = 90, info.multiprocessors = 3; return info; }
Text map_each(std::initializer_list<Copied> copied) {
  for (const Copied& c : copied) { const MapOf& m = c.of;
    const int64_t e[3] = {m.batch, m.row, m.head}; if (!in_pieces(m.tensor, e, 8)) return reason_rows(c.name);
    c.map = {static_cast<const uint16_t*>(m.tensor.data), {m.tensor.stride[0], m.tensor.stride[1], m.tensor.stride[2], m.tensor.stride[3]}, {m.batch, m.row, m.head, m.column}, m.rows}; }
  return ""; }
int64_t recur_sums(const RecurBackward&) { return 1; }
void add_recur_terms(Context&, const char*, const RecurBackward& b, double*) {
  each_gradient(b, [&](RecurGradient what) {
    const RecurBackward::Extents n = b.extents(what); const auto& out = b.output(what);
    std::map<std::array<int64_t, 4>, double> sums; int64_t i[4];
    for (i[0] = 0; i[0] < n.n[0]; ++i[0]) for (i[1] = 0; i[1] < n.n[1]; ++i[1]) for (i[2] = 0; i[2] < n.n[2]; ++i[2]) for (i[3] = 0; i[3] < n.n[3]; ++i[3]) {
      std::array<int64_t, 4> at; for (int k = 0; k < 4; ++k) at[k] = out.view.stride[k] ? i[k] : 0;
      sums[at] += b.term(what, i[0], i[1], i[2], i[3]); }
    for (auto& [at, x] : sums) out.store((float)x, at[0], at[1], at[2], at[3]); });
}

}
#include "emu_instances.h"
fovea::Text emu_offer(const fovea::Context& ctx, const fovea::RecurBackward& b, fovea::Plan& plan) { return fovea::gla_backward_keys_sm90.offer(ctx, b, plan); }
