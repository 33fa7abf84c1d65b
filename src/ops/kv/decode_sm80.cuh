// SPDX-License-Identifier: Apache-2.0
// x_kv_decode on tensor cores, from the codes as they are: of a group of 32 keys, channel c
//   x_j = sum_c (q_c scale_c) code_jc + sum_c q_c zero_c
//   o_c = sum_j (p_j scale_j) code_jc + sum_j p_j zero_j
// A block owns a row tile of a key head and a split of the tokens whose keys and values are both
// codes; one more split has the later tokens, formed as 16-bit numbers.  A warp owns every fourth
// tile of 32 tokens, a group of keys, with an online softmax of its own.
//
// Operands.  Codes are the a operand: tokens, then channels, as rows.  Heads are the columns.  A
// code at bit n of a 16-bit half is the f16 number code 2^(n - 24), so masks alone unpack it, and
// sums are multiplied by 2^(24 - n) at the end.  q is f16 times a power of two of its row.
//   lane (r, t) = (lane / 4, lane % 4) has of a word's codes part r, four of them, i = 0 .. 3
//   scores   row r is token 4 r + i, k is channel 4 t + 0 .. 3 of 16
//   values   row r is channel 4 r + i of 32, k is token 8 t + i and 8 t + 4 + i
//   P        sums of scores, packed and transposed by movmatrix, are the b operand of values
//
// Shared memory, a ring of kStages for each warp: codes of a tile, scales and zeros.  A pad after
// each 8 tokens spreads values over the banks; chunks of keys of 4 bits are swizzled for the same.
// When all tiles are read, the warps' sums lie there for the merge.
#pragma once
#include "cuda/launch.h"
#include "cuda/loop/combine.cuh"
#include "cuda/tile/copy.cuh"
#include "cuda/tile/order.cuh"
#include "ops/kv/split_sm80.cuh"

namespace fovea::cuda::kv_groups {

constexpr char kOp[] = "x_kv_decode";
constexpr int kWarps = 4;
constexpr int kTokens = 32;  // of a tile: a group
constexpr int kLate = 16;    // tokens of a tile of formed numbers
constexpr int kRowsMost = 16;

struct KvSplit {
  Attend a;
  kv::Cache cache;
  Step k_code, k_scale, k_zero, v_code, v_scale, v_zero;
  uint32_t v_code_row;         // bytes from a token to the next
  int pool;                    // bytes from a token to the next
  int packed;                  // query heads of a key head
  int row_tiles;               // of a sequence
  int splits, late;            // of codes; of later tokens, which come first
  int page_tiles, page_shift;  // tiles of a page, and their log2; -1: no power
  Partials out;
};

// Where things lie in a stage, in bytes.
template <int Bits, int Width>
struct Stage {
  static constexpr int kKeyBytes = Width * Bits * 4, kScaleBytes = Width * 2;
  static constexpr int kRow = Width * Bits / 8;  // of a value
  static constexpr int kGroups = Width / kTokens;
  static constexpr int kKeyScale = kKeyBytes, kKeyZero = kKeyScale + kScaleBytes;
  static constexpr int kValues = kKeyZero + kScaleBytes;
  static constexpr int kValueScale = kValues + kTokens * kRow + 64;
  static constexpr int kValueZero = kValueScale + kTokens * 8 + 32;
  static constexpr int kBytes = kValueZero + kTokens * 8 + 32;
  static constexpr int kStages = Bits == 2 ? 5 : 3;

  static __device__ int value(int token) { return kValues + token * kRow + token / 8 * 16; }
  static __device__ int value_scale(int token) { return token * 8 + token / 8 * 8; }
  static __device__ int key_chunk(int n) { return Bits == 4 ? n ^ (n >> 3 & 1) : n; }
};

__device__ inline uint32_t word_at(uint32_t address) {
  uint32_t x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}
__device__ inline uint32_t half_at(uint32_t address) {
  uint16_t x;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(address) : "memory");
  return x;
}
__device__ inline uint2 pair_at(uint32_t address) {
  uint2 x;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(address) : "memory");
  return x;
}

