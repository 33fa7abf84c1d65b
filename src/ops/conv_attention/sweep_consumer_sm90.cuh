// SPDX-License-Identifier: Apache-2.0
// A consumer warpgroup of conv_attention's forward sweep (forward_sm90.cuh): its state, its
// barriers, and the parts of a work item.
#pragma once
#include "cuda/loop/combine_row.cuh"
#include "ops/conv_attention/sweep_feed_sm90.cuh"

namespace fovea::cuda {

template <class Shape>
class ConvConsumer90 {
  static constexpr int Dtype = Shape::Dtype, D = Shape::D, E = Shape::E, BN = Shape::BN, N = BN / 8;
  using Shared = ConvShared90<Shape>;
  using KeyState = typename Shared::KeyState;
  using TileV = typename Shape::TileV;

 public:
  // A lane's fragments of tiles and sums.  They are an object apart: until loops over an array are
  // unrolled, the compiler keeps all that lies beside it in memory.
  struct Fragments {
    float s[N][4];            // S of the next tile
    float x[1][N][4];         // A, then p
    uint32_t p[1][N / 2][4];  // as an operand
    float o[1][E / 8][4];
    TapBands<Shape::Pairs, Shape::Ahead> bands;
    OnlineSoftmax<1> state;
    int seen[2];  // keys that the lane's rows see: those before
  };

  __device__ __forceinline__ ConvConsumer90(const ConvAttend& c, const ConvWork90& more, int group,
                                            const Shared& shared, Fragments& fragments)
      : c(c),
        more(more),
        shared(shared),
        group(group),
        lane(threadIdx.x % 32),
        warp(sm90::uniform(threadIdx.x / 32 % 4)),
        above(static_cast<int>(c.above())),
        left(static_cast<int>(c.left())),
        taps_rows(static_cast<int>(c.kernel_rows)),
        taps_columns(static_cast<int>(c.kernel_columns)),
        place(group * 64 + warp * 16),
        local(Shape::packed ? 0 : place),
        unit(c.attend.score.scale / kScoreUnit),
        follows(!Shape::packed && group > 0),
        f(fragments) {
    f.bands.place(place, place - local, Shape::BM - 1, taps_rows);
  }

  __device__ __forceinline__ void compute() {
    for (;;) {
      shared.tile_pipe().wait(slot);
      if (__all_sync(~0u, !work().any)) return;
      const int groups = sm90::uniform(work().groups);
      if (Shape::Groups == 3 && group >= groups) {
        pass_work();
      } else {
        begin_work(groups);
        walk_keys();
        end_work();
      }
      shared.tile_pipe().release(slot);
      slot.next(), q_at.next();
    }
  }

 private:
  static constexpr float kFactor = kScoreUnit * kLog2E;
  static constexpr bool kShares = !Shape::packed;
  // Named barriers, one of each kind for a warpgroup.
  static constexpr int kOwn = 1, kWritten = kOwn + Shape::Groups, kRead = kWritten + Shape::Groups;

  // ---- barriers

  // The warpgroup below may read S of this one.
  __device__ __forceinline__ void hand_over() const {
    if (!last) sm90::named_barrier_arrive(kWritten + group, 256);
  }
  // S is written here, and by the warpgroup above.  Unless Final, that one may overwrite the tile
  // behind it, which the step before read last.
  //   One branch holds both barriers: of two, the second's predicate is made after the first waits.
  template <bool Final>
  __device__ __forceinline__ void wait_written() const {
    if (follows) {
      sm90::named_barrier_sync(kWritten + group - 1, 256);
      if (!Final) give_back();
    } else {
      sm90::named_barrier_sync(kOwn + group, 128);
    }
  }
  // What this one needs of the warpgroup above is read, and may be overwritten there.
  __device__ __forceinline__ void give_back() const {
    if (follows) sm90::named_barrier_arrive(kRead + group - 1, 256);
  }
  __device__ __forceinline__ void wait_read() const {
    if (!last) sm90::named_barrier_sync(kRead + group, 256);
  }

