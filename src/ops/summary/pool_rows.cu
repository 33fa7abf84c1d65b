// SPDX-License-Identifier: Apache-2.0
// x_pool_forward of max, min, mean and sum, where rows of x are pieces of 16 bytes:
//   y[c] = summary of the tokens of block c, in each column by itself
// A team owns a block of tokens of one head: a warp, or eight where blocks have many tokens.
// A lane owns a piece and every n-th token.
// Lanes join by shuffles, then warps through shared memory, each in a fixed order.
// Thread blocks share the blocks that old_len leaves of a sequence: a step of decode makes few.
// Where mean and sum alone are wanted, without pages, a state is a third: more thread blocks share
// a multiprocessor, and warps load the next block while warp 0 joins one.
//
//   | barrier | who arrives | who waits | what it guards                                    |
//   | joined  | all warps   | all warps | the states that warp 0 joins; with two buffers    |
//   |         |             |           | also the other one, which it has read             |
//   | read    | all warps   | all warps | with one buffer: the same, before the next block  |
#include "core/chunk.h"
#include "core/dtype.h"
#include "core/locate.h"
#include "core/reasons.h"
#include "cuda/launch.h"
#include "cuda/tile/convert.cuh"
#include "cuda/tile/order.cuh"
#include "ops/summary/pool.h"

namespace fovea {
namespace cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kAhead = 4;            // tokens that a lane has in flight
constexpr int64_t kManyTokens = 64;  // of a block that eight warps share
constexpr char kOp[] = "x_pool_forward";

// What a lane knows of the columns of its piece.  Sums: their sums alone.
template <int Each, bool Sums>
struct PieceState {
  static constexpr int kParts = Sums ? 1 : 3;
  float high[Each], low[Each], sum[Each];
  int count;

  __device__ void clear() {
#pragma unroll
    for (int e = 0; e < Each; ++e) high[e] = -INFINITY, low[e] = INFINITY, sum[e] = 0;
    count = 0;
  }
  __device__ float part(int p, int e) const {
    return p == 0 ? sum[e] : p == 1 ? high[e] : low[e];
  }
  // more(p): part p of column e of another state, or of a token.  NaN is above and below all.
  template <class More>
  __device__ void join(int e, More more) {
    sum[e] += more(0);
    if constexpr (!Sums) {
      const float more_high = more(1), more_low = more(2);
      high[e] = more_high > high[e] || more_high != more_high ? more_high : high[e];
      low[e] = more_low < low[e] || more_low != more_low ? more_low : low[e];
    }
  }
};

template <class T, int Team, bool Sums>
class PoolTeam {
  static constexpr int kEach = 16 / static_cast<int>(sizeof(T));
  static constexpr int kBuffers = Sums ? 2 : 1;
  using Piece = Chunk<T, kEach>;
  using State = PieceState<kEach, Sums>;

 public:
  struct Buffer {
    float part[Team == 1 ? 1 : kWarps][State::kParts * kEach][32];
    int count[kWarps][32];
  };
  struct Shared {
    Buffer buffer[kBuffers];
  };

  // across: lanes side by side over the pieces of a row, a power of two.  wide: so is y.
  __device__ PoolTeam(const PoolCall& a, Shared& shared, int across, bool wide)
      : a_(a),
        wide_(wide),
        s_(shared),
        warp_(threadIdx.x / 32),
        lane_(threadIdx.x % 32),
        across_(across),
        stripes_(32 / across * Team),
        stripe_(warp_ % Team * (32 / across) + lane_ / across) {}

  // Block `block` of a head.
  __device__ void run(const Sequence& q, int64_t r, int64_t block, int64_t head) {
    const PoolBlock at = pool_block(a_, q, r, head, block);
    const int64_t pieces = a_.d / kEach, x_head = quotient(head, quotient(a_.h, a_.g));
    for (int64_t first = 0; first < pieces; first += across_) {
      const int64_t piece = first + (lane_ & (across_ - 1));
      state_.clear();
      if (piece < pieces) {
        const int64_t column = x_head * a_.x.stride[2] + piece * kEach;
        if constexpr (Sums)
          add_rows(q, at, column);
        else
          add_tokens(q, at, column);
      }
      join_lanes();
      if constexpr (Team > 1) join_warps();
      if (stripe_ || piece >= pieces) continue;
      int64_t to = at.batch * a_.y.stride[0] + at.slot * a_.y.stride[1] + head * a_.y.stride[2] +
                   piece * kEach * a_.y.stride[3];
      const auto put = [&](int32_t part, auto value) {
        if (!a_.wants(part)) return;
        store(to, value);
        to += a_.d * a_.y.stride[3];
      };
      if constexpr (!Sums) {
        put(FOVEA_X_SUMMARY_MAX, [&](int e) { return state_.high[e]; });
        put(FOVEA_X_SUMMARY_MIN, [&](int e) { return state_.low[e]; });
      }
      const float count = static_cast<float>(state_.count);
      put(FOVEA_X_SUMMARY_MEAN, [&](int e) { return __fdiv_rn(state_.sum[e], count); });
      put(FOVEA_X_SUMMARY_SUM, [&](int e) { return state_.sum[e]; });
    }
  }

