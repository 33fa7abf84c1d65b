// SPDX-License-Identifier: Apache-2.0
// x_select_block's lists from the scores of a chunk (block_sm80.cu) or given ones (block_given.cu),
// for scope row: reduced where products were not, remapped to key blocks, cut by the rule, written
// in ascending order.
// Raw: scores are products or given ones of one head (block.cu).  They are scaled, masked and
// normalised here, by a warp, with the bits that block.cu's RowScores gives them.
// A team is a warp or a block.  It owns the list row of a list head.  Warp w has the entries
// [w Each 32, (w + 1) Each 32), lane by lane.
// A cut is found bit by bit from the top of the key of core/pick.h: each step counts the entries,
// or sums the masses, at or above a trial.
//   registers      the keys that a cut is found among
//   shared memory  Threads Each keys of each team; a warp reads its own alone.  An entry past the
//                  last one that is eligible or forced has none
#pragma once
#include "cuda/launch.h"
#include "cuda/tile/order.cuh"
#include "ops/select/block_sm80.cuh"
#include "ops/select/row_team.cuh"

namespace fovea::cuda {
namespace {

constexpr char kOp[] = "x_select_block";
constexpr int kWarpTeams = 4;  // teams of a block, where they are warps

template <int Threads, int Each, bool Raw>
class RowList {
  using Pick = RowTeam<Threads>;
  static constexpr int kSummed = 8;  // warps of a block of RowScores
  static_assert(!Raw || Threads == 32);

 public:
  __device__ RowList(const SelectProduct& x, const SelectChunk& chunk, Pick& team, uint32_t* keys,
                     int64_t work)
      : x_(x), a_(x.a), team_(team), begin_(team.warp() * Each * 32 + team.lane()) {
    s_key_ = keys + begin_;
    list_head_ = work % a_.x;
    const int64_t i = work / a_.x % chunk.rows, batch = work / a_.x / chunk.rows;
    batch_ = chunk.b0 + batch, row_ = chunk.n0 + i;
    there_ = find_row(a_, batch_, row_, at_);
    const int64_t line = x.lines == a_.x ? list_head_ : list_head_ * a_.group();
    score_ = a_.score ? a_.score.at(batch_, list_head_, row_)
                      : x.score + ((batch * chunk.rows + i) * x.lines + line) * x.pitch;
  }

  __device__ void run() {
    if (!there_) return;
    const int end = at_.seen_blocks > at_.own_end ? at_.seen_blocks : at_.own_end;
    const int own = end - team_.warp() * Each * 32;  // of the warp's entries
    rounds_ = own <= 0 ? 0 : own < Each * 32 ? (own + 31) / 32 : Each;
    if constexpr (Raw) find_normalised();
    find_keys();
    find_forced();
    all_forced_ = team_.sum(__popc(forced_));
    if (a_.forced_count) eligible_ &= ~forced_;
    take_keys();
    const PickCut cut = find_cut();
    if (!a_.forced_count) eligible_ &= ~forced_, take_keys();
    emit(cut);
  }

 private:
  __device__ int entry(int r) const { return begin_ + r * 32; }
  __device__ uint32_t key(int r) const { return s_key_[r * 32]; }
  __device__ bool forced(int r) const { return forced_ >> r & 1; }
  // Whether a cut may take the entry.
  __device__ bool eligible(int r) const { return eligible_ >> r & 1; }

  // Raw scores, until they are keys; those of no eligible column are -inf.
  __device__ float raw(int r) const { return __uint_as_float(s_key_[r * 32]); }
  __device__ void put_raw(int r, float s) const { s_key_[r * 32] = __float_as_uint(s); }
  template <class F>
  __device__ void change_raw(F f) const {
#pragma unroll 4
    for (int r = 0; r < rounds_; ++r)
      if (raw(r) > -INFINITY) put_raw(r, f(raw(r)));
  }
  // The sum over a block of RowScores, in its order.  own(w): what the lane of warp w would hold.
  template <class Own>
  __device__ float sum_of_warps(Own own) const {
    float part[kSummed], all = 0;
#pragma unroll
    for (int w = 0; w < kSummed; ++w) part[w] = own(w);
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
#pragma unroll
      for (int w = 0; w < kSummed; ++w)
        part[w] = __fadd_rn(part[w], __shfl_xor_sync(~0u, part[w], step));
#pragma unroll
    for (int w = 0; w < kSummed; ++w) all = __fadd_rn(all, part[w]);
    return all;
  }

