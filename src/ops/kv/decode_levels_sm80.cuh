// SPDX-License-Identifier: Apache-2.0
// x_kv_decode in the formats of levels on tensor cores, from the codes as they are.  Of a group of
// 32 tokens, with powers of two that keep f16 in range:
//   k_jc = (level[code] range_c + offset_c + lacks_jc) / S,  turned by cos and sin
//   x_j  = S s_j sum_c q_c k_jc                  s_j: the token's norm in format 2, else 1
//   o_c  = sum_j (p_j R_j) level[code] + sum_j (p_j F_j) (lacks_jc / F_j) + sum_j p_j offset_j
// R_j is the token's range, or its norm.  F_j is R_j, or more where an outlier is far beyond it.
// First tokens are added one by one in f32.
//
// A warp owns a row tile of a key head and a split of its groups, with an online softmax of its
// own.  A team is warps that have heads of one split: cos, sin and lists of outliers are theirs.
//
// Operands.  Codes are the a operand: tokens, then channels, as rows.  Heads are the columns.
//   lane (r, t) = (lane / 4, lane % 4) owns
//   scores  of each 16 channels 4 t + 0 .. 3; row r of block n is token 8 (r / 2) + r % 2 + 2 n
//   values  channels W / 8 r + i, rows r and r + 8 of block w being i = 2 w and 2 w + 1;
//           k of blocks n is tokens 8 t + 2 n and one more
//   P       sums of scores, packed and transposed by movmatrix, are the b operand of values
// Codes of two channels, or of two tokens, are interleaved to pairs.  Bits of codes are an address
// in a table of pairs of levels, which each bank of shared memory has for its lane: lookups never
// conflict and give an operand as it is.
//
// Shared memory:
//   the table  an entry is 256 bytes: pairs of keys, then of values.  8 bits of codes name one, 6
//              where codes have 3 bits
//   a warp     codes of a tile of keys and of values; range and offset of channels; spots
//   a team     cos, sin and lists of a tile, twice
// Spots are what outliers lack, as operands: a tile of f16 zeros, in which a lane sets those of its
// token before the products and clears them after.
//
// A warp copies the next keys when its scores are there, and the next values at its step's end.
//
//   | barrier of a tile                  | who  | guards                                        |
//   | its beginning                      | team | copies are there                              |
//   | before the next one is copied      | team | the one before has been read                  |
//   | before scores, where keys have any | warp | spots are set                                 |
//   | after scores                       | warp | keys and spots are read: copied into, cleared |
//   | after that                         | warp | spots are zeros again                         |
//   | before values                      | warp | values are there, spots are set               |
//   | after values                       | warp | values and spots are read                     |
#pragma once
#include "cuda/block/reduce.cuh"
#include "cuda/launch.h"
#include "cuda/loop/combine.cuh"
#include "cuda/tile/codes_sm80.cuh"
#include "cuda/tile/copy.cuh"
#include "cuda/tile/order.cuh"
#include "ops/kv/levels.h"
#include "ops/kv/split_sm80.cuh"

namespace fovea::cuda {

// Of a block.  In format 1 spots leave room for 8 warps, which may have more registers.
constexpr int warps_most(bool norms) {
  return norms ? 12 : 8;
}
constexpr int kTokens = 32;  // of a tile: a group
constexpr int kRows = 8;
constexpr float kLarge = 16384;  // of a value over its range: beyond, f16 is near its end

struct LevelSplit {
  Attend a;
  kv::Cache cache;
  Step k_code, v_code, k_norm, v_norm, v_bound, k_outlier, v_outlier;
  const uint4* turns;          // cos and sin, see turns_kernel; or null
  int packed;                  // query heads of a key head
  int row_tiles, splits;       // of a sequence
  int pool;                    // pages
  int page_tiles, page_shift;  // tiles of a page, and their log2; -1: no power
  int team;                    // warps; a divisor of the heads and of a block's warps
  int k_slots, v_slots;        // of a token's list of outliers, see Room::slots; none or both
  int warp_bytes, team_bytes;  // of shared memory; a team's of one tile
  int64_t items;               // of warps
  Partials out;
};

// Parts of shared memory, in bytes.
struct Room {
  int bits, width;

  static constexpr int kGates = 32;  // bytes of a team, behind its tiles
  constexpr int table() const { return (bits == 3 ? 64 : 256) * 256; }
  // Of a warp, in this order.
  constexpr int keys() const { return width * bits * 4; }
  constexpr int values() const { return kTokens * row() + 4 * kPad; }
  constexpr int bounds() const { return width * 4; }
  constexpr int spots() const { return width * kTokens * 2 + 64; }  // a lane has an idle one
  // Of a team, of a tile.
  constexpr int turns() const { return width * kTokens * 2; }
  static constexpr int list(int slots) { return slots ? kTokens * pitch(slots) * 4 : 0; }

  // Lists of a power of two, 16 or more, are searched without a count.  Behind them are unused
  // entries, as many as are looked at at once and one more.
  static constexpr int slots(int entries) {
    int n = entries ? 16 : 0;
    while (n < entries) n *= 2;
    return n;
  }
  static constexpr int pitch(int slots) { return slots + kAtOnce + 1; }  // words; odd: banks differ
  static constexpr int kAtOnce = 4;
  constexpr int row() const { return width * bits / 8; }
  static constexpr int kPad = 32;  // after eight values: lanes t read other banks
};

__device__ inline uint32_t add_pairs(uint32_t x, uint32_t y) {
  uint32_t z;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
  return z;
}
// Bits of x where those of mask are set, else of y.
__device__ inline uint32_t merge_bits(uint32_t mask, uint32_t x, uint32_t y) {
  uint32_t z;
  asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(z) : "r"(mask), "r"(x), "r"(y));
  return z;
}
// x where n is below `end`, else y: both are there, without a branch.
__device__ inline int below(uint32_t n, uint32_t end, int x, int y) {
  int z;
  asm("{ .reg .pred p; setp.lt.u32 p, %1, %2; selp.b32 %0, %3, %4, p; }"
      : "=r"(z)
      : "r"(n), "r"(end), "r"(x), "r"(y));
  return z;
}
// 1 / x, near enough for what is f16 then; infinite where x is 0 or subnormal.
__device__ inline float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// z - x y.
__device__ inline uint32_t less_pairs(uint32_t x, uint32_t y, uint32_t z) {
  uint32_t w;
  asm("{ .reg .b32 n; neg.f16x2 n, %1; fma.rn.f16x2 %0, n, %2, %3; }"
      : "=r"(w)
      : "r"(x), "r"(y), "r"(z));
  return w;
}
// x, which the compiler does not form anew at each use.
__device__ inline uint32_t kept(uint32_t x) {
  asm volatile("mov.b32 %0, %0;" : "+r"(x));
  return x;
}
__device__ inline uint32_t word_of(uint32_t address) {
  uint32_t x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}
