// SPDX-License-Identifier: Apache-2.0
// x_tpa_forward on tensor cores for few rows of a sequence, without heads of k and v in memory:
//   x_ij = factor sum_a a_k[j,a,i] <q_i, b_k[j,a]>,  o_i = scale_v sum_j sum_a (p_ij a_v[j,a,i])
//   b_v[j,a] / l_i
// A block owns a row of a sequence, all its heads, and a split of the keys.  Heads are the 16 rows
// of a warp's products, keys their columns: M warps have different heads, `parts` of them the same
// ones and other keys.  q is formed once, and stays in registers.  S of a rank, weighed by a_k,
// sums over the ranks to x; p a_v of a rank, rounded, is the operand of its o. Shared memory:
// `stages` tiles of `keys` keys.  A tile holds b_k and b_v [rank][key][Width + 8], a_k and a_v
// [rank][key][heads + 8], then a byte for each key that is there.  The pad of 16 bytes spreads rows
// over the banks.  Before the last tile's place is used it holds q.  At the end the parts' sums
// take the place of the tiles. Barriers: one __syncthreads() a tile.  Before it each thread's
// copies of the tile have landed, and all warps are done with what was where the next copies go.
#include <algorithm>

#include "core/pieces.h"
#include "core/reasons.h"
#include "cuda/block/softmax.cuh"
#include "cuda/loop/combine.cuh"
#include "cuda/loop/source.cuh"
#include "cuda/tile/convert.cuh"
#include "cuda/tile/copy.cuh"
#include "cuda/tile/mma_sm80.cuh"
#include "ops/tpa/kernels.h"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "x_tpa_forward";
constexpr int kChunk16 = 16;   // keys of a step of a warp
constexpr int kKeyLanes = 8;   // threads that copy a key
constexpr int kKeysMost = 64;  // of a tile
constexpr int kPlaceBytes = 2 * kKeysMost * 8;
constexpr int kRowsMost = 16;    // of a sequence
constexpr int kHeadsMost = 128;  // of a block
constexpr int kPad = 8;          // elements

// Where things lie in shared memory, in bytes.
struct Tile {
  int keys, heads, stages;  // heads: a multiple of 16
  int b_row, a_row;         // of a row
  int b_k, b_v, a_k, a_v, there, bytes;

  Tile() = default;
  Tile(int keys, int heads, int width, int rank_k, int rank_v)
      : keys(keys), heads(heads), stages(0) {
    b_row = (width + kPad) * 2, a_row = (heads + kPad) * 2;
    b_k = 0, b_v = b_k + rank_k * keys * b_row, a_k = b_v + rank_v * keys * b_row;
    a_v = a_k + rank_k * keys * a_row, there = a_v + rank_v * keys * a_row;
    bytes = (there + keys + 127) / 128 * 128;
  }
};

// A factor of keys or of values, and where its rows go.
struct Side {
  View<4> x;
  int to, pitch;  // of a tile, in bytes
  int ranks, width;
};

struct FewRows {
  Attend a;
  Side side[4];  // b_k, b_v, a_k, a_v
  View<4> q, a_q, b_q;
  int rank_q, rank_k, rank_v;
  float scale_q, scale_v, factor;  // a key's weight is 2^(factor x)
  Tile tile;
  int pieces, q_pieces;  // 1: rows of a_k and a_v, or of b_q or q, are whole pieces of 16 bytes
  int parts, rows, splits;
  Partials out;
};

// The keys that a row sees, numbered: first those of the sinks, then those of the window.
struct SeenList {
  int first, first_count, low, count;
  __device__ SeenList(const KeyRange& r) {
    const int64_t end = min(r.first_high, r.low);
    first = static_cast<int>(r.first_low), low = static_cast<int>(r.low);
    first_count = end > r.first_low ? static_cast<int>(end - r.first_low) : 0;
    count = first_count + (r.high > r.low ? static_cast<int>(r.high - r.low) : 0);
  }
  __device__ int operator[](int n) const {
    return n < first_count ? first + n : low + n - first_count;
  }
};

// Copies of key tiles, by all threads of a block: eight a key.  A thread finds the place of one key
// of the next tile and leaves it in shared memory, in one of two buffers by turns.
template <int Width, int Threads>
class KeyCopies {
 public:
  __device__ KeyCopies(const FewRows& f, const Sequence& q, const SeenList& seen, int begin,
                       int end, unsigned char* shared)
      : f_(f),
        q_(q),
        seen_(seen),
        begin_(begin),
        end_(end),
        places_(reinterpret_cast<int2*>(shared)),
        tiles_(shared + kPlaceBytes) {}