  __device__ void find_normalised() {
    constexpr int kAhead = 8;  // loads in flight
    const int64_t stride = a_.score ? a_.score.stride[3] : 1;
#pragma unroll 1
    for (int from = 0; from < rounds_; from += kAhead) {
      float s[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        const int c = entry(from + k);
        s[k] = NAN;  // counts as -inf
        if (c < at_.seen) s[k] = score_[c * stride];
      }
#pragma unroll
      for (int k = 0; k < kAhead; ++k)
        if (from + k < rounds_) put_raw(from + k, a_.scored_as(s[k]));
    }
    if (a_.block_mask || a_.column_forced) mask();
    normalise();
  }
  __device__ void mask() const {
    const uint8_t *bits = nullptr, *flags = nullptr;
    if (a_.block_mask) bits = a_.block_mask.at<uint8_t>(batch_, list_head_, row_);
    if (a_.column_forced)
      flags = a_.column_forced.at<uint8_t>(at_.key_b, a_.column_head(list_head_), at_.first_column);
    for (int r = 0; r < rounds_; ++r) {
      const int c = entry(r);
      if (c >= at_.seen) continue;
      bool there = true;
      if (bits) there = bits[c / 8 * a_.block_mask.stride[3]] >> (c % 8) & 1;
      if (flags) there = there && !(flags[c * a_.column_forced.stride[2]] & 2);
      if (!there) put_raw(r, -INFINITY);
    }
  }
  __device__ void normalise() {
    if (a_.normalise == FOVEA_X_SELECT_NORMALISE_NONE) return;
    if (a_.row_lse) {
      const float lse = *a_.row_lse.at(batch_, list_head_, row_);
      return change_raw([&](float x) { return SelectBlock::given_softmax(x, lse); });
    }
    float low = -INFINITY, high = -INFINITY;
    for (int r = 0; r < rounds_; ++r)
      if (const float x = raw(r); x > -INFINITY) low = fmaxf(low, -x), high = fmaxf(high, x);
    high = team_.largest(high);
    if (high == -INFINITY) return;
    if (a_.normalise == FOVEA_X_SELECT_NORMALISE_MINMAX) {
      low = -team_.largest(low);
      const float width = high - low <= 1e-6f ? 1.f : high - low;
      return change_raw([&](float x) { return pick_score(__fdiv_rn(x - low, width)); });
    }
    if (a_.normalise == FOVEA_X_SELECT_NORMALISE_MAX)
      return change_raw([&](float x) { return high > 0 ? pick_score(__fdiv_rn(x, high)) : x; });
    change_raw([&](float x) { return x == high ? 1.f : expf(x - high); });
    const float sum = sum_of_warps([&](int w) {
      float own = 0;
#pragma unroll
      for (int r = w; r < Each; r += kSummed)
        if (r < rounds_ && raw(r) > -INFINITY) own = __fadd_rn(own, raw(r));
      return own;
    });
    change_raw([&](float x) { return sum > 0 ? pick_score(__fdiv_rn(x, sum)) : 0.f; });
  }