  // ---- a work item

  __device__ __forceinline__ const ConvSlot& work() const { return shared.work(slot); }

  // A warpgroup without rows in a low row tile only lets stages go.
  __device__ __forceinline__ void pass_work() {
    shared.q_pipe().wait(q_at);
    shared.q_pipe().release(q_at);
    for (int tiles = 2 * work().count + work().warm; tiles > 0; --tiles) {
      shared.key_pipe().wait(at);
      shared.key_pipe().release(at);
      at.next();
    }
  }

  __device__ __forceinline__ void begin_work(int groups) {
    last = !kShares || group == groups - 1;
    number = Shape::packed ? group * 4 + warp : 0;
    mine = number < work().heads;
    head = work().head + (mine ? number : 0);
    row = sm90::uniform(work().first - above + local);
    i = row + lane / 4;
    keys = sm90::uniform(work().keys);
    see_keys();
    q_rows = sm90::uniform(shared.q(q_at) + group * 64 * kPanelRowBytes);
    if (c.weight_dtype == FOVEA_F32)
      load_taps(static_cast<const float*>(c.weight.data));
    else
      load_taps(
          static_cast<const std::conditional_t<Dtype == FOVEA_F16, f16, bf16>*>(c.weight.data));
    shared.q_pipe().wait(q_at);
    f.state = OnlineSoftmax<1>();
    n = sm90::uniform(work().last), now = 0;
    more_values = false;
  }

  // Rows before the sequence see no key: their S is 0.
  __device__ __forceinline__ void see_keys() {
    const PlainWindow window(c.attend.mask.window, sm90::uniform(work().rows), keys);
    const auto end_of = [&](int i) { return i < 0 ? 0 : window.keys_of(i, i + 1).high; };
    seen_by_all = end_of(row);
#pragma unroll
    for (int half = 0; half < 2; ++half) f.seen[half] = end_of(i + 8 * half);
  }

  // The head's taps, while Q and the first keys are on their way.
  template <class T>
  __device__ __forceinline__ void load_taps(const T* taps) {
    const View<3>& weight = c.weight;
    taps += head * weight.stride[0];
    f.bands.load(taps_rows, taps_columns, [&](int d, int v) {
      return to_float(taps[(above - d) * weight.stride[1] + v * weight.stride[2]]);
    });
  }

  __device__ __forceinline__ void walk_keys() {
    int count = sm90::uniform(work().count);
    if (count > 0) {
      begin_tiles();
#pragma unroll 1
      for (; count > 1; --count) step<false>();
      step<true>();
    } else {
      hand_over();
      wait_written<true>();
    }
    give_back();
    shared.q_pipe().release(q_at);
  }

  __device__ __forceinline__ void end_work() {
    if (!more_values)  // rows without keys
#pragma unroll
      for (int j = 0; j < E / 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) f.o[0][j][e] = 0.f;
    each_row<1>(0, [&](int, int half, int) { store_row_of(half); });
    __syncwarp();
    if constexpr (Shape::packed)
      if (more.arrived && mine) merge_splits();
    // The next work item's first scores go where these were read.
    if (last) sm90::named_barrier_sync(kOwn + group, 128);
    wait_read();
  }

