// SPDX-License-Identifier: Apache-2.0
// What the portable kernels of multi-token attention share.  A call loops over panels in the
// workspace: `own` rows of every sequence and head at all keys.  Memory is linear in the keys, and
// each step is a plain kernel over a panel:
//   S = scale q k', 0 where unseen: the rows that A reads;  A = S convolved;  B = A mixed
// Panels are [sequence][head][row][key], `pitch` keys apart; row 0 of S is row first - above of a
// sequence, row 0 of the others row `first`.
#pragma once
#include "cuda/block/reduce.cuh"
#include "cuda/launch.h"
#include "ops/conv_attention/mixed.h"
#include "ops/conv_attention/strip_simt.cuh"

namespace fovea::cuda {

struct Panel {
  MixedAttendBackward m;
  int64_t first = 0, pitch;
  int32_t own, above, below;                       // rows
  float *s = nullptr, *a = nullptr, *p = nullptr;  // a: nullptr in the forward

  // `longest` rows of each sequence, and those that a gradient reads below them.
  Panel(const MixedAttendBackward& m, int64_t longest, bool backward) : m(m) {
    const ConvAttend& c = conv();
    const int64_t tiles = ceil_div(c.attend.sequences.key_max, kStageTile);
    pitch = tiles ? tiles * kStageTile : kStageTile;
    // As many as 32 MiB of a sequence's hold.  Not by the number of sequences, whose sums would
    // then come in another order.
    constexpr int64_t floats = int64_t{8} << 20;
    const int64_t each = c.attend.h * pitch;
    const int64_t rows = each ? clamp_i64(floats / each / 16 * 16, 16, 64) : 16;
    own = static_cast<int32_t>(longest < rows ? longest : rows);
    above = static_cast<int32_t>(c.above()), below = backward ? above : 0;
  }
  __host__ __device__ int32_t rows() const { return own + below; }
  __host__ __device__ int32_t score_rows() const { return own + below + above; }
  __host__ __device__ const ConvAttend& conv() const { return m.conv.forward; }
  __host__ __device__ const Attend& attend() const { return m.conv.forward.attend; }
  __host__ __device__ int64_t heads() const { return attend().sequences.count * attend().h; }
  __device__ float* line(float* panel, int64_t head, int64_t row) const {
    return panel + (head * rows() + row) * pitch;
  }
  __device__ float* score_line(int64_t head, int64_t row) const {
    return s + (head * score_rows() + row) * pitch;
  }
};

__device__ __forceinline__ bool is_present(const Attend& a, const Sequence& q, int64_t j) {
  return !a.sequences.page || a.sequences.key_offset(q, j, a.k.stride) >= 0;
}

// Where rows of a product lie; -1: none.
struct PanelPlaces {
  Sequence seq;
  ConvAttend::Rows out;
  int64_t row[kStageTile], key[kStageTile], last[kStageTile];
};

// x y' of a 64 x 64 tile of a panel, 0 where unseen.  Scores: q k' scale; else dout v'.
template <bool Scores>
__global__ void __launch_bounds__(kStageThreads)
    panel_product_kernel(const __grid_constant__ Panel call, Operand x, Operand y, float* to,
                         int64_t work) {
  extern __shared__ float4 s_dynamic[];
  __shared__ PanelPlaces s;
  FmaTiles<4> tiles(reinterpret_cast<float*>(s_dynamic));
  const Attend& a = call.attend();
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
  const int rows = Scores ? call.score_rows() : call.rows();
  const int64_t row_tiles = (rows + kStageTile - 1) / kStageTile;
  const int64_t key_tiles = call.pitch / kStageTile;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t j0 = w % key_tiles * kStageTile, m0 = w / key_tiles % row_tiles * kStageTile;
    const int64_t all = w / key_tiles / row_tiles, head = all % a.h, g = head / (a.h / a.g);
    open_sequence(call.conv(), s, all / a.h);
    if (threadIdx.x < kStageTile) {
      const int64_t i = call.first - (Scores ? call.above : 0) + m0 + threadIdx.x;
      const int64_t j = j0 + threadIdx.x;
      s.row[threadIdx.x] = Scores ? q_offset(s.seq, a.q.stride, head, i)
                                  : out_offset(call.conv(), s, call.m.conv.dout.stride, head, i);
      s.last[threadIdx.x] = s.row[threadIdx.x] < 0 ? 0 : call.conv().seen(s.seq, i);
      s.key[threadIdx.x] = key_offset(a, s.seq, Scores ? a.k.stride : a.v.stride, g, j);
    }
    __syncthreads();
    float sum[4][4] = {};
    multiply_nt(
        sum, tiles, x.width, [&](int row, int column) { return load_four(x, s.row[row], column); },
        [&](int row, int column) { return load_four(y, s.key[row], column); });
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int m = ty + 16 * r, key = tx + 16 * c;
        if (m0 + m >= rows) continue;
        const bool seen = s.key[key] >= 0 && j0 + key < s.last[m];
        to[(all * rows + m0 + m) * call.pitch + j0 + key] =
            seen ? sum[r][c] * (Scores ? a.score.scale : 1.f) : 0.f;
      }
  }
}

