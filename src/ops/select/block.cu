// SPDX-License-Identifier: Apache-2.0
// x_select_block: every dtype, width and stride, any rule and scope.
//   products   a block owns 16 R rows (list row, query head of a column head) x 64 columns in f32
//              FMA (block/stage.cuh), of a chunk of list rows, to the workspace
//   rows       a block owns a list row of a list head: eligible, normalised, reduced, remapped;
//              with scope row also the cut and the list.  Short rows of one head are a warp's
//              (block_list_raw.cu)
//   ranges     with minmax over a wide scope first: the range of each row, then of each scope
//   cuts       with a wide scope: a block owns a scope
//   lists      with a wide scope: a block owns a list row of a list head
// Thread t of a row's block owns columns t, t + 256, ...: passes over them need no barrier.
#include "core/dtype.h"
#include "core/locate.h"
#include "cuda/block/stage.cuh"
#include "cuda/launch.h"
#include "cuda/loop/pick.cuh"
#include "ops/select/block_sm80.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "x_select_block";
constexpr int kRowThreads = 256, kScopeThreads = 256;
constexpr int64_t kChunkBytes = int64_t{48} << 20;
constexpr int64_t kSharedMost = 40 * 1024;

struct Range {
  float low, high;
};

__host__ __device__ int64_t parts_of(int64_t x, int64_t each) {
  return (x + each - 1) / each;
}

// List rows [n0, n0 + rows) of batches [b0, b0 + batches), and where their scores lie.
struct Chunk {
  int64_t b0, batches, n0, rows;
  float* product;  // (batches, rows, h, u)
};

struct SelectCall {
  SelectBlock a;
  Operand row, column, column_low;
  float* room;    // of each block of rows, where shared memory has none
  float* score;   // (b, x, n, y), wide scopes
  bool* forced;   // the same, where a scope asks which entries are
  PickCut* cut;   // of each scope
  Range* range;   // (b, h, n), minmax of wide scopes
  bool ranging;   // rows only find their ranges
  int64_t width;  // floats of room
};

struct SelectItem {
  ListRow at;
  int64_t batch, local, list_head;  // local: of the chunk's rows
  bool there;

  __device__ SelectItem(const SelectBlock& a, const Chunk& chunk, int64_t w) {
    list_head = w % a.x;
    const int64_t row = w / a.x % chunk.rows;
    batch = w / a.x / chunk.rows;
    local = batch * chunk.rows + row;
    there = a.list_row(chunk.b0 + batch, chunk.n0 + row, at);
  }
};

// Rows of a tile of products: (list row, query head of the column head), row slowest.
template <int R>
struct ProductRows {
  int64_t row[16 * R];       // element offset
  int64_t to[16 * R];        // of column 0 of the product
  int64_t sequence[16 * R];  // -1: no such row
  int64_t last;              // the last position of the tile
};