  // Asks for the place of a key of tile `it`: the page table's answer is late.
  __device__ void look(int it) {
    const Sequences& s = f_.a.sequences;
    const int n = begin_ + it * f_.tile.keys + static_cast<int>(threadIdx.x);
    place_ = {-1, 0};
    if (threadIdx.x >= f_.tile.keys || n >= end_) return;
    const auto i = static_cast<uint32_t>(q_.key_begin + seen_[n]);
    place_ = {static_cast<int>(q_.key_batch), static_cast<int>(i)};
    if (!s.page) return;
    const auto page = static_cast<uint32_t>(s.page), number = i / page;
    place_ = {*s.page_table.at<int32_t>(q_.key_batch, number), static_cast<int>(i - number * page)};
  }
  __device__ void store_places(int it) {
    const Sequences& s = f_.a.sequences;
    if (s.page && place_.x >= s.pool) place_.x = -1;
    if (threadIdx.x < f_.tile.keys) places_[it % 2 * kKeysMost + threadIdx.x] = place_;
  }

  // Tile `it` into a stage.  The loops stay loops: code that fits the instruction cache.
  __device__ void copy(int it, int stage) {
    unsigned char* const tile = tiles_ + stage * f_.tile.bytes;
    const int lane = threadIdx.x % kKeyLanes;
#pragma unroll 1
    for (int slot = threadIdx.x / kKeyLanes; slot < f_.tile.keys; slot += Threads / kKeyLanes) {
      const int2 place = places_[it % 2 * kKeysMost + slot];
      const bool there = place.x >= 0;
      if (lane == 0) tile[f_.tile.there + slot] = there;
      const KeyPlace at{there ? place.x : 0, there ? place.y : 0};
#pragma unroll 1
      for (int n = 0; n < 2; ++n) rows<Width>(f_.side[n], tile, slot, lane, at, there);
#pragma unroll 1
      for (int n = 2; n < 4; ++n)
        if (f_.pieces)
          rows<kKeyLanes * 8>(f_.side[n], tile, slot, lane, at, there);
        else
          elements(f_.side[n], tile, slot, lane, at, there);
    }
  }

 private:
  // Columns [0, Most) by unrolled steps, others in a loop.
  template <int Most>
  __device__ void rows(const Side& side, unsigned char* tile, int slot, int lane,
                       const KeyPlace& at, bool there) const {
    const uint16_t* from = side.x.as<uint16_t>() + at.offset(0, side.x.stride) + lane * 8;
    uint32_t row = shared_address(tile + side.to + slot * side.pitch) + lane * 16;
#pragma unroll 1
    for (int r = 0; r < side.ranks; ++r) {
#pragma unroll
      for (int c = 0; c < Most; c += kKeyLanes * 8)
        if (lane * 8 + c < side.width) copy_async(row + c * 2, from + c, there);
      if (Most == kKeyLanes * 8 && side.width > Most && lane * 8 + Most < side.width)
        copy_async(row + Most * 2, from + Most, there);
      from += side.x.stride[2], row += f_.tile.keys * side.pitch;
    }
  }
  __device__ void elements(const Side& side, unsigned char* tile, int slot, int lane,
                           const KeyPlace& at, bool there) const {
#pragma unroll 1
    for (int r = 0; r < side.ranks; ++r) {
      const uint16_t* from = side.x.as<uint16_t>() + at.offset(r, side.x.stride);
      auto* row =
          reinterpret_cast<uint16_t*>(tile + side.to + (r * f_.tile.keys + slot) * side.pitch);
      for (int i = lane; i < side.width; i += kKeyLanes)
        row[i] = there ? from[i * side.x.stride[3]] : uint16_t{0};
    }
  }

  const FewRows& f_;
  const Sequence& q_;
  const SeenList seen_;
  const int begin_, end_;
  int2* const places_;
  unsigned char* const tiles_;
  int2 place_;
};

