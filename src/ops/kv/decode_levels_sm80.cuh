// SPDX-License-Identifier: Apache-2.0
// x_kv_decode in the formats of levels on tensor cores, from the codes as they are.  Of a group of
// 32 tokens, with powers of two that keep f16 in range:
//   k_jc = (level[code] range_c + offset_c + lacks_jc) / S,  turned by cos and sin
//   x_j  = S s_j sum_c q_c k_jc                    s_j: the token's norm in format 2, else 1
//   v_jc = level[code] + lacks_jc / R_j            R_j: the token's range, or its norm
//   o_c  = sum_j (p_j R_j) v_jc + sum_j p_j offset_j
// A warp owns a row tile of a key head and a split of its groups, with an online softmax of its
// own.  Neighbouring warps have the heads of one split, so that cos, sin, outliers and bounds of a
// token come from the first cache.
//
// Levels are read in pairs: 2 bits codes that are neighbours in a word name two f16 of a table,
// which each bank of shared memory has for its lane, so lookups never conflict.
// Shared memory: the tables of keys and values, aligned to their size so that bits of codes are
// bits of addresses; before and behind them a tile for each warp: keys as [channel][token], after
// the scores values as [token][channel].  Both are read transposed, as a operands; heads are the
// columns.  Outliers and first tokens are written into the tile.  A lane is a token there.
#pragma once
#include "cuda/block/reduce.cuh"
#include "cuda/launch.h"
#include "cuda/loop/combine.cuh"
#include "cuda/tile/order.cuh"
#include "ops/kv/levels.h"
#include "ops/kv/split_sm80.cuh"

namespace fovea::cuda {

constexpr int kWarpsMost = 12;
constexpr int kTokens = 32;  // of a tile: a group
constexpr int kRows = 8;
constexpr float kLarge = 16384;  // of a value over its range: beyond, f16 is near its end

struct LevelSplit {
  Attend a;
  kv::Cache cache;
  Step k_code, v_code, k_norm, v_norm, v_bound, k_outlier, v_outlier;
  uint32_t v_code_rows;        // bytes from a part of a lane's values to the next
  const uint32_t* turns;       // cos and sin, see turns_kernel; or null
  int packed;                  // query heads of a key head
  int row_tiles, splits;       // of a sequence
  int pool;                    // pages
  int page_tiles, page_shift;  // tiles of a page, and their log2; -1: no power
  int64_t items;               // of warps
  Partials out;
};

template <int Bits, int Width>
struct Room {
  static constexpr int kTable = (1 << 2 * Bits) * 32 * 4;
  static constexpr int kKeyRow = kTokens * 2 + 16, kValueRow = Width * 2 + 16;
  static constexpr int kKeys = Width * kKeyRow, kValues = kTokens * kValueRow;
  static constexpr int kTile = kKeys > kValues ? kKeys : kValues;
  // Where the tables are aligned, a tile is lost; what lies before them is less than a table.
  static constexpr int bytes(int warps) {
    return 2 * kTable + (kTable > (warps + 1) * kTile ? kTable : (warps + 1) * kTile);
  }

  // Bytes from the beginning of shared memory, which is at `base`.
  static __device__ uint32_t tables(uint32_t base) { return -base & (kTable - 1); }
  static __device__ uint32_t tile(uint32_t base, uint32_t warp) {
    const uint32_t before = tables(base) / kTile;
    return warp < before ? warp * kTile : tables(base) + 2 * kTable + (warp - before) * kTile;
  }
};

__device__ inline uint32_t fused2(uint32_t x, uint32_t y, uint32_t z) {
  uint32_t w;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(w) : "r"(x), "r"(y), "r"(z));
  return w;
}
__device__ inline uint32_t times2(uint32_t x, uint32_t y) {
  uint32_t z;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
  return z;
}
__device__ inline void store_4(unsigned char* to, const uint32_t (&x)[4]) {
  *reinterpret_cast<uint4*>(to) = uint4{x[0], x[1], x[2], x[3]};
}

