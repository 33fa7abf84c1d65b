// SPDX-License-Identifier: Apache-2.0
// The sweep of few rows over many keys (sm_80 and up): o = softmax(scores(q (ks k)')) (vs v).
//   A block owns up to 64 packed rows of one sequence and key head, and one split of its keys.
//   Mainloop: steps of 64 or 128 keys, through a ring of Stages steps (cp.async).
//   A warp has 16 rows.  A step has four slices.  Where rows are fewer than 64, several warps have
//   the same rows, and each takes other slices; they merge at the end, in order.
//   Scales of keys multiply scores, those of values weights.  In f16 weights would lose small
//   ones.  So o is kept in units of a power of two, no less than any scale that its warp has met.
//
//   | barrier          | what it says                                               |
//   | before each step | it has landed, and the stage to be filled next is free     |
//   | before the merge | the ring is free for the warps' sums; then: they are there |
//
//   | policy   | where it is                               | what it says                   |
//   | Operands | rows_operands_sm80.cuh                    | 16-bit keys, or codes          |
//   | Keys     | WindowSteps (here), ListKeys80 (x_sparse) | the keys of a step, its scores |
//   | Epilogue | epilogue.cuh                              | what becomes of a row's sums   |
#pragma once
#include <new>

#include "cuda/block/softmax.cuh"
#include "cuda/loop/epilogue.cuh"
#include "cuda/loop/load.cuh"
#include "cuda/loop/row_tile.cuh"
#include "cuda/loop/rows_operands_sm80.cuh"
#include "cuda/loop/tile_policy.cuh"
#include "cuda/tile/copy.cuh"

namespace fovea::cuda {

// What WindowSteps keeps of a key until its scores are made: nothing.
struct NoNote {};

// Note: what the policy Keys keeps of each key.
template <class Operands_, int Stages_, int Blocks_, class Note_ = NoNote>
struct RowsShape {
  using Operands = Operands_;
  using Note = Note_;
  using TileK = typename Operands::TileK;
  using TileV = typename Operands::TileV;
  static constexpr int Dtype = Operands::Dtype, D = Operands::D, E = Operands::E;
  static constexpr int Stages = Stages_, Blocks = Blocks_;
  static constexpr int Warps = 4, threads = 32 * Warps, rows = 16 * Warps;
  static constexpr int stage_bytes = TileK::bytes + TileV::bytes;
  static constexpr int sums_bytes = (Warps - 1) * 16 * E * 4;
  static constexpr int stages_bytes = Stages * stage_bytes;
  static constexpr int ring_bytes = stages_bytes > sums_bytes ? stages_bytes : sums_bytes;
  static constexpr int StepKeys = Operands::keys, Slice = StepKeys / 4;
  static constexpr bool notes = !std::is_empty_v<Note>;
  static constexpr int offset_bytes = 2 * 2 * StepKeys * 8;
  static constexpr int scale_bytes = Operands::codes ? Stages * 2 * StepKeys * 4 : 0;
  static constexpr int note_bytes = notes ? Stages * StepKeys * 8 : 0;
  static constexpr int absent_bytes = Stages * StepKeys / 8, gone_bytes = 2 * Warps * 4;
  static constexpr int shared_bytes =
      ring_bytes + offset_bytes + gone_bytes + note_bytes + scale_bytes + absent_bytes;
};

// A block's ring.  A thread looks up a key or its value, or both, one step before they are copied:
// the page table's latency passes under a step's products.
template <class Shape, class Keys>
class RowsRing {
  using TileK = typename Shape::TileK;
  using TileV = typename Shape::TileV;
  using Note = typename Shape::Note;
  static_assert(std::same_as<Note, typename Keys::Note> && sizeof(Note) <= 8);
  static constexpr bool kCodes = Shape::Operands::codes;
  static constexpr int kKeys = Shape::StepKeys, kFinds = 2 * kKeys / Shape::threads;
  static constexpr int kCopied = Shape::threads / kPanelChunks;  // rows that are copied at once