// The heads of a group at one row and key, `apart` in a panel.
template <int G>
__device__ __forceinline__ void read_group(float (&x)[G], const float* from, int64_t apart,
                                           int group) {
#pragma unroll
  for (int n = 0; n < G; ++n) x[n] = n < group ? from[n * apart] : 0.f;
}
template <int G>
__device__ __forceinline__ void write_group(float* to, const float (&x)[G], int64_t apart,
                                            int group) {
#pragma unroll
  for (int n = 0; n < G; ++n)
    if (n < group) to[n * apart] = x[n];
}
template <int G>
__device__ __forceinline__ void mix(const View<2>& mix, bool transposed, int64_t base, int group,
                                    float (&x)[G]) {
  if (!mix) return;
  float y[G] = {};
#pragma unroll
  for (int a = 0; a < G; ++a)
#pragma unroll
    for (int n = 0; n < G; ++n)
      if (a < group && n < group)
        y[a] = fmaf(transposed ? mix_of(mix, base + n, a) : mix_of(mix, base + a, n), x[n], y[a]);
#pragma unroll
  for (int n = 0; n < G; ++n) x[n] = y[n];
}

// sum += p x for 64 x 64 of a panel, p(m, n), and 64 columns of x from `from` on, whose row n is at
// at[n].  A pair that is unseen takes nothing: its p is +0.
template <class P>
__device__ __forceinline__ void add_product(float (&sum)[1][4][4], const FmaTiles<4>& tiles,
                                            const Operand& x, const int64_t* at, int from,
                                            const P& p) {
  float tile[4][4];
#pragma unroll
  for (int r = 0; r < 4; ++r)
#pragma unroll
    for (int c = 0; c < 4; ++c)
      tile[r][c] = p(threadIdx.x / 16 + 16 * r, threadIdx.x % 16 + 16 * c) + 0.f;
  put_p(tiles, tile);
  __syncthreads();
  multiply_nn(sum, tiles, x.width - from < kStageTile ? x.width - from : kStageTile, kStageTile,
              [&](int row, int column) { return load_four(x, at[row], from + column); });
}

// Products of a panel; a block owns 64 rows or keys, and 64 columns.
//
//   | sum | is             | over                              | rows of x |
//   | o   | R v            | keys, ascending                   | v         |
//   | dq  | scale dS k     | the same                          | k         |
//   | dk  | scale dS' q    | heads of a key head, rows of each | q         |
//   | dv  | R' dout        | the same                          | dout      |
//
// dS is in the place of S.  Sums over rows go on from panel to panel in `sums`, (r, g, pitch,
// width), and the last panel's blocks store them.
enum class PanelSum { o, dq, dk, dv };