// Bits words, aligned to the largest power of two that divides their size.
template <int Bits>
__device__ inline void load_words(const uint32_t* from, uint32_t (&to)[Bits]) {
  if constexpr (Bits == 4) {
    const uint4 x = __ldg(reinterpret_cast<const uint4*>(from));
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
  } else if constexpr (Bits == 2) {
    const uint2 x = __ldg(reinterpret_cast<const uint2*>(from));
    to[0] = x.x, to[1] = x.y;
  } else {
#pragma unroll
    for (int w = 0; w < Bits; ++w) to[w] = __ldg(from + w);
  }
}

// Levels of codes 2 pair and 2 pair + 1 of 32; `lane` is where the lane's table begins.
template <int Bits, int Table>
__device__ inline uint32_t levels_of(uint32_t lane, const uint32_t (&words)[Bits], int pair) {
  constexpr uint32_t kMask = ((1u << 2 * Bits) - 1) << 7;  // an entry has 128 bytes
  const int bit = 2 * Bits * pair, low = bit % 32;
  uint32_t x = words[bit / 32];
  if (low + 2 * Bits > 32)
    x = __funnelshift_r(x, words[(bit / 32 + 1) % Bits], low) << 7;
  else
    x = low < 7 ? x << (7 - low) : x >> (low - 7);
  uint32_t y;
  asm volatile("ld.shared.b32 %0, [%1 + %2];" : "=r"(y) : "r"((x & kMask) | lane), "n"(Table));
  return y;
}

// The power of two of all levels.
__device__ inline Power power_of_levels(const View<1>& levels, int count) {
  float most = 0;
  for (int i = 0; i < count; ++i) most = fmaxf(most, fabsf(*levels.at<float>(i)));
  return power_of(most);
}

template <int Bits>
__device__ inline void fill_table(const View<1>& levels, float down, unsigned char* table) {
  constexpr int kEntries = 1 << 2 * Bits, kMask = (1 << Bits) - 1;
  for (int i = threadIdx.x; i < kEntries * 32; i += blockDim.x) {
    const int entry = i / 32;
    reinterpret_cast<uint32_t*>(table)[i] = pack<FOVEA_F16>(
        *levels.at<float>(entry & kMask) * down, *levels.at<float>(entry >> Bits) * down);
  }
}

template <int Bits, int Width>
class Levels {
  using R = Room<Bits, Width>;
  static constexpr int kTiles = Width / 16, kParts = Width / 32;

 public:
  // Where a tile is: a page's number and the tile in it.
  struct Place {
    int id, block;
  };

