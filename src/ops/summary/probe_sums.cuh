// SPDX-License-Identifier: Apache-2.0
// What becomes of a tile of logits of x_probe_forward on Hopper (probe_sm90.cuh), by its consumers.
//   ProbeParts90  each row's parts, in registers
//   ProbeSums90   P goes to shared memory, which threads then read by column, distance or block.
//                 A thread owns a column of 64 rows, a distance, or cells: sums have one order
#pragma once
#include "cuda/tile/mma_sm90.cuh"
#include "ops/summary/probe_work.cuh"

namespace fovea::cuda {

struct ProbeTile90 {
  static constexpr int kTile = 1, kHead = 2, kLastHead = 3, kDone = 4;
  int r, h, i0, j0;
  int what;          // kHead: the head ends here; kLastHead: and the head of x
  int none[3] = {};  // a record is 32 bytes
};

struct ProbeRoom90 {
  static constexpr int pitch = kProbeSums + 8;  // float2 of 4 rows x 4 lanes: each bank once
  float p[kProbeRows][pitch];
  float column[kProbeSums];  // of the lower rows
};

// Keys of a row, from the tile's first on: [low, high), and those before `sink`.
struct ProbeSeen90 {
  int low, high, sink;

  __device__ __forceinline__ ProbeSeen90(const ProbeWork90& w, const ProbeUnits90& s,
                                         const ProbeTile90& tile, int i)
      : low(0), high(0), sink(0) {
    if (i >= s.rows) return;
    const Window& window = w.p.a.mask.window;
    high = s.keys;
    if (w.stride > 1) {
      if (w.p.causal) high = min(high, i + w.shift(s.q) + 1);
    } else {
      const int64_t at = w.p.a.mask.query_at(s.q, tile.h, i);
      if (window.right > 0) high = min(high, w.key_from(at + window.right));
      if (window.left > 0)
        low = w.key_from(at - window.left + 1), sink = min(high, w.key_from(window.sink));
    }
    low -= tile.j0, high -= tile.j0, sink -= tile.j0;
  }
  __device__ bool all(int keys) const { return low <= 0 && high >= keys; }
  __device__ bool operator()(int c) const { return (c >= low && c < high) || c < sink; }
};

// What row i of the tile does not see becomes -inf, in one half of the lane's sums.
template <int N>
__device__ __forceinline__ void hide_unseen(const ProbeSeen90& sees, int half, float (&x)[N][4]) {
  if (sees.all(8 * N)) return;
#pragma unroll
  for (int j = 0; j < N; ++j)
#pragma unroll
    for (int c = 0; c < 2; ++c)
      if (!sees(8 * j + static_cast<int>(threadIdx.x) % 4 * 2 + c))
        x[j][2 * half + c] = kNegativeInfinity;
}

// The lane's first row of a warpgroup's.
__device__ __forceinline__ int probe_row(int group) {
  return group * 64 + static_cast<int>(threadIdx.x) / 32 % 4 * 16 +
         static_cast<int>(threadIdx.x) % 32 / 4;
}

struct ProbeParts90 {
  const ProbeWork90& w;

  __device__ void end_head(const ProbeTile90&) {}

  template <int N>
  __device__ __forceinline__ void tile(const ProbeTile90& tile, float (&x)[N][4], int group) {
    const ProbeUnits90 s = w.sequence(tile.r);
    const float factor = w.p.a.score.scale * kLog2E;
    const int64_t head = tile.r * w.p.a.h + tile.h;
    const int J = probe_quotient(tile.j0, w.part_keys), left = w.parts - J;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = tile.i0 + probe_row(group) + 8 * half;
      hide_unseen(ProbeSeen90(w, s, tile, i), half, x);
      float most = kNegativeInfinity;
#pragma unroll
      for (int j = 0; j < N; ++j) most = fmaxf(most, fmaxf(x[j][2 * half], x[j][2 * half + 1]));
      most = quad_max(most);
      const float base = most == kNegativeInfinity ? 0.f : __fmul_rn(most, factor);
      const int64_t to = w.part_at(head, i) + J;
      const int count = i < s.rows ? left : 0;
      if (w.most)
        fold(
            x, half, kNegativeInfinity, [](float a, float b) { return fmaxf(a, b); },
            [&](float x) { return x; },
            [&](int n, float x) {
              if (n < count) w.most[to + n] = x == kNegativeInfinity ? x : __fmul_rn(x, factor);
            });
      fold(
          x, half, 0.f, [](float a, float b) { return a + b; },
          [&](float x) { return exp2_fast(fmaf(x, factor, -base)); },
          [&](int n, float x) {
            if (n < count) w.part[to + n] = x == 0.f ? kNegativeInfinity : base + log2f(x);
          });
    }
  }