template <PanelSum Sum>
__global__ void __launch_bounds__(kStageThreads)
    panel_sum_kernel(const __grid_constant__ Panel call, Operand x, float* sums, bool last,
                     int64_t work) {
  constexpr bool of_keys = Sum == PanelSum::dk || Sum == PanelSum::dv,
                 of_ds = Sum == PanelSum::dq || Sum == PanelSum::dk;
  extern __shared__ float4 s_dynamic[];
  __shared__ PanelPlaces s;
  FmaTiles<4> tiles(reinterpret_cast<float*>(s_dynamic));
  const Attend& a = call.attend();
  const ConvAttendBackward& b = call.m.conv;
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16, n = threadIdx.x;
  const int64_t chunks = (x.width + kStageTile - 1) / kStageTile, group = a.h / a.g;
  const int64_t own_tiles = ((of_keys ? call.pitch : call.own) + kStageTile - 1) / kStageTile;
  const int64_t owners = of_keys ? a.g : a.h;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int from = static_cast<int>(w % chunks * kStageTile);
    const int64_t first = w / chunks % own_tiles * kStageTile, owner = w / chunks / own_tiles;
    const int64_t r0 = owner / owners, g = of_keys ? owner % owners : owner % owners / group;
    open_sequence(call.conv(), s, r0);
    const auto place_rows = [&](int64_t head, int64_t m0) {
      if (n >= kStageTile) return;
      const int64_t i = call.first + m0 + n;
      s.row[n] = m0 + n >= call.own    ? -1
                 : Sum == PanelSum::dq ? q_offset(s.seq, b.dq.stride, head, i)
                 : Sum == PanelSum::dk ? q_offset(s.seq, a.q.stride, head, i)
                 : Sum == PanelSum::dv ? out_offset(b.forward, s, b.dout.stride, head, i)
                                       : out_offset(b.forward, s, a.o.stride, head, i);
    };
    const int64_t head0 = of_keys ? g * group : owner % owners;
    if (!of_keys) place_rows(head0, first);
    const int64_t end =
        of_keys ? call.own
        : Sum == PanelSum::dq
            ? s.seq.keys
            : b.forward.seen(s.seq, min(call.first + first + kStageTile, s.seq.rows) - 1);
    float sum[1][4][4] = {};
    for (int64_t head = head0; head < head0 + (of_keys ? group : 1); ++head)
      for (int64_t t = 0; t < end; t += kStageTile) {
        __syncthreads();
        if (of_keys)
          place_rows(head, t);
        else if (n < kStageTile)
          s.key[n] = key_offset(a, s.seq, of_ds ? a.k.stride : a.v.stride, g, t + n);
        __syncthreads();
        add_product(sum, tiles, x, of_keys ? s.row : s.key, from, [&](int own, int other) {
          const int64_t m = of_keys ? other : own, j = of_keys ? first + own : t + other;
          if (s.row[m] < 0) return 0.f;
          const int64_t all = r0 * a.h + head, row = (of_keys ? t : first) + m;
          return (of_ds ? call.score_line(all, row + call.above) : call.line(call.p, all, row))[j];
        });
      }
    __syncthreads();
    const float factor = of_ds ? a.score.scale : 1.f;
    const View<4>& out = Sum == PanelSum::o    ? a.o
                         : Sum == PanelSum::dq ? b.dq
                         : Sum == PanelSum::dk ? b.dk
                                               : b.dv;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int m = ty + 16 * r;
      int64_t at = s.row[m];
      if (of_keys) {
        const int64_t key = first + m;
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int column = from + 4 * tx + c;
          if (column >= x.width) continue;
          float& to = sums[(owner * call.pitch + key) * x.width + column];
          to = sum[0][r][c] = call.first == 0 ? sum[0][r][c] : to + sum[0][r][c];
        }
        at = last ? key_offset(a, s.seq, out.stride, g, key) : -1;
      }
      if (at >= 0)
        store_columns(out.data, Sum == PanelSum::o ? a.o_dtype : a.dtype, at + from * out.stride[3],
                      out.stride[3], x.width - from, factor, sum, r);
    }
  }
}