  __device__ Levels(const LevelSplit& f, const Tile& tile, uint32_t tables, unsigned char* room,
                    const Power& k_power, const Power& v_power)
      : f_(f),
        tile_(tile),
        room_(room),
        norms_(f.cache.format == FOVEA_X_KV_FORMAT_NORMS),
        lane_(threadIdx.x % 32),
        r_(lane_ / 4),
        t_(lane_ % 4),
        table_(tables + 4 * lane_),
        v_up_(v_power.up) {
    if (f.a.dtype == FOVEA_BF16)
      load_queries<FOVEA_BF16, false>(f.a, tile, f.packed, q_, factor_);
    else
      load_queries<FOVEA_F16, false>(f.a, tile, f.packed, q_, factor_);
    set_channels(k_power), find_sources();
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      factor_[0][k] = fmaxf(factor_[0][k] * key_.up, kFactorLeast);
      const int64_t p = (tile.first + 2 * t_ + k) / f.packed + tile.length - tile.q.rows;
      low_[k] = limit_low(f.a.mask.window, p);
      high_[k] = limit_high(f.a.mask.window, p, tile.length);
    }
    const int64_t back = tile.length - tile.q.rows;
    low_all_ = limit_low(f.a.mask.window, (tile.first + kRows - 1) / f.packed + back);
    high_all_ = limit_high(f.a.mask.window, tile.first / f.packed + back, tile.length);
  }

  __device__ Place place(int tile) const {
    const auto n = static_cast<uint32_t>(tile), each = static_cast<uint32_t>(f_.page_tiles);
    const uint32_t number = f_.page_shift >= 0 ? n >> f_.page_shift : n / each;
    return {*f_.cache.page_table.at<int32_t>(tile_.row, static_cast<int64_t>(number)),
            static_cast<int>(n - number * each)};
  }
  __device__ bool there(const Place& at) const {
    return at.id >= 0 && at.id < f_.pool;
  }

  __device__ void load(const Place& at) {
    if (!there(at)) return;
    load_keys(at), load_bound(at), load_values(at);
  }

  // Tile n at `at`, whose codes are in registers; those of `next` are there after it.
  __device__ void step(int n, const Place& at, const Place& next) {
    const int first = n * kTokens, j = first + lane_;
    const bool seen = j >= tile_.low && j < tile_.high;
    const bool firsts = first < f_.cache.firsts, more = there(next);
    Token token{norms_ ? norm_ : 1.f, seen ? range_ : 0.f, seen ? offset_ : 0.f};
    __syncwarp();  // the last tile's values are read
    form_keys();
    if (more) load_keys(next), load_bound(next);
    __syncwarp();
    if (f_.cache.k_outliers && seen && j >= f_.cache.firsts) add_key_outliers(at);
    if (firsts) put_first_keys(first, token);
    __syncwarp();
    float x[2][1][4] = {};
    scores(n, x);
    if (norms_ || firsts) scale(token.scale, x);
    if (first < low_all_ || first + kTokens > high_all_) mask(first, x);
    softmax_.step(x, o_, factor_);
    __syncwarp();  // keys are read
    form_values();
    if (more) load_values(next);
    __syncwarp();
    if (f_.cache.v_outliers) add_value_outliers(at, seen && j >= f_.cache.firsts, token);
    if (firsts) put_first_values(first, token);
    __syncwarp();
    values(token, x);
  }

  __device__ void save(int split) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float all = softmax_.total(0, k), top = softmax_.top[0][k] * factor_[0][k];
      float offset = o_[kTiles][0][k];
#pragma unroll
      for (int lane = 4; lane < 32; lane *= 2) offset += __shfl_xor_sync(~0u, offset, lane);
      const int m = tile_.first + 2 * t_ + k;
      if (m >= tile_.rows) continue;
      const int64_t token = tile_.q.batch * f_.a.s + tile_.q.row_begin + m / f_.packed;
      const int64_t h = tile_.head * f_.packed + m % f_.packed;
      float* to = f_.out.o_row(split, token, h);
