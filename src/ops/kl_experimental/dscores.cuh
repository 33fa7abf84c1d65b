// SPDX-License-Identifier: Apache-2.0
// Gradients by way of dscores, the gradient db of a call's logits, which lies in memory for some
// rows at a time (x_kl_pool, x_kl_indexer).  Pooled keys are blocks of keys.
//   dscores   a kernel of the call writes db of the launch's items
//   products  64 own places x 128 columns a block:
//               dq  own are rows of a head, over tiles of 64 keys: scale dz k, stored
//               dk  own are keys of a key head, over tiles of 64 rows of its query heads, every so
//                   many of which are a part: dz' q, added to the part's sums
//   join      dk = scale times the parts' sums, added in order (parts.cuh)
// dz is db.  Of rectified logits, whose heads share a db, it is
//   dz_n = db w_n where z_n = <q_n, k> > 0,  and dw_n = sum_j db max(z_n, 0)
// Shared memory and barriers: block/pairs_fma.cuh, block/pairs_mma.cuh.
#pragma once
#include <algorithm>

#include "core/dtype.h"
#include "ops/kl/stage_sides.cuh"
#include "ops/kl_experimental/parts.cuh"

namespace fovea::cuda {

// An item is (sequence, 128 rows, head of db), heads first; a launch takes `count` of them.
struct Dscores {
  static constexpr int rows = 128;
  static constexpr int64_t kBytesMost = int64_t{1} << 25;  // at a time, but for one item
  void* db = nullptr;  // (item, row, key): f32, or the dtype on tensor cores
  int64_t pitch, row_tiles, heads;
  int64_t first = 0, count = 0;