// Eight elements of a row; `pieces`: as one.
template <int Dtype>
__device__ __forceinline__ void load_eight(const View<4>& x, int64_t row, int c, bool pieces,
                                           float (&to)[8]) {
  if (pieces) {
    const uint4 all = *reinterpret_cast<const uint4*>(x.as<uint16_t>() + row + c);
    const uint32_t words[] = {all.x, all.y, all.z, all.w};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const float2 pair = pair_of<Dtype>(words[n]);
      to[2 * n] = pair.x, to[2 * n + 1] = pair.y;
    }
    return;
  }
#pragma unroll
  for (int n = 0; n < 8; ++n) to[n] = load_float(x.data, Dtype, row + (c + n) * x.stride[3]);
}

// q of all heads, rounded, into shared memory: rows like those of b_k, 0 past h and d.
template <int Dtype, int Width, int Threads>
__device__ void form_q(const FewRows& f, const Sequence& q, int64_t row, unsigned char* shared) {
  constexpr int kHeads = 4, kStep = Threads / (Width / 8);  // of a thread at once; of heads
  const int c = threadIdx.x % (Width / 8) * 8;
  for (int first = threadIdx.x / (Width / 8); first < f.tile.heads; first += kHeads * kStep) {
    float sum[kHeads][8] = {};
    const auto inside = [&](int k) { return first + k * kStep < f.a.h && c < f.a.d; };
#pragma unroll 2
    for (int r = 0; r < f.rank_q && !f.q; ++r) {
      float b[8] = {};
      if (c < f.a.d)
        load_eight<Dtype>(f.b_q, row_offset(q, row, r, f.b_q.stride), c, f.q_pieces, b);
      const int64_t a = row_offset(q, row, r, f.a_q.stride);
#pragma unroll
      for (int k = 0; k < kHeads; ++k) {
        float by = 0;
        if (inside(k))
          by = load_float(f.a_q.data, Dtype, a + (first + k * kStep) * f.a_q.stride[3]);
#pragma unroll
        for (int n = 0; n < 8; ++n) sum[k][n] = fmaf(by, b[n], sum[k][n]);
      }
    }
#pragma unroll
    for (int k = 0; k < kHeads; ++k) {
      const int head = first + k * kStep;
      if (head >= f.tile.heads) break;
      if (f.q && inside(k))
        load_eight<Dtype>(f.q, row_offset(q, row, head, f.q.stride), c, f.q_pieces, sum[k]);
      uint4 all;
      uint32_t* words[] = {&all.x, &all.y, &all.z, &all.w};
#pragma unroll
      for (int n = 0; n < 4; ++n)
        *words[n] = pack<Dtype>(f.scale_q * sum[k][2 * n], f.scale_q * sum[k][2 * n + 1]);
      *reinterpret_cast<uint4*>(shared + head * f.tile.b_row + c * 2) = all;
    }
  }
}

// A warp's 16 heads over its keys.
template <int Dtype, int Width>
class HeadsWarp {
 public:
  float o[1][Width / 8][4] = {};
  OnlineSoftmax<1> state;

  // first: the warp's first head.
  __device__ HeadsWarp(const FewRows& f, int first) : f_(f), first_(first) {
    const int lane = threadIdx.x % 32;
    k_lane_ = inner_row(lane) * f.tile.b_row + inner_chunk(lane) * 16;
    v_lane_ = outer_row(lane) * f.tile.b_row + outer_chunk(lane) * 16;
    // Four matrices of 8 keys by 8 heads: keys 0 and 8 by lane / 16, heads 0 and 8 by lane / 8.
    a_lane_ = (lane % 8 + lane / 16 * 8) * f.tile.a_row + (first + lane / 8 % 2 * 8) * 2;
  }

  // `rows`: of q in shared memory.
  __device__ void load_q(const unsigned char* rows) {
    const int lane = threadIdx.x % 32;
    const uint32_t from =
        shared_address(rows) + (first_ + outer_row(lane)) * f_.tile.b_row + outer_chunk(lane) * 16;
#pragma unroll
    for (int k = 0; k < Width / 16; ++k) load_matrices(q_[k], from + k * 32);
  }