// The four codes of part r of two words, as f16 pairs: i = 0 .. 3.
template <int Bits>
__device__ inline void unpack(uint32_t x, uint32_t y, uint32_t select, uint32_t (&to)[4]) {
  const uint32_t both = __byte_perm(x, y, select);
  if constexpr (Bits == 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = both & 0x00030003u << (2 * i);
  } else {
    const uint32_t high = both >> 8;
    to[0] = both & 0x000f000fu, to[1] = both & 0x00f000f0u;
    to[2] = high & 0x000f000fu, to[3] = high & 0x00f000f0u;
  }
}
template <int Bits>
__device__ constexpr float weight_of(int i) {
  const int bit = Bits == 2 ? 2 * i : i % 2 * 4;
  return static_cast<float>(1 << (24 - bit));
}

// ---- tokens whose keys and values are codes

template <int Dtype, int Bits, int Width, int Columns>
class Codes {
  using S = Stage<Bits, Width>;
  static constexpr int kTiles = Width / 16;

 public:
  float o[kTiles + 1][Columns][4] = {};  // the last: sums of zeros
  Softmax<Columns> softmax;

  __device__ Codes(const KvSplit& f, const Tile& tile, uint32_t shared)
      : f_(f), tile_(tile), shared_(shared), r_(threadIdx.x % 32 / 4), t_(threadIdx.x % 4) {
    const int part = Bits == 2 ? r_ % 4 : r_ % 2 * 2, next = Bits == 2 ? part : part + 1;
    select_ = part | next << 4 | (4 + part) << 8 | (4 + next) << 12;
    load_queries<Dtype, true>(f.a, tile, f.packed, q_, factor);
    const auto low = [&](int m) {
      return limit_low(f.a.mask.window, m / f.packed + tile.length - tile.q.rows);
    };
    const auto high = [&](int m) {
      const int64_t p = m / f.packed + tile.length - tile.q.rows;
      return min(limit_high(f.a.mask.window, p, tile.length), tile.values);
    };
#pragma unroll
    for (int n = 0; n < Columns; ++n)
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int m = tile.first + 8 * n + 2 * t_ + k;
        low_[n][k] = low(m), high_[n][k] = high(m);
      }
    // What every row sees.
    low_all_ = low(tile.first + 8 * Columns - 1), high_all_ = high(tile.first);
    find_sources();
  }

  // Where a tile is: a page's number and the tile in it.
  struct Place {
    int id, block;
  };
  __device__ Place place(int tile) const {
    const auto n = static_cast<uint32_t>(tile), each = static_cast<uint32_t>(f_.page_tiles);
    const uint32_t number = f_.page_shift >= 0 ? n >> f_.page_shift : n / each;
    return {*f_.cache.page_table.at<int32_t>(tile_.row, static_cast<int64_t>(number)),
            static_cast<int>(n - number * each)};
  }
  __device__ bool there(int id) const {
    return id >= 0 && id < f_.pool;
  }

  __device__ void copy(const Place& at, int stage) const {
    const int lane = threadIdx.x % 32;
    const uint32_t to = shared_ + stage * S::kBytes;
    const auto from = [&](const unsigned char* base, const Step& step) {
      return base + static_cast<uint64_t>(static_cast<uint32_t>(at.id)) * step.page +
             static_cast<uint64_t>(static_cast<uint32_t>(at.block)) * step.tile;
    };
    const unsigned char* keys = from(keys_, f_.k_code);
    const uint32_t key = to + S::key_chunk(lane) * 16;
#pragma unroll
    for (int i = 0; i < S::kKeyBytes / 512; ++i) copy_async(key + i * 512, keys + i * 512, true);
    if (lane % 16 < S::kScaleBytes / 16)
      copy_async(to + (lane < 16 ? S::kKeyScale : S::kKeyZero) + lane % 16 * 16,
                 from(key_scales_, lane < 16 ? f_.k_scale : f_.k_zero), true);
    constexpr int kRowChunks = S::kRow / 16, kAtOnce = 32 / kRowChunks;
    const unsigned char* values = from(values_, f_.v_code);
    const uint32_t value = to + S::value(lane / kRowChunks) + lane % kRowChunks * 16;
#pragma unroll
    for (int i = 0; i < kRowChunks; ++i)
      copy_async(value + i * (kAtOnce * S::kRow + kAtOnce / 8 * 16),
                 values + static_cast<uint64_t>(i * kAtOnce) * f_.v_code_row, true);
    const uint32_t row = to + S::value_scale(lane);
    const unsigned char *scale = from(value_scales_, f_.v_scale),
                        *zero = from(value_zeros_, f_.v_zero);
    if constexpr (S::kGroups == 4) {
      copy_async_8(row + S::kValueScale, scale), copy_async_8(row + S::kValueZero, zero);
    } else {
      copy_async_4(row + S::kValueScale, scale), copy_async_4(row + S::kValueZero, zero);
    }
  }

  __device__ void step(int tile, int stage) {
    const uint32_t at = shared_ + stage * S::kBytes;
    const int first = tile * kTokens;
    const bool cut = first < tile_.low || first + kTokens > min(tile_.high, tile_.values);
    if (cut) hide(first, at);
    float x[2][Columns][4];
    scores(at, x);
    if (first < low_all_ || first + kTokens > high_all_) mask(first, x);
    softmax.step(x, o, factor);
    values(at, x);
  }

  float factor[Columns][2];

 private:
  // The lane's part of a tile's copies.
  __device__ void find_sources() {
    const kv::Cache& c = f_.cache;
    const int lane = threadIdx.x % 32, head = tile_.head;
    constexpr int kRowChunks = S::kRow / 16;
    const auto bytes = [](const void* x) { return static_cast<const unsigned char*>(x); };
    keys_ = bytes(c.k_code.at<uint32_t>(0, 0, head)) + lane * 16;
    key_scales_ =
        bytes((lane < 16 ? c.k_scale : c.k_zero).at<uint16_t>(0, 0, head)) + lane % 16 * 16;
    values_ = bytes(c.v_code.at<uint32_t>(0, lane / kRowChunks, head)) + lane % kRowChunks * 16;
    value_scales_ = bytes(c.v_scale.at<uint16_t>(0, lane, head));
    value_zeros_ = bytes(c.v_zero.at<uint16_t>(0, lane, head));
  }
  // Values of tokens outside of what any row sees may be anything.
  __device__ void hide(int first, uint32_t at) const {
    const int lane = threadIdx.x % 32, j = first + lane;
    if (j < tile_.low || j >= min(tile_.high, tile_.values)) {
      const uint32_t row = at + S::value_scale(lane);
      for (const int part : {S::kValueScale, S::kValueZero})
        asm volatile("st.shared.v2.b32 [%0], {%1, %1};" ::"r"(row + part), "r"(0) : "memory");
    }
    __syncwarp();
  }

  // x[ip][column]: tokens 4 r + 2 ip, then 4 r + 2 ip + 1.
  __device__ void scores(uint32_t at, float (&x)[2][Columns][4]) const {
    float zero[Columns][4] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int n = 0; n < Columns; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) x[i][n][c] = 0;
    // Word of part r; channels are Bits words apart.
    const uint32_t keys = at + (Bits == 2 ? r_ / 4 : r_ / 2) * 4;