template <int R>
__global__ void __launch_bounds__(kStageThreads, R == 4 ? 1 : 2)
    products_kernel(const __grid_constant__ SelectCall x, const __grid_constant__ Chunk chunk,
                    int64_t work) {
  extern __shared__ float4 s_dynamic[];
  __shared__ ProductRows<R> s;
  const FmaTiles<R> tiles(reinterpret_cast<float*>(s_dynamic));
  const SelectBlock& a = x.a;
  const int64_t heads = a.h / a.g, row_tiles = parts_of(chunk.rows * heads, 16 * R);
  const int64_t column_tiles = parts_of(a.u, kStageTile);
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t first = w % column_tiles * kStageTile, tile = w / column_tiles % row_tiles;
    const int64_t g = w / column_tiles / row_tiles % a.g,
                  batch = w / column_tiles / row_tiles / a.g;
    __syncthreads();
    for (int m = threadIdx.x; m < 16 * R; m += kStageThreads) {
      const int64_t i = (tile * 16 * R + m) / heads, head = g * heads + (tile * 16 * R + m) % heads;
      ListRow at;
      const bool there = i < chunk.rows && a.list_row(chunk.b0 + batch, chunk.n0 + i, at);
      s.sequence[m] = there ? at.sequence : -1;
      if (!there) continue;
      s.row[m] = at.seq.batch * a.row.stride[0] + at.row * a.row.stride[1] + head * a.row.stride[2];
      s.to[m] = ((batch * chunk.rows + i) * a.h + head) * a.u;
    }
    __syncthreads();
    for (int from = 0; from < 16 * R;) {
      const int64_t sequence = s.sequence[from];
      int end = from + 1;
      while (end < 16 * R && s.sequence[end] == sequence) ++end;
      if (sequence < 0) {
        from = end;
        continue;
      }
      ListRow last;
      a.list_row(chunk.b0 + batch, chunk.n0 + (tile * 16 * R + end - 1) / heads, last);
      if (first >= last.columns || (a.causal && first * a.step > last.last_at)) {
        from = end;
        continue;
      }
      const auto row = [&](const Operand& of, int m, int column) {
        return load_four(of, m >= from && m < end ? s.row[m] : -1, column);
      };
      const auto load = [&](const View<4>& view, const Operand& of, int n, int column) {
        const int64_t c = first + n;
        return load_four(of,
                         c < last.columns
                             ? last.seq.key_b * view.stride[0] +
                                   (last.first_column + c) * view.stride[1] + g * view.stride[2]
                             : -1,
                         column);
      };
      float acc[R][4] = {};
      const auto high = [&](float q) { return a.box && q < 0 ? 0.f : q; };
      multiply_nt(
          acc, tiles, x.row.width,
          [&](int m, int column) {
            const float4 q = row(x.row, m, column);
            return float4{high(q.x), high(q.y), high(q.z), high(q.w)};
          },
          [&](int n, int column) { return load(a.column, x.column, n, column); });
      if (a.box) {
        const auto low = [](float q) { return q < 0 ? q : 0.f; };
        multiply_nt(
            acc, tiles, x.row.width,
            [&](int m, int column) {
              const float4 q = row(x.row, m, column);
              return float4{low(q.x), low(q.y), low(q.z), low(q.w)};
            },
            [&](int n, int column) { return load(a.column_low, x.column_low, n, column); });
      }
#pragma unroll
      for (int r = 0; r < R; ++r)
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int m = ty + 16 * r;
          const int64_t column = first + tx + 16 * c;
          if (m >= from && m < end && column < last.columns)
            chunk.product[s.to[m] + column] = acc[r][c];
        }
      from = end;
    }
  }
}

using RowPick = BlockPick<kRowThreads>;

// The scores of one list row: `value` holds what its query heads reduce to.
class RowScores {
 public:
  __device__ RowScores(const SelectCall& x, const Chunk& chunk, const SelectItem& item,
                       const RowPick& pick, float* room)
      : x_(x),
        a_(x.a),
        chunk_(chunk),
        item_(item),
        at_(item.at),
        pick_(pick),
        value_(room),
        head_(room + x.a.u),
        block_(room + 2 * x.a.u) {}

  // The final scores, key block by key block.
  __device__ const float* run() const {
    const int64_t first = item_.list_head * a_.group();
    for (int64_t head = first; head < first + a_.group(); ++head) {
      eligible(head);
      if (!a_.reduce_raw) normalise(head, head_);
      reduce(head == first);
    }
    if (a_.reduce == FOVEA_X_SELECT_REDUCE_MEAN)
      own([&](int64_t c) { value_[c] = __fdiv_rn(value_[c], static_cast<float>(a_.group())); });
    if (a_.reduce_raw) normalise(first, value_);
    __syncthreads();
    if (!a_.remap_step) return value_;
    remap();
    __syncthreads();
    return block_;
  }
  // What minmax of a wide scope asks of this row.
  __device__ void ranges() const {
    const int64_t first = item_.list_head * a_.group();
    for (int64_t head = first; head < first + a_.group(); ++head) {
      eligible(head);
      if (a_.reduce_raw)
        reduce(head == first);
      else
        store_range(head, head_);
    }
    if (!a_.reduce_raw) return;
    if (a_.reduce == FOVEA_X_SELECT_REDUCE_MEAN)
      own([&](int64_t c) { value_[c] = __fdiv_rn(value_[c], static_cast<float>(a_.group())); });
    store_range(first, value_);
  }

