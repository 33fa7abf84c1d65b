#include "fake.h"

#include <ucontext.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "cuda/loop/recur.cu"
#include "cuda/loop/recur_forward.cuh"

namespace fovea::cuda {
alignas(1024) float s_stage[1 << 16], s_steps[1 << 16];
const DeviceInfo& device_info(const Context&) {
  static DeviceInfo info{"", 0, 90, 3, 232448, 233472, 0, true};
  return info;
}
}  // namespace fovea::cuda

namespace fake {
Index thread, block, block_dim, grid_dim;
int64_t launches;
namespace {
enum Wait { none, at_block, at_warp, ended };
struct Copy {
  uint32_t to;
  const void* from;
};
struct Fiber {
  ucontext_t context;
  std::vector<char> stack;
  Wait wait;
  uint64_t mine;
  std::vector<Copy> copies;
};
std::vector<std::unique_ptr<Fiber>> fibers;
ucontext_t scheduler;
Fiber* current;
uint64_t given[8][32];
std::function<void()>* running;
uint32_t chance = 1;
void yield(Wait wait) {
  Fiber* me = current;
  me->wait = wait;
  swapcontext(&me->context, &scheduler);
}
void enter() {
  (*running)();
  yield(ended);
}
}  // namespace
void sync_block() { yield(at_block); }
uint64_t* exchange(uint64_t mine) {
  current->mine = mine;
  const int warp = thread.x / 32;
  yield(at_warp);
  return given[warp];
}
uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(static_cast<const char*>(p) -
                               reinterpret_cast<char*>(fovea::cuda::s_steps));
}
void copy_async(uint32_t to, const void* from, bool valid) {
  char* place = reinterpret_cast<char*>(fovea::cuda::s_steps) + to;
  chance = chance * 1664525u + 1013904223u;
  if (!valid)
    std::memset(place, 0, 16);
  else if (chance >> 31)
    std::memcpy(place, from, 16);
  else
    current->copies.push_back({to, from});
}
void copy_wait() {
  for (const Copy& c : current->copies)
    std::memcpy(reinterpret_cast<char*>(fovea::cuda::s_steps) + c.to, c.from, 16);
  current->copies.clear();
}
void launch(int64_t work, int threads, int64_t bytes, std::function<void()> kernel) {
  ++launches;
  if (bytes > static_cast<int64_t>(sizeof(fovea::cuda::s_steps))) std::abort();
  running = &kernel;
  block_dim = {static_cast<uint32_t>(threads), 1, 1}, grid_dim = {static_cast<uint32_t>(work), 1, 1};
  while (fibers.size() < static_cast<size_t>(threads)) fibers.push_back(std::make_unique<Fiber>());
  for (int64_t b = 0; b < work; ++b) {
    block = {static_cast<uint32_t>(b), 0, 0};
    for (float& x : fovea::cuda::s_steps) x = NAN;
    for (float& x : fovea::cuda::s_stage) x = NAN;
    for (int i = 0; i < threads; ++i) {
      Fiber& f = *fibers[i];
      f.stack.resize(1 << 17), f.wait = none, f.copies.clear();
      getcontext(&f.context);
      f.context.uc_stack = {f.stack.data(), 0, f.stack.size()}, f.context.uc_link = nullptr;
      makecontext(&f.context, enter, 0);
    }
    for (;;) {
      int done = 0, barred = 0, ran = 0;
      for (int w = 0; w < threads / 32; ++w) {
        // A warp that runs ahead of others: warps are in another order each time.
        for (int i = 0; i < 32; ++i) {
          Fiber& f = *fibers[w * 32 + i];
          if (f.wait != none) continue;
          thread = {static_cast<uint32_t>(w * 32 + i), 0, 0}, current = &f;
          swapcontext(&scheduler, &f.context), ++ran;
        }
        int met = 0;
        for (int i = 0; i < 32; ++i) met += fibers[w * 32 + i]->wait == at_warp;
        if (met == 32)
          for (int i = 0; i < 32; ++i)
            given[w][i] = fibers[w * 32 + i]->mine, fibers[w * 32 + i]->wait = none, ++ran;
        for (int i = 0; i < 32; ++i)
          done += fibers[w * 32 + i]->wait == ended, barred += fibers[w * 32 + i]->wait == at_block;
      }
      if (done == threads) break;
      if (barred == threads) {
        for (int i = 0; i < threads; ++i) fibers[i]->wait = none;
      } else if (!ran) {
        std::puts("deadlock"), std::exit(2);
      }
    }
    for (int i = 0; i < threads; ++i)
      if (!fibers[i]->copies.empty()) std::puts("a copy is left"), std::exit(2);
  }
}
}  // namespace fake