 public:
  __device__ RowsRing(const Attend& a, const RowTile& tile, const Keys& keys, unsigned char* shared)
      : a(a), q(tile.rows.seq), keys(keys), ring(shared_address(shared)) {
    unsigned char* at = shared + Shape::ring_bytes;
    address = reinterpret_cast<const uint8_t*(*)[2][kKeys]>(at), at += Shape::offset_bytes;
    gone = reinterpret_cast<uint32_t(*)[Shape::Warps]>(at), at += Shape::gone_bytes;
    notes = reinterpret_cast<Note(*)[kKeys]>(at), at += Shape::note_bytes;
    scales = reinterpret_cast<float(*)[2][kKeys]>(at), at += Shape::scale_bytes;
    missing = reinterpret_cast<uint32_t(*)[kKeys / 32]>(at);
    g = tile.key_head(a);
    const auto head = [&](const View<4>& x) {
      return static_cast<const uint8_t*>(x.data) + g * x.stride[2] * Shape::Operands::bytes;
    };
    k = head(a.k), v = head(a.v);
    if constexpr (kCodes)
      for (int i = 0; i < kFinds; ++i)
        if (!scale_of(value(i)))
          for (int stage = 0; stage < Shape::Stages; ++stage) scales[stage][value(i)][row()] = 1.f;
  }

  // Finds where the keys of a step lie; store_places() keeps it for load().
  __device__ __forceinline__ void find(int step) {
    const int j = keys.find(step, row(), note);
    const int64_t page = a.sequences.page, i = q.key_begin + j;
    int64_t first = q.key_batch, token = i;  // on the first two axes of k and v
    run = page ? -1 : keys.run(step);
    if (page && j >= 0) {
      const uint32_t number = static_cast<uint32_t>(i) / static_cast<uint32_t>(page);
      token = i - number * page, first = page_of(number);
    }
    const auto offset = [&](const int64_t* stride) {
      return first * stride[0] + token * stride[1];
    };
#pragma unroll
    for (int n = 0; n < kFinds; ++n) {
      place[n] = nullptr, factor[n] = nullptr;
      if (j < 0 || first < 0) continue;
      const View<4>& x = value(n) ? a.v : a.k;
      if (run < 0) place[n] = (value(n) ? v : k) + offset(x.stride) * Shape::Operands::bytes;
      if constexpr (kCodes)
        if (const View<4>& scale = scale_of(value(n)))
          factor[n] = scale.as() + g * scale.stride[2] + offset(scale.stride);
    }
  }
  __device__ __forceinline__ void store_places(int slot) {
    if (run >= 0) return;
#pragma unroll
    for (int n = 0; n < kFinds; ++n) address[slot][value(n)][row()] = place[n];
    const uint32_t none = __ballot_sync(~0u, !place[0]);
    if (threadIdx.x % 32 == 0) gone[slot][threadIdx.x / 32] = none;
  }

  // Copies the step that was found last.
  __device__ __forceinline__ void load(int slot, int stage) {
    const uint32_t to = ring + stage * Shape::stage_bytes;
    const auto rows = [&](auto k_row_at, auto v_row_at) {
      copy<TileK, Shape::D>(to, a.d, k_row_at);
      copy<TileV, Shape::E>(to + TileK::bytes, a.e, v_row_at);
    };
    const auto* places = address[slot];
    const uint4 none = run < 0 ? *reinterpret_cast<const uint4*>(gone[slot]) : uint4{};
    const uint32_t some = none.x | none.y | none.z | none.w;
    if (run >= 0)
      rows(in_line(a.k, k), in_line(a.v, v));
    else if (!some)
      rows(found(places[0]), found(places[1]));
    else
      rows(gathered(k, places[0]), gathered(v, places[1]));
    if constexpr (kCodes) {  // braces: nvcc takes a pragma for the statement
#pragma unroll
      for (int n = 0; n < kFinds; ++n)
        if (const View<4>& scale = scale_of(value(n)))
          asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(
                           shared_address(&scales[stage][value(n)][row()])),
                       "l"(factor[n] ? factor[n] : scale.as()), "r"(factor[n] ? 4 : 0)
                       : "memory");
    }
    if (value(0)) return;
    if (threadIdx.x % 32 == 0)
      missing[stage][threadIdx.x / 32] = some ? gone[slot][threadIdx.x / 32] : 0;
    if (Shape::notes) notes[stage][row()] = note;
  }

