// The gradient kernels of key gates and low rank as they are written, on the CPU: fibers for
// threads, ldmatrix, mma.sync and stmatrix by the PTX tables, TMA as copies.  Against deltakeys.h.
//   python3 tests/models/deltakeys_emulate.py
#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <vector>
#define __device__
#define __host__
#define __forceinline__ inline
#define private public
#include "core/recur_gradients.h"
#include "deltakeys.h"
#include "ops/delta/backward.cuh"
inline uint32_t __cvta_generic_to_shared(const void*) {
  return 0;
}
#include "cuda/tile/layout.cuh"

struct Tid {
  unsigned x;
} threadIdx;
namespace emu {
alignas(1024) unsigned char smem[230 * 1024];
ucontext_t scheduler, contexts[384];
std::vector<std::vector<char>> stacks;
bool done[384];
int threads;
void yield() {
  swapcontext(&contexts[threadIdx.x], &scheduler);
}
struct Gate {
  int arrived = 0;
  uint64_t generation = 0;
};
Gate warps[12], block, named[16];
template <class F>
void meet(Gate& g, int n, F last) {
  if (++g.arrived == n) {
    last();
    g.arrived = 0, ++g.generation;
    return;
  }
  for (const uint64_t now = g.generation; g.generation == now;) yield();
}
struct Slot {
  float* d;
  uint32_t a[4], b[2], address;
  uint32_t* r;
  float x;
} slots[12][32];
struct Barrier {
  int count, pending;
  uint32_t phase;
};
std::map<uint32_t, Barrier> phases;
std::function<void()> body;
void entry() {
  body();
  done[threadIdx.x] = true;
  yield();
}
void run(int n, std::function<void()> f) {
  threads = n, body = f, phases.clear(), stacks.resize(384);
  for (auto& g : warps) g = {};
  block = {};
  for (int i = 0; i < n; ++i) {
    stacks[i].resize(256 << 10), done[i] = false;
    getcontext(&contexts[i]);
    contexts[i].uc_stack = {stacks[i].data(), 0, stacks[i].size()};
    makecontext(&contexts[i], entry, 0);
  }
  for (bool any = true; any;) {
    any = false;
    for (int i = 0; i < n; ++i)
      if (!done[i]) any = true, threadIdx.x = i, swapcontext(&scheduler, &contexts[i]);
  }
}
uint16_t& half(uint32_t at) {
  return *reinterpret_cast<uint16_t*>(smem + at);
}
float bf(uint32_t x) {
  return std::bit_cast<float>(x << 16);
}
}  // namespace emu
inline void __syncwarp() {
  emu::meet(emu::warps[threadIdx.x / 32], 32, [] {});
}
inline float2 make_float2(float x, float y) {
  return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}
inline float __shfl_xor_sync(unsigned, float x, int step) {
  const int w = threadIdx.x / 32, lane = threadIdx.x % 32;
  emu::slots[w][lane].x = x;
  emu::meet(emu::warps[w], 32, [] {});
  const float y = emu::slots[w][lane ^ step].x;
  emu::meet(emu::warps[w], 32, [] {});
  return y;
}
inline void __syncthreads() {
  emu::meet(emu::block, emu::threads, [] {});
}

