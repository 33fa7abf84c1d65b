// SPDX-License-Identifier: Apache-2.0
// x_probe_forward on Hopper: logits L = scale q k' by wgmma, reduced where they are made.
//   parts  a tile of 128 rows x 256 keys gives the parts of its rows (probe_work.cuh)
//   sums   tiles of 128 rows x 128 keys give P = 2^(L - lse), lse known:
//            lines   an item owns 128 keys of a head of x, and walks heads and rows in order
//            blocks  an item owns a band of row blocks x 128 keys of a head of x, likewise
// Persistent blocks of three warpgroups.  Warpgroup 0 is the producer: its 128 threads copy stages
// of 64 columns, of q and of k, 16 bytes a cp.async, zeros past the end.  It publishes a stage two
// stages later, when its copies are there.  Warpgroups 1 and 2 own 64 rows each.
// Each stage has a record of the tile it belongs to.  A record without a tile ends a head, or all.
// Shared memory: the stages; of sums also P of a tile, f32; records and barriers.
//
//   barrier    who arrives                       who waits   what it guards
//   full       lane 0 of each producer warp      consumers   a stage and its record
//   empty      lane 0 of each consumer warp      producer    the same
//   named 1    consumers                         consumers   P, written and read
//   named 2    producer warps                    the same    the number of the next item
#pragma once
#include "core/context.h"
#include "cuda/launch.h"
#include "cuda/tile/copy.cuh"
#include "cuda/tile/mma_sm90.cuh"
#include "cuda/tile/pipeline_sm90.cuh"
#include "ops/summary/probe_sums.cuh"

namespace fovea::cuda {

template <int Dtype_, int Keys_>
struct ProbeShape90 {
  static constexpr int Dtype = Dtype_, Keys = Keys_, Stages = 4, lag = 2;
  static constexpr bool sums = Keys == kProbeSums;
  static constexpr int threads = 384, producer_regs = 56, consumer_regs = 224;
  using TileQ = Swizzled<kProbeRows, kProbeStep>;
  using TileK = Swizzled<Keys, kProbeStep>;
  static constexpr int stage_bytes = TileQ::bytes + TileK::bytes;
  static constexpr int p = Stages * stage_bytes;
  static constexpr int records = p + (sums ? static_cast<int>(sizeof(ProbeRoom90)) : 0);
  static constexpr int barriers = records + Stages * static_cast<int>(sizeof(ProbeTile90));
  static constexpr int shared_bytes = barriers + sm90::Pipeline<Stages>::bytes;
  static_assert(barriers % 16 == 0 && shared_bytes <= 227 * 1024);
};

template <class Shape>
struct ProbeShared90 {
  using Pipe = sm90::Pipeline<Shape::Stages>;
  unsigned char* memory;

  __device__ uint32_t stage(int n) const { return shared_address(memory) + n * Shape::stage_bytes; }
  __device__ ProbeTile90& record(int n) const {
    return reinterpret_cast<ProbeTile90*>(memory + Shape::records)[n];
  }
  __device__ ProbeRoom90& room() const {
    return *reinterpret_cast<ProbeRoom90*>(memory + Shape::p);
  }
  __device__ Pipe pipe() const { return {shared_address(memory + Shape::barriers)}; }
};

// By all threads of the producer's warpgroup.
template <class Shape>
class ProbeProducer90 {
 public:
  using State = typename ProbeShared90<Shape>::Pipe::State;

  __device__ ProbeProducer90(const ProbeWork90& w, const ProbeShared90<Shape>& shared)
      : w_(w), p_(w.p), shared_(shared) {}

  __device__ void run(int& s_next) {
    int item = static_cast<int>(blockIdx.x);
    while (item < w_.schedule.items) {
      if (threadIdx.x == 0) s_next = w_.schedule.take();
      if constexpr (Shape::sums)
        sum_item(item);
      else
        part_item(item);
      sm90::named_barrier_sync(2, 128);
      item = s_next;
      sm90::named_barrier_sync(2, 128);
    }
    if (threadIdx.x == 0) w_.schedule.leave();
    mark({0, 0, 0, 0, ProbeTile90::kDone});
    copy_wait<0>();
    sm90::fence_shared();
    for (; pending_; --pending_) publish();
  }