  // Keys from `first` on of the tile at `shared`.
  __device__ void step(const unsigned char* shared, int first) {
    const uint32_t tile = shared_address(shared);
    const int t = threadIdx.x % 4 * 2;
    float x[1][2][4] = {};
#pragma unroll 1
    for (int r = 0; r < f_.rank_k; ++r) {
      const int row = r * f_.tile.keys + first;
      float s[2][2][4] = {};  // of even and odd k: two chains of products
#pragma unroll
      for (int k = 0; k < Width / 16; ++k) {
        uint32_t b[4];
        load_matrices(b, tile + f_.tile.b_k + row * f_.tile.b_row + k_lane_ + k * 32);
        mma<Dtype>(s[k % 2][0], q_[k], b[0], b[1]);
        mma<Dtype>(s[k % 2][1], q_[k], b[2], b[3]);
      }
      float by[2][4];
      weights(tile + f_.tile.a_k + row * f_.tile.a_row, by);
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const int j = n / 4, c = n % 4;
        x[0][j][c] = fmaf(by[j][c], s[0][j][c] + s[1][j][c], x[0][j][c]);
      }
    }
    // All ranks of a key are summed before it is masked.
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint16_t there =
          *reinterpret_cast<const uint16_t*>(shared + f_.tile.there + first + j * 8 + t);
      if (!(there & 0xff)) x[0][j][0] = x[0][j][2] = kNegativeInfinity;
      if (!(there >> 8)) x[0][j][1] = x[0][j][3] = kNegativeInfinity;
    }
    state.step(x, o, f_.factor);
#pragma unroll 1
    for (int r = 0; r < f_.rank_v; ++r) {
      const int row = r * f_.tile.keys + first;
      float by[2][4];
      weights(tile + f_.tile.a_v + row * f_.tile.a_row, by);
      uint32_t p[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int j = n / 2, c = n % 2 * 2;
        p[n] = pack<Dtype>(x[0][j][c] * by[j][c], x[0][j][c + 1] * by[j][c + 1]);
      }
#pragma unroll
      for (int k = 0; k < Width / 16; ++k) {
        uint32_t b[4];
        load_matrices_transposed(b, tile + f_.tile.b_v + row * f_.tile.b_row + v_lane_ + k * 32);
        mma<Dtype>(o[0][2 * k], p, b[0], b[1]);
        mma<Dtype>(o[0][2 * k + 1], p, b[2], b[3]);
      }
    }
  }

 private:
  // Of the lane's keys and heads, as sums lie.
  __device__ void weights(uint32_t row, float (&to)[2][4]) const {
    uint32_t a[4];
    load_matrices_transposed(a, row + a_lane_);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const float2 pair = pair_of<Dtype>(a[n]);
      to[n / 2][n % 2 * 2] = pair.x, to[n / 2][n % 2 * 2 + 1] = pair.y;
    }
  }

  const FewRows& f_;
  const int first_;
  uint32_t q_[Width / 16][4];
  int k_lane_, v_lane_, a_lane_;
};

// Sums of the parts of the same heads, into those of part 0: ascending.
template <int Dtype, int Width>
__device__ void merge_parts(HeadsWarp<Dtype, Width>& mine, int part, int parts, int tiles, int tile,
                            bool active, float factor, unsigned char* shared) {
  constexpr int kWords = Width / 2;
  const int lane = threadIdx.x % 32;
  auto* const sums = reinterpret_cast<float*>(shared);
  const auto at = [&](int of, int word) {
    return ((of - 1) * tiles + tile) * (kWords + 4) * 32 + word * 32 + lane;
  };
  float total[2] = {mine.state.total(0, 0), mine.state.total(0, 1)};
  if (active && part > 0) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) sums[at(part, i)] = mine.o[0][i / 4][i % 4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sums[at(part, kWords + half)] = mine.state.m[0][half];
      sums[at(part, kWords + 2 + half)] = total[half];
    }
  }
  __syncthreads();
  if (!active || part > 0) return;
  for (int of = 1; of < parts; ++of) {
    float by[2], own[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float& top = mine.state.m[0][half];
      const float other = sums[at(of, kWords + half)], most = fmaxf(top, other);
      const float base = most == kNegativeInfinity ? 0.f : most;
      own[half] = exp2f((top - base) * factor), by[half] = exp2f((other - base) * factor);
      top = most;
      total[half] = total[half] * own[half] + sums[at(of, kWords + 2 + half)] * by[half];
    }
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const int half = i % 4 / 2;
      float& o = mine.o[0][i / 4][i % 4];
      o = o * own[half] + sums[at(of, i)] * by[half];
    }
  }
  // A quad's lanes add up to the sum.