 private:
  template <class F>
  __device__ void own(F f) const {
    for (int64_t c = threadIdx.x; c < at_.columns; c += kRowThreads) f(c);
  }
  __device__ Range* range(int64_t head) const {
    return x_.range + (at_.seq.batch * a_.h + head) * a_.n + at_.row;
  }
  __device__ void store_range(int64_t head, const float* x) const {
    const Range found = find(x);
    if (threadIdx.x == 0) *range(head) = found;
  }
  __device__ Range find(const float* x) const {
    float low = -INFINITY, high = -INFINITY;
    own([&](int64_t c) {
      if (x[c] > -INFINITY) low = fmaxf(low, -x[c]), high = fmaxf(high, x[c]);
    });
    low = pick_.largest(low), high = pick_.largest(high);
    return {-low, high};
  }
  // head_[c] = the raw score, -inf where the column is not eligible.
  __device__ void eligible(int64_t head) const {
    const BlockBits mask = a_.bits(a_.block_mask, at_, item_.list_head);
    own([&](int64_t c) {
      float score = -INFINITY;
      if (a_.eligible(at_, mask, head, c)) {
        const float product = a_.row     ? chunk_.product[(item_.local * a_.h + head) * a_.u + c]
                              : a_.score ? *a_.score.at(at_.seq.batch, head, at_.row, c)
                                         : 0.f;
        score = a_.scored_as(product);
      }
      head_[c] = score;
    });
  }
  __device__ void reduce(bool first) const {
    own([&](int64_t c) {
      const float x = head_[c], sum = value_[c];
      value_[c] = first                                    ? x
                  : a_.reduce == FOVEA_X_SELECT_REDUCE_MAX ? fmaxf(sum, x)
                                                           : pick_score(__fadd_rn(sum, x));
    });
  }
  __device__ void normalise(int64_t head, float* x) const {
    if (a_.normalise == FOVEA_X_SELECT_NORMALISE_NONE) return;
    if (a_.row_lse) {
      const float lse = *a_.row_lse.at(at_.seq.batch, head, at_.row);
      return own([&](int64_t c) {
        if (x[c] > -INFINITY) x[c] = SelectBlock::given_softmax(x[c], lse);
      });
    }
    Range at = find(x);
    if (at.high == -INFINITY) return;
    if (a_.normalise == FOVEA_X_SELECT_NORMALISE_MINMAX) {
      if (x_.range) at = *range(head);
      const float width = at.high - at.low <= 1e-6f ? 1.f : at.high - at.low;
      own([&](int64_t c) {
        if (x[c] > -INFINITY) x[c] = pick_score(__fdiv_rn(x[c] - at.low, width));
      });
      return;
    }
    if (a_.normalise == FOVEA_X_SELECT_NORMALISE_MAX) {
      own([&](int64_t c) {
        if (at.high > 0 && x[c] > -INFINITY) x[c] = pick_score(__fdiv_rn(x[c], at.high));
      });
      return;
    }
    float sum = 0;
    own([&](int64_t c) {
      if (!(x[c] > -INFINITY)) return;
      x[c] = __fmul_rn(a_.weight(at_, head, c), x[c] == at.high ? 1.f : expf(x[c] - at.high));
      sum += x[c];
    });
    sum = pick_.sum(sum);
    own([&](int64_t c) {
      if (x[c] > -INFINITY) x[c] = sum > 0 ? pick_score(__fdiv_rn(x[c], sum)) : 0.f;
    });
  }
  __device__ void remap() const {
    for (int64_t j = threadIdx.x; j < at_.blocks; j += kRowThreads) {
      float sum = 0;
      for (int64_t m = 0; m < a_.remap_step; ++m)
        for (int64_t n = 0; n < a_.remap_span; ++n) {
          const int64_t c = a_.remap_step * j + m - n;
          if (c >= 0 && c < at_.columns && value_[c] > -INFINITY) sum = __fadd_rn(sum, value_[c]);
        }
      block_[j] = a_.block_visible(at_, j) ? pick_score(sum) : -INFINITY;
    }
  }