#pragma unroll
    for (int k = 0; k < kTiles; ++k) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // key_chunk, with what it flips as a number of the lane.
        const int flip = Bits == 4 ? t_ / 2 : 0;
        words[i] = word_at(keys + (16 * k + 4 * t_ + (i ^ flip)) * Bits * 4);
      }
      const uint2 scale = pair_at(at + S::kKeyScale + (16 * k + 4 * t_) * 2);
      const uint2 off = pair_at(at + S::kKeyZero + (16 * k + 4 * t_) * 2);
      uint32_t low[4], high[4];
      unpack<Bits>(words[0], words[1], select_, low);
      unpack<Bits>(words[2], words[3], select_, high);
      const uint32_t a[2][4] = {{low[0], low[1], high[0], high[1]},
                                {low[2], low[3], high[2], high[3]}};
      const uint32_t z[4] = {off.x, off.x, off.y, off.y};
#pragma unroll
      for (int n = 0; n < Columns; ++n) {
        const uint32_t b0 = mul_pairs(q_[k][n][0], scale.x), b1 = mul_pairs(q_[k][n][1], scale.y);
        mma<FOVEA_F16>(x[0][n], a[0], b0, b1);
        mma<FOVEA_F16>(x[1][n], a[1], b0, b1);
        mma<FOVEA_F16>(zero[n], z, q_[k][n][0], q_[k][n][1]);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int n = 0; n < Columns; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c)
          x[i][n][c] = fmaf(x[i][n][c], weight_of<Bits>(2 * i + c / 2), zero[n][c % 2]);
  }

  __device__ void mask(int first, float (&x)[2][Columns][4]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int n = 0; n < Columns; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int j = first + 4 * r_ + 2 * i + c / 2;
          if (j < low_[n][c % 2] || j >= high_[n][c % 2]) x[i][n][c] = kLowest;
        }
  }

  __device__ void values(uint32_t at, const float (&x)[2][Columns][4]) {
    // p[i]: tokens 8 t + i and 8 t + 4 + i of row r.
    uint32_t p[4][Columns];
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int n = 0; n < Columns; ++n)
        p[i][n] = transposed(pack<FOVEA_F16>(x[i / 2][n][i % 2 * 2], x[i / 2][n][i % 2 * 2 + 1]));
    const uint32_t scales = at + S::kValueScale + S::value_scale(8 * t_);
    const uint32_t zeros = at + S::kValueZero + S::value_scale(8 * t_) + r_ % S::kGroups * 2;
    const uint32_t words = at + S::value(8 * t_) + (Bits == 2 ? r_ / 4 : r_ / 2) * 4;
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      uint32_t scale[2][S::kGroups], z[4] = {};
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int i = 2 * step + k;
        z[2 * k] = half_at(zeros + i * 8) | half_at(zeros + (i + 4) * 8) << 16;
        if constexpr (S::kGroups == 4) {
          const uint2 one = pair_at(scales + i * 8), two = pair_at(scales + (i + 4) * 8);
          scale[k][0] = __byte_perm(one.x, two.x, 0x5410);
          scale[k][1] = __byte_perm(one.x, two.x, 0x7632);
          scale[k][2] = __byte_perm(one.y, two.y, 0x5410);
          scale[k][3] = __byte_perm(one.y, two.y, 0x7632);
        } else {
          const uint32_t one = word_at(scales + i * 8), two = word_at(scales + (i + 4) * 8);
          scale[k][0] = __byte_perm(one, two, 0x5410), scale[k][1] = __byte_perm(one, two, 0x7632);
        }
      }