  Dscores(const Sequences& q, int64_t heads, int64_t keys)
      : pitch(ceil_div(keys, kStageTile) * kStageTile),
        row_tiles(ceil_div(q.query_max, rows)),
        heads(heads) {}
  int64_t items(const Sequences& q) const { return q.count * row_tiles * heads; }
  FOVEA_HD int64_t item(int64_t sequence, int64_t h, int64_t i) const {
    return (sequence * row_tiles + i / rows) * heads + h;
  }
  FOVEA_HD bool holds(int64_t item) const { return item >= first && item < first + count; }
  // Element of row i and key 0.
  FOVEA_HD int64_t place(int64_t sequence, int64_t h, int64_t i) const {
    return ((item(sequence, h, i) - first) * rows + i % rows) * pitch;
  }
};

// Two row tiles a part, for as many blocks as fill the device some times over, in 32 MiB.
inline DkParts parts_of(const KlSide& side, int64_t group, const Sequences& q, int64_t keys) {
  constexpr int64_t kPartTiles = 2, kBlocksMost = 1024, kFloatsMost = int64_t{1} << 23;
  DkParts x{nullptr, 0, ceil_div(keys, kStageTile), ceil_div(side.width, kStageTile) * kStageTile,
            kStageTile};
  const int64_t tiles = q.count * side.key_heads * x.tiles;
  const int64_t most = clamp_i64(kFloatsMost / (kStageTile * x.columns), 1, kBlocksMost);
  x.count = clamp_i64(ceil_div(q.query_max, kStageTile) * group / kPartTiles, 1,
                      clamp_i64(tiles ? most / tiles : 1, 1, most));
  return x;
}

// A sequence and what k counts in place of its keys, to shared memory.
template <class Call>
__device__ __forceinline__ void find_sequence(const Call& call, int64_t r, Sequence& seq,
                                              Sequence& units) {
  __syncthreads();
  if (threadIdx.x == 0) {
    seq = call.kl().sequences[r];
    units = call.units(seq, r);
  }
  __syncthreads();
}

// Rows of an operand from element `at` on, `terms` of them.
struct TileRows {
  int64_t at, stride, terms;
  __device__ __forceinline__ int64_t operator()(int row) const {
    return row < terms ? at + row * stride : -1;
  }
};

// max(z, 0) that keeps NaN.
__device__ __forceinline__ float rectified(float z) {
  return z <= 0 ? 0 : z;
}
// A gradient of 0 of a pair that counts is -0: times a NaN it is NaN, where +0 takes nothing.
__device__ __forceinline__ float counted(float x) {
  return x == 0 ? -0.f : x;
}

// db becomes dz of head h, `rows` own or the others; and db max(z, 0), summed over a thread's pairs
// of each own place.
template <class Pairs, class Call>
__device__ __forceinline__ void rectify(float (&db)[Pairs::R][Pairs::C], float (&dweight)[Pairs::R],
                                        Pairs& pairs, const Call& call, const Sequence& seq,
                                        bool rows, int64_t h, int64_t i0, const TileRows& own,
                                        const TileRows& other) {
  const StageSide& side = call.student;
  const View<3>& weight = call.a.weight;
  float z[Pairs::R][Pairs::C] = {};
  pairs.multiply(z, rows ? side.q : side.k, own, rows ? side.k : side.q, other);
  each_pair<Pairs>([&](int r, int c) {
    const float d = db[r][c], on = rectified(z[r][c]);
    const int64_t i = i0 + (rows ? Pairs::own_of(r) : Pairs::other_of(c));
    if (__float_as_uint(d) == 0) {
      db[r][c] = 0;
      return;
    }
    dweight[r] = fmaf(d, on, dweight[r]);
    const float w = weight.as()[seq.batch * weight.stride[0] +
                                (seq.row_begin + i) * weight.stride[1] + h * weight.stride[2]];
    db[r][c] = counted(d * (on == 0 ? 0 : w));
  });
}

constexpr int kProductChunks = 2;  // of 64 columns

__device__ __forceinline__ int64_t count_of(int64_t x, int64_t each) {
  return (x + each - 1) / each;
}

// Call: kl(), own() the student, `student` its operands, units(), seen(rows of 64, keys of 64), `T`
// of db, `rectifies`.
template <class Pairs, class Call>
__global__ void __launch_bounds__(Pairs::threads, 2)
    products_kernel(const __grid_constant__ Call call, const __grid_constant__ Dscores dscores,
                    const __grid_constant__ DkParts parts, int64_t dq_work, int64_t work) {
  extern __shared__ __align__(128) unsigned char s_dynamic[];
  __shared__ Sequence seq, units;
  using T = typename Call::template T<Pairs>;
  constexpr int kHalves = Dscores::rows / Pairs::own, R = Pairs::R, C = Pairs::C;
  constexpr bool kRectifies = Call::rectifies;
  const StageSide& student = call.student;
  const KlSide& side = call.own();
  Pairs pairs(s_dynamic, kRectifies ? side.width : Pairs::chunk);
  const int64_t *q_stride = student.q_stride, *k_stride = student.k_stride;
  const int64_t passes = count_of(side.width, kProductChunks * Pairs::chunk);
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const bool rows = w < dq_work;
    const int64_t each = rows && kRectifies ? student.group : 1;  // query heads of a head of db
    const int64_t index = (rows ? w : w - dq_work) / passes, at = index / each;
    const int first =
        static_cast<int>((rows ? w : w - dq_work) % passes) * kProductChunks * Pairs::chunk;
    const int64_t item = rows ? dscores.first + at / kHalves : 0;
    const int64_t tile = rows ? item / dscores.heads : at / parts.count;
    const int64_t head =
        rows ? item % dscores.heads * each + index % each : tile / parts.tiles % side.key_heads;
    const int64_t r = rows ? tile / dscores.row_tiles : tile / parts.tiles / side.key_heads;
    find_sequence(call, r, seq, units);
    // The first own place; the tiles of others from `begin` on, every `step`.
    const int64_t own0 = rows ? tile % dscores.row_tiles * Dscores::rows + at % kHalves * Pairs::own
                              : tile % parts.tiles * kStageTile;
    if (own0 >= (rows ? seq.rows : units.keys)) continue;
    const int64_t row_tiles = count_of(call.kl().sequences.query_max, kStageTile);
    const int64_t begin = rows ? 0 : at % parts.count, step = rows ? 1 : parts.count;
    const int64_t end = rows ? count_of(units.keys, kStageTile) : row_tiles * student.group;
    float* const to = parts.sums + at * kStageTile * parts.columns;
    float acc[kProductChunks][R][C] = {}, dweight[R] = {};
    const auto each_sum = [&](const auto& f) {
#pragma unroll
      for (int n = 0; n < kProductChunks; ++n)
        each_pair<Pairs>([&](int r, int c) {
          const int64_t column = first + n * Pairs::chunk + Pairs::column_of(c);
          if (column < parts.columns)
            f(to[Pairs::own_of(r) * parts.columns + column], acc[n][r][c]);
        });
    };
    if (!rows && dscores.first) each_sum([](float sum, float& x) { x = sum; });
    for (int64_t n = begin; n < end; n += step) {
      const int64_t h = rows ? head : head * student.group + n / row_tiles;
      const int64_t i0 = rows ? own0 : n % row_tiles * kStageTile, db_head = kRectifies ? 0 : h;
      const int64_t u0 = rows ? n * kStageTile : own0;
      if (i0 >= seq.rows || !dscores.holds(dscores.item(r, db_head, i0))) continue;
      if (!call.seen(seq, h, i0, u0)) continue;
      const int64_t own_stride = rows ? dscores.pitch : 1, other_stride = rows ? 1 : dscores.pitch;
      const T* const from = static_cast<const T*>(dscores.db) + dscores.place(r, db_head, i0) + u0;
      float p[R][C];
      each_pair<Pairs>([&](int r, int c) {
        const int own = Pairs::own_of(r), other = Pairs::other_of(c);
        // Where pairs are rectified nobody wrote the rows past a sequence's last.
        const bool none = kRectifies && i0 + (rows ? own : other) >= seq.rows;
        p[r][c] = none ? 0.f : to_float(from[own * own_stride + other * other_stride]);
      });
      const auto tile = [&](bool q) {
        return q ? TileRows{seq.batch * q_stride[0] + (seq.row_begin + i0) * q_stride[1] +
                                h * q_stride[2],
                            q_stride[1], seq.rows - i0}
                 : TileRows{units.key_batch * k_stride[0] + (units.key_begin + u0) * k_stride[1] +
                                h / student.group * k_stride[2],
                            k_stride[1], units.keys - u0};
      };
      const TileRows x = tile(!rows);
      if constexpr (kRectifies) rectify(p, dweight, pairs, call, seq, rows, h, i0, tile(rows), x);
      pairs.put(p);
      pairs.add(acc, rows ? student.k : student.q, x, x.terms, first);
    }
    if (!rows) {
      each_sum([](float& sum, float x) { sum = x; });
      continue;
    }
    if constexpr (kRectifies)
      if (first == 0) call.template store_weights<Pairs>(seq, own0, head, dweight);
    if (!side.dq) continue;
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const int64_t i = own0 + Pairs::own_of(r), *stride = side.dq.stride;
      const int64_t row =
          seq.batch * stride[0] + (seq.row_begin + i) * stride[1] + head * stride[2];
#pragma unroll
      for (int n = 0; n < kProductChunks; ++n)
#pragma unroll
        for (int c = 0; c < C; ++c)
          if (const int column = first + n * Pairs::chunk + Pairs::column_of(c);
              i < seq.rows && column < side.width)
            store_float(side.dq.data, side.dtype, row + column * stride[3],
                        side.scale * acc[n][r][c]);
    }
  }
}