  const SelectCall& x_;
  const SelectBlock& a_;
  const Chunk& chunk_;
  const SelectItem& item_;
  const ListRow& at_;
  const RowPick& pick_;
  float *value_, *head_, *block_;
};

// What the rule takes of a scope of n entries that begins at `at` and `list_head`.
template <class Pick, class Score, class IsForced>
__device__ __forceinline__ PickCut find_cut(const SelectBlock& a, const Pick& pick,
                                            const ListRow& at, int64_t list_head, int64_t n,
                                            Score score, IsForced forced) {
  const auto key = [&](int64_t e) {
    const uint32_t k = pick_key(score(e));
    return k > kPickNone && !(a.forced_count && forced(e)) ? k : 0u;
  };
  const auto block_sum = [&](auto value) {
    int64_t own = 0;
    for (int64_t e = threadIdx.x; e < n; e += blockDim.x) own += value(e);
    return pick.sum(own);
  };
  const int64_t total = pick.count(n, [&](int64_t e) { return key(e) != 0; });
  const int64_t base =
      a.forced_count ? pick.count(n, [&](int64_t e) { return forced(e); }) : int64_t{0};
  int64_t taken = 0;
  if (a.rule == PickRule::count) {
    taken = a.rule_none ? 0 : a.wanted(at, list_head, n) - base;
  } else if (a.rule == PickRule::above || a.rule == PickRule::at_least) {
    taken = pick.count(n, [&](int64_t e) {
      return key(e) &&
             (a.rule == PickRule::above ? score(e) > a.threshold : score(e) >= a.threshold);
    });
  } else {
    float largest = 0;
    for (int64_t e = threadIdx.x; e < n; e += blockDim.x) largest = fmaxf(largest, score(e));
    const PickMass mass(pick.largest(largest), n);
    const int64_t total_mass =
        block_sum([&](int64_t e) { return key(e) ? mass(score(e)) : int64_t{0}; });
    const int64_t before =
        base ? block_sum([&](int64_t e) { return forced(e) ? mass(score(e)) : int64_t{0}; })
             : int64_t{0};
    if (before + total_mass > 0)
      taken = pick.count_by_mass(n, key, mass, a.rule,
                                 pick_target(a.rule, a.cover_of(list_head), before + total_mass),
                                 before, total, total_mass);
  }
  return pick.cut_after(n, key, taken > a.min_extra ? taken : a.min_extra, total);
}

// The list of a row from the cut of its scope, in which its entries are numbered from `begin`.
__device__ __forceinline__ void emit(const SelectBlock& a, const RowPick& pick, const ListRow& at,
                                     int64_t list_head, const float* score, PickCut cut,
                                     int64_t begin) {
  const Forced forced(a, at, list_head);
  const auto key = [&](int64_t c) {
    const uint32_t k = pick_key(score[c]);
    return k > kPickNone && !forced(c) ? k : 0u;
  };
  float mass = 0;
  const PickKeep keep =
      pick.each_kept(at.blocks, a.limits(), key, forced, cut, begin, [&](int64_t c, int64_t slot) {
        if (a.index)
          *a.index.at<int32_t>(at.seq.batch, list_head, at.row, slot) = static_cast<int32_t>(c);
        if (a.kept_score) *a.kept_score.at(at.seq.batch, list_head, at.row, slot) = score[c];
        mass += score[c] > 0 ? score[c] : 0.f;
      });
  for (int64_t slot = keep.forced + keep.free + threadIdx.x; slot < a.keep; slot += kRowThreads) {
    *a.index.at<int32_t>(at.seq.batch, list_head, at.row, slot) = -1;
    if (a.kept_score) *a.kept_score.at(at.seq.batch, list_head, at.row, slot) = -INFINITY;
  }
  mass = pick.sum(mass);
  if (threadIdx.x) return;
  if (a.index_count)
    *a.index_count.at<int32_t>(at.seq.batch, list_head, at.row) = static_cast<int32_t>(keep.wanted);
  if (a.kept_mass) *a.kept_mass.at(at.seq.batch, list_head, at.row) = mass;
}