  // o and lse of one of the lane's rows, or a split's partial ones.
  __device__ __forceinline__ void store_row_of(int half) const {
    const Attend& a = c.attend;
    const int in_slot = local + lane / 4 + 8 * half, width = static_cast<int>(a.e);
    const bool valid = mine && in_slot >= above && i + 8 * half < work().end;
    const int64_t batch = work().seq.batch, out = work().out.begin + i + 8 * half - c.history;
    const float most = f.state.m[0][half], sum = f.state.total(0, half);
    const float top = most == kNegativeInfinity ? most : most * kFactor;
    const auto inverse = [&] { return sum == 0.f ? 0.f : __frcp_rn(sum); };
    const auto lse = [&] { return sum == 0.f ? kNegativeInfinity : (top + log2f(sum)) * kLn2; };
    if (more.order.splits > 1) {
      if (!valid) return;
      const int64_t partial = more.parts.row(work().split, batch * c.rows_out + out, head);
      store_wide(more.parts.o + partial * more.parts.e, width, f.o[0], half, inverse());
      if (threadIdx.x % 4 == 0) more.parts.lse[partial] = lse();
      return;
    }
    const int64_t at =
        valid ? batch * a.o.stride[0] + out * a.o.stride[1] + head * a.o.stride[2] : 0;
    if (a.o_dtype != FOVEA_F32)
      store_row<Dtype>(valid ? static_cast<uint16_t*>(a.o.data) + at : nullptr, width, f.o[0], half,
                       inverse());
    else if (valid)
      store_wide(a.o.as<float>() + at, width, f.o[0], half, inverse());
    if (a.lse && valid && threadIdx.x % 4 == 0)
      a.lse.as()[batch * a.lse.stride[0] + head * a.lse.stride[1] + out * a.lse.stride[2]] = lse();
  }

  // The warp's rows of a split are stored: the last split to get here merges them all.
  __device__ __forceinline__ void merge_splits() const {
    int32_t* const arrived = more.arrived + work().number * (Shape::BM / 16) + number;
    int before = 0;
    if (lane == 0) before = count_arrival(arrived);
    if (__shfl_sync(~0u, before, 0) != more.order.splits - 1) return;
    if (lane == 0) *arrived = 0;
    const int chunks = (static_cast<int>(c.attend.e) + kMergeColumns - 1) / kMergeColumns;
    for (int row = work().first; row < work().end; ++row)
      for (int chunk = 0; chunk < chunks; ++chunk)
        combine_row<16, true>(c.attend, more.parts, work().seq.batch,
                              work().out.begin + row - c.history, head, chunk);
  }

  // ---- a tile of keys

  // All rows of the warp see all keys of a tile from `key` on.  Its bound is made once a work item:
  // a longer test is a chain of uniform instructions that the convolution's end waits for.
  __device__ __forceinline__ bool whole(int key) const {
    return key >= 0 && key + BN <= seen_by_all;
  }
  // What the lane's rows do not see of Blocks of 8 keys from `key` on.  Before: some lie before 0.
  template <int Blocks, bool Before>
  __device__ __forceinline__ void mask(float (&x)[N][4], int key, float unseen) const {
    const int first = key + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int j = 0; j < Blocks; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if ((Before && first + j * 8 + e < 0) || first + j * 8 + e >= f.seen[half])
            x[j][2 * half + e] = unseen;
  }
  __device__ __forceinline__ static int next_of(int buffer) {
    return buffer == 2 ? 0 : buffer + 1;
  }

  // S of the first tile and, where its outputs read them, of the one behind; else zeros.
  __device__ __forceinline__ void begin_tiles() {
    if (__any_sync(~0u, work().warm)) {
      issue_scores(at);
      sm90::wait<0>();
      put_scores<kHaloKeys / 8>(n + 1, at, 2);
      at.next();
    } else if (threadIdx.x % 128 < 64) {
#pragma unroll
      for (int block = 0; block < Shape::Ahead - 1; ++block)
        sm90::store_zeros(shared.scores(2) + block * Shape::block_bytes +
                          (group * 64 + threadIdx.x % 64) * 16);
    }
    issue_scores(at);
    sm90::wait<0>();
    put_scores<N>(n, at, 0);
    hand_over();
    at.next();
  }