#pragma unroll
  for (int half = 0; half < 2; ++half) mine.state.l[0][half] = lane % 4 ? 0.f : total[half];
}

template <int Dtype, int Width>
__device__ void store_heads(const FewRows& f, const Sequence& q, int64_t row, int split, int first,
                            const HeadsWarp<Dtype, Width>& mine) {
  const int lane = threadIdx.x % 32;
  const int64_t token = q.batch * f.a.s + q.row_begin + row;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int head = first + lane / 4 + half * 8;
    const float sum = mine.state.total(0, half), top = mine.state.top(0, half, f.factor);
    if (head >= f.a.h) continue;
    const float by = sum == 0 ? 0.f : f.scale_v / sum;
    const float lse = sum == 0 ? kNegativeInfinity : (top + log2f(sum)) * kLn2;
    if (f.splits > 1) {
      float* to = f.out.o_row(split, token, head);
#pragma unroll
      for (int j = 0; j < Width / 8; ++j) {
        const int c = j * 8 + lane % 4 * 2;
        if (c < f.a.e)
          *reinterpret_cast<float2*>(to + c) =
              make_float2(mine.o[0][j][half * 2] * by, mine.o[0][j][half * 2 + 1] * by);
      }
      if (lane % 4 == 0) *f.out.lse_row(split, token, head) = lse;
      continue;
    }
    const int64_t to = row_offset(q, row, head, f.a.o.stride);
#pragma unroll
    for (int i = 0; i < Width / 4; ++i) {
      const int c = i / 2 * 8 + lane % 4 * 2 + i % 2;
      if (c < f.a.e)
        store_float(f.a.o.data, f.a.o_dtype, to + c * f.a.o.stride[3],
                    mine.o[0][i / 2][half * 2 + i % 2] * by);
    }
    if (f.a.lse && lane % 4 == 0) f.a.lse.as()[lse_offset(q, row, head, f.a.lse.stride)] = lse;
  }
}

// Columns past d are 0 in q: in b_k they have to be numbers.
template <int Threads>
__device__ void clear(unsigned char* from, int bytes) {
  for (int i = threadIdx.x * 4; i < bytes; i += Threads * 4)
    *reinterpret_cast<uint32_t*>(from + i) = 0;
}

// At most `pending` groups of copies are still under way.
__device__ inline void copies_wait(int pending) {
  if (pending <= 0) return copy_wait<0>();
  if (pending == 1) return copy_wait<1>();
  if (pending == 2) return copy_wait<2>();
  copy_wait<3>();
}

template <int Dtype, int Width, int Warps>
__device__ void few_rows(const FewRows& f, const Sequence& q, int64_t row, int split,
                         unsigned char* shared) {
  const Tile& tile = f.tile;
  const SeenList seen(f.a.mask.window.range(f.a.mask.query_at(q, 0, row), q.keys, f.a.mask.axis));
  const SplitRange range = split_range((seen.count + tile.keys - 1) / tile.keys, f.splits, split);
  const int count = static_cast<int>(range.end - range.begin), ahead = tile.stages - 1;
  const int begin = static_cast<int>(range.begin) * tile.keys;
  KeyCopies<Width, Warps * 32> copies(f, q, seen, begin, min(begin + count * tile.keys, seen.count),
                                      shared);
  unsigned char* const stages = shared + kPlaceBytes;
  copies.look(0);
#pragma unroll 1
  for (int it = 0; it < ahead; ++it) {
    copies.store_places(it);
    __syncthreads();
    if (it < count) copies.copy(it, it);
    copies.look(it + 1);
    copy_commit();
  }
  copies.store_places(ahead);
  const int tiles = tile.heads / 16, warp = threadIdx.x / 32;
  const int part = warp / tiles, first = warp % tiles * 16;
  const bool active = part < f.parts;
  HeadsWarp<Dtype, Width> mine(f, first);
  unsigned char* const q_rows = stages + ahead * tile.bytes;
  form_q<Dtype, Width, Warps * 32>(f, q, row, q_rows);
  __syncthreads();
  if (active) mine.load_q(q_rows);
  if (f.a.d < Width) __syncthreads(), clear<Warps * 32>(q_rows, tile.bytes);
  int stage = 0;
  for (int it = 0; it < count; ++it) {
    copies_wait(tile.stages - 2);
    __syncthreads();
    if (it + ahead < count) copies.copy(it + ahead, stage ? stage - 1 : ahead);
    copies.look(it + ahead + 1);
    copy_commit();
    if (active)
#pragma unroll 1
      for (int at = part * kChunk16; at < tile.keys; at += f.parts * kChunk16)
        mine.step(stages + stage * tile.bytes, at);
    copies.store_places(it + ahead + 1);
    stage = stage == ahead ? 0 : stage + 1;
  }
  copy_wait<0>();
  __syncthreads();
  merge_parts(mine, part, f.parts, tiles, warp % tiles, active, f.factor, stages);
  if (active && part == 0) store_heads(f, q, row, split, first, mine);
  __syncthreads();
}