// Where a list row's entries are in SelectCall::score.
__device__ __forceinline__ int64_t kept_at(const SelectBlock& a, const ListRow& at,
                                           int64_t list_head) {
  return ((at.seq.batch * a.x + list_head) * a.n + at.row) * a.y;
}

__global__ void __launch_bounds__(kRowThreads)
    rows_kernel(const __grid_constant__ SelectCall x, const __grid_constant__ Chunk chunk,
                int64_t work) {
  extern __shared__ float s_room[];
  __shared__ typename RowPick::Shared s;
  const RowPick pick(s);
  const SelectBlock& a = x.a;
  float* const room = x.room ? x.room + blockIdx.x * x.width : s_room;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const SelectItem item(a, chunk, w);
    if (!item.there) continue;
    __syncthreads();
    const ListRow& at = item.at;
    const RowScores scores(x, chunk, item, pick, room);
    if (x.ranging) {
      scores.ranges();
      continue;
    }
    const float* score = scores.run();
    if (a.score_out)
      for (int64_t c = threadIdx.x; c < a.y; c += kRowThreads)
        *a.score_out.at(at.seq.batch, item.list_head, at.row, c) =
            c < at.blocks ? score[c] : -INFINITY;
    const Forced forced(a, at, item.list_head);
    if (a.wide()) {
      const int64_t to = kept_at(a, at, item.list_head);
      for (int64_t c = threadIdx.x; c < at.blocks; c += kRowThreads) {
        x.score[to + c] = score[c];
        if (x.forced) x.forced[to + c] = forced(c);
      }
      continue;
    }
    const PickCut cut = find_cut(
        a, pick, at, item.list_head, at.blocks, [&](int64_t c) { return score[c]; },
        [&](int64_t c) { return forced(c); });
    emit(a, pick, at, item.list_head, score, cut, 0);
  }
}

// Scopes are numbered by (sequence, list head), or with scope all by (sequence, 0).
struct ScopeRows {
  ListRow first;
  int64_t sequence, list_head, heads, rows;
  bool there;

  __device__ ScopeRows(const SelectBlock& a, int64_t number) {
    sequence = number / a.x, list_head = number % a.x;
    const bool all = a.scope == FOVEA_X_SELECT_SCOPE_ALL;
    heads = all ? a.x : 1;
    const int64_t row = a.first_row(sequence);
    there = !(all && list_head) && row < a.n &&
            a.list_row(a.sequences.query_start ? 0 : sequence, row, first) &&
            first.sequence == sequence;
    if (there) rows = a.rows_of(first.seq, row);
  }
};

// The range of a scope to each of its rows.  `heads_each`: query heads of a range.
__global__ void __launch_bounds__(kScopeThreads)
    ranges_kernel(const __grid_constant__ SelectCall x, int64_t work) {
  using Pick = BlockPick<kScopeThreads>;
  __shared__ typename Pick::Shared s;
  const Pick pick(s);
  const SelectBlock& a = x.a;
  const int64_t step = a.reduce_raw ? a.group() : 1;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const ScopeRows scope(a, w);
    if (!scope.there) continue;
    const int64_t begin = scope.list_head * a.group(), end = begin + scope.heads * a.group();
    const int64_t apart = a.scope == FOVEA_X_SELECT_SCOPE_ALL ? end - begin : step;
    for (int64_t head = begin; head < end; head += apart) {
      const int64_t n = parts_of(apart, step) * scope.rows;
      const auto range = [&](int64_t e) {
        return x.range + (scope.first.seq.batch * a.h + head + e / scope.rows * step) * a.n +
               scope.first.row + e % scope.rows;
      };
      float low = -INFINITY, high = -INFINITY;
      for (int64_t e = threadIdx.x; e < n; e += kScopeThreads)
        low = fmaxf(low, -range(e)->low), high = fmaxf(high, range(e)->high);
      low = pick.largest(low), high = pick.largest(high);
      for (int64_t e = threadIdx.x; e < n; e += kScopeThreads) *range(e) = {-low, high};
    }
  }
}