#pragma unroll
      for (int w = 0; w < kTiles; ++w)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          to[16 * w + r_ + 8 * half] =
              all == 0 ? 0.f : (o_[w][0][k + 2 * half] * grain_ + offset) / all;
      if (r_ == 0)
        *f_.out.lse_row(split, token, h) = all == 0 ? kLowest : (top + log2f(all)) * kLn2;
    }
  }

 private:
  // What a lane's token is multiplied by, see above: s_j, R_j and the offset.
  struct Token {
    float scale, range, offset;
  };

  // range and offset of channels lane + 32 i, over S.
  __device__ void set_channels(const Power& level) {
    const kv::Cache& c = f_.cache;
    key_ = level;
#pragma unroll
    for (int i = 0; i < kParts; ++i) k_range_[i] = 0x3c003c00u, k_offset_[i] = 0;
    if (norms_) return;
    float range[kParts], offset[kParts], most = 0;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      range[i] = *c.k_range.at<float>(tile_.head, lane_ + 32 * i) * level.up;
      offset[i] = *c.k_offset.at<float>(tile_.head, lane_ + 32 * i);
      most = fmaxf(most, 2 * fabsf(range[i]) + fabsf(offset[i]));
    }
    key_ = power_of(lanes_max<32>(most));
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const float x = range[i] * key_.down, y = offset[i] * key_.down;
      k_range_[i] = pack<FOVEA_F16>(x, x), k_offset_[i] = pack<FOVEA_F16>(y, y);
    }
  }

  // Where the lane's part of every first tile is.
  __device__ void find_sources() {
    const kv::Cache& c = f_.cache;
    const int head = tile_.head;
    keys_ = c.k_code.at<uint32_t>(0, 0, head) + lane_ * Bits;
    values_ = c.v_code.at<uint32_t>(0, lane_ / kParts, head) + lane_ % kParts * Bits;
    bounds_ = norms_ ? c.v_norm.at<float>(0, lane_, head) : c.v_bound.at<float>(0, lane_);
    norms_of_keys_ = c.k_norm.at<float>(0, lane_, head);
  }
  template <class T>
  static __device__ const T* source(const T* base, const Step& step, const Place& at) {
    return reinterpret_cast<const T*>(
        reinterpret_cast<const unsigned char*>(base) +
        static_cast<uint64_t>(static_cast<uint32_t>(at.id)) * step.page +
        static_cast<uint64_t>(static_cast<uint32_t>(at.block)) * step.tile);
  }
  __device__ void load_keys(const Place& at) {
    const uint32_t* from = source(keys_, f_.k_code, at);
#pragma unroll
    for (int i = 0; i < kParts; ++i) load_words(from + i * 32 * Bits, k_[i]);
  }
  // Part i is 32 channels of token (32 i + lane) / kParts.
  __device__ void load_values(const Place& at) {
    const auto* from = reinterpret_cast<const unsigned char*>(source(values_, f_.v_code, at));
#pragma unroll
    for (int i = 0; i < kParts; ++i, from += f_.v_code_rows)
      load_words(reinterpret_cast<const uint32_t*>(from), v_[i]);
  }
  __device__ void load_bound(const Place& at) {
    if (norms_) {
      norm_ = __ldg(source(norms_of_keys_, f_.k_norm, at));
      range_ = __ldg(source(bounds_, f_.v_norm, at)) * v_up_, offset_ = 0;
    } else {
      const float* from = source(bounds_, f_.v_bound, at);
      offset_ = __ldg(from), range_ = __ldg(from + f_.cache.v_bound.stride[2]) * v_up_;
    }
  }

  __device__ void form_keys() {
#pragma unroll
    for (int i = 0; i < kParts; ++i)
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        uint32_t x[4];
#pragma unroll
        for (int w = 0; w < 4; ++w)
          x[w] = fused2(levels_of<Bits, 0>(table_, k_[i], 4 * n + w), k_range_[i], k_offset_[i]);
        store_4(room_ + (lane_ + 32 * i) * R::kKeyRow + n * 16, x);
      }
  }
  // A pitch of 17 chunks, and chunks past channel 64 moved by two, spread rows over the banks.
  static __device__ int value_chunk(int chunk) {
    return chunk ^ (chunk / 8 * 2);
  }
  __device__ void form_values() {
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      unsigned char* row = room_ + (32 * i + lane_) / kParts * R::kValueRow;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        uint32_t x[4];
#pragma unroll
        for (int w = 0; w < 4; ++w) x[w] = levels_of<Bits, R::kTable>(table_, v_[i], 4 * n + w);
        store_4(row + value_chunk(lane_ % kParts * 4 + n) * 16, x);
      }
    }
  }
  __device__ f16* key_at(int token, int channel) const {
    return reinterpret_cast<f16*>(room_ + channel * R::kKeyRow) + token;
  }
  __device__ f16* value_at(int token, int channel) const {
    return reinterpret_cast<f16*>(room_ + token * R::kValueRow + value_chunk(channel / 8) * 16) +
           channel % 8;
  }
  static __device__ void add(f16* to, float x) {
    *to = from_float<f16>(to_float(*to) + x);
  }

  // Calls of(channel, lacks) for the entries of the lane's token that are of this head: a few of
  // many, so they are found first.
  template <class Of>
  __device__ void each_outlier(const View<3>& outliers, const Step& step, int64_t count,
                               const Place& at, const Of& of) const {
    const uint32_t* from = source(outliers.at<uint32_t>(0, lane_), step, at);
    const auto entry = [&](int n) { return __ldg(from + n); };
    const auto channel = [&](uint32_t one) { return (one & 65535) - tile_.head * Width; };
    for (int first = 0; first < count; first += 32) {
      const int end = min(static_cast<int>(count) - first, 32);
      uint32_t found = 0;
#pragma unroll 4
      for (int n = 0; n < end; ++n)
        if (channel(entry(first + n)) < Width) found |= 1u << n;
      for (; found; found &= found - 1) {
        const uint32_t one = entry(first + __ffs(found) - 1);
        of(static_cast<int>(channel(one)), kv::lacks_of(one));
      }
    }
  }
  __device__ void add_key_outliers(const Place& at) const {
    each_outlier(f_.cache.k_outlier, f_.k_outlier, f_.cache.k_outliers, at,
                 [&](int channel, float lacks) { add(key_at(lane_, channel), lacks * key_.down); });
  }
  __device__ void add_value_outliers(const Place& at, bool active, Token& token) const {
    const float by = 1.f / token.range;
    const auto is_large = [&](float lacks) { return !(fabsf(lacks * by) <= kLarge); };
    float large = 0;
    if (active)
      each_outlier(f_.cache.v_outlier, f_.v_outlier, f_.cache.v_outliers, at,
                   [&](int channel, float lacks) {
                     if (!is_large(lacks)) return add(value_at(lane_, channel), lacks * by);
                     large = fmaxf(large, fmaxf(kFactorLeast, fminf(fabsf(lacks), kLarge * 4)));
                   });
    if (!__any_sync(~0u, large > 0)) return;
    if (large == 0) return;
    // A range of the token's own, which its outliers can be told in.
    const float wider = fmaxf(large / kLarge, fabsf(token.range)), shrink = token.range / wider;
    for (int channel = 0; channel < Width; ++channel) {
      f16* at_channel = value_at(lane_, channel);
      *at_channel = from_float<f16>(to_float(*at_channel) * shrink);
    }
    each_outlier(f_.cache.v_outlier, f_.v_outlier, f_.cache.v_outliers, at,
                 [&](int channel, float lacks) {
                   if (is_large(lacks)) add(value_at(lane_, channel), lacks / wider);
                 });
    token.range = wider;
  }

  // Puts one first token, over a power of two of its own, which it gives.
  template <class At>
  __device__ float put_first(const View<4>& from, int j, const At& at) const {
    float x[kParts], most = 0;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      x[i] = load_float(from.at<uint16_t>(tile_.row, j, tile_.head, lane_ + 32 * i), f_.a.dtype, 0);
      most = fmaxf(most, fabsf(x[i]));
    }
    const Power power = power_of(lanes_max<32>(most));