template <int Dtype, int Width, int Warps>
__global__ void __launch_bounds__(Warps * 32, Warps == 8    ? 1
                                              : Width == 64 ? 3
                                                            : 2)
    few_rows_kernel(const __grid_constant__ FewRows f, int64_t work) {
  extern __shared__ __align__(128) unsigned char shared[];
  if (f.a.d < Width) clear<Warps * 32>(shared + kPlaceBytes, f.tile.stages * f.tile.bytes);
  __syncthreads();
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t row = w % f.rows, rest = w / f.rows;
    const Sequence q = f.a.sequences[rest / f.splits];
    if (row < q.rows)
      few_rows<Dtype, Width, Warps>(f, q, row, static_cast<int>(rest % f.splits), shared);
  }
}

// ---- the choice

// Shared memory of a block: tiles, the last of which first holds q, or the sums of the parts.
int bytes_of(const FewRows& f, int width) {
  const int tiles = (f.tile.stages - 1) * f.tile.bytes;
  const int merge = (f.parts - 1) * (f.tile.heads / 16) * (width / 2 + 4) * 32 * 4;
  return kPlaceBytes + std::max(tiles + std::max(f.tile.bytes, f.tile.heads * f.tile.b_row), merge);
}

struct Instance {
  int32_t dtype;
  int width, warps;
  void (*launch)(Context&, const FewRows&, int64_t);
};

template <int Dtype, int Width, int Warps>
void launch_few(Context& ctx, const FewRows& f, int64_t work) {
  launch<few_rows_kernel<Dtype, Width, Warps>>(ctx, kOp, work, Warps * 32, bytes_of(f, Width), f,
                                               work);
}

#define FOVEA_FEW_ROWS(width, warps)                              \
  {FOVEA_F16, width, warps, launch_few<FOVEA_F16, width, warps>}, \
      {FOVEA_BF16, width, warps, launch_few<FOVEA_BF16, width, warps>},
constexpr Instance kInstances[] = {FOVEA_FEW_ROWS(64, 4) FOVEA_FEW_ROWS(64, 8)
                                       FOVEA_FEW_ROWS(128, 4) FOVEA_FEW_ROWS(128, 8)};
#undef FOVEA_FEW_ROWS

// Stages and keys of a tile, and warps that have the same heads: two blocks on a multiprocessor, or
// as much as there is.  No stages: it does not fit.
void lay_out(const DeviceInfo& device, const Tpa& x, const Instance& instance, int heads,
             FewRows& f) {
  constexpr int kReserved = 1024, kStagesMost = 4;
  const int whole = device.shared_block_bytes;
  const int half = std::min(device.shared_sm_bytes / 2 - kReserved, whole);
  const int parts = instance.warps / (heads / 16);
  for (f.parts = parts; f.parts; f.parts /= 2)
    for (const int room : {half, whole})
      for (const int times : {2, 1}) {
        const int keys = kChunk16 * f.parts * times;
        if (keys > kKeysMost) continue;
        f.tile = Tile(keys, heads, instance.width, static_cast<int>(x.rank_k),
                      static_cast<int>(x.rank_v));
        for (f.tile.stages = kStagesMost; f.tile.stages > times; --f.tile.stages)
          if (bytes_of(f, instance.width) <= room) return;
      }
  f.tile.stages = 0;
}