__global__ void __launch_bounds__(kScopeThreads)
    cuts_kernel(const __grid_constant__ SelectCall x, int64_t work) {
  using Pick = BlockPick<kScopeThreads>;
  __shared__ typename Pick::Shared s;
  const Pick pick(s);
  const SelectBlock& a = x.a;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const ScopeRows scope(a, w);
    if (!scope.there) continue;
    const ListRow& first = scope.first;
    const int64_t blocks = first.blocks, rows = scope.rows;
    const auto place = [&](int64_t e) {
      const int64_t line = quotient(e, blocks), head = quotient(line, rows);
      return kept_at(a, first, scope.list_head + head) + (line - head * rows) * a.y + e -
             line * blocks;
    };
    const PickCut cut = find_cut(
        a, pick, first, scope.list_head, scope.heads * rows * blocks,
        [&](int64_t e) { return x.score[place(e)]; },
        [&](int64_t e) { return x.forced[place(e)]; });
    if (threadIdx.x == 0) x.cut[w] = cut;
  }
}

__global__ void __launch_bounds__(kRowThreads)
    lists_kernel(const __grid_constant__ SelectCall x, int64_t work) {
  __shared__ typename RowPick::Shared s;
  const RowPick pick(s);
  const SelectBlock& a = x.a;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t list_head = w % a.x, row = w / a.x % a.n;
    ListRow at;
    if (!a.list_row(w / a.x / a.n, row, at)) continue;
    __syncthreads();
    const int64_t rows = a.rows_of(at.seq, a.first_row(at.sequence));
    const int64_t before = a.scope == FOVEA_X_SELECT_SCOPE_ALL ? list_head : 0;
    const int64_t scope = at.sequence * a.x + (list_head - before);
    emit(a, pick, at, list_head, x.score + kept_at(a, at, list_head), x.cut[scope],
         (before * rows + at.rows_before) * at.blocks);
  }
}

// ---- the host's side

struct SelectSlots {
  Slot<float> product, room, score;
  Slot<bool> forced;
  Slot<PickCut> cut;
  Slot<Range> range;
  int64_t batches, rows, blocks, width, shared_bytes;
  bool raw;  // a warp owns a list row

  SelectSlots(const Context& ctx, const SelectBlock& a, Layout& workspace) {
    const double row_bytes = 4.0 * static_cast<double>(a.h) * static_cast<double>(a.u);
    const auto fit = [&](double bytes, int64_t most) {
      const double times = static_cast<double>(kChunkBytes) / (bytes > 1 ? bytes : 1);
      const int64_t whole = times < 1 ? 1 : times < 1e9 ? static_cast<int64_t>(times) : 1000000000;
      return whole < most ? whole : most;
    };
    batches = fit(row_bytes, a.b);
    rows = fit(row_bytes * static_cast<double>(batches), a.n);
    if (!a.row) batches = a.b, rows = a.n;
    raw = raw_lists(a);
    width = 2 * a.u + (a.remap_step ? a.y : 0);
    shared_bytes = width * 4 <= kSharedMost ? width * 4 : 0;
    blocks = int64_t{8} * device_info(ctx).multiprocessors;
    if (a.row) product = workspace.add<float>(batches, rows, a.h, a.u);
    if (!shared_bytes && !raw) room = workspace.add<float>(blocks, width);
    if (!a.wide()) return;
    score = workspace.add<float>(a.b, a.x, a.n, a.y);
    if (a.forced_count) forced = workspace.add<bool>(a.b, a.x, a.n, a.y);
    cut = workspace.add<PickCut>(a.sequences.count, a.x);
    if (a.normalise == FOVEA_X_SELECT_NORMALISE_MINMAX) range = workspace.add<Range>(a.b, a.h, a.n);
  }