#pragma unroll
    for (int i = 0; i < kParts; ++i) *at(lane_ + 32 * i) = from_float<f16>(x[i] * power.down);
    return power.up;
  }
  __device__ int first_end(int first) const {
    return static_cast<int>(
        min(f_.cache.firsts, static_cast<int64_t>(min(tile_.high, first + kTokens))));
  }
  __device__ void put_first_keys(int first, Token& token) const {
    for (int j = max(first, tile_.low); j < first_end(first); ++j) {
      const float up =
          put_first(f_.cache.k_first, j, [&](int channel) { return key_at(j - first, channel); });
      if (lane_ == j - first) token.scale = up * key_.down;
    }
  }
  __device__ void put_first_values(int first, Token& token) const {
    for (int j = max(first, tile_.low); j < first_end(first); ++j) {
      const float up =
          put_first(f_.cache.v_first, j, [&](int channel) { return value_at(j - first, channel); });
      if (lane_ == j - first) token.range = up, token.offset = 0;
    }
  }

  // x[i]: tokens 16 i + r, and 8 more.
  __device__ void scores(int n, float (&x)[2][1][4]) const {
    const uint32_t rows =
        shared_address(room_) + inner_row(lane_) * R::kKeyRow + inner_chunk(lane_) * 16;
    const auto part = [&](int k, int i, uint32_t(&a)[4]) {
      load_matrices_transposed(a, rows + k * 16 * R::kKeyRow + i * 32);
    };
    if (!f_.turns) {
#pragma unroll
      for (int k = 0; k < kTiles; ++k)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          uint32_t a[4];
          part(k, i, a);
          mma<FOVEA_F16>(x[i][0], a, q_[k][0][0], q_[k][0][1]);
        }
      return;
    }
    const auto* turns = reinterpret_cast<const uint4*>(f_.turns) +
                        static_cast<int64_t>(n) * (2 * kTiles / 2 * 64) + lane_;