  __device__ uint32_t key_tile(int stage) const {
    return ring + stage * Shape::stage_bytes;
  }
  __device__ uint32_t value_tile(int stage) const {
    return key_tile(stage) + TileK::bytes;
  }
  // Scales of the keys or the values of a stage.
  __device__ const float* scales_of(int stage, int of_values) const {
    return scales[stage][of_values];
  }
  __device__ const Note* notes_of(int stage) const {
    return notes[stage];
  }
  // Bit i: key i of the slice is not there.
  __device__ uint32_t absent(int stage, int slice) const {
    const int first = slice * Shape::Slice;
    return missing[stage][first / 32] >> first % 32 &
           static_cast<uint32_t>((uint64_t{1} << Shape::Slice) - 1);
  }

 private:
  // Where a row lies, and whether it does.
  struct From {
    const uint8_t* at;
    bool there;
  };
  // Rows at `places`, or nowhere.
  __device__ static auto gathered(const uint8_t* any, const uint8_t* const* places) {
    return [=](int row) {
      const uint8_t* place = places[row];
      return From{place ? place : any, place != nullptr};
    };
  }
  // The same where all are there.
  __device__ static auto found(const uint8_t* const* places) {
    return [=](int row) { return From{places[row], true}; };
  }
  // Rows of x from key `run` on; `head`: its key head.
  __device__ auto in_line(const View<4>& x, const uint8_t* head) const {
    constexpr int kBytes = Shape::Operands::bytes;
    const int64_t step = x.stride[1] * kBytes;
    const uint8_t* first = head + q.key_batch * x.stride[0] * kBytes + (q.key_begin + run) * step;
    return [=](int row) { return From{first + row * step, true}; };
  }
  // Eight neighbouring threads copy 128 bytes of a row.
  template <class Tile, int Width, class RowAt>
  __device__ __forceinline__ static void copy(uint32_t to, int64_t width, RowAt row_at) {
    constexpr int kBytes = Shape::Operands::bytes;
    const int lane = threadIdx.x % kPanelChunks, bytes = static_cast<int>(width) * kBytes;
#pragma unroll
    for (int i = 0; i < kKeys / kCopied; ++i) {
      const int row = threadIdx.x / kPanelChunks + i * kCopied;
      const From from = row_at(row);
#pragma unroll
      for (int panel = 0; panel < Tile::panels; ++panel) {
        const int chunk = panel * kPanelChunks + lane;
        const bool valid = from.there && chunk * 16 < bytes;
        if (Width * kBytes % 128 == 0 || chunk * 16 < Width * kBytes)
          copy_async(to + Tile::at(row, chunk), valid ? from.at + chunk * 16 : from.at, valid);
      }
    }
  }

  // The pool's page of page `number` of the sequence; -1: absent.
  __device__ int64_t page_of(uint32_t number) const {
    const Sequences& s = a.sequences;
    const int64_t at = q.key_batch * s.page_table.stride[0] + number * s.page_table.stride[1];
    const int64_t page = s.page_table.as<int32_t>()[at];
    return page < s.pool ? page : -1;
  }
  // Find n of the thread: a key or its value.
  __device__ static int row() {
    return threadIdx.x % kKeys;
  }
  __device__ static int value(int n) {
    return (threadIdx.x + n * Shape::threads) / kKeys;
  }
  __device__ const View<4>& scale_of(int value) const {
    return value ? a.v_scale : a.k_scale;
  }

  const Attend& a;
  const Sequence& q;
  const Keys& keys;
  const uint32_t ring;
  int64_t g;
  const uint8_t *k, *v;
  const uint8_t* (*address)[2][kKeys];
  uint32_t (*gone)[Shape::Warps];  // of the places: bits of those that are not there
  Note (*notes)[kKeys];
  float (*scales)[2][kKeys];
  uint32_t (*missing)[kKeys / 32];
  const uint8_t* place[kFinds] = {};
  const float* factor[kFinds] = {};
  // The first key of the step found last, where all are there and follow one another in memory;
  // else -1.
  int run = -1;
  Note note{};
};