using namespace fovea;

namespace {
std::mt19937 random_bits(1);
double normal() { return std::normal_distribution<double>()(random_bits); }

struct Tensor {
  std::vector<char> data;
  int32_t dtype = FOVEA_F32;
  std::vector<int64_t> shape;
  template <int N>
  Floats<N> view() {
    Floats<N> x{};
    x.view.data = data.data(), x.dtype = dtype;
    int64_t step = 1;
    for (int i = N - 1; i >= 0; --i) x.view.stride[i] = step, step *= shape[i];
    return x;
  }
  template <class F>
  void fill(std::vector<int64_t> s, int32_t type, F f) {
    shape = s, dtype = type;
    int64_t n = 1;
    for (int64_t x : s) n *= x;
    data.assign(static_cast<size_t>(n) * (type == FOVEA_F32 ? 4 : 2), 0);
    for (int64_t i = 0; i < n; ++i) store_fp(data.data(), type, i, static_cast<float>(f()));
  }
};

struct Case {
  Recurrence form = Recurrence::additive;
  int gate = 0;  // 1: head, 2: key
  int64_t b = 3, s = 1, h = 2, g = 2, x = 2, d = 128, e = 128;
  int32_t dtype = FOVEA_BF16, gate_type = FOVEA_F32;
  bool beta = false, norm = false, select = false, skip = false, erase = false, hard = false;
  bool reset = false, in_place = false, pool = false, snapshots = false, silent = false, no_state_out = false, no_o = false;
  int map = 0, gate_map = 0;
};

// The recurrence in float64, of one sequence and state head.
struct Exact {
  std::vector<double> h, o;
};

int run(const Case& c, const char* name) {
  Tensor q, k, v, o, gate_head, gate_key, beta, select, erase, low_a, low_b, state, out, snap, skip;
  const int64_t heads = std::max(c.g, c.x), heads_out = std::max(c.h, heads), slots = 2 * c.b + 2;
  q.fill({c.b, c.s, c.h, c.d}, c.dtype, normal), k.fill({c.b, c.s, c.g, c.d}, c.dtype, [&] { return normal() / std::sqrt(c.d); });
  v.fill({c.b, c.s, c.x, c.e}, c.dtype, normal);
  const auto gates = [&]() -> double {
    const int r = static_cast<int>(random_bits() % 40);
    if (c.hard && r == 0) return -HUGE_VAL;
    if (c.hard && r == 1) return -1e4;
    return c.gate_map ? normal() : -std::abs(normal()) / 4;
  };
  gate_head.fill({c.b, c.s, heads}, c.gate_type, gates);
  gate_key.fill({c.b, c.s, heads, c.d}, c.gate_type, gates);
  beta.fill({c.b, c.s, heads}, c.dtype, [] { return 1 / (1 + std::exp(-normal())); });
  select.fill({c.b, c.s, heads}, c.dtype, normal);
  const auto row = [&] { return normal() / std::sqrt(c.d); };
  erase.fill({c.b, c.s, heads, c.d}, c.dtype, row);
  low_a.fill({c.b, c.s, heads, c.d}, c.dtype, row), low_b.fill({c.b, c.s, heads, c.d}, c.dtype, row);
  state.fill({slots, heads, c.d, c.e}, FOVEA_F32, [&]() -> double { return c.reset ? (random_bits() % 2 ? NAN : -HUGE_VAL) : normal(); });
  if (c.reset)  // the first token of each sequence
    for (Tensor* x : {&gate_head, &gate_key})
      for (int64_t i = 0, n = x == &gate_head ? heads : heads * c.d; i < c.b; ++i)
        for (int64_t j = 0; j < n; ++j) store_fp(x->data.data(), x->dtype, i * c.s * n + j, -HUGE_VAL);
  skip.fill({heads, c.e}, FOVEA_F32, normal);
  o.fill({c.b, c.s, heads_out, c.e}, c.dtype, [] { return 7.; });
  out.fill({slots, heads, c.d, c.e}, FOVEA_F32, [] { return 7.; });
  snap.fill({c.b * c.s + 1, heads, c.d, c.e}, FOVEA_F32, [] { return 7.; });
  std::vector<int32_t> state_row, len, from, snapshot_row;
  for (int64_t i = 0; i < c.b; ++i) {
    state_row.push_back(i == 1 ? -1 : static_cast<int32_t>(2 * ((i + 2) % c.b) + 1));
    len.push_back(static_cast<int32_t>(i == 0 ? c.s : (i * 5) % (c.s + 1)));
    from.push_back(static_cast<int32_t>(i * 3 % 7));
    for (int64_t j = 0; j < c.s; ++j)
      snapshot_row.push_back(j % 5 == 3 ? -1 : static_cast<int32_t>(i * c.s + j));
  }
  Recur a{};
  a.q = q.view<4>(), a.k = k.view<4>(), a.v = v.view<4>();
  if (!c.no_o) a.o = o.view<4>();
  if (c.gate == 1) a.gate_head = gate_head.view<3>();
  if (c.gate == 2) a.gate_key = gate_key.view<4>();
  if (c.beta) a.beta = beta.view<3>();
  if (c.select) a.select = select.view<3>();
  if (c.erase) a.erase = erase.view<4>();
  if (c.form == Recurrence::low_rank) a.low_a = low_a.view<4>(), a.low_b = low_b.view<4>();
  a.state_in = state.view<4>();
  if (!c.no_state_out) a.state_out = c.in_place ? state.view<4>() : out.view<4>();
  if (c.snapshots) a.snapshot = snap.view<4>();
  if (c.skip) a.skip = skip.view<2>().view;
  a.run.count = c.b, a.run.s = c.s, a.run.token_max = c.s, a.run.slots = a.run.slots_out = slots;
  if (c.pool) a.run.state_row = {state_row.data(), 1}, a.run.len = {len.data(), 1};
  if (c.silent) a.run.output_from = {from.data(), 1};
  a.run.every = 1;
  if (c.snapshots)
    a.run.snapshot_row = {snapshot_row.data(), {c.s, 1}}, a.run.snapshots = c.b * c.s, a.run.kept = c.s,
    a.run.every = c.s > 4 ? 2 : 1;
  a.b = c.b, a.s = a.t = c.s, a.h = c.h, a.g = c.g, a.x = c.x, a.d = c.d, a.e = c.e;
  a.heads = heads, a.heads_out = heads_out;
  a.scale = static_cast<float>(1 / std::sqrt(c.d)), a.eps = c.norm ? 1e-6f : 0, a.form = c.form;
  a.gate = {c.gate_map, 0, 1}, a.l2_norm = c.norm, a.map_q = a.map_k = c.map;

  auto call = cuda::recur_call(a);
  const auto before_call = state.data;
  alignas(16) static char fake_context[64];
  Context& ctx = *reinterpret_cast<Context*>(fake_context);
  const auto dispatch = [&]<Recurrence Form>() {
    const int64_t before = fake::launches;
    if (!cuda::recur_steps<Form>(ctx, "model", call)) return 1;
    if (fake::launches == before) return 2;
    const auto o1 = o.data, snap1 = snap.data;
    auto out1 = out.data;
    // In place: rows of all sequences, without a pool; others stay.
    if (c.in_place) {
      const size_t bytes = static_cast<size_t>(4 * c.b * heads * c.d * c.e);
      if (std::memcmp(state.data.data() + bytes, before_call.data() + bytes, state.data.size() - bytes)) return 6;
      std::memcpy(out1.data(), state.data.data(), bytes);
      state.data = before_call, a.state_out = out.view<4>(), a.state_in = state.view<4>();
      call = cuda::recur_call(a);
    }
    const auto wipe = [](Tensor& x) {
      for (size_t i = 0; i < x.data.size() / (x.dtype == FOVEA_F32 ? 4 : 2); ++i)
        store_fp(x.data.data(), x.dtype, static_cast<int64_t>(i), 7.f);
    };
    wipe(o), wipe(out), wipe(snap);
    const int64_t work = a.run.count * a.heads * cuda::ceil_div(a.e, cuda::columns_of(call));
    cuda::launch<cuda::recur_forward_simt<Form>>(ctx, "model", work, 32 * call.warps,
                                                 cuda::stage_bytes(call), call, int64_t{0});
    if (o1 != o.data) return 3;
    if (out1 != out.data) return 4;
    if (snap1 != snap.data) return 5;
    return 0;
  };
  const int result = c.form == Recurrence::additive    ? dispatch.operator()<Recurrence::additive>()
                     : c.form == Recurrence::corrected ? dispatch.operator()<Recurrence::corrected>()
                                                       : dispatch.operator()<Recurrence::low_rank>();
  // Against float64, without pools.
  double worst = 0, largest = 0;
  if (!result && !c.pool && !c.hard && !c.reset && !c.norm && !c.map && !c.gate_map && !c.skip && !c.no_o && !c.no_state_out)
    for (int64_t i = 0; i < c.b; ++i)
      for (int64_t n = 0; n < heads; ++n) {
        std::vector<double> h(static_cast<size_t>(c.d * c.e));
        for (int64_t r = 0; r < c.d * c.e; ++r) h[r] = a.state_in(i, n, r / c.e, r % c.e);
        for (int64_t t = 0; t < c.s; ++t) {
          std::vector<double> z(c.e, 0.0);
          const double b = c.beta ? a.beta(i, t, n) : 1, sel = c.select ? a.select(i, t, n) : 1;
          const auto key = [&](int64_t r) { return sel * a.k(i, t, a.key_head(n), r); };
          if (c.form == Recurrence::low_rank)
            for (int64_t r = 0; r < c.d; ++r)
              for (int64_t j = 0; j < c.e; ++j) z[j] += a.low_a(i, t, n, r) * h[r * c.e + j];
          for (int64_t r = 0; r < c.d; ++r) {
            const double decay = std::exp(c.gate == 1 ? a.gate_head(i, t, n) : c.gate == 2 ? a.gate_key(i, t, n, r) : 0.f);
            for (int64_t j = 0; j < c.e; ++j) h[r * c.e + j] *= decay;
          }
          if (c.form == Recurrence::corrected)
            for (int64_t r = 0; r < c.d; ++r)
              for (int64_t j = 0; j < c.e; ++j)
                z[j] += (c.erase ? a.erase(i, t, n, r) : b * key(r)) * h[r * c.e + j];
          for (int64_t r = 0; r < c.d; ++r)
            for (int64_t j = 0; j < c.e; ++j) {
              const double value = a.v(i, t, a.value_head(n), j);
              if (c.form == Recurrence::low_rank) h[r * c.e + j] += a.low_b(i, t, n, r) * z[j] + key(r) * value;
              else h[r * c.e + j] += key(r) * (c.form == Recurrence::corrected ? b * value - z[j] : value);
            }
          for (int64_t m = 0; m < heads_out / heads; ++m)
            for (int64_t j = 0; j < c.e; ++j) {
              double y = 0;
              const int64_t output = n * (heads_out / heads) + m;
              for (int64_t r = 0; r < c.d; ++r) y += a.q(i, t, a.query_head(output), r) * h[r * c.e + j];
              largest = std::max(largest, std::abs(y * a.scale));
              if (!c.silent) worst = std::max(worst, std::abs(y * a.scale - a.o(i, t, output, j)));
            }
        }
      }
  std::printf("%-34s %s  |o - float64| %.2e of %.2e\n", name, result == 0 ? "same bits" : result == 1 ? "REFUSED" : "DIFFERS", worst, largest);
  return result;
}
}  // namespace