__device__ inline uint32_t half_of(uint32_t address) {
  uint16_t x;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(address) : "memory");
  return x;
}
__device__ inline void set_half(uint32_t address, float x) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(__half_as_ushort(from_float<f16>(x)))
               : "memory");
}
// Barriers of shared memory, as sm_80 has them.
__device__ inline void gate_init(uint32_t gate, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(gate), "r"(arrivals) : "memory");
}
__device__ inline void gate_arrive(uint32_t gate) {
  asm volatile("{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [%0]; }" ::"r"(gate) : "memory");
}
__device__ inline void gate_wait(uint32_t gate, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
#define FOVEA_GATE "try_wait"
#else
#define FOVEA_GATE "test_wait"
#endif
  asm volatile("{ .reg .pred p; again: mbarrier." FOVEA_GATE
               ".parity.shared.b64 p, [%0], %1; @p bra done; bra again; done: }" ::"r"(gate),
               "r"(parity)
               : "memory");
#undef FOVEA_GATE
}
__device__ inline void sync_team(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// A level of each lane: of keys in the first 16 lanes, of values in the others.
struct LaneLevel {
  float level;
  Power keys, values;  // of all levels
  __device__ LaneLevel(const kv::Cache& c, int count) {
    const int lane = threadIdx.x % 32, n = lane % 16;
    level = n < count ? *(lane < 16 ? c.k_level : c.v_level).at<float>(n) : 0.f;
  }
  __device__ void find_powers() {
    const float most = lanes_max<16>(fabsf(level));
    keys = power_of(__shfl_sync(~0u, most, 0)), values = power_of(__shfl_sync(~0u, most, 16));
  }
};

// The table of keys; that of values is 128 bytes after it.
template <int Bits>
class Table {
 public:
  // A thread writes 16 bytes of an entry at once.  Its pairs have the low bits of codes first.
  static __device__ void fill(const LaneLevel& of, unsigned char* table) {
    constexpr int kEntries = Room{Bits, 0}.table() / 256, kMask = (1 << Bits) - 1;
    const int lane = threadIdx.x % 32, first = lane % 16 / 8 * 16;  // lanes of the levels
    const float level = of.level * (lane < 16 ? of.keys : of.values).down;
    const auto pair = [&](int codes) {
      const float x = __shfl_sync(~0u, level, first + (codes & kMask));
      return pack<FOVEA_F16>(x, __shfl_sync(~0u, level, first + (codes >> Bits & kMask)));
    };
    for (int i = threadIdx.x; i < kEntries * 16; i += blockDim.x) {
      const uint32_t x = pair(i / 16), y = Bits == 2 ? pair(i / 16 >> 4) : x;
      reinterpret_cast<uint4*>(table)[i] = uint4{x, y, x, y};
    }
  }

  __device__ Table(uint32_t table, int lane)
      : table_(table), lane_(Bits == 2 ? lane % 16 * 8 : lane * 4) {}

  // Four pairs of interleaved codes, low bits first.
  template <int From>
  __device__ void look_up(uint32_t codes, uint32_t (&to)[4]) const {
    if constexpr (Bits == 2) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        asm("ld.shared.v2.b32 {%0, %1}, [%2 + %3];"
            : "=r"(to[2 * i]), "=r"(to[2 * i + 1])
            : "r"(table_ + __byte_perm(codes, lane_, 0x7704 | i << 4)), "n"(From));
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t entry = i < 2 ? codes << (8 - 6 * i) : codes >> (6 * i - 8);
        const uint32_t at =
            Bits == 4 ? __byte_perm(codes, lane_, 0x7704 | i << 4) : (entry & 0x3f00) | lane_;
        asm("ld.shared.b32 %0, [%1 + %2];" : "=r"(to[i]) : "r"(table_ + at), "n"(From));
      }
    }
  }

 private:
  const uint32_t table_, lane_;
};

// Norms: format 2, else 1.
template <int Bits, int Width, bool Norms>
class Levels {
  static constexpr Room kRoom{Bits, Width};
  static constexpr int kTiles = Width / 16;
  static constexpr int kRow = kRoom.row();
  // Copies of a row, and rows that a warp copies at once.
  static constexpr int kChunk = kRow % 16 ? 8 : 16, kChunks = kRow / kChunk;
  static constexpr int kValuesAtOnce = 32 / kChunks;
  static constexpr int kUnits = Width / 64;       // of eight channels that a lane has of a value
  static constexpr int kKeys = 0, kValues = 128;  // tables
  // Every second code.
  static constexpr uint32_t kEven = Bits == 4 ? 0x0f0f0f0f : Bits == 3 ? 0x1c71c7 : 0x33333333;

 public:
  // Where a tile is: a page's number and the tile in it.
  struct Place {
    int id, block;
  };