// 16 rows of a warp: their q, and their sums over the slices that the warp takes.
template <class Shape, class Keys>
class RowsWarp {
  static constexpr int Dtype = Shape::Dtype, D = Shape::D, E = Shape::E;
  using Operands = typename Shape::Operands;
  using TileK = typename Shape::TileK;
  using TileV = typename Shape::TileV;

 public:
  float o[1][E / 8][4] = {};
  OnlineSoftmax<1> state;
  float unit = Operands::codes ? 0.f : 1.f;  // of o

  __device__ RowsWarp(const Attend& a, const RowTile& tile, const Keys& keys, int row)
      : operands(a), keys(keys) {
    const int lane = threadIdx.x % 32;
    const auto load = [&](int width) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int m = row + half * 8 + lane / 4;
        const uint16_t* from =
            m < tile.size ? elements(a.q, tile.offset(tile.begin + m, a.q.stride)) : nullptr;
#pragma unroll
        for (int c = 0; c < D / 16; ++c) Operands::load_q(q[c], half, from, c, width);
      }
    };
    if (a.d == D)
      load(D);  // no test of columns
    else
      load(static_cast<int>(a.d));
    Operands::ready(q, q_unit);
    k_lane = TileK::at(inner_row(lane), inner_chunk(lane));
    v_lane = TileV::at(outer_row(lane), outer_chunk(lane));
  }

  // Slice `slice` of step number `step`, which is in `stage`.  Few: the warp has at most 8 rows.
  template <bool Few, class Ring>
  __device__ __forceinline__ void step(const Ring& ring, int stage, int step, int slice) {
    constexpr int kTiles = Shape::Slice / 8, kSums = Few ? 2 : 4;
    const int first = slice * Shape::Slice, t = threadIdx.x % 4;
    float x[1][kTiles][4] = {};
#pragma unroll
    for (int i = 0; i < kTiles / 2; ++i)
      operands.scores(x[0] + 2 * i, q,
                      ring.key_tile(stage) + k_lane + (first + 16 * i) * kPanelRowBytes);
    if constexpr (Operands::codes) {
      const float* scale = ring.scales_of(stage, 0) + first + 2 * t;
#pragma unroll
      for (int j = 0; j < kTiles; ++j)
#pragma unroll
        for (int c = 0; c < kSums; ++c) {
          x[0][j][c] *= scale[j * 8 + c % 2];
          if (Operands::scaled_q) x[0][j][c] *= q_unit[c / 2];
        }
    }
    keys.score(x, step, first, ring.notes_of(stage) + first + 2 * t);
    if (const uint32_t absent = ring.absent(stage, slice) >> 2 * t)
#pragma unroll
      for (int j = 0; j < kTiles; ++j)
#pragma unroll
        for (int c = 0; c < 2; ++c)
          if (absent >> (j * 8 + c) & 1) x[0][j][c] = x[0][j][2 + c] = kNegativeInfinity;
    if constexpr (Few)
      step_first(x[0], keys.factor());
    else
      state.step(x, o, keys.factor());
    if constexpr (Operands::codes) weigh<kSums>(x[0], ring.scales_of(stage, 1) + first + 2 * t);
    uint32_t p[1][kTiles / 2][4];
    pack_operand<Operands::Math>(p, x);
#pragma unroll
    for (int i = 0; i < kTiles / 2; ++i)
      operands.values(o[0], p[0][i],
                      ring.value_tile(stage) + v_lane + (first + 16 * i) * kPanelRowBytes);
  }

 private:
  // OnlineSoftmax::step() of the first half of a fragment; the other has no rows.
  template <int N>
  __device__ __forceinline__ void step_first(float (&x)[N][4], float factor) {
    float& top = state.m[0][0];
    const float before = top;
#pragma unroll
    for (int j = 0; j < N; ++j) top = fmaxf(top, fmaxf(x[j][0], x[j][1]));
    top = quad_max(top);
    const float base = top == kNegativeInfinity ? 0.f : __fmul_rn(top, factor);
    const float alpha = exp2_fast(__fmul_rn(before, factor) - base);
    float sum = 0.f;
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        x[j][c] = exp2_fast(fmaf(x[j][c], factor, -base));
        x[j][2 + c] = 0.f;
        sum += x[j][c];
      }
    state.l[0][0] = fmaf(state.l[0][0], alpha, sum);
    if (__any_sync(~0u, top > before))