 private:
  // store(n, value) of each part n, by a lane of the quad.
  template <int N, class Join, class Of, class Store>
  __device__ __forceinline__ void fold(const float (&x)[N][4], int half, float none, Join join,
                                       Of of, Store store) const {
    const int last = w.part_keys / 8 - 1, lane = threadIdx.x % 4;  // a power of two less one
    float all = none, kept = none;
    int n = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      all = join(all, join(of(x[j][2 * half]), of(x[j][2 * half + 1])));
      if ((j & last) != last) continue;
      all = join(all, __shfl_xor_sync(~0u, all, 1));
      all = join(all, __shfl_xor_sync(~0u, all, 2));
      if (n % 4 == lane) kept = all;
      all = none;
      if (n % 4 == 3 || j == N - 1)
        if (lane <= n % 4) store(n / 4 * 4 + lane, kept);
      ++n;
    }
  }
};

class ProbeSums90 {
 public:
  __device__ ProbeSums90(const ProbeWork90& w, ProbeRoom90& room)
      : w_(w), p_(w.p), room_(room), thread_(static_cast<int>(threadIdx.x) - 128) {}

  template <int N>
  __device__ __forceinline__ void tile(const ProbeTile90& tile, float (&x)[N][4], int group) {
    const ProbeUnits90 s = w_.sequence(tile.r);
    put(s, tile, x, group);
    const int rows = min(s.rows - tile.i0, kProbeRows);
    if (!w_.lines) return add_blocks();
    if (p_.column_sum) add_columns(rows);
    if (p_.diagonal_sum) add_diagonals(s.q, tile, rows);
  }

  __device__ void end_head(const ProbeTile90& tile) {
    const ProbeUnits90 s = w_.sequence(tile.r);
    if (!w_.lines)
      end_blocks(s, tile);
    else if (p_.column_sum)
      end_columns(s.q, tile);
  }

 private:
  __device__ static void sync() { sm90::named_barrier_sync(1, 256); }