 private:
  // A part of y, of the lane's columns.
  template <class Value>
  __device__ void store(int64_t to, Value value) const {
    Chunk<float, kEach> x;
#pragma unroll
    for (int e = 0; e < kEach; ++e) x.x[e] = state_.count ? value(e) : 0.f;
    if (wide_ && a_.y_dtype == FOVEA_F32) {
      *reinterpret_cast<Chunk<float, kEach>*>(static_cast<float*>(a_.y.data) + to) = x;
    } else if (wide_) {
      Piece piece;
#pragma unroll
      for (int e = 0; e < kEach; ++e) piece.x[e] = from_float<T>(x.x[e]);
      *reinterpret_cast<Piece*>(static_cast<T*>(a_.y.data) + to) = piece;
    } else {
#pragma unroll
      for (int e = 0; e < kEach; ++e)
        store_float(a_.y.data, a_.y_dtype, to + e * a_.y.stride[3], x.x[e]);
    }
  }

  __device__ void add_tokens(const Sequence& q, const PoolBlock& at, int64_t column) {
    const T* const x = static_cast<const T*>(a_.x.data) + column;
    const Sequences& tokens = a_.sequences;
    const int64_t base = q.key_batch * a_.x.stride[0] + q.key_begin * a_.x.stride[1];
    for (int64_t i0 = at.begin + stripe_; i0 < at.end; i0 += kAhead * stripes_) {
      // Places come first: no load waits for another.
      int64_t from[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k)
        from[k] = i0 + k * stripes_ < at.end ? base + (i0 + k * stripes_) * a_.x.stride[1] : -1;
      if (tokens.page) {
#pragma unroll 1
        for (int k = 0; k < kAhead; ++k) {
          const int64_t i = i0 + k * stripes_;
          const int64_t place = i < at.end ? tokens.key_offset(q, i, a_.x.stride) : -1;
#pragma unroll
          for (int n = 0; n < kAhead; ++n)
            if (n == k) from[n] = place;
        }
      }
      Piece piece[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k)
        if (from[k] >= 0) piece[k] = *reinterpret_cast<const Piece*>(x + from[k]);
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        if (from[k] < 0) continue;
        ++state_.count;
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
          const float value = to_float(piece[k].x[e]);
          state_.join(e, [&](int) { return value; });
        }
      }
    }
  }

  // add_tokens() without pages.  Zeros in place of absent tokens leave the sums as they are.
  __device__ void add_rows(const Sequence& q, const PoolBlock& at, int64_t column) {
    const int64_t first = at.begin + stripe_, step = stripes_ * a_.x.stride[1];
    const T* from = static_cast<const T*>(a_.x.data) + column + q.key_batch * a_.x.stride[0] +
                    (q.key_begin + first) * a_.x.stride[1];
    int64_t left = at.end - first;
    for (; left > 0; left -= kAhead * stripes_, from += kAhead * step) {
      const int some = left < kAhead * stripes_ ? static_cast<int>(left) : kAhead * stripes_;
      uint4 bits[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        bits[k] = {0, 0, 0, 0};
        if (k * stripes_ < some) bits[k] = *reinterpret_cast<const uint4*>(from + k * step);
      }
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        Piece piece;
        memcpy(&piece, &bits[k], sizeof piece);
        state_.count += k * stripes_ < some;
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
          const float value = to_float(piece.x[e]);
          state_.join(e, [&](int) { return value; });
        }
      }
    }
  }

  __device__ void join_lanes() {
    for (int step = across_; step < 32; step *= 2) {
#pragma unroll
      for (int e = 0; e < kEach; ++e)
        state_.join(e, [&](int p) { return __shfl_xor_sync(~0u, state_.part(p, e), step); });
      state_.count += __shfl_xor_sync(~0u, state_.count, step);
    }
  }

  __device__ void join_warps() {
    Buffer& s = s_.buffer[turn_];
    turn_ = kBuffers - 1 - turn_;
#pragma unroll
    for (int e = 0; e < kEach; ++e)
#pragma unroll
      for (int p = 0; p < State::kParts; ++p)
        s.part[warp_][p * kEach + e][lane_] = state_.part(p, e);
    s.count[warp_][lane_] = state_.count;
    __syncthreads();
    for (int w = 1; warp_ == 0 && w < kWarps; ++w) {
#pragma unroll
      for (int e = 0; e < kEach; ++e)
        state_.join(e, [&](int p) { return s.part[w][p * kEach + e][lane_]; });
      state_.count += s.count[w][lane_];
    }
    if constexpr (kBuffers == 1) __syncthreads();
  }

  const PoolCall& a_;
  const bool wide_;
  Shared& s_;
  const int warp_, lane_, across_, stripes_, stripe_;
  State state_;
  int turn_ = 0;  // the buffer
};