#pragma unroll
      for (int j = 0; j < E / 8; ++j) o[0][j][0] *= alpha, o[0][j][1] *= alpha;
  }
  // Weights times the scales of their values, over the unit of o.
  template <int Sums, int N>
  __device__ __forceinline__ void weigh(float (&x)[N][4], const float* scale) {
    float by[N][2], most = 0.f;
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c) by[j][c] = scale[j * 8 + c], most = fmaxf(most, fabsf(by[j][c]));
    most = quad_max(most);
    if (most > unit) {
      // The next power of two, and 1 / it.
      const int exponent = min(max((__float_as_int(most) + 0x7fffff) >> 23, 1), 253);
      per_unit = __int_as_float((254 - exponent) << 23);
      const float less = unit * per_unit;
#pragma unroll
      for (int j = 0; j < E / 8; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) o[0][j][c] *= less;
      unit = __int_as_float(exponent << 23);
    }
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int c = 0; c < Sums; ++c) x[j][c] *= by[j][c % 2] * per_unit;
  }

  const Operands operands;
  const Keys& keys;
  uint32_t q[D / 16][4], k_lane, v_lane;
  float q_unit[2];       // of q, where it is scaled
  float per_unit = 0.f;  // 1 / unit
};

// Sums of warps that have the same rows, into those of the first of them: ascending.
//   `groups` warps have different rows; warp w those of warp w % groups.
template <class Shape, class Warp>
__device__ __forceinline__ void merge_warps(Warp& mine, int groups, unsigned char* shared,
                                            float factor) {
  constexpr int kWords = Shape::E / 2;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* sums = reinterpret_cast<float*>(shared);
  __shared__ float s_top[Shape::Warps][16], s_sum[Shape::Warps][16];
  float(&top)[2] = mine.state.m[0];
  float by[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = half * 8 + lane / 4;
    const float sum = mine.state.total(0, half);
    if (lane % 4 == 0) s_top[warp][row] = top[half], s_sum[warp][row] = sum;
  }
  __syncthreads();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = half * 8 + lane / 4;
    float most = kNegativeInfinity, all = 0.f;
    for (int w = warp % groups; w < Shape::Warps; w += groups) most = fmaxf(most, s_top[w][row]);
    const float base = most == kNegativeInfinity ? 0.f : most;
    for (int w = warp % groups; w < Shape::Warps; w += groups)
      all += s_sum[w][row] * exp2f((s_top[w][row] - base) * factor);
    by[half] = exp2f((top[half] - base) * factor) * mine.unit;
    // A quad's lanes add up to the sum.
    top[half] = most, mine.state.l[0][half] = lane % 4 == 0 ? all : 0.f;
  }
#pragma unroll
  for (int i = 0; i < kWords; ++i) mine.o[0][i / 4][i % 4] *= by[i % 4 / 2];
  if (warp >= groups)
#pragma unroll
    for (int i = 0; i < kWords; ++i)
      sums[((warp - 1) * kWords + i) * 32 + lane] = mine.o[0][i / 4][i % 4];
  __syncthreads();
  if (warp >= groups) return;
  for (int w = warp + groups; w < Shape::Warps; w += groups)
#pragma unroll
    for (int i = 0; i < kWords; ++i)
      mine.o[0][i / 4][i % 4] += sums[((w - 1) * kWords + i) * 32 + lane];
}