  // From S of tile n, which is written, to O += P V; meanwhile S of the next tile.
  template <bool Final>
  __device__ __forceinline__ void step() {
    const KeyState k = at;
    if constexpr (!Final) at.next();
    const KeyState v = at;
    at.next();
    if constexpr (!Final && !Shape::late) issue_scores(k);
    wait_written<Final>();
    make_logits();
    float alpha[1][2];
    f.state.weigh(f.x, alpha, kFactor);
    pack_operand<Dtype>(f.p, f.x);
    f.state.rescale_o(f.o, alpha);
    if (n * BN + BN > keys) zero_values<Shape>(max(keys - n * BN, 0), shared, v, group);
    if constexpr (!Final && Shape::late) issue_scores(k);
    issue_values(v);
    now = next_of(now);
    if constexpr (!Final) {
      sm90::wait<1>();
      wait_read();
      put_scores<N>(n - 1, k, now);
      hand_over();
    }
    sm90::wait<0>();
    sm90::pin(f.o[0]);
    shared.key_pipe().release(v);
    --n;
  }

  __device__ __forceinline__ void issue_scores(KeyState k) {
    shared.key_pipe().wait(k);
    sm90::fence();
    sm90::product_rows<Dtype, D, typename Shape::TileQ, typename Shape::TileK>(
        f.s, sm90::descriptor(sm90::unhoisted(q_rows)), sm90::descriptor(shared.keys(k)));
    sm90::commit();
  }
  __device__ __forceinline__ void issue_values(KeyState v) {
    shared.key_pipe().wait(v);
    sm90::fence();
    sm90::product_columns<Dtype>(f.o[0], f.p[0],
                                 sm90::descriptor(shared.keys(v), TileV::panel_bytes), more_values);
    sm90::commit();
    more_values = true;
  }

  // S of tile `tile`, of its first Blocks of 8 keys, to buffer `to`: 0 where unseen.
  template <int Blocks>
  __device__ __forceinline__ void put_scores(int tile, KeyState k, int to) {
    sm90::pin(f.s);
    shared.key_pipe().release(k);
    const int key = tile * BN - left;
#pragma unroll
    for (int j = 0; j < Blocks; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) f.s[j][e] *= unit;
    if (!whole(key)) mask<Blocks, true>(f.s, key, 0.f);
    const uint32_t line =
        shared.scores(to) + lane / 16 * Shape::block_bytes + (place + lane % 16) * 16;
#pragma unroll
    for (int k2 = 0; k2 < Blocks / 2; ++k2) {
      const uint32_t packed[4] = {pack<FOVEA_F16>(f.s[2 * k2][0], f.s[2 * k2][1]),
                                  pack<FOVEA_F16>(f.s[2 * k2][2], f.s[2 * k2][3]),
                                  pack<FOVEA_F16>(f.s[2 * k2 + 1][0], f.s[2 * k2 + 1][1]),
                                  pack<FOVEA_F16>(f.s[2 * k2 + 1][2], f.s[2 * k2 + 1][3])};
      sm90::store_matrices(line + 2 * k2 * Shape::block_bytes, packed);
    }
  }

  // A of tile n to x: -inf where unseen.
  __device__ __forceinline__ void make_logits() {
    const uint32_t here = shared.scores(now), behind = shared.scores(next_of(next_of(now)));
    f.bands.convolve(f.x[0], taps_rows, [&](int block) {
      return block < N ? here + block * Shape::block_bytes
                       : behind + (block - N) * Shape::block_bytes;
    });
    if (!whole(n * BN)) mask<N, false>(f.x[0], n * BN, kNegativeInfinity);
  }

  // ---- state

  const ConvAttend& c;
  const ConvWork90& more;
  const Shared& shared;
  const int group, lane, warp;
  const int above, left, taps_rows, taps_columns;
  const int place, local;  // the warp's first row of the block's, and in its slot
  const float unit;
  const bool follows;  // reads S of the warpgroup above
  typename Shared::TileState slot;
  typename Shared::QState q_at;
  KeyState at;

  // Of the work item.
  bool last = true;  // of the work item's warpgroups
  int number, head;  // of the slot's heads, of all
  bool mine;         // the slot has that head
  int row, i;        // of the sequence: the warp's first row, the lane's first
  int keys;
  int seen_by_all;  // keys that every row of the warp sees: those before
  uint32_t q_rows;
  int n, now;        // the tile of keys, and the buffer of its S
  bool more_values;  // O is not empty

  Fragments& f;
};

}  // namespace fovea::cuda