namespace fovea::cuda {
inline uint32_t bits_of(float x) {
  return std::bit_cast<uint32_t>(x);
}
inline uint32_t host_shared(const void* p) {
  return static_cast<const unsigned char*>(p) - emu::smem;
}
inline float float_of(uint32_t x) {
  return std::bit_cast<float>(x);
}
inline float exp2_fast(float x) {
  return std::exp2(x);
}
using std::min;
template <int>
inline uint32_t pack(float low, float high) {
  return std::bit_cast<uint32_t>(model::bf(low)) >> 16 |
         (std::bit_cast<uint32_t>(model::bf(high)) & 0xffff0000u);
}
inline void matrices(uint32_t (&r)[4], uint32_t address, bool turn, bool store) {
  const int w = threadIdx.x / 32, lane = threadIdx.x % 32;
  emu::slots[w][lane].address = address, emu::slots[w][lane].r = r;
  emu::meet(emu::warps[w], 32, [&] {
    for (int l = 0; l < 32; ++l)
      for (int m = 0; m < 4; ++m)
        for (int h = 0; h < 2; ++h) {
          const int row = turn ? l % 4 * 2 + h : l / 4, column = turn ? l / 4 : l % 4 * 2 + h;
          uint16_t& at = emu::half(emu::slots[w][8 * m + row].address + 2 * column);
          uint32_t& reg = emu::slots[w][l].r[m];
          if (store)
            at = reg >> 16 * h;
          else
            reg = (h ? reg & 0xffff : 0) | uint32_t{at} << 16 * h;
        }
  });
}
inline void load_matrices(uint32_t (&r)[4], uint32_t a) {
  matrices(r, a, false, false);
}
inline void load_matrices_transposed(uint32_t (&r)[4], uint32_t a) {
  matrices(r, a, true, false);
}
template <int>
void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const int w = threadIdx.x / 32, lane = threadIdx.x % 32;
  auto& s = emu::slots[w][lane];
  s.d = d, std::copy(a, a + 4, s.a), s.b[0] = b0, s.b[1] = b1;
  emu::meet(emu::warps[w], 32, [&] {
    float A[16][16], B[16][8];
    for (int l = 0; l < 32; ++l)
      for (int h = 0; h < 2; ++h) {
        for (int i = 0; i < 4; ++i)
          A[l / 4 + i % 2 * 8][l % 4 * 2 + h + i / 2 * 8] =
              emu::bf(emu::slots[w][l].a[i] >> 16 * h & 0xffff);
        for (int i = 0; i < 2; ++i)
          B[l % 4 * 2 + h + 8 * i][l / 4] = emu::bf(emu::slots[w][l].b[i] >> 16 * h & 0xffff);
      }
    for (int l = 0; l < 32; ++l)
      for (int i = 0; i < 4; ++i)
        for (int k = 0; k < 16; ++k)
          emu::slots[w][l].d[i] += A[l / 4 + i / 2 * 8][k] * B[k][l % 4 * 2 + i % 2];
  });
}
template <int Dtype, int M, int N>
void pack_operand(uint32_t (&a)[M][N / 2][4], const float (&s)[M][N][4]) {
  for (int i = 0; i < M; ++i)
    for (int k = 0; k < N / 2; ++k)
      for (int n = 0; n < 4; ++n)
        a[i][k][n] =
            pack<Dtype>(s[i][2 * k + n / 2][n % 2 * 2], s[i][2 * k + n / 2][n % 2 * 2 + 1]);
}
inline int outer_row(int l) {
  return l % 16;
}
inline int outer_chunk(int l) {
  return l / 16;
}
inline int inner_row(int l) {
  return l % 8 + l / 16 * 8;
}
inline int inner_chunk(int l) {
  return l / 8 % 2;
}
template <int N>
float lanes_sum(float x) {
  const int w = threadIdx.x / 32, lane = threadIdx.x % 32;
  emu::slots[w][lane].x = x;
  emu::meet(emu::warps[w], 32, [&] {
    float sum = 0;
    for (auto& s : emu::slots[w]) sum += s.x;
    for (auto& s : emu::slots[w]) s.x = sum;
  });
  return emu::slots[w][lane].x;
}
constexpr float kLog2E = 1.4426950408889634f, kGateLeast = -160;
enum class Log2Map { log, power, bounded, softplus };
struct Log2Gate {
  Log2Map kind = Log2Map::log;
  const Recur& a;
  int64_t head;
  Log2Gate(const Recur& a, int64_t head) : a(a), head(head) {}
  template <Log2Map>
  float of(float x) const {
    return a.gate(x, a.rate_of(head)).value * kLog2E;
  }
};
struct Rows {
  Floats<4> of;
  int64_t s;
};  // what a map stands for
namespace sm90 {
inline int uniform(int x) {
  return x;
}
inline void barrier_init(uint32_t b, int n) {
  emu::phases[b] = {n, n, 0};
}
inline void barrier_init_done() {}
inline void barrier_arrive(uint32_t b) {
  auto& x = emu::phases[b];
  if (--x.pending == 0) x.pending = x.count, ++x.phase;
}
inline void barrier_expect(uint32_t b, uint32_t) {
  barrier_arrive(b);
}
inline void barrier_wait(uint32_t b, uint32_t parity) {
  for (int64_t n = 0; (emu::phases[b].phase & 1) == parity; ++n, emu::yield())
    if (n > 3000000) std::printf("stuck: thread %u at %u\n", threadIdx.x, b), std::exit(1);
}
inline void named_barrier_sync(int i, int n) {
  emu::meet(emu::named[i], n, [] {});
}
inline void fence_shared() {}
inline void fence() {}
inline void commit() {}
template <int>
void wait() {}
template <class X>
void pin(X&) {}
inline void tma_store_commit() {}
template <int>
void tma_store_wait_read() {}
template <int>
void tma_store_wait() {}
inline void tma_store(void* to, uint32_t from, uint32_t bytes) {
  std::memcpy(to, emu::smem + from, bytes);
}
inline void store_zeros(uint32_t at) {
  std::memset(emu::smem + at, 0, 16);
}
inline uint64_t descriptor(uint32_t address, uint32_t panel_bytes = 16) {
  return address | uint64_t{panel_bytes} << 32;
}
inline float element(uint64_t tile, int panel_bytes, int row, int column) {
  return emu::bf(emu::half(static_cast<uint32_t>(tile) + column / 64 * panel_bytes + row * 128 +
                           ((column % 64 / 8) ^ (row % 8)) * 16 + column % 8 * 2));
}
// d += A B of a warp: A(row of 16, k), B(k, column).
template <int N, class A, class B>
void product(float (&d)[N][4], int depth, bool accumulate, A a, B b) {
  const int lane = threadIdx.x % 32;
  for (int j = 0; j < N; ++j)
    for (int i = 0; i < 4; ++i) {
      float sum = accumulate ? d[j][i] : 0;
      for (int k = 0; k < depth; ++k)
        sum += a(lane / 4 + i / 2 * 8, k) * b(k, 8 * j + lane % 4 * 2 + i % 2);
      d[j][i] = sum;
    }
}
template <int Steps>
auto fragments(const uint32_t (&a)[Steps][4]) {
  std::vector<float> all(16 * 16 * Steps);
  static std::vector<float> shared[12];
  const int w = threadIdx.x / 32, lane = threadIdx.x % 32;
  emu::meet(emu::warps[w], 32, [&] { shared[w].assign(16 * 16 * Steps, 0); });
  for (int k = 0; k < Steps; ++k)
    for (int i = 0; i < 4; ++i)
      for (int h = 0; h < 2; ++h)
        shared[w][(lane / 4 + i % 2 * 8) * 16 * Steps + 16 * k + lane % 4 * 2 + h + i / 2 * 8] =
            emu::bf(a[k][i] >> 16 * h & 0xffff);
  emu::meet(emu::warps[w], 32, [] {});
  return shared[w];
}
template <int, class TileB, int N, int Steps>
void product_rows(float (&d)[N][4], const uint32_t (&a)[Steps][4], uint64_t b) {
  const auto x = fragments(a);
  product(
      d, 16 * Steps, false, [&](int r, int k) { return x[r * 16 * Steps + k]; },
      [&](int k, int c) { return element(b, TileB::panel_bytes, c, k); });
}
template <int, int N, int Steps>
void product_columns(float (&d)[N][4], const uint32_t (&a)[Steps][4], uint64_t b, bool accumulate) {
  const auto x = fragments(a);
  product(
      d, 16 * Steps, accumulate, [&](int r, int k) { return x[r * 16 * Steps + k]; },
      [&](int k, int c) { return element(b, b >> 32, k, c); });
}
template <int, int Depth, int N>
void product_transposed(float (&d)[N][4], uint64_t a, uint64_t b, bool accumulate = false) {
  const int first = threadIdx.x % 128 / 32 * 16;
  product(
      d, Depth, accumulate, [&](int r, int k) { return element(a, 0, k, first + r); },
      [&](int k, int c) { return element(b, b >> 32, k, c); });
}
inline void store_matrices_transposed(uint32_t a, const uint32_t (&r)[4]) {
  matrices(const_cast<uint32_t(&)[4]>(r), a, true, true);
}
inline void tma_load(uint32_t to, const void* from, uint32_t bytes, uint32_t) {
  std::memcpy(emu::smem + to, from, bytes);
}
inline void tma_load_box(uint32_t to, const CUtensorMap& map, uint32_t, int column, int row,
                         int head, int batch) {
  Rows* r;
  std::memcpy(&r, &map, sizeof r);
  for (int t = 0; t < 64; ++t)
    for (int c = 0; c < 64; ++c)
      emu::half(to + Swizzled<64, 64>::at(t, c / 8) + c % 8 * 2) =
          row + t < r->s ? std::bit_cast<uint32_t>(r->of(batch, row + t, head, column + c)) >> 16
                         : 0x7fc0;  // NaN, of another sequence
}
inline void tma_store_box(const CUtensorMap& map, uint32_t from, int column, int row, int head,
                          int batch) {
  Rows* r;
  std::memcpy(&r, &map, sizeof r);
  for (int t = 0; t < 64 && row + t < r->s; ++t)
    for (int c = 0; c < 64; ++c)
      r->of.store(emu::bf(emu::half(from + Swizzled<64, 64>::at(t, c / 8) + c % 8 * 2)), batch,
                  row + t, head, column + c);
}
template <class T>
void tma_load_panels(uint32_t to, const CUtensorMap& m, uint32_t b, int row, int head, int batch) {
  for (int p = 0; p < T::panels; ++p)
    tma_load_box(to + p * T::panel_bytes, m, b, p * 64, row, head, batch);
}
inline void store_matrices(uint32_t a, const uint32_t (&r)[4]) {
  matrices(const_cast<uint32_t(&)[4]>(r), a, false, true);
}
inline void cluster_arrive() {}
inline void cluster_wait() {}
template <int, int, class, class, int N>
void product_rows(float (&)[N][4], uint64_t, uint64_t) {
  std::abort();
}
}  // namespace sm90
template <int, class TileB, int N, int Steps>
void add_rows(float (&d)[N][4], const uint32_t (&a)[Steps][4], uint64_t b) {
  const auto x = sm90::fragments(a);
  sm90::product(
      d, 16 * Steps, true, [&](int r, int k) { return x[r * 16 * Steps + k]; },
      [&](int k, int c) { return sm90::element(b, TileB::panel_bytes, c, k); });
}
template <int, int Depth, int N>
void add_rows(float (&)[N][4], uint64_t, uint64_t) {
  std::abort();
}
inline void quad_transpose(uint32_t (&)[4]) {}
inline void __stcs(uint4*, uint4) {}
inline uint4 make_uint4(uint32_t, uint32_t, uint32_t, uint32_t) {
  return {};
}
}  // namespace fovea::cuda
struct {
  unsigned x;
} blockIdx;
#define shared_address host_shared
#include "emulated.h"  // both kernels, without includes and entries