#pragma unroll
    for (int k = 0; k < kTiles / 2; ++k)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint4 c = __ldg(turns + (i * kTiles / 2 + k) * 64);
        const uint4 s = __ldg(turns + (i * kTiles / 2 + k) * 64 + 32);
        const uint32_t cos[4] = {c.x, c.y, c.z, c.w}, sin[4] = {s.x, s.y, s.z, s.w};
        uint32_t low[4], high[4];
        part(k, i, low), part(k + kTiles / 2, i, high);
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const uint32_t y = low[w], z = high[w];
          low[w] = fused2(z ^ 0x80008000u, sin[w], times2(y, cos[w]));
          high[w] = fused2(y, sin[w], times2(z, cos[w]));
        }
        mma<FOVEA_F16>(x[i][0], low, q_[k][0][0], q_[k][0][1]);
        mma<FOVEA_F16>(x[i][0], high, q_[k + kTiles / 2][0][0], q_[k + kTiles / 2][0][1]);
      }
  }
  // What lane 16 i + 8 half + r has, of the token in row r of a product.
  __device__ float of_row(float x, int i, int half) const {
    return __shfl_sync(~0u, x, 16 * i + 8 * half + r_);
  }
  __device__ void scale(float by, float (&x)[2][1][4]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float of = of_row(by, i, half);
        x[i][0][2 * half] *= of, x[i][0][2 * half + 1] *= of;
      }
  }
  __device__ void mask(int first, float (&x)[2][1][4]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int j = first + 16 * i + r_ + c / 2 * 8;
        if (j < low_[c % 2] || j >= high_[c % 2]) x[i][0][c] = kLowest;
      }
  }

  // A power of two above all ranges so far, which sums are over.
  __device__ void raise_grain(float range) {
    if (!__any_sync(~0u, fabsf(range) > grain_)) return;
    const float next = fmaxf(grain_, 2 * power_of(lanes_max<32>(fabsf(range))).up);
    const float shrink = grain_ / next;
    grain_ = next;
#pragma unroll
    for (int w = 0; w < kTiles; ++w)
#pragma unroll
      for (int c = 0; c < 4; ++c) o_[w][0][c] *= shrink;
  }
  __device__ void values(const Token& token, const float (&x)[2][1][4]) {
    raise_grain(token.range);
    const float range = token.range / grain_;
    uint32_t p[2][2];
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float by = of_row(range, i, half), offset = of_row(token.offset, i, half);
        const float p0 = x[i][0][2 * half], p1 = x[i][0][2 * half + 1];
        o_[kTiles][0][0] = fmaf(p0, offset, o_[kTiles][0][0]);
        o_[kTiles][0][1] = fmaf(p1, offset, o_[kTiles][0][1]);
        p[i][half] = transposed(pack<FOVEA_F16>(p0 * by, p1 * by));
      }
    const uint32_t rows =
        shared_address(room_) + inner_row(lane_) * R::kValueRow + inner_chunk(lane_) * 16;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int w = 0; w < kTiles; ++w) {
        uint32_t a[4];
        load_matrices_transposed(a, rows + i * 16 * R::kValueRow + value_chunk(2 * w) * 16);
        mma<FOVEA_F16>(o_[w][0], a, p[i][0], p[i][1]);
      }
  }

  const LevelSplit& f_;
  const Tile& tile_;
  unsigned char* const room_;
  const bool norms_;
  const int lane_, r_, t_;
  const uint32_t table_;
  const float v_up_;
  const uint32_t *keys_, *values_;
  const float *bounds_, *norms_of_keys_;
  Power key_;
  uint32_t q_[kTiles][1][2], k_range_[kParts], k_offset_[kParts];
  uint32_t k_[kParts][Bits], v_[kParts][Bits];  // codes of a tile
  float norm_ = 0, range_ = 0, offset_ = 0;     // of the lane's token of that tile
  float o_[kTiles + 1][1][4] = {};              // the last: sums of offsets
  float factor_[1][2], grain_ = 0;
  Softmax<1> softmax_;
  int low_[2], high_[2], low_all_, high_all_;
};