 private:
  __device__ __forceinline__ void part_item(int item) {
    const int above = probe_quotient(item, w_.key_tiles), heads = static_cast<int>(p_.a.h);
    const int over = probe_quotient(above, w_.bands), head = w_.first + over;
    const int r = probe_quotient(head, heads);
    const ProbeTile90 tile{r, head - r * heads, (above - over * w_.bands) * kProbeRows,
                           (item - above * w_.key_tiles) * Shape::Keys, ProbeTile90::kTile};
    const ProbeUnits90 s = w_.sequence(r);
    constexpr int half = Shape::Keys / 2;
    if (w_.visits(s, tile.i0, tile.j0, Shape::Keys))
      copy(s.q, tile, !w_.visits(s, tile.i0, tile.j0 + half, half));
  }
  __device__ __forceinline__ void sum_item(int item) {
    const int above = probe_quotient(item, w_.key_tiles), heads = static_cast<int>(p_.a.h);
    const int over = probe_quotient(above, w_.bands), head = w_.first + over * w_.group;
    const int r = probe_quotient(head, heads), span = w_.band_tiles * kProbeRows;
    const int begin = (above - over * w_.bands) * span;
    ProbeTile90 tile{r, head - r * heads, 0, (item - above * w_.key_tiles) * Shape::Keys,
                     ProbeTile90::kTile};
    const ProbeUnits90 s = w_.sequence(r);
    if (w_.lines ? tile.j0 >= s.keys : begin >= s.rows) return;
    const int end = min(begin + span, s.rows);
    for (int n = 0; n < w_.group; ++n, ++tile.h) {
      tile.what = ProbeTile90::kTile;
      for (tile.i0 = begin; tile.i0 < end; tile.i0 += kProbeRows)
        if (w_.visits(s, tile.i0, tile.j0, Shape::Keys)) copy(s.q, tile, false);
      tile.i0 = begin;
      tile.what = n == w_.group - 1 ? ProbeTile90::kLastHead : ProbeTile90::kHead;
      mark(tile);
    }
  }

  __device__ __forceinline__ void begin(const ProbeTile90& tile) {
    shared_.pipe().acquire(at_);
    if (threadIdx.x == 0) shared_.record(at_.stage) = tile;
  }
  __device__ __forceinline__ void end() {
    copy_commit();
    at_.next();
    if (++pending_ <= Shape::lag) return;
    copy_wait<Shape::lag>();
    sm90::fence_shared();
    publish(), --pending_;
  }
  __device__ __forceinline__ void publish() {
    __syncwarp();
    sm90::barrier_arrive_warp(shared_.pipe().full(tail_));
    tail_.next();
  }
  __device__ __forceinline__ void mark(const ProbeTile90& tile) { begin(tile), end(); }

  // half: no row sees the second half of the keys.  What stands there makes sums that are masked.
  __device__ __forceinline__ void copy(const Sequence& q, const ProbeTile90& tile, bool half) {
    const int line = static_cast<int>(threadIdx.x) / 8, chunk = static_cast<int>(threadIdx.x) % 8;
    const View<4>&x = p_.a.q, &y = p_.a.k;
    const uint16_t* const q_head = static_cast<const uint16_t*>(x.data) + q.batch * x.stride[0] +
                                   q.row_begin * x.stride[1] + tile.h * x.stride[2];
    const uint16_t* const k_head = static_cast<const uint16_t*>(y.data) +
                                   q.key_batch * y.stride[0] + q.key_begin * y.stride[1] +
                                   probe_quotient(tile.h, w_.share) * y.stride[2];
    const int rows = static_cast<int>(q.rows), keys = static_cast<int>(q.keys);
    const int width = static_cast<int>(p_.a.d);
    const uint32_t to = Shape::TileQ::at(line, chunk);
#pragma unroll 1
    for (int r = 0; r < w_.stride; ++r) {
      const int row = (tile.i0 + line) * w_.stride + (p_.reversed ? w_.stride - 1 - r : r);
      const int key = (tile.j0 + line) * w_.stride + r;
#pragma unroll 1
      for (int column = 0; column < width; column += kProbeStep) {
        begin(tile);
        const uint32_t stage = shared_.stage(at_.stage) + to;
        const int c = column + chunk * kChunk;
        copy_lines<kProbeRows>(stage, q_head + row * x.stride[1] + c, x.stride[1],
                               c < width ? rows - row : 0);
        const uint32_t k_stage = stage + Shape::TileQ::bytes;
        const uint16_t* const from = k_head + key * y.stride[1] + c;
        const int left = c < width ? keys - key : 0;
        if (half)
          copy_lines<Shape::Keys / 2>(k_stage, from, y.stride[1], left);
        else
          copy_lines<Shape::Keys>(k_stage, from, y.stride[1], left);
        end();
      }
    }
  }
  // Every 16th line; `left` tokens from the first on are there, `token` elements apart.
  template <int Lines>
  __device__ __forceinline__ void copy_lines(uint32_t to, const uint16_t* from, int64_t token,
                                             int left) const {
    const auto* const fallback = static_cast<const uint16_t*>(p_.a.q.data);
    const int tokens = 16 * w_.stride;
    const int64_t step = token * tokens;
#pragma unroll
    for (int n = 0; n < Lines / 16; ++n) {
      const bool there = left > 0;
      copy_async(to + n * 16 * kPanelRowBytes, there ? from : fallback, there);
      from += step, left -= tokens;
    }
  }