template <class Pairs, class Call>
void run_products(Context& ctx, const Call& call, const Dscores& dscores, const DkParts& parts) {
  const KlSide& side = call.own();
  const int64_t passes = ceil_div(side.width, kProductChunks * Pairs::chunk);
  const int64_t rows = dscores.count * (Dscores::rows / Pairs::own) * passes;
  const int64_t dq_work = call.by_rows() ? rows * (Call::rectifies ? call.student.group : 1) : 0;
  const int64_t tiles = call.kl().sequences.count * side.key_heads * parts.tiles;
  const int64_t work = dq_work + (side.dk ? tiles * parts.count * passes : 0);
  launch<products_kernel<Pairs, Call>>(
      ctx, Call::op, work, Pairs::threads,
      Pairs::shared_bytes(Call::rectifies ? side.width : Pairs::chunk), call, dscores, parts,
      dq_work, work);
}

// sweep(ctx, call, dscores) writes db of the launch's items.
template <class Call, class Sweep>
Text plan_dscores(const Call& call, Plan& plan, bool mma, const Sweep& sweep) {
  const Sequences& q = call.kl().sequences;
  plan.kernel += Text(".") + dtype_name(call.kl().first.dtype);
  const DkParts parts = parts_of(call.own(), call.student.group, q, call.keys());
  const Dscores dscores(q, Call::rectifies ? 1 : call.kl().h, call.keys());
  const int64_t all = dscores.items(q);
  const int64_t bytes = Dscores::rows * dscores.pitch * (mma && !Call::rectifies ? 2 : 4);
  const int64_t band = std::min(
      all, clamp_i64(Dscores::kBytesMost / std::max<int64_t>(bytes, 1), 1, Dscores::kBytesMost));
  const auto db = plan.workspace.add<unsigned char>(band, bytes);
  const auto sums =
      plan.workspace.add<float>(call.own().dk ? parts.floats(q, call.own().key_heads) : 0);
  plan.launch = [=](Context& ctx, void* base) {
    call.clear(ctx);
    Dscores now = dscores;
    DkParts to = parts;
    now.db = db.at(base), to.sums = sums.at(base);
    do {  // once without rows: the sums are of nothing then
      now.count = std::min(band, all - now.first);
      sweep(ctx, call, now);
      // Where pairs are rectified a db of 0 is multiplied like any other.
      with_pairs<!Call::rectifies>(mma, call.own().dtype,
                                   [&]<class Pairs> { run_products<Pairs>(ctx, call, now, to); });
      now.first += now.count;
    } while (now.first < all);
    if (call.own().dk) join_parts(ctx, Call::op, call.own(), call.kl().sequences, to, call);
  };
  return "";
}

}  // namespace fovea::cuda