Text refuses(const Context& ctx, const Tpa& x) {
  const Attend& a = x.attend;
  if (device_info(ctx).arch < 80) return reason_capability(device_info(ctx).arch, "8.0 or more");
  if (a.dtype == FOVEA_F32) return reason_dtype(a.dtype);
  if (a.sequences.query_max > kRowsMost)
    return reason("rows of a sequence", a.sequences.query_max,
                  "at most " + Text::number(kRowsMost));
  if (Text why = refuse_widths(a.d, a.e, 8, 128); !why.empty()) return why;
  if (a.h > kHeadsMost) return reason("h", a.h, "at most " + Text::number(kHeadsMost));
  if (x.rank_k > kRowsMost) return reason("rank_k", x.rank_k, "at most 16");
  if (x.rank_v > kRowsMost) return reason("rank_v", x.rank_v, "at most 16");
  const int64_t many[] = {2, 2, 2};
  if (!in_pieces(x.b_k, many, 8)) return "rows of b_k are not in pieces of 16 bytes";
  if (!in_pieces(x.b_v, many, 8)) return "rows of b_v are not in pieces of 16 bytes";
  if (a.sequences.capacity >= 1 << 30) return "more than 2^30 keys";
  return "";
}

Text offer(const Context& ctx, const Tpa& x, Plan& plan) {
  if (Text why = refuses(ctx, x); !why.empty()) return why;
  const Attend& a = x.attend;
  const DeviceInfo& device = device_info(ctx);
  FewRows f{};
  f.a = a, f.q = x.q, f.a_q = x.a_q, f.b_q = x.b_q;
  f.rank_q = static_cast<int>(x.rank_q), f.rank_k = static_cast<int>(x.rank_k);
  f.rank_v = static_cast<int>(x.rank_v);
  f.scale_q = x.scale_q, f.scale_v = x.scale_v, f.factor = a.score.scale * x.scale_k * kLog2E;
  const int64_t many[] = {2, 2, 2};
  f.pieces = a.h % 8 == 0 && in_pieces(x.a_k, many, 8) && in_pieces(x.a_v, many, 8);
  f.q_pieces = in_pieces(x.q ? x.q : x.b_q, many, 8);
  if (x.q) f.scale_q = 1;
  const int heads = static_cast<int>(ceil_div(std::max<int64_t>(a.h, 1), 16)) * 16;
  const Instance* found = nullptr;
  for (const Instance& one : kInstances)
    if (!found && one.dtype == a.dtype && a.d <= one.width && a.e <= one.width &&
        heads <= one.warps * 16)
      found = &one;
  lay_out(device, x, *found, heads, f);
  const auto width = [](int64_t n) { return static_cast<int>(n); };
  f.side[0] = {x.b_k, f.tile.b_k, f.tile.b_row, f.rank_k, width(a.d)};
  f.side[1] = {x.b_v, f.tile.b_v, f.tile.b_row, f.rank_v, width(a.e)};
  f.side[2] = {x.a_k, f.tile.a_k, f.tile.a_row, f.rank_k, width(a.h)};
  f.side[3] = {x.a_v, f.tile.a_v, f.tile.a_row, f.rank_v, width(a.h)};
  if (!f.tile.stages) return "two tiles of keys do not fit shared memory";
  f.rows = static_cast<int>(a.sequences.query_max);
  const int64_t items = a.sequences.count * f.rows;
  const int64_t tiles = std::max<int64_t>(ceil_div(a.sequences.key_max, f.tile.keys), 1);
  DeviceInfo slots = device;
  slots.multiprocessors *= std::max(1, device.shared_sm_bytes / (bytes_of(f, found->width) + 1024));
  const int64_t splits =
      a.splits ? a.splits : auto_splits(items, tiles, 0, a.mask.window.left > 0, slots);
  f.splits = static_cast<int>(clamp_i64(splits, 1, std::min<int64_t>(tiles, 1024)));
  if (items * f.splits > INT_MAX) return "more than 2^31 blocks of work";
  PartialSlots partials;
  if (f.splits > 1) partials = PartialSlots(plan.workspace, a, f.splits);
  plan.kernel += Text(".") + dtype_name(a.dtype) + ".d" + Text::number(found->width) + "." +
                 Text::number(found->warps) + "x16" + (f.splits > 1 ? ".split" : "");
  plan.launch = [f, found, partials, items](Context& ctx, void* base) mutable {
    if (!items || !f.a.h) return;
    if (f.splits > 1) f.out = partials.at(base, f.a, f.splits);
    found->launch(ctx, f, items * f.splits);
    if (f.splits > 1) combine(ctx, kOp, f.a, f.out);
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<Tpa> tpa_forward_sm80 = {"sm80", cuda::offer};

}  // namespace fovea