  // `team`: shared memory of the team; `number`: its own, and `member` the warp's in it.
  __device__ Levels(const LevelSplit& f, const Tile& tile, uint32_t table, unsigned char* room,
                    unsigned char* team, int begin, int member, const Power& k_power,
                    const Power& v_power)
      : f_(f),
        tile_(tile),
        room_(room),
        team_(team),
        member_(member),
        begin_(begin),
        lane_(threadIdx.x % 32),
        r_(lane_ / 4),
        t_(lane_ % 4),
        table_(table, lane_),
        v_up_(v_power.up) {
    if (f.a.dtype == FOVEA_BF16)
      load_queries<FOVEA_BF16, true>(f.a, tile, f.packed, q_, factor_);
    else
      load_queries<FOVEA_F16, true>(f.a, tile, f.packed, q_, factor_);
    set_channels(k_power), find_sources();
#pragma unroll
    for (int k = 0; k < 2; ++k) factor_[0][k] = fmaxf(factor_[0][k] * key_.up, kFactorLeast);
    low_all_ = max(firsts(), low_of(kRows - 1)), high_all_ = high_of(0);
    if (outliers())
      for (int i = lane_; i < kRoom.spots() / 16; i += 32) spots()[i] = uint4{};
    if (!Norms)
      for (int n = 0; n < 2; ++n) {
        pad_list(shared_of(n) + k_list_at(), f.cache.k_outliers, f.k_slots);
        pad_list(shared_of(n) + v_list_at(), f.cache.v_outliers, f.v_slots);
      }
    if (f.team_bytes && member_ == 0 && lane_ == 0)
      for (int n = 0; n < 2; ++n) gate_init(gate(n), f.team * 32), gate_init(read_gate(n), f.team);
    __syncwarp();
  }

  __device__ Place place(int tile) const {
    const auto n = static_cast<uint32_t>(tile), each = static_cast<uint32_t>(f_.page_tiles);
    const uint32_t number = f_.page_shift >= 0 ? n >> f_.page_shift : n / each;
    return {pages_[number * f_.cache.page_table.stride[1]], static_cast<int>(n - number * each)};
  }
  __device__ bool there(const Place& at) const {
    return at.id >= 0 && at.id < f_.pool;
  }

  // The first tokens of tile n, which is there.
  __device__ void add_firsts(int n) {
    const int end = min(min(tile_.high, (n + 1) * kTokens), firsts());
#pragma unroll 1
    for (int j = max(n * kTokens, tile_.low); j < end; ++j) add_first(j);
  }

  // Keys of tile n and what its team shares; two groups of copies a tile are these and copy_values.
  __device__ void copy_keys(int n, const Place& at) {
    copy_own_keys(at), copy_shared(n, at);
  }
  __device__ void copy_own_keys(const Place& at) {
    if (!there(at)) return;
    load_bound(at);
    constexpr int kChunks = kRoom.keys() / 16;
    const unsigned char* from = source(keys_, f_.k_code, at);
#pragma unroll
    for (int i = 0; i * 32 < kChunks; ++i)
      if (kChunks % 32 == 0 || lane_ + 32 * i < kChunks)
        copy_async(shared_address(room_) + key_chunk(lane_) * 16 + i * 512, from + i * 512, true);
  }
  // What a team shares lies in two stages.  A gate tells that all copies of one are there, another
  // that all warps have read it.
  __device__ void copy_shared(int n, const Place& at) const {
    if (f_.team_bytes) {
      if (n > begin_ + 1) gate_wait(read_gate(n), (turn_of(n) - 1) & 1);
      if (there(at)) copy_team(n, at);
      copy_arrive(gate(n));
    }
    copy_commit();
  }
  // Tile n has been read.
  __device__ void leave(int n) const {
    if (!f_.team_bytes) return;
    __syncwarp();
    if (lane_ == 0) gate_arrive(read_gate(n));
  }
  __device__ void copy_values(const Place& at) const {
    if (there(at)) {
      const unsigned char* from = source(values_, f_.v_code, at);
      const uint32_t row = f_.v_code.tile / kTokens;
#pragma unroll
      for (int token = 0; token < kTokens; token += kValuesAtOnce) {
        const int mine = token + lane_ / kChunks, chunk = lane_ % kChunks * kChunk;
        if (lane_ >= kValuesAtOnce * kChunks || mine >= kTokens) continue;
        const uint32_t to =
            shared_address(value_codes()) + mine * kRow + mine / 8 * Room::kPad + chunk;
        if constexpr (kChunk == 16)
          copy_async(to, from + token * row, true);
        else
          copy_async_8(to, from + token * row);
      }
    }
    copy_commit();
  }
  // Keys and what is shared are there.
  __device__ void wait_keys(int n) const {
    if (f_.team_bytes)
      gate_wait(gate(n), turn_of(n) & 1);
    else
      copy_wait<1>();
    __syncwarp();
  }

  // Tile n, whose keys are there; then those of `next` are under way.
  __device__ void step(int n, const Place& next) {
    const int first = n * kTokens, j = first + lane_;
    const bool seen = j >= max(tile_.low, firsts()) && j < tile_.high;
    const float range = seen ? range_ * v_up_ : 0.f;
    Token token{norm_, range, seen ? offset_ : 0.f, range};
    Spots k_spots, v_spots;
    if (outliers()) {
      const float by = reciprocal(range);
      const auto [keys, values] = find(n, seen);
      k_spots = spots_of(keys, key_.down, [&](uint32_t channel) { return key_spot(channel); });
      v_spots = spots_of(values, by, [&](uint32_t channel) { return value_spot(channel); });
      set_keys(k_spots);
      __syncwarp();
    }
    float x[2][1][4] = {};
    if (Norms ? !f_.turns : f_.turns && f_.k_slots)
      scores<true>(n, x);
    else
      scores<false>(n, x);
    __syncwarp();  // keys and their spots are read
    copy_keys(n + 1, next);
    if (outliers()) {
      clear(k_spots, [&](uint32_t channel) { return key_spot(channel); });
      __syncwarp();
      set_values(v_spots, token);
    }
    if constexpr (Norms) scale(token.scale, x);
    if (first < low_all_ || first + kTokens > high_all_) mask(first, x);
    softmax_.step(x, o_, factor_);
    copy_wait<1>();
    __syncwarp();  // values and their spots are there
    if (outliers())
      values<!Norms>(token, x);  // no such instance in format 2
    else
      values<false>(token, x);
    __syncwarp();  // and are read
    if (outliers()) clear(v_spots, [&](uint32_t channel) { return value_spot(channel); });
    copy_values(next);
  }