  // The reduced score of a column that positions let the row see.
  __device__ float column_score(int c) const {
    float sum = score_[c];
    if (x_.lines == a_.x) return a_.score ? a_.scored_as(sum) : sum;
    const int64_t group = a_.group();
    for (int64_t k = 1; k < group; ++k) {
      const float v = score_[k * x_.pitch + c];
      sum = a_.reduce == FOVEA_X_SELECT_REDUCE_MAX ? fmaxf(sum, v) : __fadd_rn(sum, v);
    }
    sum = pick_score(sum);
    return a_.reduce == FOVEA_X_SELECT_REDUCE_MEAN ? __fdiv_rn(sum, static_cast<float>(group))
                                                   : sum;
  }
  // A column's share of key blocks.
  __device__ float share(int c) const {
    const float s = c >= 0 && c < at_.seen ? column_score(c) : 0.f;
    return s > -INFINITY ? s : 0.f;
  }
  // remap_step 4, remap_span 2: columns 4 j - 1 .. 4 j + 3, in the order of the sum.
  __device__ float remapped_four(int j) const {
    const int c = 4 * j;
    const float4 v = load_seen(score_ + c, at_.seen - c);
    const auto part = [&](float s, int i) { return c + i < at_.seen && s > -INFINITY ? s : 0.f; };
    const float p = share(c - 1), p0 = part(v.x, 0), p1 = part(v.y, 1), p2 = part(v.z, 2),
                p3 = part(v.w, 3);
    float sum = __fadd_rn(p0, p);
    sum = __fadd_rn(__fadd_rn(sum, p1), p0);
    sum = __fadd_rn(__fadd_rn(sum, p2), p1);
    return __fadd_rn(__fadd_rn(sum, p3), p2);
  }
  __device__ float remapped(int j) const {
    const int step = static_cast<int>(a_.remap_step), span = static_cast<int>(a_.remap_span);
    if (step == 4 && span == 2 && x_.lines == a_.x) return remapped_four(j);
    float sum = 0;
    for (int m = 0; m < step; ++m)
      for (int n = 0; n < span; ++n) sum = __fadd_rn(sum, share(step * j + m - n));
    return sum;
  }

  __device__ void find_keys() {
    eligible_ = 0;
#pragma unroll 4
    for (int r = 0; r < rounds_; ++r) {
      const int c = entry(r);
      float s = -INFINITY;
      if constexpr (Raw) {
        s = raw(r);
      } else if (a_.remap_step) {
        if (c < at_.seen_blocks) s = pick_score(remapped(c));
      } else if (c < at_.seen) {
        s = column_score(c);
      }
      const uint32_t k = c < at_.blocks ? pick_key(s) : 0u;
      s_key_[r * 32] = k;
      eligible_ |= static_cast<uint32_t>(k > kPickNone) << r;
    }
    if (!a_.score_out) return;
    for (int r = 0; r < Each; ++r)
      if (entry(r) < a_.y)
        *a_.score_out.at(batch_, list_head_, row_, entry(r)) =
            r < rounds_ && key(r) ? pick_value(key(r)) : -INFINITY;
  }

  // Forced of block.h, in 32 bits.
  __device__ void find_forced() {
    const auto cut = [](int64_t x) { return static_cast<int>(x < kSelectMost ? x : kSelectMost); };
    const int first = cut(a_.force_first), last = at_.blocks - cut(a_.force_last);
    const int previous = at_.own_begin - cut(a_.force_previous);
    const bool whole = a_.row_forced && *a_.row_forced.at<uint8_t>(batch_, list_head_, row_);
    const uint8_t* bits = nullptr;
    if (a_.forced) bits = a_.forced.at<uint8_t>(batch_, list_head_, row_);
    const uint8_t* flags = nullptr;
    if (a_.column_forced && !a_.remap_step)
      flags = a_.column_forced.at<uint8_t>(at_.key_b, a_.column_head(list_head_ * a_.group()),
                                           at_.first_column);
    forced_ = 0;
    for (int r = 0; r < rounds_; ++r) {
      const int c = entry(r);
      const bool own = a_.force_own && c >= at_.own_begin && c < at_.own_end;
      bool named = whole || c < first || c >= last || (c < at_.own_begin && c >= previous);
      if (c < at_.seen_blocks && !named) {
        if (bits) named = bits[c / 8 * a_.forced.stride[3]] >> (c % 8) & 1;
        if (flags) named = named || flags[c * a_.column_forced.stride[2]] & 1;
      }
      if (own || (named && c < at_.seen_blocks)) forced_ |= 1u << r;
    }
  }