#pragma unroll
      for (int n = 0; n < Columns; ++n)
        mma<FOVEA_F16>(o[kTiles][n], z, p[2 * step][n], p[2 * step + 1][n]);
#pragma unroll
      for (int g = 0; g < S::kGroups; ++g) {
        uint32_t first[4], second[4];
        const uint32_t row = words + g * Bits * 4 + 2 * step * S::kRow;
        unpack<Bits>(word_at(row), word_at(row + 4 * S::kRow), select_, first);
        unpack<Bits>(word_at(row + S::kRow), word_at(row + 5 * S::kRow), select_, second);
        const uint32_t a[2][4] = {{first[0], first[1], second[0], second[1]},
                                  {first[2], first[3], second[2], second[3]}};
#pragma unroll
        for (int n = 0; n < Columns; ++n) {
          const uint32_t b0 = mul_pairs(p[2 * step][n], scale[0][g]);
          const uint32_t b1 = mul_pairs(p[2 * step + 1][n], scale[1][g]);
          mma<FOVEA_F16>(o[2 * g][n], a[0], b0, b1);
          mma<FOVEA_F16>(o[2 * g + 1][n], a[1], b0, b1);
        }
      }
    }
  }

  const KvSplit& f_;
  const Tile& tile_;
  const uint32_t shared_;
  const int r_, t_;
  uint32_t select_;
  uint32_t q_[kTiles][Columns][2];
  int low_[Columns][2], high_[Columns][2], low_all_, high_all_;
  const unsigned char *keys_, *key_scales_, *values_, *value_scales_, *value_zeros_;
};