// Work: heads of a split side by side, then splits, then row tiles.
template <int Bits, int Width>
__global__ void __launch_bounds__(kWarpsMost * 32, 1)
    levels_kernel(const __grid_constant__ LevelSplit f) {
  using R = Room<Bits, Width>;
  extern __shared__ __align__(128) unsigned char shared[];
  pdl_wait();
  pdl_trigger();
  const uint32_t base = shared_address(shared), tables = R::tables(base);
  const Power k_power = power_of_levels(f.cache.k_level, 1 << Bits);
  const Power v_power = power_of_levels(f.cache.v_level, 1 << Bits);
  fill_table<Bits>(f.cache.k_level, k_power.down, shared + tables);
  fill_table<Bits>(f.cache.v_level, v_power.down, shared + tables + R::kTable);
  __syncthreads();
  const int warp = threadIdx.x / 32;
  const int64_t w = blockIdx.x * int64_t{blockDim.x / 32} + warp;
  if (w >= f.items) return;
  const int64_t rest = w / f.a.g, item = rest / f.splits, sequence = item / f.row_tiles;
  const int split = static_cast<int>(rest - item * f.splits);
  const int first = static_cast<int>(item - sequence * f.row_tiles) * kRows;
  const Tile tile =
      tile_of(f.a, f.cache, f.packed, sequence, static_cast<int>(w - rest * f.a.g), first, kRows);
  if (first >= tile.rows) return;
  const int low = tile.low / kTokens, end = (tile.high + kTokens - 1) / kTokens;
  const SplitRange range = split_range(max(end - low, 0), f.splits, split);
  const int last = low + static_cast<int>(range.end);
  Levels<Bits, Width> mine(f, tile, base + tables, shared + R::tile(base, warp), k_power, v_power);
  using Place = typename Levels<Bits, Width>::Place;
  const auto ask = [&](int n) { return n < last ? mine.place(n) : Place{-1, 0}; };
  int n = low + static_cast<int>(range.begin);
  Place at = ask(n), next = ask(n + 1);
  mine.load(at);
#pragma unroll 1
  for (; n < last; ++n) {
    const Place after = ask(n + 2);
    if (mine.there(at))
      mine.step(n, at, next);
    else
      mine.load(next);
    at = next, next = after;
  }
  mine.save(split);
}

template <int Bits, int Width>
void launch_levels(Context& ctx, const LevelSplit& f, int warps) {
  launch_pdl<levels_kernel<Bits, Width>>(ctx, "x_kv_decode", ceil_div(f.items, int64_t{warps}),
                                         warps * 32, Room<Bits, Width>::bytes(warps), f);
}

}  // namespace fovea::cuda
