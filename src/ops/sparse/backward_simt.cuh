// SPDX-License-Identifier: Apache-2.0
// Gradients over lists in f32 FMA: every dtype, width, stride and list, no atomics.
//   x = score(q k'), y = dout v',  p = exp(x - lse),  ds = p (y - delta)
//   dq = scale ds k,  dk = scale ds' q,  dv = p' dout
// dq: a block owns 64 packed rows of one block of rows and walks their list, as the forward does.
// dk, dv: a block owns 64 keys of one key head.  It takes the rows that always see some of them,
// then the entries that name some, by their number, list row and place; rows of short blocks share
// a tile.  A row that names a key twice stands there twice.  Each sum has one owner and one order.
// Products, shared memory and barriers: block/stage.cuh.
#pragma once
#include "cuda/loop/attend_bwd_simt.cuh"
#include "ops/sparse/backward.cuh"

namespace fovea::cuda {

struct ListGradientTile : ListTile<4, GradientTile> {
  bool by_rows;        // side is of rows
  int64_t entries[2];  // begin and end of those that name a key of the tile
};

__device__ __forceinline__ float tile_score(const ListBackward& b, const ListGradientTile& s,
                                            int row, int key, float x) {
  return list_score(b.s.list, s.piece.seq, s.rows[row], s.keys[key], s.side[s.by_rows ? row : key],
                    x);
}

template <int Chunks>
__global__ void __launch_bounds__(kStageThreads)
    list_dq_kernel(const __grid_constant__ ListBackward b, const __grid_constant__ ListGrid grid) {
  extern __shared__ float4 s_dynamic[];
  __shared__ ListGradientTile s;
  const FmaTiles<4> tiles(reinterpret_cast<float*>(s_dynamic));
  const Attend& a = b.call.forward;
  if (threadIdx.x == 0) s.by_rows = false;
  for (int64_t w = blockIdx.x; w < grid.work; w += gridDim.x) {
    const ListItem item(grid, w);
    if (!stage_list_rows(b.s, grid, item, static_cast<ListTile<4, GradientTile>&>(s),
                         [&](int m, int64_t packed) { row_values(b, s, packed - m)(m); }))
      continue;
    const ListKeys<4, GradientTile> keys(b.s, s, item, 1, item.unit * grid.heads);
    float acc[Chunks][4][4] = {};
    sweep_keys(keys, [&](int64_t n, bool missing) {
      if (!keys.any()) return;
      PairTiles t;
      pair_tiles<true, true>(b, s, tiles, keys.plain(n, missing), t);
      put_p(tiles, t.dx);
      multiply_nn(acc, tiles, b.k.width, kStageTile,
                  [&](int row, int column) { return load_four(b.k, s.keys[row].k, column); });
    });
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const RowInfo& row = s.rows[threadIdx.x / 16 + 16 * r];
      const View<4>& dq = b.call.dq;
      if (row.i >= 0)
        store_columns(dq.data, a.dtype, row_offset(s.piece.seq, row.i, row.h, dq.stride),
                      dq.stride[3], b.q.width, a.score.scale, acc, r);
    }
  }
}