// ---- later tokens, as 16-bit numbers

template <int Dtype, int Bits, int Width, int Columns>
class Late {
  static constexpr int kTiles = Width / 16, kRow = (Width + 8) * 2;  // bytes

 public:
  static constexpr int kBytes = 2 * kLate * kRow;
  float o[kTiles + 1][Columns][4] = {};
  Softmax<Columns> softmax;
  float factor[Columns][2];

  __device__ Late(const KvSplit& f, const Tile& tile, unsigned char* shared)
      : f_(f), tile_(tile), keys_(shared), values_(shared + kLate * kRow) {
    const int r = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < Columns; ++n) {
      factor[n][0] = factor[n][1] = fmaxf(f.a.score.scale * kLog2E, kFactorLeast);
      const int m = tile.first + 8 * n + r;
      const int i = m / f.packed, h = tile.head * f.packed + m % f.packed;
      const auto* from = f.a.q.as<uint16_t>() + row_offset(tile.q, i, h, f.a.q.stride) + 2 * t;
#pragma unroll
      for (int k = 0; k < kTiles; ++k)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          q_[k][n][half] =
              m < tile.rows ? *reinterpret_cast<const uint32_t*>(from + 16 * k + 8 * half) : 0;
    }
  }

  // Tokens [first, first + 16), a multiple of 16.
  __device__ void step(int first) {
    const int low = max(tile_.low, tile_.values);
    const bool codes = first < tile_.keys;
    const int64_t id = codes ? f_.cache.page_of(tile_.row, first) : 0;
    if (id < 0) return;
    constexpr int kPieces = kLate * Width / 8 / 32;
    uint4 values[kPieces];
    load(f_.cache.v_tail, first, low, 0, static_cast<int>(f_.cache.ring()), values);
    __syncwarp();
    if (codes) {
      form(id, first);
    } else {
      uint4 keys[kPieces];
      load(f_.cache.k_tail, first, low, tile_.keys, 0, keys);
      store(keys, keys_);
    }
    store(values, values_);
    __syncwarp();
    const int lane = threadIdx.x % 32, r = lane / 4, t = lane % 4;
    float x[1][Columns][4] = {};
    const uint32_t k_row = shared_address(keys_) + outer_row(lane) * kRow + outer_chunk(lane) * 16;
#pragma unroll
    for (int k = 0; k < kTiles; ++k) {
      uint32_t a[4];
      load_matrices(a, k_row + k * 32);
#pragma unroll
      for (int n = 0; n < Columns; ++n) mma<Dtype>(x[0][n], a, q_[k][n][0], q_[k][n][1]);
    }
    const Window& w = f_.a.mask.window;
#pragma unroll
    for (int n = 0; n < Columns; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int m = tile_.first + 8 * n + 2 * t + c % 2, j = first + r + c / 2 * 8;
        const int64_t p = m / f_.packed + tile_.length - tile_.q.rows;
        const bool sees = j >= max(limit_low(w, p), low) && j < limit_high(w, p, tile_.length);
        if (!sees) x[0][n][c] = kLowest;
      }
    softmax.step(x, o, factor);
    const uint32_t v_row =
        shared_address(values_) + inner_row(lane) * kRow + inner_chunk(lane) * 16;
    uint32_t p[Columns][2];
#pragma unroll
    for (int n = 0; n < Columns; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        p[n][half] = transposed(pack<Dtype>(x[0][n][2 * half], x[0][n][2 * half + 1]));
#pragma unroll
    for (int k = 0; k < kTiles; ++k) {
      uint32_t a[4];
      load_matrices_transposed(a, v_row + k * 32);
#pragma unroll
      for (int n = 0; n < Columns; ++n) mma<Dtype>(o[k][n], a, p[n][0], p[n][1]);
    }
  }

 private:
  // Rows of a tail: token j is in slot j - begin, or j % ring; zeros of tokens that nobody sees.
  template <int Pieces>
  __device__ void load(const View<4>& tail, int first, int low, int begin, int ring,
                       uint4 (&x)[Pieces]) const {
    constexpr int kChunks = Width / 8;
#pragma unroll
    for (int n = 0; n < Pieces; ++n) {
      const int i = n * 32 + threadIdx.x % 32, j = first + i / kChunks;
      x[n] = uint4{};
      if (j >= low && j < tile_.high)
        x[n] = __ldg(reinterpret_cast<const uint4*>(
            tail.at<uint16_t>(tile_.row, ring ? j % ring : j - begin, tile_.head) +
            i % kChunks * 8));
    }
  }
  template <int Pieces>
  __device__ void store(const uint4 (&x)[Pieces], unsigned char* to) const {
    constexpr int kChunks = Width / 8;
#pragma unroll
    for (int n = 0; n < Pieces; ++n) {
      const int i = n * 32 + threadIdx.x % 32;
      *reinterpret_cast<uint4*>(to + i / kChunks * kRow + i % kChunks * 16) = x[n];
    }
  }
  // Keys of a group that has been quantised, two channels of a lane.
  __device__ void form(int64_t id, int first) const {
    const kv::Cache& c = f_.cache;
    const int slot = first % static_cast<int>(c.page);
    const int64_t block = slot / kTokens;
    const int begin = slot % kTokens;  // 0 or 16
    constexpr int kCodes = 32 / Bits, kPairs = Width / 64, kWords = kLate / kCodes;
    uint32_t scales[kPairs], zeros[kPairs], words[kPairs][kWords][2];
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int channel = 2 * (threadIdx.x % 32) + 64 * i;
      const auto pair = [&](const View<4>& x) {
        return __ldg(
            reinterpret_cast<const uint32_t*>(x.at<uint16_t>(id, block, tile_.head, channel)));
      };
      scales[i] = pair(c.k_scale), zeros[i] = pair(c.k_zero);
#pragma unroll
      for (int w = 0; w < kWords; ++w)
#pragma unroll
        for (int of = 0; of < 2; ++of)
          words[i][w][of] =
              __ldg(c.k_code.at<uint32_t>(id, block, tile_.head, channel + of, begin / kCodes + w));
    }
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const float2 scale = pair_of<FOVEA_F16>(scales[i]), zero = pair_of<FOVEA_F16>(zeros[i]);
#pragma unroll
      for (int n = 0; n < kLate; ++n) {
        const auto code = [&](int of) {
          return static_cast<float>(words[i][n / kCodes][of] >> (n % kCodes * Bits) &
                                    ((1u << Bits) - 1));
        };
        *reinterpret_cast<uint32_t*>(keys_ + n * kRow + 4 * (threadIdx.x % 32) + 128 * i) =
            pack<Dtype>(fmaf(code(0), scale.x, zero.x), fmaf(code(1), scale.y, zero.y));
      }
    }
  }

  const KvSplit& f_;
  const Tile& tile_;
  unsigned char *const keys_, *const values_;
  uint32_t q_[kTiles][Columns][2];
};