using namespace fovea;
using namespace fovea::cuda;
using Halves = std::vector<uint16_t>;
static uint64_t seed = 1;
static float uniform() {
  seed = seed * 6364136223846793005ull + 1442695040888963407ull;
  return (seed >> 40) / 16777216.f;
}
static float normal() {
  float x = -6;
  for (int i = 0; i < 12; ++i) x += uniform();
  return x;
}
template <class F>
Floats<4> tensor(Halves& x, int64_t b, int64_t s, int64_t h, int64_t d, F f) {
  x.resize(b * s * h * d);
  for (auto& one : x) one = std::bit_cast<uint32_t>(model::bf(f())) >> 16;
  return {{x.data(), {s * h * d, h * d, d, 1}}, FOVEA_BF16};
}
static void put(unsigned char* tile, int rows, int row, int column, float x) {
  const int at =
      column / 64 * rows * 128 + row * 128 + ((column % 64 / 8) ^ (row % 8)) * 16 + column % 8 * 2;
  *reinterpret_cast<uint16_t*>(tile + at) = std::bit_cast<uint32_t>(model::bf(x)) >> 16;
}
static double error(const std::vector<float>& x, const std::vector<float>& y) {
  double e = 0, n = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double one = double{x[i]} - y[i];
    e += one * one, n += double{y[i]} * y[i];
  }
  return std::sqrt(e / (n + 1e-30));
}