  // The keys that a cut is found among.
  __device__ void take_keys() {
#pragma unroll
    for (int r = 0; r < Each; ++r) key_[r] = eligible(r) ? key(r) : 0u;
    total_ = team_.sum(__popc(eligible_));
  }
  __device__ int count_from(uint32_t least) {
    int own = 0;
#pragma unroll
    for (int r = 0; r < Each; ++r) own += key_[r] >= least ? 1 : 0;
    return team_.sum(own);
  }
  // Of the entries for which test(r) holds.
  template <class Test>
  __device__ int count(Test test) {
    int own = 0;
    for (int r = 0; r < rounds_; ++r) own += test(r) ? 1 : 0;
    return team_.sum(own);
  }
  template <class Test>
  __device__ int64_t mass_of(const PickMass& mass, Test test) {
    int64_t own = 0;
    for (int r = 0; r < rounds_; ++r)
      if (test(r)) own += mass(pick_value(key(r)));
    return team_.sum(own);
  }
  // visit(r, rank) for the entries for which test(r) holds, rank in their order.
  template <class Test, class Visit>
  __device__ void each(Test test, Visit visit) {
    uint32_t own = 0;
    int warp_own = 0;
    for (int r = 0; r < rounds_; ++r) {
      const bool here = test(r);
      own |= static_cast<uint32_t>(here) << r;
      warp_own += __popc(__ballot_sync(~0u, here));
    }
    int rank = team_.before(warp_own);
    for (int r = 0; r < rounds_; ++r) {
      const uint32_t taken = __ballot_sync(~0u, own >> r & 1);
      if (own >> r & 1) visit(r, rank + __popc(taken & ((1u << team_.lane()) - 1)));
      rank += __popc(taken);
    }
  }
  // One past the entry of rank `wanted` - 1 among those that test(r) names.
  template <class Test>
  __device__ int end_of(Test test, int wanted) {
    int end = 0;
    each(test, [&](int r, int rank) {
      if (rank == wanted - 1) end = entry(r) + 1;
    });
    return team_.sum(end);
  }

  // host/pick.h's functions of the same names.
  __device__ PickCut cut_after(int64_t wanted) {
    if (wanted <= 0) return {};
    if (wanted >= total_) return PickCut::all();
    const int k = static_cast<int>(wanted);
    uint32_t least = 0;  // the key of rank k - 1
#pragma unroll 1
    for (uint32_t bit = 1u << 31; bit; bit >>= 1) {
      const uint32_t trial = least | bit;
      const int above = count_from(trial);
      if (above == k) return {trial - 1, 0};
      if (above > k) least = trial;
    }
    const int left = k - count_from(least + 1);
    return {least, end_of([&](int r) { return eligible(r) && key(r) == least; }, left)};
  }
  __device__ int64_t count_by_mass(const PickMass& mass, int64_t target, int64_t before,
                                   int64_t total_mass) {
    PickWalk walk{true, a_.rule, target, 0, before, 0};
    if (walk.crosses(0, before)) return 0;
    if (!walk.crosses(total_, before + total_mass)) return total_;
    const auto mass_from = [&](uint32_t least) {
      return mass_of(mass, [&](int r) { return eligible(r) && key(r) >= least; });
    };
    uint32_t least = 0;
#pragma unroll 1
    for (uint32_t bit = 1u << 31; bit; bit >>= 1)
      if (walk.crosses(0, before + mass_from(least | bit))) least |= bit;
    walk.count = count_from(least + 1);
    walk.mass = before + mass_from(least + 1);
    const int64_t ties = count_from(least) - walk.count;
    return walk.count + walk.ties(ties, mass(pick_value(least)));
  }

  __device__ int64_t taken_by_mass() {
    float largest = 0;
    for (int r = 0; r < rounds_; ++r)
      if (key(r)) largest = fmaxf(largest, pick_value(key(r)));
    const PickMass mass(team_.largest(largest), at_.blocks);
    const int64_t total_mass = mass_of(mass, [&](int r) { return eligible(r); });
    int64_t before = 0;
    if (a_.forced_count) before = mass_of(mass, [&](int r) { return forced(r); });
    if (before + total_mass <= 0) return 0;
    return count_by_mass(mass, pick_target(a_.rule, a_.cover_of(list_head_), before + total_mass),
                         before, total_mass);
  }

  __device__ PickCut find_cut() {
    int64_t taken = 0;
    if (a_.rule == PickRule::count) {
      ListRow at{};
      at.seq.batch = batch_;
      if (!a_.rule_none) taken = a_.wanted(at, list_head_, at_.blocks);
      if (a_.forced_count) taken -= all_forced_;
    } else if (a_.rule == PickRule::above || a_.rule == PickRule::at_least) {
      taken = count([&](int r) {
        const float s = pick_value(key(r));
        return eligible(r) && (a_.rule == PickRule::above ? s > a_.threshold : s >= a_.threshold);
      });
    } else {
      taken = taken_by_mass();
    }
    return cut_after(taken > a_.min_extra ? taken : a_.min_extra);
  }