// ---- the sums of a block's warps

// Where a lane's sums of a warp go: unnormalised o, beside it sums of zeros of the groups.
template <int Bits, int Width, int Columns, bool AsCodes, class Sums>
__device__ void save(const Sums& mine, float* to, float* top, float* total) {
  constexpr int kPitch = Width + 8;
  const int lane = threadIdx.x % 32, r = lane / 4, t = lane % 4;
#pragma unroll
  for (int n = 0; n < Columns; ++n)
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int row = 8 * n + 2 * t + k;
      float* o = to + row * kPitch;
#pragma unroll
      for (int w = 0; w < Width / 16; ++w)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float x = mine.o[w][n][k + 2 * half];
          const int i = w % 2 * 2 + half;
          if (AsCodes)
            o[w / 2 * 32 + 4 * r + i] = x * weight_of<Bits>(i);
          else
            o[w * 16 + r + 8 * half] = x;
        }
      o[Width + r] = AsCodes ? mine.o[Width / 16][n][k] : 0.f;
      const float all = mine.softmax.total(n, k);
      if (r == 0) top[row] = mine.softmax.top[n][k] * mine.factor[n][k], total[row] = all;
    }
}

template <int Width, int Columns>
__device__ void merge(const KvSplit& f, const Tile& tile, int split, const float* sums,
                      const float* top, const float* total) {
  constexpr int kPitch = Width + 8, kRows = 8 * Columns, kFours = Width / 4;
#pragma unroll 2
  for (int i = threadIdx.x; i < kRows * kFours; i += kWarps * 32) {
    const int row = i / kFours, c = i % kFours * 4, m = tile.first + row;
    if (m >= tile.rows) break;
    float most = kLowest, all = 0;
    float4 o = {};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) most = fmaxf(most, top[w * kRows + row]);
    const float base = most == kLowest ? 0.f : most;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float by = exp2f(top[w * kRows + row] - base);
      const float* from = sums + (w * kRows + row) * kPitch;
      const float4 x = *reinterpret_cast<const float4*>(from + c);
      const float zero = from[Width + c / kTokens];
      all += total[w * kRows + row] * by;
      o.x += (x.x + zero) * by, o.y += (x.y + zero) * by;
      o.z += (x.z + zero) * by, o.w += (x.w + zero) * by;
    }
    const float one = all == 0 ? 0.f : 1.f / all;
    if (all == 0) o = {};
    o.x *= one, o.y *= one, o.z *= one, o.w *= one;
    const int64_t token = tile.q.batch * f.a.s + tile.q.row_begin + m / f.packed;
    const int64_t h = tile.head * f.packed + m % f.packed;
    *reinterpret_cast<float4*>(f.out.o_row(split, token, h) + c) = o;
    if (c == 0) *f.out.lse_row(split, token, h) = all == 0 ? kLowest : (base + log2f(all)) * kLn2;
  }
}