  template <int N>
  __device__ __forceinline__ void put(const ProbeUnits90& s, const ProbeTile90& tile,
                                      float (&x)[N][4], int group) {
    const float factor = p_.a.score.scale * kLog2E;
    sync();  // the tile before is read
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int m = probe_row(group) + 8 * half;
      const int i = tile.i0 + m;
      hide_unseen(ProbeSeen90(w_, s, tile, i), half, x);
      const float lse = i < s.rows ? w_.lse_of(s.q, tile.r, tile.h, i) : kNegativeInfinity;
      const auto power = [&](float x) {
        const bool none = x == kNegativeInfinity || lse == kNegativeInfinity;
        return none ? 0.f : exp2_fast(fmaf(x, factor, -lse));
      };
      float* const to = room_.p[m] + threadIdx.x % 4 * 2;
#pragma unroll
      for (int j = 0; j < N; ++j)
        *reinterpret_cast<float2*>(to + 8 * j) = {power(x[j][2 * half]), power(x[j][2 * half + 1])};
    }
    sync();
  }

  // As probe_end().
  __device__ float end(float group) const {
    const bool mean = p_.reduce == FOVEA_X_PROBE_REDUCE_MEAN && w_.group > 1;
    return mean ? group / static_cast<float>(w_.group) : group;
  }

  // ---- lines

  __device__ void add_columns(int rows) {
    const int begin = thread_ / kProbeSums * 64, end = min(rows, begin + 64);
    const int c = thread_ % kProbeSums;
    float all = 0;
    for (int m = begin; m < end; ++m) all += room_.p[m][c];
    sum_ += all;
  }
  __device__ void end_columns(const Sequence& q, const ProbeTile90& tile) {
    const int c = thread_ % kProbeSums;
    const bool lower = thread_ >= kProbeSums;
    sync();
    if (lower) room_.column[c] = sum_;
    sync();
    if (!lower) group_ = probe_join(p_, group_, sum_ + room_.column[c]);
    sum_ = 0;
    if (tile.what != ProbeTile90::kLastHead) return;
    if (!lower && tile.j0 + c < q.keys)
      *p_.column_sum.at(q.key_b, probe_quotient(tile.h, w_.group), q.key_begin + tile.j0 + c) =
          end(group_);
    group_ = 0;
  }

  __device__ static float bounded_p(float p) {
    return p > 0 ? fminf(p, 65536.f) : 0.f;
  }

  __device__ void add_diagonals(const Sequence& q, const ProbeTile90& tile, int rows) {
    unsigned long long* const to = w_.diagonal + (int64_t{tile.r} * p_.a.h + tile.h) * p_.columns;
    const auto add = [&](int64_t away, float sum) {
      if (!(sum > 0) || away < 0 || away >= p_.columns) return;
      atomicAdd(to + away, static_cast<unsigned long long>(static_cast<double>(sum) * kProbeUnit));
    };
    if (p_.a.mask.query_position) {
      const int c = thread_ % kProbeSums;
      for (int m = thread_ / kProbeSums; m < rows; m += 2)
        add(p_.a.mask.query_at(q, tile.h, tile.i0 + m) - tile.j0 - c, bounded_p(room_.p[m][c]));
      return;
    }
    // A thread's pairs are those of row m and column m - away.
    const int away = thread_ - (kProbeSums - 1);
    float sum = 0;
    for (int m = max(0, away); m < min(rows, kProbeSums + away); ++m)
      sum += bounded_p(room_.p[m][m - away]);
    add(p_.a.mask.query_at(q, tile.h, tile.i0) - tile.j0 + away, sum);
  }

  // ---- blocks: cells of the tile, of `rows` rows and `keys` keys

  struct Cells {
    int rows, run, keys, lanes;  // run: rows that a thread sums

    int across, count;  // of the tile's keys; in all

    __device__ Cells(const ProbeWork90& w)
        : rows(min(w.unit_rows, kProbeRows)),
          run(min(rows, 64)),
          keys(w.unit_keys),
          lanes(min(32, keys)),
          across(probe_quotient(kProbeSums, keys)),
          count(probe_quotient(kProbeRows, rows) * across) {}
  };
  static __device__ void raise(float& most, float p) {
    if (p > most || p != p) most = p;
  }

  // Sums of the runs of a column stand in their first row, the largest in their second.
  __device__ void add_blocks() {
    const Cells cells(w_);
    const int c = thread_ % kProbeSums, begin = thread_ / kProbeSums * 64;
    if (cells.run > 1)
      for (int first = begin; first < begin + 64; first += cells.run) {
        float sum = 0, most = 0;
        for (int m = first; m < first + cells.run; ++m)
          sum += room_.p[m][c], raise(most, room_.p[m][c]);
        room_.p[first][c] = sum, room_.p[first + 1][c] = most;
      }
    sync();
    const bool wide = cells.rows < w_.unit_rows;  // the band has more tiles
    seen_ = true;
    if (!wide) return;
    // At most 128 cells: lane 0 of a cell keeps it.
    const int n = probe_quotient(thread_, cells.lanes);
    if (n >= cells.count) return;
    const float2 more = cell(cells, n);
    sum_ += more.x, raise(group_, more.y);
  }
  // Sum and largest of cell n of the tile; by all lanes of a cell, which all get it.
  __device__ float2 cell(const Cells& cells, int n) const {
    const int down = probe_quotient(n, cells.across), first = down * cells.rows;
    const int to = (n - down * cells.across + 1) * cells.keys;
    float sum = 0, most = 0;
    for (int m = first; m < first + cells.rows; m += cells.run)
      for (int c = to - cells.keys + thread_ % cells.lanes; c < to; c += cells.lanes) {
        sum += room_.p[m][c];
        raise(most, room_.p[m + (cells.run > 1)][c]);
      }
    for (int away = cells.lanes / 2; away; away /= 2) {
      sum += __shfl_xor_sync(~0u, sum, away);
      const float other = __shfl_xor_sync(~0u, most, away);
      if (most == most) raise(most, other);
    }
    return {sum, most};
  }
  __device__ void end_blocks(const ProbeUnits90& s, const ProbeTile90& tile) {
    const Cells cells(w_);
    const bool wide = cells.rows < w_.unit_rows;
    const int I0 = probe_quotient(tile.i0, w_.unit_rows), J0 = probe_quotient(tile.j0, cells.keys);
    const int head = probe_quotient(tile.h, w_.group), first = w_.first_block(s.q, tile.r);
    const bool begins = head * w_.group == tile.h, ends = tile.what == ProbeTile90::kLastHead;
    const bool stores = thread_ % cells.lanes == 0;
    const int at = probe_quotient(thread_, cells.lanes), next = probe_quotient(256, cells.lanes);
    for (int n = at; n < cells.count; n += next) {
      float2 value{sum_, group_};
      if (!wide) value = seen_ ? cell(cells, n) : float2{0, 0};
      const int down = probe_quotient(n, cells.across);
      const int64_t I = I0 + down, J = J0 + n - down * cells.across;
      if (!stores || I * w_.unit_rows >= s.rows || first + I >= p_.n || J >= p_.u) continue;
      const auto join = [&](const View<4>& out, float x) {
        if (!out) return;
        float& to = *out.at(s.q.batch, head, first + I, J);
        const float all = probe_join(p_, begins ? 0.f : to, x);
        to = ends ? end(all) : all;
      };
      join(p_.block_sum, value.x), join(p_.block_max, value.y);
    }
    sum_ = group_ = 0, seen_ = false;
  }

  const ProbeWork90& w_;
  const ProbeCall& p_;
  ProbeRoom90& room_;
  const int thread_;
  // lines: a column's sum of a head and of its group; blocks: a cell's sum and largest.
  float sum_ = 0, group_ = 0;
  bool seen_ = false;  // P of a tile is in shared memory
};

}  // namespace fovea::cuda