template <int D>
void test(bool low, int e, int s, int gates, bool l2, int from) {
  const int H = 2, tiles = e / 64, chunks = (s + 63) / 64;
  Recur a{};
  Halves q, k, v, o, la, lb, g;
  std::vector<float> beta(s * H);
  a.q = tensor(q, 1, s, H, D, normal);
  a.k = tensor(k, 1, s, H, D, [&] { return l2 ? normal() : .9f * normal() / std::sqrt(float(D)); });
  a.v = tensor(v, 1, s, H, e, normal), a.o = tensor(o, 1, s, H, e, normal);
  a.gate_key = tensor(g, 1, s, H, D, [&] {
    const float u = uniform();
    const float kinds[] = {-INFINITY, 0, -1e-4f, -20, -88};
    return gates == 3 ? kinds[int(u * 5)] : gates == 1 ? -.02f * u : -2 * u;
  });
  if (low) {
    a.low_a = tensor(la, 1, s, H, D, [] { return normal() / std::sqrt(float(D)); });
    a.low_b = tensor(lb, 1, s, H, D, [] { return .5f * normal() / std::sqrt(float(D)); });
  } else {
    for (auto& x : beta) x = uniform();
    a.beta = {{beta.data(), {s * H, H, 1}}, FOVEA_F32};
  }
  a.form = low ? Recurrence::low_rank : Recurrence::corrected;
  a.b = 1, a.s = a.t = s, a.h = a.g = a.x = a.heads = a.heads_out = H, a.d = D, a.e = e;
  a.scale = .3f, a.eps = 1e-6f, a.l2_norm = l2, a.gate.map = FOVEA_X_GATE_MAP_LOG;
  a.run.count = 1, a.run.s = s, a.run.token_max = s;
  std::vector<int32_t> outputs = {from};
  if (from) a.run.output_from = {outputs.data(), 1};
  RecurBackward b{};
  b.forward = a;
  const size_t n = size_t(s) * H * D;
  std::vector<float> want[6], got[6];
  for (auto* x : {want, got})
    for (int i = 0; i < 6; ++i) x[i].assign(i == 5 ? s * H : n, 0);
  std::vector<float> dv(size_t(s) * H * e);
  const auto terms = [&](RecurTerms& t, std::vector<float>* x) {
    t.dq = x[0].data(), t.dk = x[1].data(), t.dg = x[2].data(), t.dp = x[3].data(),
    t.db = x[4].data();
    t.dbeta = x[5].data(), t.dv = dv.data();
  };
  terms(b.terms, want);
  // The model, with the chunks kept for the kernels.
  model::Model m(b);
  DeltaBackwardWork90 w{};
  const int64_t key = low ? delta_low_bytes(D) : delta_keys_bytes(D);
  const int64_t query = low ? delta_low_query_bytes(D) : delta_query_bytes(D);
  std::vector<unsigned char> inv(chunks * H * key), sco(chunks * H * query),
      st(chunks * H * tiles * D * 128), sl(st.size()), up(chunks * H * tiles * 8192), an(up.size());
  std::vector<float> betas(size_t(tiles) * s * H);
  std::vector<float> heads(H * D * e), last(H * D * e), firsts(last.size()),
      want_first(last.size());
  for (int head = 0; head < H; ++head) {
    std::vector<model::Chunk> all(chunks);
    model::Values h(D * e), W(D * e);
    for (auto& x : h) x = normal() / 2;
    std::copy(h.begin(), h.end(), heads.begin() + head * D * e);
    for (auto& x : W) x = normal();
    for (int i = 0; i < D * e; ++i) last[head * D * e + i] = W[i] * a.scale;
    const RunTokens run = a.run[0];
    for (int c = 0; c < chunks; ++c) {
      m.load(all[c], run, head, c), m.prepare(all[c]);
      if (low)
        m.prepare_low(all[c]), m.forward_low(all[c], h);
      else
        m.forward(all[c], h);
    }
    for (int c = chunks - 1; c >= 0; --c) low ? m.reverse_low(all[c], W) : m.reverse(all[c], W);
    for (int i = 0; i < D * e; ++i) want_first[head * D * e + i] = W[i] * a.scale;
    for (int c = 0; c < chunks; ++c) {
      model::Chunk& x = all[c];
      {
        unsigned char *ks = &inv[(c * H + head) * key], *qs = &sco[(c * H + head) * query];
        auto& by = *reinterpret_cast<DeltaVectors*>(ks + kDeltaTile);
        auto* channels = reinterpret_cast<float*>(ks + kDeltaTile + kDeltaChannels);
        by.zero[0] = x.n < 64, by.zero[1] = 0;
        for (int i = 0; i < D; ++i)
          channels[i] = x.g[i] == 0 ? -0.f : x.all[i], by.zero[1] |= x.all[i] == 0;
        for (int t = 0; t < 64; ++t) {
          by.answer[t] = by.suffix[t] = x.nk[t];
          for (int z = 0; z < 64; ++z) {
            put(ks, 64, t, z, x.T[t * 64 + z]);
            put(qs, 64, t, z, (low ? x.B : x.A)[t * 64 + z]);
            if (low) put(ks + kDeltaKeysAt, 64, t, z, x.G[t * 64 + z]);
            if (low) put(qs + kDeltaScoreStride, 64, t, z, x.A[t * 64 + z]);
          }
          for (int i = 0; i < D; ++i) {
            unsigned char* at = ks + (low ? kDeltaLowKeysAt : kDeltaKeysAt);
            put(at, 64, t, i, (low ? x.At : x.Kt)[t * D + i]);
            put(at + 128 * D, 64, t, i, (low ? x.Bm : x.Km)[t * D + i]);
            if (low) put(at + 256 * D, 64, t, i, x.Km[t * D + i]);
            put(qs + (low ? kDeltaLowQueryAt : kDeltaScoreStride), 64, t, i, x.Qt[t * D + i]);
          }
        }
      }
      low ? m.gradient_low(x, run, head, c) : m.gradient(x, run, head, c);
      const int64_t at = c * H + head;
      for (int t = 0; t < 64; ++t) {
        reinterpret_cast<float*>(&inv[at * key] + kDeltaTile)[t] = x.nk[t];
        reinterpret_cast<float*>(&sco[at * query] + kDeltaTile)[t] = x.nq[t];
        if (t < x.n && !low) betas[(c * 64 + t) * H + head] = x.along.empty() ? 0 : x.along[t];
      }
      for (int j = 0; j < e; ++j) {
        const int64_t tile = at * tiles + j / 64;
        for (int i = 0; i < D; ++i) {
          put(&st[tile * D * 128], 64, j % 64, i, x.H[i * e + j]);
          put(&sl[tile * D * 128], 64, j % 64, i, x.W[i * e + j]);
        }
        for (int t = 0; t < 64; ++t) {
          put(&up[tile * 8192], 64, j % 64, t, x.U[t * e + j]);
          if (low) put(&an[tile * 8192], 64, t, j % 64, x.dy[t * e + j]);
        }
      }
    }
  }
  Halves dvs;
  size_t next = 0;
  const Floats<4> dvb = tensor(dvs, 1, s, H, e, [&] { return dv[next++]; });
  w.forward.a = w.b.forward = a;
  terms(w.b.terms, got);
  std::vector<Rows> maps;
  maps.reserve(12);
  const auto map = [&](CUtensorMap& to, const Floats<4>& x) {
    maps.push_back({x, s});
    Rows* p = &maps.back();
    std::memcpy(&to, &p, sizeof p);
  };
  map(w.forward.q, a.q), map(w.forward.k, a.k), map(w.forward.v, a.v), map(w.dout, a.o),
      map(w.dv_map, dvb);
  if (low) map(w.forward.low_a, a.low_a), map(w.forward.low_b, a.low_b);
  w.forward.inverses = inv.data(), w.forward.scores = sco.data(), w.forward.tiles = tiles;
  w.forward.chunks = chunks, w.forward.slots = chunks,
  w.forward.key_share = w.forward.query_share = w.forward.outputs = 1;
  w.states = st.data(), w.slopes = sl.data(), w.updates = up.data(), w.answers = an.data();
  w.betas = low ? nullptr : betas.data(), w.spans = chunks;
  {
    DeltaBackwardWork90 c = w;
    std::vector<unsigned char> sl2(sl.size()), an2(an.size());
    std::vector<float> betas2(betas.size());
    Halves dvs2;
    const Floats<4> dv2 = tensor(dvs2, 1, s, H, e, [] { return 0.f; });
    c.b.terms = {};
    map(c.dv_map, dv2), c.dv = dv2, c.slopes = sl2.data(), c.answers = an2.data();
    c.betas = low ? nullptr : betas2.data();
    c.b.dstate_out = {last.data(), {H * D * e, D * e, e, 1}};
    c.b.dstate_in = {firsts.data(), {H * D * e, D * e, e, 1}};
    for (uint32_t block = 0; block < uint32_t(H * tiles); ++block) {
      std::memset(emu::smem, 0xff, sizeof emu::smem);
      emu::run(384, [&] {
        const auto role = [&](const auto& b) {
          b.init();
          const int warp = threadIdx.x / 32;
          if (warp == 0)
            b.produce();
          else if (warp == 1)
            b.store_parts();
          else if (warp >= 8)
            b.add_outputs();
          else if (warp >= 4)
            b.move_gradient();
        };
        if (low)
          role(DeltaLowReverse90<DeltaLowReverseShape90<D, D == 64 ? 2 : 1, 2>>(c, emu::smem,
                                                                                block));
        else
          role(DeltaReverse90<DeltaReverseShape90<FOVEA_BF16, D, D == 64 ? 4 : 2, 2, true>>(
              c, emu::smem, block));
      });
    }
    std::vector<unsigned char> st2(st.size()), up2(up.size());
    c.states = st2.data(), c.updates = up2.data();
    c.forward.copies = c.forward.cluster = c.forward.parts.count = 1;
    c.forward.a.scale = 1, c.forward.a.run.output_from = {};
    c.forward.a.state_in = {{heads.data(), {H * D * e, D * e, e, 1}}, FOVEA_F32};
    c.forward.a.run.slots = 1;
    for (uint32_t block = 0; block < uint32_t(H * tiles); ++block) {
      std::memset(emu::smem, 0xff, sizeof emu::smem);
      blockIdx.x = block;
      emu::run(384, [&] {
        const auto role = [&](const auto& b) {
          b.init();
          const int warp = threadIdx.x / 32;
          if (warp == 0)
            b.template produce<false>();
          else if (warp == 1)
            b.store_parts();
          else if (warp >= 4 && warp < 8)
            b.move_state();
        };
        constexpr int stages = D == 64 ? 3 : 2;
        if (low)
          role(DeltaStates90<
               DeltaStatesShape90<DeltaConfig90{FOVEA_BF16, D, DeltaForm::low, stages, 1, 1}>>(
              c, emu::smem));
        else
          role(DeltaStates90<
               DeltaStatesShape90<DeltaConfig90{FOVEA_BF16, D, DeltaForm::key, stages, 1, 2}>>(
              c, emu::smem));
      });
    }
    const auto values = [](const auto& x) {
      std::vector<float> y(x.size() * sizeof(x[0]) / 2);
      for (size_t i = 0; i < y.size(); ++i)
        y[i] = emu::bf(reinterpret_cast<const uint16_t*>(x.data())[i]);
      return y;
    };
    const size_t plane = size_t(s) * H;
    for (size_t i = plane; i < betas2.size(); ++i) betas2[i % plane] += betas2[i];
    betas2.resize(plane);
    std::printf("   states: H %.1e U %.1e\n", error(values(st2), values(st)),
                error(values(up2), values(up)));
    std::printf("   chain: W %.1e dV %.1e dstate_in %.1e", error(values(sl2), values(sl)),
                error(values(dvs2), values(dvs)), error(firsts, want_first));
    if (low)
      std::printf(" dY %.1e\n", error(values(an2), values(an)));
    else
      std::printf(" dV.v %.1e\n", error(betas2, {betas.begin(), betas.begin() + plane}));
  }
  const auto launch = [&] {
    for (int block = 0; block < chunks * H * (low ? D / 64 : 1); ++block) {
      std::memset(emu::smem, 0xff, sizeof emu::smem);  // NaN
      if (low)
        emu::run(DeltaLowGradientShape90<D>::threads,
                 [&] { DeltaLowGradient90<DeltaLowGradientShape90<D>>(w, emu::smem).run(block); });
      else
        emu::run(DeltaKeyGradientShape90<D>::threads,
                 [&] { DeltaKeyGradient90<DeltaKeyGradientShape90<D>>(w, emu::smem).run(block); });
    }
  };
  launch();
  std::printf("%s d%d e%d s%d gates%d l2 %d from %d:", low ? "low" : "key", D, e, s, gates, l2,
              from);
  const char* names[] = {"dq", "dk", "dg", "da", "db", "dbeta"};
  for (int i = 0; i < 6; ++i)
    if (low ? i < 5 : i < 3 || i == 5) std::printf(" %s %.1e", names[i], error(got[i], want[i]));
  // The outputs themselves.
  Halves dq, dk, dg, da, db;
  const auto zero = [] { return 0.f; };
  if (!(low && l2 && D == 128))
    w.dq = tensor(dq, 1, s, H, D, zero), w.dk = tensor(dk, 1, s, H, D, zero);
  w.dgate_key = tensor(dg, 1, s, H, D, zero);
  if (low) w.dlow_a = tensor(da, 1, s, H, D, zero), w.dlow_b = tensor(db, 1, s, H, D, zero);
  w.b.terms = {};
  launch();
  double worst = 0;
  for (int which = 0; which < 5; ++which) {
    const Floats<4>& to = which == 0   ? w.dq
                          : which == 1 ? w.dk
                          : which == 2 ? w.dgate_key
                          : which == 3 ? w.dlow_a
                                       : w.dlow_b;
    if (!to) continue;
    std::vector<float> x, y;
    for (int t = 0; t < s; ++t)
      for (int head = 0; head < H; ++head) {
        const Floats<4>& of = which ? a.k : a.q;
        float norm = 1, along = 0, squares = a.eps;
        for (int i = 0; i < D; ++i) squares += of(0, t, head, i) * of(0, t, head, i);
        if (l2) norm = 1 / std::sqrt(squares);
        for (int i = 0; i < D; ++i)
          along += norm * of(0, t, head, i) * want[which][(t * H + head) * D + i];
        for (int i = 0; i < D; ++i) {
          float z = want[which][(t * H + head) * D + i];
          if (which < 2 && l2) z = norm * (z - of(0, t, head, i) * norm * along);
          if (which == 2 && a.gate_key(0, t, head, i) == -INFINITY) z = 0;
          x.push_back(to(0, t, head, i)), y.push_back(z);
        }
      }
    worst = std::max(worst, error(x, y));
    if (!(error(x, y) < 4e-3)) std::printf(" OUT%d %.1e", which, error(x, y));
  }
  std::printf(" outputs %.1e\n", worst);
  std::fflush(stdout);
}

int main() {
  test<64>(false, 64, 70, 0, true, 0), test<64>(false, 128, 64, 1, false, 5);
  test<128>(false, 128, 130, 3, true, 0), test<128>(false, 192, 40, 1, false, 0);
  test<64>(true, 64, 70, 0, true, 0), test<128>(true, 192, 100, 1, true, 5);
  test<128>(true, 128, 64, 3, false, 0);
}