template <int Dtype, int Bits, int Width, int Columns>
struct Block {
  using S = Stage<Bits, Width>;
  using L = Late<Dtype, Bits, Width, Columns>;
  static constexpr int kRows = 8 * Columns;
  static constexpr int kRing = kWarps * S::kStages * S::kBytes;
  static constexpr int kSums = kWarps * kRows * (Width + 8) * 4;
  static constexpr int kLateBytes = kWarps * L::kBytes;
  static constexpr int kStats = kSums > kRing ? (kSums > kLateBytes ? kSums : kLateBytes)
                                              : (kRing > kLateBytes ? kRing : kLateBytes);
  static constexpr int kBytes = kStats + 2 * kWarps * kRows * 4;
};

template <int Dtype, int Bits, int Width, int Columns>
__device__ void attend_codes(const KvSplit& f, const Tile& tile, int split, unsigned char* shared,
                             float* sums, float* top, float* total) {
  using S = Stage<Bits, Width>;
  constexpr int kStages = S::kStages;
  const int warp = threadIdx.x / 32;
  const int low = tile.low / kTokens;
  const int end = (min(tile.high, tile.values) + kTokens - 1) / kTokens;
  const SplitRange range = split_range(max(end - low, 0), f.splits, split);
  const int first = low + static_cast<int>(range.begin) + warp;
  const int last = low + static_cast<int>(range.end);
  const int count = first < last ? (last - first + kWarps - 1) / kWarps : 0;
  Codes<Dtype, Bits, Width, Columns> mine(f, tile,
                                          shared_address(shared) + warp * kStages * S::kBytes);
  uint32_t there = 0;  // bit n: tile n of 32 has a page
  using Place = typename Codes<Dtype, Bits, Width, Columns>::Place;
  const auto ask = [&](int it) {
    return it < count ? mine.place(first + it * kWarps) : Place{-1, 0};
  };
  const auto copy = [&](int it, const Place& place, int stage) {
    const bool is = mine.there(place.id);
    there = (there & ~(1u << it % 32)) | (is ? 1u << it % 32 : 0);
    if (is) mine.copy(place, stage);
    copy_commit();
  };
  Place next[kStages];
#pragma unroll
  for (int it = 0; it < kStages; ++it) next[it] = ask(it);
#pragma unroll
  for (int it = 0; it < kStages - 1; ++it) copy(it, next[it], it);
  int stage = 0;
#pragma unroll 1
  for (int it = 0; it < count; ++it) {
    copy_wait<kStages - 2>();
    __syncwarp();
    const int ahead = it + kStages - 1;
    copy(ahead, next[kStages - 1], stage ? stage - 1 : kStages - 1);
    next[kStages - 1] = ask(ahead + 1);
    if (there >> it % 32 & 1) mine.step(first + it * kWarps, stage);
    stage = stage == kStages - 1 ? 0 : stage + 1;
  }
  copy_wait<0>();
  __syncthreads();
  save<Bits, Width, Columns, true>(mine, sums, top, total);
}