int main() {
  const auto additive = Recurrence::additive, corrected = Recurrence::corrected, low = Recurrence::low_rank;
  const std::pair<const char*, Case> cases[] = {
      {"gla, none", {}},
      {"simple gla", {.gate = 1}},
      {"gla key", {.gate = 2}},
      {"simple gla, 4 tokens", {.gate = 1, .s = 4, .silent = true}},
      {"gla key, 8 tokens, hard", {.gate = 2, .s = 8, .hard = true, .pool = true}},
      {"simple gla, 8 tokens, hard", {.gate = 1, .s = 8, .hard = true, .pool = true}},
      {"simple gla, in place", {.gate = 1, .b = 7, .in_place = true}},
      {"kda, in place", {.form = corrected, .gate = 2, .b = 7, .s = 2, .beta = true, .in_place = true}},
      {"simple gla, reset", {.gate = 1, .s = 2, .reset = true}},
      {"gla key, reset", {.gate = 2, .s = 2, .reset = true}},
      {"kda, reset", {.form = corrected, .gate = 2, .s = 2, .beta = true, .reset = true}},
      {"gla key, 16 tokens, f16", {.gate = 2, .b = 2, .s = 16, .dtype = FOVEA_F16, .gate_type = FOVEA_BF16}},
      {"gla f32, log sigmoid", {.gate = 2, .s = 3, .dtype = FOVEA_F32, .gate_map = FOVEA_X_GATE_MAP_LOG_SIGMOID}},
      {"mamba2: e 64, select, skip", {.gate = 1, .s = 2, .h = 1, .g = 1, .x = 4, .e = 64, .select = true, .skip = true, .gate_map = FOVEA_X_GATE_MAP_SOFTPLUS}},
      {"gla, outputs 3 of a head", {.gate = 1, .s = 3, .h = 6, .g = 2, .x = 2}},
      {"gla, elu maps, d 64", {.gate = 2, .s = 2, .d = 64, .e = 64, .map = FOVEA_X_FEATURE_MAP_ELU_PLUS_ONE}},
      {"gla, d 64 e 256", {.gate = 1, .s = 2, .d = 64, .e = 256}},
      {"gla, e 256", {.gate = 2, .b = 2, .s = 2, .e = 256}},
      {"one request", {.gate = 1, .b = 1, .h = 1, .g = 1, .x = 1}},
      {"one request, kda", {.form = corrected, .gate = 2, .b = 1, .h = 1, .g = 1, .x = 1, .beta = true}},
      {"many items", {.gate = 1, .b = 9, .s = 2}},
      {"delta", {.form = corrected, .beta = true}},
      {"gdn, norm", {.form = corrected, .gate = 1, .s = 4, .beta = true, .norm = true}},
      {"gdn, 2 on 4 heads", {.form = corrected, .gate = 1, .s = 4, .h = 2, .g = 2, .x = 4, .beta = true}},
      {"kda", {.form = corrected, .gate = 2, .beta = true}},
      {"kda, 8 tokens, pool, norm", {.form = corrected, .gate = 2, .s = 8, .beta = true, .norm = true, .pool = true}},
      {"kda, 5 tokens", {.form = corrected, .gate = 2, .s = 5, .beta = true}},
      {"kda, 16 tokens, snapshots", {.form = corrected, .gate = 2, .b = 2, .s = 16, .beta = true, .snapshots = true}},
      {"kda, 4, snapshots, pool", {.form = corrected, .gate = 2, .s = 4, .beta = true, .pool = true, .snapshots = true}},
      {"kda, commit", {.form = corrected, .gate = 2, .s = 4, .beta = true, .pool = true, .no_o = true}},
      {"kda, verify, hard", {.form = corrected, .gate = 2, .s = 4, .beta = true, .hard = true, .no_state_out = true}},
      {"delta, erase, d 64 e 64", {.form = corrected, .gate = 1, .s = 3, .d = 64, .e = 64, .beta = true, .erase = true}},
      {"rwkv7", {.form = low, .gate = 2, .s = 1, .d = 64, .e = 64}},
      {"rwkv7, 6 tokens, hard", {.form = low, .gate = 2, .s = 6, .d = 64, .e = 64, .hard = true}},
      {"low rank, d 128", {.form = low, .gate = 2, .s = 3}},
  };
  int bad = 0;
  for (const auto& [name, c] : cases) bad += run(c, name) != 0;
  std::printf("%d of %zu cases fail\n", bad, std::size(cases));
  return bad != 0;
}