  const ProbeWork90& w_;
  const ProbeCall& p_;
  const ProbeShared90<Shape>& shared_;
  State at_, tail_;
  int pending_ = 0;
};

// A consumer warpgroup.
template <class Shape, class Epilogue>
__device__ __forceinline__ void consume_probe(const ProbeWork90& w,
                                              const ProbeShared90<Shape>& shared, int group,
                                              Epilogue& epilogue) {
  using State = typename ProbeShared90<Shape>::Pipe::State;
  constexpr int N = Shape::Keys / 8;
  const typename ProbeShared90<Shape>::Pipe pipe = shared.pipe();
  const int steps = w.stride * ((static_cast<int>(w.p.a.d) + kProbeStep - 1) / kProbeStep);
  State at;
  float x[N][4];
  for (;;) {
    pipe.wait(at);
    const ProbeTile90& record = shared.record(at.stage);
    const ProbeTile90 tile{sm90::uniform(record.r), sm90::uniform(record.h),
                           sm90::uniform(record.i0), sm90::uniform(record.j0),
                           sm90::uniform(record.what)};
    if (tile.what == ProbeTile90::kDone) return;
    if (tile.what != ProbeTile90::kTile) {
      pipe.release(at);
      at.next();
      epilogue.end_head(tile);
      continue;
    }
    State last = at;
#pragma unroll 1
    for (int n = 0; n < steps; ++n) {
      if (n) pipe.wait(at);
      const uint32_t stage = sm90::uniform(shared.stage(at.stage));
      const uint64_t a = sm90::descriptor(stage + group * 64 * kPanelRowBytes);
      const uint64_t b = sm90::descriptor(stage + Shape::TileQ::bytes);
      sm90::fence();
#pragma unroll
      for (int k = 0; k < kProbeStep / 16; ++k)
        sm90::Wgmma<Shape::Dtype, Shape::Keys>::template ss<0>(x, a + 2 * k, b + 2 * k, n + k != 0);
      sm90::commit();
      if (n) {
        sm90::wait<1>();
        pipe.release(last);
      }
      last = at;
      at.next();
    }
    sm90::wait<0>();
    sm90::pin(x);
    pipe.release(last);
    epilogue.tile(tile, x, group);
  }
}

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    probe_sm90_kernel(const __grid_constant__ ProbeWork90 w) {
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ int s_next;
  const ProbeShared90<Shape> shared{memory};
  if (threadIdx.x == 0) {
    shared.pipe().init(4, 8);
    sm90::barrier_init_done();
  }
  __syncthreads();
  const int group = sm90::uniform(threadIdx.x / 128) - 1;
  if (group < 0) {
    sm90::setmaxnreg_dec<Shape::producer_regs>();
    ProbeProducer90<Shape>(w, shared).run(s_next);
    return;
  }
  sm90::setmaxnreg_inc<Shape::consumer_regs>();
  if constexpr (Shape::sums) {
    ProbeSums90 epilogue(w, shared.room());
    consume_probe<Shape>(w, shared, group, epilogue);
  } else {
    ProbeParts90 epilogue{w};
    consume_probe<Shape>(w, shared, group, epilogue);
  }
}

template <int Dtype, int Step>
ProbeInstance90 probe_sm90_instance() {
  static_assert(Step == kProbeStep);
  constexpr auto parts = [](Context& ctx, const ProbeWork90& w, int grid) {
    using Shape = ProbeShape90<Dtype, kProbeParts>;
    launch<probe_sm90_kernel<Shape>>(ctx, "x_probe_forward", grid, Shape::threads,
                                     Shape::shared_bytes, w);
  };
  constexpr auto sums = [](Context& ctx, const ProbeWork90& w, int grid) {
    using Shape = ProbeShape90<Dtype, kProbeSums>;
    launch<probe_sm90_kernel<Shape>>(ctx, "x_probe_forward", grid, Shape::threads,
                                     Shape::shared_bytes, w);
  };
  return {Dtype, parts, sums};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(dtype, step) \
  template fovea::cuda::ProbeInstance90 fovea::cuda::probe_sm90_instance<dtype, step>();