  __device__ void emit(PickCut cut) {
    const auto taken = [&](int r) { return eligible(r) && cut.takes(key(r), entry(r)); };
    const int free = count(taken);
    const PickKeep keep(a_.limits(), all_forced_, free, total_);
    if (keep.free != free) cut = cut_after(keep.free);
    int forced_end = INT32_MAX;
    if (keep.forced < all_forced_)
      forced_end = keep.forced > 0
                       ? end_of([&](int r) { return forced(r); }, static_cast<int>(keep.forced))
                       : 0;
    float mass = 0;
    uint32_t kept = 0;
    each([&](int r) { return forced(r) ? entry(r) < forced_end : taken(r); },
         [&](int r, int slot) {
           const float s = pick_value(key(r));
           if (a_.index) *a_.index.at<int32_t>(batch_, list_head_, row_, slot) = entry(r);
           if (a_.kept_score) *a_.kept_score.at(batch_, list_head_, row_, slot) = s;
           if constexpr (Raw) kept |= 1u << r;
           mass += s > 0 ? s : 0.f;
         });
    for (int64_t slot = keep.forced + keep.free + team_.thread(); slot < a_.keep; slot += Threads) {
      *a_.index.at<int32_t>(batch_, list_head_, row_, slot) = -1;
      if (a_.kept_score) *a_.kept_score.at(batch_, list_head_, row_, slot) = -INFINITY;
    }
    if (a_.kept_mass) mass = Raw ? mass_of_warps(kept) : team_.sum(mass);
    if (team_.thread()) return;
    if (a_.index_count)
      *a_.index_count.at<int32_t>(batch_, list_head_, row_) = static_cast<int32_t>(keep.wanted);
    if (a_.kept_mass) *a_.kept_mass.at(batch_, list_head_, row_) = mass;
  }

  // BlockPick's warps have a share of the entries each.
  __device__ float mass_of_warps(uint32_t kept) {
    const int share = (at_.blocks + 32 * kSummed - 1) / (32 * kSummed);
    return sum_of_warps([&](int w) {
      float own = 0;
#pragma unroll 1
      for (int r = w * share; r < (w + 1) * share && r < rounds_; ++r)
        if (kept >> r & 1) own = __fadd_rn(own, fmaxf(pick_value(key(r)), 0.f));
      return own;
    });
  }

  const SelectProduct& x_;
  const SelectBlock& a_;
  Pick& team_;
  const int begin_;  // the thread's first entry
  uint32_t* s_key_;  // its key
  RowSpan at_;
  int64_t list_head_, batch_, row_;
  const float* score_;
  bool there_;
  int rounds_, all_forced_, total_;  // total_: eligible entries
  uint32_t key_[Each], forced_, eligible_;
};

template <int Threads, int Each, bool Raw>
__global__ void __launch_bounds__(Threads == 32 ? 32 * kWarpTeams : Threads, 1)
    lists_kernel(const __grid_constant__ SelectProduct x, const __grid_constant__ SelectChunk chunk,
                 int64_t work) {
  using Pick = RowTeam<Threads>;
  extern __shared__ uint32_t s_keys[];
  __shared__ typename Pick::Shared s;
  pdl_wait();  // no trigger: what follows may read lists before it waits
  const int number = Threads == 32 ? threadIdx.x / 32 : 0;
  const int64_t w = static_cast<int64_t>(blockIdx.x) * (Threads == 32 ? kWarpTeams : 1) + number;
  if (w >= work) return;
  Pick team(s);
  RowList<Threads, Each, Raw>(x, chunk, team, s_keys + number * Threads * Each, w).run();
}

template <int Threads, int Each, bool Raw = false>
void run_teams(Context& ctx, const SelectProduct& x, const SelectChunk& chunk) {
  static_assert(Each <= 32);
  const int64_t work = chunk.batches * chunk.rows * x.a.x;
  constexpr int kTeams = Threads == 32 ? kWarpTeams : 1;
  launch_pdl<lists_kernel<Threads, Each, Raw>>(ctx, kOp, ceil_div(work, kTeams), Threads * kTeams,
                                               int64_t{4} * kTeams * Threads * Each, x, chunk,
                                               work);
}

}  // namespace

}  // namespace fovea::cuda