// A block's work.  `number`: of its row tile; `split`: of that.
template <class Shape, class Keys, class Epilogue>
__device__ __forceinline__ void attend_rows(const Attend& a, const RowTile& tile, Keys& keys,
                                            const Epilogue& epilogue, int64_t number, int split,
                                            unsigned char* shared) {
  constexpr int kStages = Shape::Stages;
  __shared__ int s_word;
  const int count = keys.count;
  RowsRing<Shape, Keys> ring(a, tile, keys, shared);
  if (count > 0) keys.look(0);
  for (int it = 0; it < kStages - 1; ++it) {
    if (it < count) ring.find(it), ring.store_places(it % 2);
    if (it + 1 < count) keys.look(it + 1);
    __syncthreads();
    if (it < count) ring.load(it % 2, it);
    copy_commit();
  }
  if (kStages - 1 < count) {
    ring.find(kStages - 1), ring.store_places((kStages - 1) % 2);
    if (kStages < count) keys.look(kStages);
  }

  const int groups = tile.size > 32 ? 4 : tile.size > 16 ? 2 : 1;  // of 16 rows
  const int warp = threadIdx.x / 32, each = Shape::Warps / groups, row = warp % groups * 16;
  keys.rows(row);
  RowsWarp<Shape, Keys> mine(a, tile, keys, row);
  const bool active = row < tile.size, few = tile.size <= 8;
  int stage = 0;
  for (int it = 0; it < count; ++it) {
    copy_wait<kStages - 2>();
    __syncthreads();
    const int next = it + kStages - 1;
    if (next < count) ring.load(next % 2, stage ? stage - 1 : kStages - 1);
    copy_commit();
    if (next + 1 < count) ring.find(next + 1);
    if (next + 2 < count) keys.look(next + 2);
    if (active)
#pragma unroll 1
      for (int slice = warp / groups; slice < 4; slice += each)
        if (few)
          mine.template step<true>(ring, stage, it, slice);
        else
          mine.template step<false>(ring, stage, it, slice);
    if (next + 1 < count) ring.store_places((next + 1) % 2);
    if (++stage == kStages) stage = 0;
  }

  copy_wait<0>();
  __syncthreads();
  merge_warps<Shape>(mine, groups, shared, keys.factor());
  if (warp < groups) {
    Shape::Operands::order(mine.o[0]);
    each_row<1>(tile.begin + row, [&](int i, int half, int m) {
      const float sum = mine.state.total(i, half), top = mine.state.top(i, half, keys.factor());
      epilogue.template store<Shape::Dtype>(a, tile, m, m < tile.begin + tile.size, split, top, sum,
                                            mine.o[i], half);
    });
  }
  epilogue.done(a, tile, static_cast<int>(number), &s_word, [] { __syncthreads(); });
}

// Tiles of Width keys that a window leaves, from last to first.  Keys: what attend_rows() asks.
template <int Width, class Score, class Mask>
class WindowSteps {
 public:
  using Note = NoNote;
  int count;  // steps

  __device__ WindowSteps(const Attend& a, const RowTile& tile, int splits, int split)
      : tile(tile), tiles(Mask::tiles(a, tile, Width)), scores(a, tile), mask(a, tile, Width) {
    const TilePart part(static_cast<int>(tiles.count()), splits, split);
    count = part.end - part.begin, last = part.end - 1;
  }
  // Loads what find() of the step needs.
  __device__ void look(int) const {}
  // The key of a row of a step; -1: none.
  __device__ int find(int step, int row, Note&) const {
    const int j = number(step) * Width + row;
    return j < tile.keys ? j : -1;
  }
  // The first key of a step whose keys are all there and follow one another; else -1.
  __device__ int run(int step) const {
    const int j = number(step) * Width;
    return j + Width <= tile.keys ? j : -1;
  }
  // The warp's first row in the tile.
  __device__ void rows(int row) { first = tile.begin + row; }
  // Products become scores, -inf where a key is not seen: keys from `begin` on of the step.
  template <int N>
  __device__ __forceinline__ void score(float (&x)[1][N][4], int step, int begin,
                                        const Note*) const {
    const int n = number(step);
    scores.apply(x, n * Width + begin, first);
    if (!mask.full(n)) mask.apply(x, n * Width + begin, first);
  }
  // A score's weight is 2^(factor score).
  __device__ float factor() const { return scores.factor; }

 private:
  __device__ int number(int step) const { return static_cast<int>(tiles[last - step]); }

  const RowTile& tile;
  const KeyTiles tiles;
  const Score scores;
  const Mask mask;
  int last, first = 0;
};

}  // namespace fovea::cuda