// shares: thread blocks of a sequence.
template <class T, int Team, bool Sums>
__global__ void __launch_bounds__(kThreads, Sums ? 3 : 2)
    pool_rows_kernel(const __grid_constant__ PoolCall a, int64_t shares, int across, bool wide) {
  constexpr int kTeams = kWarps / Team;
  __shared__ typename PoolTeam<T, Team, Sums>::Shared shared;
  PoolTeam<T, Team, Sums> team(a, shared, across, wide);
  const int64_t number = threadIdx.x / 32 / Team;
  pdl_wait();
  for (int64_t w = blockIdx.x; w < a.sequences.count * shares; w += gridDim.x) {
    const int64_t r = w / shares;
    const Sequence q = a.sequences[r];
    const Interval left = pool_left(a, q, r);
    const int64_t work = (left.end - left.begin) * a.h;
    for (int64_t n = w % shares * kTeams + number; n < work; n += shares * kTeams)
      team.run(q, r, left.begin + quotient(n, a.h), n - quotient(n, a.h) * a.h);
  }
}

template <class T, int Team, bool Sums>
void enqueue_rows(Context& ctx, const PoolCall& a) {
  constexpr int kTeams = kWarps / Team, kEach = 16 / static_cast<int>(sizeof(T));
  const int64_t units = ceil_div(a.blocks_most * a.h, kTeams);
  // Of Sums three thread blocks share a multiprocessor; of others two, and four even out.
  const int64_t room =
      ceil_div(int64_t{Sums ? 3 : 4} * device_info(ctx).multiprocessors, a.sequences.count);
  const bool same = a.y_dtype == a.dtype;
  const bool wide = (same || a.y_dtype == FOVEA_F32) && chunked(a.y, same ? sizeof(T) : 4, kEach);
  const int64_t shares = units < room ? units : room;
  launch_pdl<pool_rows_kernel<T, Team, Sums>>(ctx, kOp, a.sequences.count * shares, kThreads, 0, a,
                                              shares, lanes_of(a.d / kEach, 32), wide);
}

template <class T>
void enqueue(Context& ctx, const PoolCall& a) {
  if (!a.sequences.count || !a.blocks_most) return;
  const bool sums =
      !a.wants(FOVEA_X_SUMMARY_MAX) && !a.wants(FOVEA_X_SUMMARY_MIN) && !a.sequences.page;
  if (a.block < kManyTokens)
    sums ? enqueue_rows<T, 1, true>(ctx, a) : enqueue_rows<T, 1, false>(ctx, a);
  else
    sums ? enqueue_rows<T, kWarps, true>(ctx, a) : enqueue_rows<T, kWarps, false>(ctx, a);
  if (a.similar || a.dissimilar) pool_similar(ctx, a);
}

Text refuse(const PoolCall& a) {
  for (int32_t part : {FOVEA_X_SUMMARY_GATED, FOVEA_X_SUMMARY_RANKED, FOVEA_X_SUMMARY_RUNNING})
    if (a.wants(part)) return reason("want", a.want, "max, min, mean, sum");
  if (a.key_begin) return reason_given("key_begin");
  const int bytes = a.dtype == FOVEA_F32 ? 4 : 2;
  if (a.d % (16 / bytes)) return reason("d", a.d, "whole pieces of 16 bytes");
  if (!chunked(a.x, static_cast<size_t>(bytes), 16 / bytes)) return reason_rows("x");
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<PoolCall> pool_forward_rows = {
    "rows", [](const Context&, const PoolCall& a, Plan& plan) {
      if (Text why = cuda::refuse(a); !why.empty()) return why;
      plan.kernel += Text(".") + dtype_name(a.dtype);
      plan.launch = [a](Context& ctx, void*) {
        cuda::with_element(a.dtype, [&](auto x) { cuda::enqueue<decltype(x)>(ctx, a); });
      };
      return Text();
    }};

}  // namespace fovea