template <int Dtype, int Bits, int Width, int Columns>
__device__ void attend_late(const KvSplit& f, const Tile& tile, int split, unsigned char* shared,
                            float* sums, float* top, float* total) {
  using L = Late<Dtype, Bits, Width, Columns>;
  const int warp = threadIdx.x / 32;
  L mine(f, tile, shared + warp * L::kBytes);
  const int begin = max(tile.low, tile.values) / kLate * kLate;
#pragma unroll 1
  for (int j = begin + (split * kWarps + warp) * kLate; j < tile.high; j += f.late * kWarps * kLate)
    mine.step(j);
  __syncthreads();
  save<Bits, Width, Columns, false>(mine, sums, top, total);
}

// Blocks on a multiprocessor, as registers and shared memory let them be.
constexpr int blocks_of(int width, int columns) {
  return columns == 2 && width == 128 ? 2 : 3;
}

// Work: the later tokens of all row tiles first, then split by split.
template <int Dtype, int Bits, int Width, int Columns>
__global__ void __launch_bounds__(kWarps * 32, blocks_of(Width, Columns))
    split_kernel(const __grid_constant__ KvSplit f, int64_t items) {
  using B = Block<Dtype, Bits, Width, Columns>;
  extern __shared__ __align__(128) unsigned char shared[];
  pdl_wait();
  pdl_trigger();
  const int64_t w = blockIdx.x;
  const int64_t item = w % items;
  const int split = static_cast<int>(w / items);
  const int64_t rest = item / f.row_tiles;
  const int first = static_cast<int>(item % f.row_tiles) * B::kRows;
  const Tile tile = tile_of(f.a, f.cache, f.packed, rest / f.a.g, static_cast<int>(rest % f.a.g),
                            first, B::kRows);
  if (first >= tile.rows) return;
  auto* sums = reinterpret_cast<float*>(shared);
  auto* stats = reinterpret_cast<float*>(shared + B::kStats);
  const int warp = threadIdx.x / 32;
  float *mine = sums + warp * B::kRows * (Width + 8), *top = stats + warp * B::kRows;
  float* total = top + kWarps * B::kRows;
  if (split < f.late)
    attend_late<Dtype, Bits, Width, Columns>(f, tile, split, shared, mine, top, total);
  else
    attend_codes<Dtype, Bits, Width, Columns>(f, tile, split - f.late, shared, mine, top, total);
  __syncthreads();
  merge<Width, Columns>(f, tile, split, sums, stats, stats + kWarps * B::kRows);
}

// Compiled in a file for each number of bits.
template <int Dtype, int Bits, int Width, int Columns>
void launch_split(Context& ctx, const KvSplit& f, int64_t items) {
  launch_pdl<split_kernel<Dtype, Bits, Width, Columns>>(
      ctx, kOp, items * (f.splits + f.late), kWarps * 32,
      Block<Dtype, Bits, Width, Columns>::kBytes, f, items);
}

}  // namespace fovea::cuda::kv_groups