  __device__ void save(int split) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float all = softmax_.total(0, k), top = softmax_.top[0][k] * factor_[0][k];
      float offset = 0;
      if constexpr (!Norms) {
        offset = o_[kTiles][0][k] + o_[kTiles][0][k + 2];
#pragma unroll
        for (int lane = 4; lane < 32; lane *= 2) offset += __shfl_xor_sync(~0u, offset, lane);
      }
      const int m = tile_.first + 2 * t_ + k;
      if (m >= tile_.rows) continue;
      const int64_t token = tile_.q.batch * f_.a.s + tile_.q.row_begin + m / f_.packed;
      const int64_t h = tile_.head * f_.packed + m % f_.packed;
      float* to = f_.out.o_row(split, token, h) + Width / 8 * r_;
      const float by = all == 0 ? 0.f : 1.f / all;
      const auto number = [&](int w, int half) {
        return all == 0 ? 0.f : fmaf(o_[w][0][k + 2 * half], grain_, offset) * by;
      };
#pragma unroll
      for (int w = 0; w < kTiles; w += 2)
        reinterpret_cast<float4*>(to)[w / 2] = {number(w, 0), number(w, 1), number(w + 1, 0),
                                                number(w + 1, 1)};
      if (r_ == 0)
        *f_.out.lse_row(split, token, h) = all == 0 ? kLowest : (top + log2f(all)) * kLn2;
    }
  }

 private:
  // What a lane's token is multiplied by, see above: s_j, R_j, the offset and F_j.
  struct Token {
    float scale, range, offset, far;
  };
  // Spots of the lane's token in this head: addresses, and numbers.
  struct Spots {
    uint32_t first;  // entry
    float by;
    uint32_t at[Room::kAtOnce];   // of the first ones, or idle_
    float number[Room::kAtOnce];  // what they lack, times `by`
    bool more;                    // there are others; set tells of all lanes
  };
  struct Found {
    uint32_t keys, values;  // addresses
  };

  // Lists are there of keys and of values, or of neither.
  __device__ bool outliers() const {
    return !Norms && f_.k_slots;
  }
  __device__ int firsts() const {
    return static_cast<int>(f_.cache.firsts);
  }
  __device__ unsigned char* value_codes() const {
    return room_ + kRoom.keys();
  }
  // Of channels 4 n .. 4 n + 3: two pairs of ranges, two of offsets, over S.
  __device__ uint4* bounds() const {
    return reinterpret_cast<uint4*>(room_ + kRoom.keys() + kRoom.values());
  }
  __device__ uint4* spots() const {
    return bounds() + kRoom.bounds() / 16;
  }
  __device__ unsigned char* shared_of(int n) const {
    return team_ + (n & 1) * f_.team_bytes;
  }
  // Of tile n, and which tile of its stage it is.
  __device__ uint32_t gate(int n) const {
    return gates_ + (n & 1) * 16;
  }
  __device__ uint32_t read_gate(int n) const {
    return gate(n) + 8;
  }
  __device__ uint32_t turn_of(int n) const {
    return static_cast<uint32_t>(n - begin_) >> 1;
  }
  __device__ int k_list_at() const {
    return f_.turns ? kRoom.turns() : 0;
  }
  __device__ int v_list_at() const {
    return k_list_at() + Room::list(f_.k_slots);
  }
  // A team's lanes, eight for a token.
  __device__ int list_token() const {
    return member_ * 4 + lane_ / 8;
  }
  __device__ void pad_list(unsigned char* list, int64_t entries, int slots) const {
#pragma unroll 1
    for (int token = list_token(); slots && token < kTokens; token += f_.team * 4)
#pragma unroll 1
      for (int n = static_cast<int>(entries) + lane_ % 8; n < Room::pitch(slots); n += 8)
        reinterpret_cast<uint32_t*>(list)[token * Room::pitch(slots) + n] = kv::kNoEntry;
  }
  // Half of a list's tokens, eight lanes for each.
  __device__ void copy_list(const View<3>& list, const Step& step, int count, int slots,
                            const Place& at, uint32_t to, int half) const {
    const int token = half * 16 + lane_ / 8, n = lane_ % 8;
    const uint32_t row = step.tile / kTokens, pitch = Room::pitch(slots) * 4;
    const unsigned char* from =
        source(static_cast<const unsigned char*>(list.data), step, at) + token * row + n * 4;
    to += token * pitch + n * 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (n < count) copy_async_4(to + i * 4 * pitch, from + i * 4 * row);
      if (n + 8 < count) copy_async_4(to + i * 4 * pitch + 32, from + i * 4 * row + 32);
    }
    if (count > 16) [[unlikely]]
#pragma unroll 1
      for (int more = 64; n * 4 + more < count * 4; more += 32)