  SelectCall at(const SelectBlock& a, void* base) const {
    SelectCall x{};
    x.a = a, x.width = width;
    if (a.row) {
      x.row = operand_of(a.row, a.row_dtype, a.d);
      x.column = operand_of(a.column, a.column_dtype, a.d);
      if (a.box) x.column_low = operand_of(a.column_low, a.column_dtype, a.d);
    }
    x.room = room.at(base), x.score = score.at(base);
    x.forced = forced.at(base), x.cut = cut.at(base), x.range = range.at(base);
    return x;
  }
};

void score_rows(Context& ctx, const SelectSlots& slots, const SelectCall& x, void* base) {
  const SelectBlock& a = x.a;
  for (int64_t b0 = 0; b0 < a.b; b0 += slots.batches)
    for (int64_t n0 = 0; n0 < a.n; n0 += slots.rows) {
      const Chunk chunk{b0, a.b - b0 < slots.batches ? a.b - b0 : slots.batches, n0,
                        a.n - n0 < slots.rows ? a.n - n0 : slots.rows, slots.product.at(base)};
      if (a.row && a.u) {
        const int64_t heads = a.h / a.g;
        const auto products = [&]<int R> {
          const int64_t work = chunk.batches * a.g * parts_of(chunk.rows * heads, 16 * R) *
                               parts_of(a.u, kStageTile);
          launch<products_kernel<R>>(ctx, kOp, work, kStageThreads, FmaTiles<R>::bytes(), x, chunk,
                                     work);
        };
        chunk.rows* heads <= 16 ? products.template operator()<1>()
                                : products.template operator()<4>();
      }
      if (slots.raw) {
        SelectProduct scores{};
        scores.a = a, scores.score = chunk.product;
        scores.lines = a.x, scores.pitch = static_cast<int>(a.u);
        run_raw_lists(ctx, scores, {chunk.b0, chunk.batches, chunk.n0, chunk.rows});
        continue;
      }
      const int64_t work = chunk.batches * chunk.rows * a.x;
      if (work > 0)
        rows_kernel<<<static_cast<unsigned>(work < slots.blocks ? work : slots.blocks), kRowThreads,
                      static_cast<size_t>(slots.shared_bytes), stream(ctx)>>>(x, chunk, work);
      check(cudaGetLastError(), kOp);
    }
}

void run(Context& ctx, const SelectSlots& slots, const SelectBlock& a, void* base) {
  if (!a.b || !a.n || !a.x) return;
  SelectCall x = slots.at(a, base);
  const int64_t scopes = a.sequences.count * a.x;
  if (x.range) {
    x.ranging = true;
    score_rows(ctx, slots, x, base);
    x.ranging = false;
    launch<ranges_kernel>(ctx, kOp, scopes, kScopeThreads, 0, x, scopes);
  }
  score_rows(ctx, slots, x, base);
  if (!a.wide()) return;
  launch<cuts_kernel>(ctx, kOp, scopes, kScopeThreads, 0, x, scopes);
  const int64_t rows = a.b * a.n * a.x;
  launch<lists_kernel>(ctx, kOp, rows, kRowThreads, 0, x, rows);
}

}  // namespace
}  // namespace cuda

extern const Kernel<SelectBlock> x_select_block_simt = {
    "simt", [](const Context& ctx, const SelectBlock& a, Plan& plan) {
      const cuda::SelectSlots slots(ctx, a, plan.workspace);
      plan.kernel += a.row ? Text(".") + dtype_name(a.row_dtype) : Text(".given");
      if (slots.raw) plan.kernel += ".warps";
      plan.launch = [=](Context& run, void* base) { cuda::run(run, slots, a, base); };
      return Text();
    }};

}  // namespace fovea