// The first of the sorted entries that is not below `bound`.
inline __device__ int64_t first_entry(const ListsByKey& lists, uint64_t bound) {
  int64_t low = 0, high = lists.order.entries;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (lists.entries[middle] < bound)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// Numbers of entries that may name a key of [j0, j1).
inline __device__ Interval entries_of(const BlockLists& lists, const Sequence& q, int64_t head,
                                      int64_t most, int64_t j0, int64_t j1) {
  const SparseList& list = lists.list;
  if (!list.key_begin) {
    const int64_t before = j0 - list.block_keys;
    const int64_t end = (j1 + list.entry_keys - 1) / list.entry_keys;
    return {before < 0 ? 0 : before / list.entry_keys + 1, end < most ? end : most};
  }
  // Starts ascend: the first with an end behind j0, the first that begins at j1 or later.
  const auto first = [&](int64_t shift, int64_t from) {
    int64_t low = 0, high = list.u;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (*list.key_begin.at<int32_t>(q.batch, head, middle + shift) < from)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  };
  return {first(1, j0 + 1), first(0, j1)};
}

// dk or dv of the keys from j0 on, of one unit of heads, in a block's registers.
template <Owner owner, int Chunks>
struct ListKeySums {
  static constexpr bool gradient = owner == Owner::dk;
  const ListBackward& b;
  const ListsByKey& lists;
  const FmaTiles<4>& tiles;
  ListGradientTile& s;
  int64_t j0, j1, unit, heads;
  bool missing;  // some of the 64 keys is none
  float (&acc)[Chunks][4][4];

  // The tile's rows are in shared memory.
  __device__ __forceinline__ void add(bool plain) const {
    const Operand& other = gradient ? b.q : b.dout;
    PairTiles t;
    pair_tiles<false, gradient>(b, s, tiles, plain, t);
    put_p(tiles, gradient ? t.dx : t.p);
    multiply_nn(acc, tiles, other.width, kStageTile, [&](int row, int column) {
      return load_four(other, gradient ? s.q[row] : s.dout[row], column);
    });
  }

  // Row `packed` of the unit as row m of the tile, -1: none.
  __device__ void put_row(int m, int64_t packed, const ListSide& side) const {
    s.rows[m] = row_info(b.call.forward, s.piece, packed);
    s.q[m] = s.rows[m].i < 0 ? -1 : s.piece.offset(packed, b.call.forward.q.stride);
    row_values(b, s, packed - m)(m);
    s.side[m] = side;
  }

  // Rows that see some of the keys always.
  __device__ void add_always() const {
    const Attend& a = b.call.forward;
    const SparseList& list = b.s.list;
    if (!list.last_keys && j0 >= list.first_keys) return;
    const WindowRows source(a, s.piece, j0, j1);
    for (int64_t n = source.begin; n < source.end; ++n) {
      const int64_t m0 = source[n], left = s.piece.count() - m0;
      const int64_t m1 = m0 + (left < kStageTile ? left : kStageTile);
      if (j0 >= list.first_keys) {
        const int64_t p0 = a.mask.query_at(s.piece.seq, 0, s.piece.row(m0));
        const int64_t p1 = a.mask.query_at(s.piece.seq, 0, s.piece.row(m1 - 1));
        if (a.mask.axis.from(p0 - list.last_keys + 1) >= j1 || a.mask.axis.from(p1 + 1) <= j0)
          continue;
      }
      __syncthreads();  // the last tile's rows are done with
      if (threadIdx.x < kStageTile) {
        const int m = threadIdx.x;
        put_row(m, m0 + m < m1 ? m0 + m : -1, {{j0, j1}, j0, 0, -1, -1, -1, true});
      }
      __syncthreads();
      add(false);
    }
  }

  // Entry `at` of the sorted ones: its block of rows and its side.
  __device__ ListSide side_at(int64_t at, int64_t head, ListRow& rows) const {
    const uint64_t entry = lists.entries[at];
    const Sequence& q = s.piece.seq;
    const int64_t place = lists.order.place_of(entry);
    rows = lists.lists.at(q, s.piece.r, head, lists.order.row_of(entry));
    return side_of(rows, place, b.s.list(q, rows, place));
  }

  __device__ void add_entries() const {
    const SparseList& list = b.s.list;
    const int64_t head = list.head_of(unit * heads), r = s.piece.r;
    if (threadIdx.x == 0) {
      const auto most = static_cast<int64_t>(lists.order.tiles);
      const Interval e = entries_of(lists.lists, s.piece.seq, head, most, j0, j1);
      const auto from = [&](int64_t number) {
        return first_entry(lists, lists.order.from(lists.order.tile(r, head, number), 0));
      };
      s.entries[0] = from(e.begin), s.entries[1] = e.begin < e.end ? from(e.end) : s.entries[0];
    }
    __syncthreads();
    const int64_t begin = s.entries[0], end = s.entries[1];
    const int64_t lanes = list.block_rows * heads;  // 0: blocks have sizes of their own
    const int64_t together = lanes > 0 && lanes < kStageTile ? kStageTile / lanes : 1;
    for (int64_t at = begin; at < end; at += together) {
      ListRow rows;
      const ListSide first = side_at(at, head, rows);
      const int64_t count = together > 1 ? kStageTile : (rows.end - rows.begin) * heads;
      for (int64_t m0 = 0; m0 < count; m0 += kStageTile) {
        __syncthreads();  // the last tile's rows are done with
        if (threadIdx.x < kStageTile) {
          const int m = threadIdx.x;
          int64_t lane = m0 + m;
          ListRow own = rows;
          ListSide side = first;
          bool there = true;
          if (together > 1) {
            const int64_t which = m / lanes;
            lane = m % lanes, there = which < together && at + which < end;
            if (there) side = side_at(at + which, head, own);
          }
          const int64_t row = own.begin + lane / heads;
          put_row(m, there && row < own.end ? row * heads + lane % heads : -1, side);
        }
        __syncthreads();
        add(together == 1 && plain(first, rows, m0));
      }
    }
  }

 private:
  // Every pair of the rows from m0 on and the tile's keys is the entry's, and seen.
  __device__ bool plain(const ListSide& side, const ListRow& rows, int64_t m0) const {
    const SparseList& list = b.s.list;
    if (missing || side.tile >= 0 || list.last_keys || j0 < list.first_keys) return false;
    if (side.keys.begin > j0 || side.keys.end < j1) return false;
    const int64_t i0 = rows.begin + m0 / heads, to = rows.begin + (m0 + kStageTile - 1) / heads + 1;
    const int64_t h = unit * heads;
    return tile_full(b.call.forward.mask, s.piece.seq, h, h + 1, i0, to < rows.end ? to : rows.end,
                     j0, j1);
  }
};

template <Owner owner, int Chunks>
__global__ void __launch_bounds__(kStageThreads)
    list_dkv_kernel(const __grid_constant__ ListBackward b,
                    const __grid_constant__ ListsByKey lists, int64_t heads, int64_t key_tiles,
                    int64_t work) {
  extern __shared__ float4 s_dynamic[];
  __shared__ ListGradientTile s;
  const FmaTiles<4> tiles(reinterpret_cast<float*>(s_dynamic));
  const Attend& a = b.call.forward;
  const Operand& other = owner == Owner::dk ? b.q : b.dout;
  const int64_t units = a.h / a.g / heads;
  if (threadIdx.x == 0) s.by_rows = true;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t j0 = w % key_tiles * kStageTile, r = w / key_tiles / a.g, g = w / key_tiles % a.g;
    float acc[Chunks][4][4] = {};
    __syncthreads();  // the last keys are done with
    if (threadIdx.x == 0) s.piece = {a.sequences[r], r, 0, heads};
    __syncthreads();
    for (int64_t unit = g * units; unit < (g + 1) * units; ++unit) {
      __syncthreads();  // the last unit's rows and keys are done with
      if (threadIdx.x == 0) s.piece.g = unit;
      __syncthreads();
      const Sequence& q = s.piece.seq;
      if (j0 >= q.keys) break;
      bool none = false;
      if (threadIdx.x < kStageTile) {
        s.keys[threadIdx.x] = key_info(a, q, g, j0 + threadIdx.x);
        none = s.keys[threadIdx.x].k < 0;
      }
      const bool missing = __syncthreads_or(none);
      const int64_t j1 = j0 + kStageTile < q.keys ? j0 + kStageTile : q.keys;
      const ListKeySums<owner, Chunks> sums{b, lists, tiles, s, j0, j1, unit, heads, missing, acc};
      sums.add_always();
      sums.add_entries();
    }
#pragma unroll
    for (int r4 = 0; r4 < 4; ++r4) {
      const int64_t j = j0 + threadIdx.x / 16 + 16 * r4;
      if (j >= s.piece.seq.keys) continue;
      const View<4>& out = owner == Owner::dk ? b.call.dk : b.call.dv;
      store_columns(out.data, a.dtype, key_place(a.sequences, s.piece.seq, j).offset(g, out.stride),
                    out.stride[3], other.width, owner == Owner::dk ? a.score.scale : 1.f, acc, r4);
    }
  }
}

template <Owner owner, int Chunks>
void list_gradient(Context& ctx, const ListBackward& b, const ListsByKey& lists) {
  const Attend& a = b.call.forward;
  constexpr int64_t shared = FmaTiles<4>::bytes();
  if constexpr (owner == Owner::dq) {
    const ListGrid grid(b.s, false);
    launch<list_dq_kernel<Chunks>>(ctx, "x_sparse_backward", grid.work, kStageThreads, shared, b,
                                   grid);
  } else {
    const int64_t tiles = ceil_div(a.sequences.key_max, kStageTile);
    const int64_t work = a.sequences.count * a.g * tiles;
    launch<list_dkv_kernel<owner, Chunks>>(ctx, "x_sparse_backward", work, kStageThreads, shared, b,
                                           lists, b.s.shared_heads(), tiles, work);
  }
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(dtype, columns, owner)                                        \
  template void fovea::cuda::list_gradient<fovea::cuda::Owner::owner, columns / 64>( \
      fovea::Context&, const fovea::cuda::ListBackward&, const fovea::cuda::ListsByKey&);