#pragma unroll 1
        for (int i = 0; i < 4; ++i)
          copy_async_4(to + i * 4 * pitch + more, from + i * 4 * row + more);
  }

  __device__ void set_channels(const Power& level) {
    key_ = level;
    if constexpr (Norms) return;
    const kv::Cache& c = f_.cache;
    const bool mine = lane_ < Width / 4;
    float range[4], offset[4], most = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      range[i] = mine ? *c.k_range.at<float>(tile_.head, 4 * lane_ + i) * level.up : 0.f;
      offset[i] = mine ? *c.k_offset.at<float>(tile_.head, 4 * lane_ + i) : 0.f;
      most = fmaxf(most, 2 * fabsf(range[i]) + fabsf(offset[i]));
    }
    key_ = power_of(lanes_max<32>(most));
    const auto pair = [&](float x, float y) {
      return pack<FOVEA_F16>(x * key_.down, y * key_.down);
    };
    if (mine)
      bounds()[lane_] = uint4{pair(range[0], range[1]), pair(range[2], range[3]),
                              pair(offset[0], offset[1]), pair(offset[2], offset[3])};
  }

  // Where the lane's part of every first tile is.
  __device__ void find_sources() {
    const kv::Cache& c = f_.cache;
    const int head = tile_.head;
    const auto bytes = [](const void* x) { return static_cast<const unsigned char*>(x); };
    pages_ = c.page_table.at<int32_t>(tile_.row, 0);
    const uint32_t team = shared_address(team_);
    gates_ = kept(team + 2 * f_.team_bytes);
    if constexpr (!Norms) {
      k_list_ = kept(team + k_list_at() + lane_ * Room::pitch(f_.k_slots) * 4);
      v_list_ = kept(team + v_list_at() + lane_ * Room::pitch(f_.v_slots) * 4);
      idle_ = kept(shared_address(spots()) + kIdle + 2 * lane_);
      k_spot_ = kept(key_spot_of(lane_)), v_spot_ = kept(value_spot_of(lane_));
    }
    keys_ = bytes(c.k_code.at<uint32_t>(0, 0, head)) + lane_ * 16;
    values_ =
        bytes(c.v_code.at<uint32_t>(0, lane_ / kChunks % kTokens, head)) + lane_ % kChunks * kChunk;
    bounds_ = bytes(Norms ? c.v_norm.at<float>(0, lane_, head) : c.v_bound.at<float>(0, lane_));
    norms_of_keys_ = bytes(c.k_norm.at<float>(0, lane_, head));
  }
  static __device__ const unsigned char* source(const unsigned char* base, const Step& step,
                                                const Place& at) {
    return base + static_cast<uint64_t>(static_cast<uint32_t>(at.id)) * step.page +
           static_cast<uint64_t>(static_cast<uint32_t>(at.block)) * step.tile;
  }
  __device__ void load_bound(const Place& at) {
    const auto number = [](const unsigned char* from) {
      return __ldg(reinterpret_cast<const float*>(from));
    };
    if constexpr (Norms) {
      norm_ = number(source(norms_of_keys_, f_.k_norm, at));
      range_ = number(source(bounds_, f_.v_norm, at));
    } else {
      const unsigned char* from = source(bounds_, f_.v_bound, at);
      offset_ = number(from), range_ = number(from + f_.cache.v_bound.stride[2] * 4);
    }
  }
  // Of 4 bits: channels of a lane and of t + 2 would have the same banks.
  static __device__ int key_chunk(int n) {
    return Bits == 4 ? n ^ (n >> 3 & 1) : n;
  }
  // Eight tasks, which the team's warps share out: quarters of cos and sin, halves of lists.
  __device__ void copy_team(int n, const Place& at) const {
    const uint32_t to = shared_address(shared_of(n));
    const kv::Cache& c = f_.cache;
#pragma unroll 1
    for (int task = member_; task < 8; task += f_.team)
      if (task < 4) {
        if (!f_.turns) continue;
        constexpr int kQuarter = kRoom.turns() / 4;
        const int mine = task * kQuarter + lane_ * 16;
        const unsigned char* from = reinterpret_cast<const unsigned char*>(f_.turns) +
                                    static_cast<int64_t>(n) * kRoom.turns() + mine;
#pragma unroll
        for (int i = 0; i < kQuarter; i += 512) copy_async(to + mine + i, from + i, true);
      } else if (outliers()) {
        const bool keys = task < 6;
        copy_list(keys ? c.k_outlier : c.v_outlier, keys ? f_.k_outlier : f_.v_outlier,
                  static_cast<int>(keys ? c.k_outliers : c.v_outliers),
                  keys ? f_.k_slots : f_.v_slots, at, to + (keys ? k_list_at() : v_list_at()),
                  task % 2);
      }
  }
  // Of keys and of values, the first entry of the lane's token that is of this head or a later one.
  __device__ Found find(int n, bool seen) const {
    const uint32_t head = tile_.head * Width, stage = (n & 1) * f_.team_bytes;
    const uint32_t keys = k_list_ + stage, values = v_list_ + stage;
    uint32_t k = keys, v = values;
    const auto move = [&](uint32_t& at, int by) {
      at += half_of(at + by * 4 - 4) < head ? by * 4 : 0;
    };
#pragma unroll 1
    for (int by = f_.k_slots / 2; by > 8; by /= 2) move(k, by);
#pragma unroll 1
    for (int by = f_.v_slots / 2; by > 8; by /= 2) move(v, by);
#pragma unroll
    for (int by = 8; by; by /= 2) move(k, by), move(v, by);
    return {seen ? k : keys + f_.k_slots * 4, seen ? v : values + f_.v_slots * 4};
  }
  // An entry's channel in this head; others are Width or more.
  __device__ uint32_t channel_of(uint32_t entry) const {
    return (entry & 65535) - tile_.head * Width;
  }
  // Calls of(channel, lacks) for the entries of this head from `at` on.
  template <class Of>
  __device__ void walk(uint32_t at, const Of& of) const {
#pragma unroll 1
    for (uint32_t entry; channel_of(entry = word_of(at)) < Width; at += 4)
      of(channel_of(entry), kv::lacks_of(entry));
  }
  template <class Spot>
  __device__ Spots spots_of(uint32_t first, float by, const Spot& spot) const {
    Spots spots;
    spots.first = first, spots.by = by;
#pragma unroll
    for (int i = 0; i < Room::kAtOnce; ++i) {
      const uint32_t entry = word_of(first + 4 * i), channel = channel_of(entry);
      spots.at[i] = below(channel, Width, spot(channel), idle_);
      spots.number[i] = kv::lacks_of(entry) * by;
    }
    spots.more = channel_of(half_of(first + 4 * Room::kAtOnce)) < Width;
    return spots;
  }
  __device__ void set(Spots& spots) const {
#pragma unroll
    for (int i = 0; i < Room::kAtOnce; ++i) set_half(spots.at[i], spots.number[i]);
    spots.more = __any_sync(~0u, spots.more);
  }
  template <class Spot>
  __device__ void clear(const Spots& spots, const Spot& spot) const {
#pragma unroll
    for (int i = 0; i < Room::kAtOnce; ++i) set_half(spots.at[i], 0);
    if (spots.more) [[unlikely]]
      walk(spots.first + 4 * Room::kAtOnce,
           [&](uint32_t channel, float) { set_half(spot(channel), 0); });
  }
  static constexpr int kIdle = kRoom.spots() - 64;
  // Where products read what the lane's token lacks: 16 bytes of lane (r, t) are, from the low
  // bits, a pair's channel, its channel of two pairs, its block of two.  For keys these bits
  // follow: the last one of r, t, k, those before of r, the pair of blocks.  Of these, bits of the
  // channel are runs.
  static constexpr int kKeyRow = Width * 8;  // of r / 2
  __device__ uint32_t key_spot_of(int j) const {
    const int block = j % 8 / 2, row = j / 8 * 2 + j % 2;
    return shared_address(spots()) + block % 2 * 8 + row % 2 * 16 + row / 2 * kKeyRow +
           block / 2 * 4 * kKeyRow;
  }
  __device__ uint32_t value_spot_of(int j) const {
    return shared_address(spots()) + j % 8 / 4 * 512 + j / 8 * 16 + j % 4 / 2 * 8 + j % 2 * 2;
  }
  __device__ uint32_t key_spot(uint32_t channel) const {
    return k_spot_ + ((channel << 1 & 6) | (channel << 3 & (Width * 8 - 32)));
  }
  __device__ uint32_t value_spot(uint32_t channel) const {
    constexpr uint32_t kEach = Width / 8;
    return v_spot_ + ((channel % kEach / 2 << 10) | (channel / kEach << 6 | channel % 2 << 2));
  }
  __device__ void set_keys(Spots& spots) const {
    set(spots);
    if (spots.more) [[unlikely]]
      walk(spots.first + 4 * Room::kAtOnce,
           [&](uint32_t channel, float lacks) { set_half(key_spot(channel), lacks * spots.by); });
  }
  __device__ void set_values(Spots& spots, Token& token) const {
    set(spots);
    bool far = false;
#pragma unroll
    for (int i = 0; i < Room::kAtOnce; ++i)
      far |= !(fabsf(spots.number[i]) <= kLarge);  // perhaps of another head
    if (__any_sync(~0u, far) || spots.more) [[unlikely]]
      set_rest(spots, far, token);
  }
  // Gives the token a number to be multiplied by, where its range is too small for what it lacks.
  __device__ void set_rest(const Spots& spots, bool far, Token& token) const {
    walk(spots.first + 4 * Room::kAtOnce, [&](uint32_t channel, float lacks) {
      const float number = lacks * spots.by;
      far |= !(fabsf(number) <= kLarge);
      set_half(value_spot(channel), number);
    });
    if (!far) return;
    float large = kFactorLeast;
    walk(spots.first,
         [&](uint32_t, float lacks) { large = fmaxf(large, fminf(fabsf(lacks), kLarge * 4)); });
    token.far = fmaxf(large / kLarge, fabsf(token.range));
    walk(spots.first,
         [&](uint32_t channel, float lacks) { set_half(value_spot(channel), lacks / token.far); });
  }

  // The tokens of row r that block n of scores has.
  __device__ int token_of(int n) const {
    return r_ / 2 * 8 + r_ % 2 + 2 * n;
  }
  // Codes of the lane's tokens of two channels, the first one's in even places.
  __device__ uint32_t key_codes(const unsigned char* x, const unsigned char* y) const {
    const auto word = [](const unsigned char* from) {
      return *reinterpret_cast<const uint32_t*>(from);
    };
    if constexpr (Bits == 3) {
      const int shift = r_ / 2 * 24 % 32 + r_ % 2 * 3;
      const uint32_t low = __funnelshift_r(word(x), word(x + 4), shift);
      const uint32_t high = __funnelshift_r(word(y), word(y + 4), shift);
      return merge_bits(kEven, low, high << 3);
    } else {
      const int shift = (Bits == 2 ? r_ / 2 % 2 * 16 : 0) + r_ % 2 * Bits;
      const uint32_t one = word(x), two = word(y);
      return merge_bits(kEven, __funnelshift_r(one, one, shift),
                        __funnelshift_r(two, two, shift - Bits));
    }
  }
  // a[i]: tokens of blocks 2 i and 2 i + 1, channels of tile k.
  template <bool Usual>
  __device__ void form_keys(int k, uint32_t (&a)[2][4]) const {
    constexpr int kChannel = Bits * 4;
    const int flip = Bits == 4 ? t_ / 2 : 0;
    const unsigned char* from = room_ + (16 * k + 4 * t_) * kChannel + r_ / 2 * 8 * Bits / 32 * 4;
    const unsigned char *even = from + flip * kChannel, *odd = from + (1 - flip) * kChannel;
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      uint32_t x[4];
      table_.template look_up<kKeys>(
          key_codes(even + pair * 2 * kChannel, odd + pair * 2 * kChannel), x);
#pragma unroll
      for (int n = 0; n < 4; ++n) a[n / 2][n % 2 + 2 * pair] = x[n];
    }
    if constexpr (!Norms) {
      const uint4 bound = bounds()[4 * k + t_];
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int w = 0; w < 4; ++w)
          a[i][w] = fma_pairs(a[i][w], w < 2 ? bound.x : bound.y, w < 2 ? bound.z : bound.w);
      if (Usual || f_.k_slots)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint4 lacks =
              spots()[k * 8 + i * (kKeyRow / 4) + r_ / 2 * (kKeyRow / 16) + t_ * 2 + r_ % 2];
          a[i][0] = add_pairs(a[i][0], lacks.x), a[i][1] = add_pairs(a[i][1], lacks.z);
          a[i][2] = add_pairs(a[i][2], lacks.y), a[i][3] = add_pairs(a[i][3], lacks.w);
        }
    }
  }
  // Turns tiles k and k + kTiles / 2.
  __device__ void turn(int n, int k, uint32_t (&low)[2][4], uint32_t (&high)[2][4]) const {
    const auto* from = reinterpret_cast<const uint4*>(shared_of(n)) + k * 128 + lane_;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 c = from[i * 32], s = from[i * 32 + 64];
      const uint32_t cos[4] = {c.x, c.y, c.z, c.w}, sin[4] = {s.x, s.y, s.z, s.w};
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const uint32_t y = low[i][w], z = high[i][w];
        low[i][w] = less_pairs(z, sin[w], mul_pairs(y, cos[w]));
        high[i][w] = fma_pairs(y, sin[w], mul_pairs(z, cos[w]));
      }
    }
  }
  // x[i]: tokens of blocks 2 i and 2 i + 1.  Usual: without branches, in format 1 with cos and
  // outliers, in format 2 with neither.
  template <bool Usual>
  __device__ void scores(int n, float (&x)[2][1][4]) const {
    constexpr int kHalf = kTiles / 2;
#pragma unroll
    for (int k = 0; k < kHalf; ++k) {
      uint32_t low[2][4], high[2][4];
      form_keys<Usual>(k, low), form_keys<Usual>(k + kHalf, high);
      if (Usual ? !Norms : f_.turns != nullptr) turn(n, k, low, high);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        mma<FOVEA_F16>(x[i][0], low[i], q_[k][0][0], q_[k][0][1]);
        mma<FOVEA_F16>(x[i][0], high[i], q_[k + kHalf][0][0], q_[k + kHalf][0][1]);
      }
    }
  }
  // What the lane of the token in block n of row r has.
  __device__ float of_row(float x, int n) const {
    return __shfl_sync(~0u, x, token_of(n));
  }
  __device__ void scale(float by, float (&x)[2][1][4]) const {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const float of = of_row(by, n);
      x[n / 2][0][n % 2 * 2] *= of, x[n / 2][0][n % 2 * 2 + 1] *= of;
    }
  }
  // What row m of the tile sees.
  __device__ int64_t place_of_row(int m) const {
    return (tile_.first + m) / f_.packed + tile_.length - tile_.q.rows;
  }
  __device__ int low_of(int m) const {
    return limit_low(f_.a.mask.window, place_of_row(m));
  }
  __device__ int high_of(int m) const {
    return limit_high(f_.a.mask.window, place_of_row(m), tile_.length);
  }
  __device__ void mask(int first, float (&x)[2][1][4]) const {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int low = max(low_of(2 * t_ + k), firsts()), high = high_of(2 * t_ + k);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int j = first + token_of(n);
        if (j < low || j >= high) x[n / 2][0][n % 2 * 2 + k] = kLowest;
      }
    }
  }

  // 1 / x of a power of two; large where x is 0.
  static __device__ float inverse(float x) {
    return __uint_as_float(0x7f000000u - __float_as_uint(x));
  }
  // A power of two above all ranges so far, which sums are over.
  __device__ void raise_grain(float range) {
    if (!__any_sync(~0u, fabsf(range) > grain_)) return;
    const float next = fmaxf(grain_, 2 * power_of(lanes_max<32>(fabsf(range))).up);
    const float shrink = grain_ * inverse(next);
    grain_ = next;
#pragma unroll
    for (int w = 0; w < kTiles; ++w)
#pragma unroll
      for (int c = 0; c < 4; ++c) o_[w][0][c] *= shrink;
  }
  // Units of the lane's channels of a token, eight codes in the low bits of each.
  __device__ void value_units(const unsigned char* row, uint32_t (&to)[kUnits]) const {
    const unsigned char* from = row + r_ * (kRow / 8);
    if constexpr (Bits == 4 && kUnits == 2) {
      const uint2 x = *reinterpret_cast<const uint2*>(from);
      to[0] = x.x, to[1] = x.y;
    } else if constexpr (Bits == 4) {
      to[0] = *reinterpret_cast<const uint32_t*>(from);
    } else if constexpr (Bits == 2 && kUnits == 2) {
      to[0] = *reinterpret_cast<const uint32_t*>(from), to[1] = to[0] >> 16;
    } else if constexpr (Bits == 2) {
      to[0] = *reinterpret_cast<const uint16_t*>(from);
    } else {
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        const int byte = r_ * (kRow / 8) + 3 * u;
        const auto* words = reinterpret_cast<const uint32_t*>(row) + byte / 4;
        to[u] = __funnelshift_r(words[0], words[1], byte % 4 * 8);
      }
    }
  }
  template <bool Outliers>
  __device__ void values(const Token& token, const float (&x)[2][1][4]) {
    raise_grain(fmaxf(fabsf(token.range), token.far));
    const auto weights = [&](float by, uint32_t(&p)[4]) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float of = of_row(by, n), *from = &x[n / 2][0][n % 2 * 2];
        p[n] = transposed(pack<FOVEA_F16>(from[0] * of, from[1] * of));
      }
    };
    uint32_t p[4], far[4];
    weights(token.range * inverse(grain_), p);
    if constexpr (Outliers) {
#pragma unroll
      for (int n = 0; n < 4; ++n) far[n] = p[n];
      if (__any_sync(~0u, token.far != token.range)) weights(token.far * inverse(grain_), far);
    }
    if constexpr (!Norms) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float of = of_row(token.offset, n);
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          float& sum = o_[kTiles][0][n % 2 * 2 + k];
          sum = fmaf(x[n / 2][0][n % 2 * 2 + k], of, sum);
        }
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t units[4][kUnits];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        value_units(value_codes() + t_ * (8 * kRow + Room::kPad) + (4 * half + i) * kRow, units[i]);
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        // Of tokens 2 i and 2 i + 1: channels in even places, then in odd ones.
        uint32_t even[2][4], odd[2][4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t one = units[2 * i][u], two = units[2 * i + 1][u];
          table_.template look_up<kValues>(merge_bits(kEven, one, two << Bits), even[i]);
          table_.template look_up<kValues>(merge_bits(kEven, one >> Bits, two), odd[i]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int w = 4 * u + i;
          const uint32_t a[4] = {even[0][i], odd[0][i], even[1][i], odd[1][i]};
          mma<FOVEA_F16>(o_[w][0], a, p[2 * half], p[2 * half + 1]);
        }
        if constexpr (Outliers)
#pragma unroll
          for (int w = 4 * u; w < 4 * u + 4; ++w) {
            const uint4 lacks = spots()[(2 * w + half) * 32 + lane_];
            const uint32_t a[4] = {lacks.x, lacks.y, lacks.z, lacks.w};
            mma<FOVEA_F16>(o_[w][0], a, far[2 * half], far[2 * half + 1]);
          }
      }
    }
  }

  // A first token's numbers in shared memory, from which lanes take theirs; gives the largest.
  __device__ float put_row(const View<4>& from, int j, bool turned, float* row) const {
    constexpr int kHalf = Width / 2;
    const auto number = [&](int channel) {
      return load_float(from.at<uint16_t>(tile_.row, j, tile_.head, channel), f_.a.dtype, 0);
    };
    const Rope& rope = f_.a.rope;
    float most = 0;
    __syncwarp();
    for (int c = lane_; c < kHalf; c += 32) {
      float y = number(c), z = number(c + kHalf);
      most = fmaxf(most, fmaxf(fabsf(y), fabsf(z)));
      if (turned) {
        const bool inside = j < rope.positions;
        const float cos = inside ? *rope.cos.at<float>(j, c) : __uint_as_float(~0u);
        const float sin = inside ? *rope.sin.at<float>(j, c) : __uint_as_float(~0u);
        const float x = y;
        y = x * cos - z * sin, z = fmaf(x, sin, z * cos);
      }
      row[c] = y, row[c + kHalf] = z;
    }
    __syncwarp();
    return most;
  }
  __device__ void add_first(int j) {
    auto* row = reinterpret_cast<float*>(room_);
    put_row(f_.cache.k_first, j, f_.turns, row);
    float score = 0;  // of row r
#pragma unroll
    for (int k = 0; k < kTiles; ++k) {
      const float4 one = reinterpret_cast<const float4*>(row)[4 * k + t_];
      const float2 low = pair_of<FOVEA_F16>(q_[k][0][0]), high = pair_of<FOVEA_F16>(q_[k][0][1]);
      score = fmaf(low.x, one.x, fmaf(low.y, one.y, score));
      score = fmaf(high.x, one.z, fmaf(high.y, one.w, score));
    }
    score += __shfl_xor_sync(~0u, score, 1), score += __shfl_xor_sync(~0u, score, 2);
    // Lanes of r = 0 have the token; the others none.
    float x[1][1][4];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int m = 2 * t_ + k;
      const float mine = __shfl_sync(~0u, score, 4 * m) * key_.down;
      x[0][0][k] = r_ == 0 && j >= low_of(m) && j < high_of(m) ? mine : kLowest;
      x[0][0][k + 2] = kLowest;
    }
    softmax_.step(x, o_, factor_);
    raise_grain(put_row(f_.cache.v_first, j, false, row));
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float p = __shfl_sync(~0u, x[0][0][k], t_) * inverse(grain_);
#pragma unroll
      for (int w = 0; w < kTiles; ++w)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float& sum = o_[w][0][k + 2 * half];
          sum = fmaf(p, row[Width / 8 * r_ + 2 * w + half], sum);
        }
    }
    __syncwarp();
  }

  const LevelSplit& f_;
  const Tile& tile_;
  unsigned char *const room_, *const team_;
  const int member_, begin_;  // the first tile
  const int lane_, r_, t_;
  const Table<Bits> table_;
  const float v_up_;
  const int32_t* pages_;
  uint32_t gates_;
  uint32_t k_list_, v_list_;         // of the lane's token, of even tiles
  uint32_t k_spot_, v_spot_, idle_;  // parts of its spots' places; where none is read
  const unsigned char *keys_, *values_, *bounds_, *norms_of_keys_;
  Power key_;
  uint32_t q_[kTiles][1][2];
  // Of the lane's token of the tile under way, as they are in the cache: none waits for a load.
  float norm_ = 1, range_ = 0, offset_ = 0;
  float o_[kTiles + !Norms][1][4] = {};  // in format 1 the last: sums of offsets
  float factor_[1][2], grain_ = 0;
  Softmax<1> softmax_;
  int low_all_, high_all_;  // what all rows see
};