// A block owns a row of a group.  Forward: p = B, -inf where unseen.  Backward: a = A and
// p = exp(B - lse), 0 where unseen.
template <int G, bool Backward>
__global__ void __launch_bounds__(kStageThreads)
    panel_logits_kernel(const __grid_constant__ Panel call, int64_t work) {
  extern __shared__ float s_taps[];
  __shared__ PanelPlaces s;
  __shared__ float s_lse[G];
  const ConvAttend& c = call.conv();
  const Attend& a = c.attend;
  const int group = static_cast<int>(call.m.group), taps = static_cast<int>(c.taps());
  const int columns = static_cast<int>(c.kernel_columns);
  const int rows = static_cast<int>(c.kernel_rows), left = static_cast<int>(c.left());
  const int64_t groups = a.h / group;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t row = w % call.rows(), base = w / call.rows() % groups * group;
    const int64_t r = w / call.rows() / groups, i = call.first + row;
    open_sequence(call.conv(), s, r);
    load_taps(c, base, group, s_taps);
    const bool mine = i >= c.history && i < c.history + s.out.count;
    if (Backward && static_cast<int>(threadIdx.x) < group)
      s_lse[threadIdx.x] = lse_of(c, s, base + threadIdx.x, i);
    __syncthreads();
    const int64_t end = mine ? c.seen(s.seq, i) : 0;
    for (int64_t j = threadIdx.x; j < call.pitch; j += kStageThreads) {
      float x[G] = {};
      const bool seen = j < end && is_present(a, s.seq, j);
      if (seen) {
        const int low = static_cast<int>(j < left ? left - j : 0);
        const int high = static_cast<int>(min(int64_t{columns}, call.pitch - j + left));
#pragma unroll
        for (int n = 0; n < G; ++n) {
          if (n >= group) break;
          for (int u = 0; u < rows; ++u) {
            const float* line = call.score_line(r * a.h + base + n, row + u) + j - left;
            const float* tap = s_taps + n * taps + u * columns;
            for (int v = low; v < high; ++v) x[n] = fmaf(tap[v], line[v], x[n]);
          }
          if (Backward) call.line(call.a, r * a.h + base + n, row)[j] = x[n];
        }
        mix(call.m.before, false, base, group, x);
      }
#pragma unroll
      for (int n = 0; n < G; ++n) {
        if (n >= group) break;
        float& to = call.line(call.p, r * a.h + base + n, row)[j];
        if (!Backward) {
          to = seen ? x[n] : -INFINITY;
          continue;
        }
        if (!seen) call.line(call.a, r * a.h + base + n, row)[j] = 0.f;
        to = seen && s_lse[n] != -INFINITY ? expf(x[n] - s_lse[n]) : 0.f;
      }
    }
  }
}

// The instance with room for a group.
template <class Run>
void with_group(int64_t group, const Run& run) {
  if (group <= 1)
    run.template operator()<1>();
  else if (group <= 2)
    run.template operator()<2>();
  else if (group <= 4)
    run.template operator()<4>();
  else if (group <= 8)
    run.template operator()<8>();
  else
    run.template operator()<16>();
}

inline int64_t product_work(const Panel& call, int64_t rows) {
  return call.heads() * ceil_div(rows, kStageTile) * (call.pitch / kStageTile);
}

template <PanelSum Sum>
void panel_sum(Context& ctx, const char* op, const Panel& call, const Operand& x,
               float* sums = nullptr, bool last = true) {
  constexpr bool of_keys = Sum == PanelSum::dk || Sum == PanelSum::dv;
  const Attend& a = call.attend();
  const int64_t work = a.sequences.count * (of_keys ? a.g : a.h) *
                       ceil_div(of_keys ? call.pitch : call.own, kStageTile) *
                       ceil_div(x.width, kStageTile);
  launch<panel_sum_kernel<Sum>>(ctx, op, work, kStageThreads, FmaTiles<4>::bytes(), call, x, sums,
                                last, work);
}

// S of a panel, and from it B, or A and P.
template <bool Backward>
void panel_logits(Context& ctx, const char* op, const Panel& call) {
  const Attend& a = call.attend();
  const int64_t products = product_work(call, call.score_rows());
  launch<panel_product_kernel<true>>(ctx, op, products, kStageThreads, FmaTiles<4>::bytes(), call,
                                     operand_of(a.q, a.dtype, a.d), operand_of(a.k, a.dtype, a.d),
                                     call.s, products);
  const int64_t work = call.heads() / call.m.group * call.rows();
  const int64_t bytes = call.m.group * call.conv().taps() * static_cast<int64_t>(sizeof(float));
  with_group(call.m.group, [&]<int G> {
    launch<panel_logits_kernel<G, Backward>>(ctx, op, work, kStageThreads, bytes, call, work);
  });
}

}  // namespace fovea::cuda