// Work: heads of a split side by side, then splits, then row tiles.
template <int Bits, int Width, bool Norms>
__global__ void __launch_bounds__(warps_most(Norms) * 32, 1)
    levels_kernel(const __grid_constant__ LevelSplit f) {
  constexpr Room kRoom{Bits, Width};
  extern __shared__ __align__(128) unsigned char shared[];
  // turns_kernel has waited for what is before it: only its own work is waited for, later.
  if (!f.turns) pdl_wait();
  LaneLevel level(f.cache, 1 << Bits);
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32;
  const int64_t w = blockIdx.x * int64_t{warps} + warp;
  const int64_t rest = w / f.a.g, item = rest / f.splits, sequence = item / f.row_tiles;
  const int split = static_cast<int>(rest - item * f.splits);
  const int first = static_cast<int>(item - sequence * f.row_tiles) * kRows;
  Tile tile;
  tile.rows = 0;
  if (w < f.items)
    tile =
        tile_of(f.a, f.cache, f.packed, sequence, static_cast<int>(w - rest * f.a.g), first, kRows);
  level.find_powers();
  // What all warps of the block do once.
  const auto begin = [&] {
    Table<Bits>::fill(level, shared);
    sync_team(0, blockDim.x);
    if (f.turns) pdl_wait();
    pdl_trigger();
  };
  if (first >= tile.rows) return begin();
  const int low = tile.low / kTokens, end = (tile.high + kTokens - 1) / kTokens;
  const SplitRange range = split_range(max(end - low, 0), f.splits, split);
  const int last = low + static_cast<int>(range.end);
  unsigned char* rooms = shared + kRoom.table();
  Levels<Bits, Width, Norms> mine(
      f, tile, shared_address(shared), rooms + warp * f.warp_bytes,
      rooms + warps * f.warp_bytes + warp / f.team * (2 * f.team_bytes + Room::kGates),
      low + static_cast<int>(range.begin), warp % f.team, level.keys, level.values);
  using Place = typename Levels<Bits, Width, Norms>::Place;
  const auto ask = [&](int n) { return n < last ? mine.place(n) : Place{-1, 0}; };
  int n = low + static_cast<int>(range.begin);
  Place at = ask(n), next = ask(n + 1);
  for (int of = n; of < last && of * kTokens < f.cache.firsts; ++of)
    if (mine.there(mine.place(of))) mine.add_firsts(of);
  mine.copy_own_keys(at);
  begin();
  mine.copy_shared(n, at), mine.copy_values(at);
#pragma unroll 1
  for (; n < last; ++n) {
    const Place after = ask(n + 2);
    mine.wait_keys(n);
    if (mine.there(at))
      mine.step(n, next);
    else
      mine.copy_keys(n + 1, next), mine.copy_values(next);
    mine.leave(n);
    at = next, next = after;
  }
  copy_wait<0>();
  mine.save(split);
}

template <int Bits, int Width, bool Norms>
void launch_levels(Context& ctx, const LevelSplit& f, int warps, int bytes) {
  launch_pdl<levels_kernel<Bits, Width, Norms>>(
      ctx, "x_kv_decode", ceil_div(f.items, int64_t{warps}), warps * 32, bytes, f);
}

}  // namespace fovea::cuda
