// SPDX-License-Identifier: Apache-2.0
// What brings e4m3 keys to the sweep over wide keys (attend_wide_sm90.cuh): warpgroup 3.
//   Codes are copied (cp.async) to where they will be converted: those of a panel to the first half
//   of its rows, their scale behind them.  code * scale, rounded to q's dtype, takes their place.
//   Where K is (v, k) the tail is of q's dtype, and is only copied; else it is codes too.
//   A warp has 16 keys of a tile.  A lane has 16 columns of each panel of two keys:
//
//   | bits of the lane | 0, 1             | 2 to 4                    |
//   | choose           | 16 columns of 64 | a key of eight, of 8 more |
//
//   So eight neighbouring lanes store to all 32 banks.
//   The next unit is copied while this one is converted, if its place is empty by then.  Rows of
//   the tile after the next are prefetched to L2.  A row past the last key, or without a page, is
//   zeros.
#pragma once
#include "cuda/loop/feed_wide_sm90.cuh"
#include "cuda/tile/codes_sm80.cuh"

namespace fovea::cuda {

template <class Shape, KeySource Source, class Mask>
struct WideConverter90 : WideProducer90<Shape, Source, Mask> {
  using Base = WideProducer90<Shape, Source, Mask>;
  using Slot = typename Base::Slot;
  using Panel = typename Shape::Panel;
  using Base::a, Base::joined, Base::lane, Base::maps, Base::shared;
  static constexpr int BN = Shape::BN, kRows = 16, kTail = Shape::key_units, kPanels = 4;
  static constexpr int kColumns = kPanels * 64, kValues = 512;  // of a unit, and of both
  static constexpr int kAhead = 3;                              // tiles, of the prefetch

  const int warp;

  __device__ __forceinline__ void run() {
    uint32_t number = 0;  // of the tile
    this->each_item([&](const Slot& work, typename Base::Shared::TileState) {
      const int steps = max(work.count, 1);
      int n = work.last;
      begin_item(work);
      Rows rows = rows_of(find(work, n, true));
#pragma unroll 1
      for (int tiles = 1; tiles < kAhead; ++tiles)
        prefetch(rows_of(find(work, n - tiles, steps > tiles)));
      bool copied = false;
#pragma unroll 1
      for (int left = 2 * steps; left; --left) {
        const int unit = left % 2;  // 0, then 1
        if (warp == 0 && unit == 0) this->prefetch_next(left / 2, steps);
        if (!copied) {
          acquire(unit, number);
          copy(unit, rows, number);
        }
        if (left > 1 && unit) {
          n = work.before(n);
          rows = rows_of(find(work, n, true));
          prefetch(rows_of(find(work, n - (kAhead - 1), left > 2 * kAhead - 1)));
        }
        copied = left > 1 && is_empty(1 - unit, number + unit);
        if (copied) copy(1 - unit, rows, number + unit);
        copied ? copy_wait<1>() : copy_wait<0>();
        convert_unit(unit, number);
        number += unit;
      }
    });
  }

 private:
  // The lane's keys: the page and the token in it, or the token alone; -1: no key.
  struct Keys {
    int page[2], token[2];
  };
  // Where their values, the rest of them, and their scales begin; nullptr: no key.
  struct Rows {
    const uint8_t* code[2];
    const void* tail[2];
    const float* scale[2];
  };

  __device__ __forceinline__ uint32_t own() const {
    return sm90::unhoisted(static_cast<uint32_t>(lane));
  }
  // Where the work item's head of k, v and v_scale begins.
  __device__ __forceinline__ void begin_item(const Slot& work) const {
    const int64_t head = work.tile.key_head(a),
                  first = a.sequences.page ? 0 : work.tile.rows.seq.key_batch;
    const auto keep = [&](const View<4>& x, int bytes, int at) {
      const char* from = x.template as<char>() + (first * x.stride[0] + head * x.stride[2]) * bytes;
      asm volatile("st.shared.b64 [%0], %1;" ::"r"(shared.heads(warp) + at), "l"(from) : "memory");
    };
    keep(a.v, 1, 0), keep(a.k, joined() ? 2 : 1, 8), keep(a.v_scale, 4, 16);
    __syncwarp();
  }
  __device__ __forceinline__ Keys find(const Slot& work, int n, bool there) const {
    const Sequences& given = a.sequences;
    const int key = work.key_tile(n) * BN + warp * kRows + static_cast<int>(own() / 4),
              keys_there = there && work.count ? work.tile.keys : 0,
              begin = static_cast<int>(work.tile.rows.seq.key_begin);
    Keys keys;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      keys.page[i] = 0, keys.token[i] = key + i * 8 < keys_there ? begin + key + i * 8 : -1;
    if (!given.page) return keys;
    const int32_t* entry = given.page_table.template as<int32_t>() +
                           work.tile.rows.seq.key_batch * given.page_table.stride[0];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t page = static_cast<uint32_t>(given.page),
                     place = static_cast<uint32_t>(keys.token[i]) / page;
      asm volatile(
          "{.reg .pred p; setp.ge.s32 p, %1, 0; mov.b32 %0, -1; @p "
          "ld.global.b32 %0, [%2];}"
          : "=r"(keys.page[i])
          : "r"(keys.token[i]), "l"(entry + place * given.page_table.stride[1]));
      const bool gone = static_cast<uint32_t>(keys.page[i]) >= static_cast<uint32_t>(given.pool);
      keys.token[i] = gone ? -1 : keys.token[i] - static_cast<int>(place * page);
    }
    return keys;
  }
  // Key i of x, whose head begins where `at` says.  Strides fit in an int.
  template <class T>
  __device__ __forceinline__ const T* row_of(const Keys& keys, int i, const View<4>& x,
                                             int at) const {
    const T* head;
    asm volatile("ld.shared.b64 %0, [%1];" : "=l"(head) : "r"(shared.heads(warp) + at));
    return head + int64_t{keys.page[i]} * static_cast<int>(x.stride[0]) +
           int64_t{keys.token[i]} * static_cast<int>(x.stride[1]);
  }
  __device__ __forceinline__ Rows rows_of(const Keys& keys) const {
    Rows rows;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool there = keys.token[i] >= 0;
      rows.code[i] = there ? row_of<uint8_t>(keys, i, a.v, 0) : nullptr;
      rows.tail[i] = rows.code[i] + kValues;
      if (joined()) rows.tail[i] = row_of<uint16_t>(keys, i, a.k, 8);
      rows.scale[i] = row_of<float>(keys, i, a.v_scale, 16);
    }
    return rows;
  }
  __device__ __forceinline__ void prefetch(const Rows& rows) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!rows.code[i]) continue;
      sm90::prefetch_line(rows.code[i] + own() % 4 * 128);
      sm90::prefetch_line(a.v_scale && own() % 2 ? rows.scale[i] : rows.tail[i]);
    }
  }

  // Whether a unit's place is empty, and of the first the tail's.
  __device__ __forceinline__ bool is_empty(int unit, uint32_t number) const {
    bool there =
        sm90::barrier_test(shared.key_empty(number, unit), shared.empty_phase(number, unit));
    if (unit == 0)
      there = there && sm90::barrier_test(shared.key_empty(number, kTail),
                                          shared.empty_phase(number, kTail));
    return __all_sync(~0u, there);
  }
  __device__ __forceinline__ void acquire(int unit, uint32_t number) const {
    sm90::barrier_wait(shared.key_empty(number, unit), shared.empty_phase(number, unit));
    if (unit == 0)
      sm90::barrier_wait(shared.key_empty(number, kTail), shared.empty_phase(number, kTail));
  }
  // Codes of a unit; with the first the tail, and which keys have no page.
  __device__ __forceinline__ void copy(int unit, const Rows& rows, uint32_t number) const {
    const uint32_t lane = own(), own_row = (warp * kRows + lane / 4) * kPanelRowBytes,
                   to = shared.keys(number, unit) + own_row, column = lane % 4 * 16;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool there = rows.code[i];
      const uint8_t* from =
          there ? rows.code[i] + unit * kColumns + column : a.v.template as<uint8_t>();
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel)
        copy_async(to + panel * Panel::bytes + i * 8 * kPanelRowBytes + column,
                   from + panel * 64 * there, there);
      if (a.v_scale) {
        const int scale = (unit * kColumns + static_cast<int>(lane % 4) * 64) >> maps.scale_shift;
        copy_scale(to + lane % 4 * Panel::bytes + i * 8 * kPanelRowBytes + 64,
                   there ? rows.scale[i] + scale * a.v_scale.stride[3] : a.v_scale.as(), there);
      }
    }
    if (unit == 0) {
      copy_tail(rows, shared.keys(number, kTail) + own_row);
      if (a.sequences.page) note_absent(rows, number);
    }
    copy_commit();
  }
  __device__ __forceinline__ void copy_tail(const Rows& rows, uint32_t to) const {
    const uint32_t lane = own(), row = lane / 4 % 8;
#pragma unroll
    for (int i = 0; i < 2; ++i, to += 8 * kPanelRowBytes) {
      const bool there = rows.code[i];
      if (joined()) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t chunk = half * 4 + lane % 4;
          const bool valid = there && chunk * kChunk < a.d;
          copy_async(to + (chunk ^ row) * 16,
                     valid ? static_cast<const uint16_t*>(rows.tail[i]) + chunk * kChunk
                           : a.k.template as<uint16_t>(),
                     valid);
        }
      } else {
        const bool valid = there && kValues + lane % 4 * 16 < a.d;
        copy_async(to + lane % 4 * 16,
                   valid ? static_cast<const uint8_t*>(rows.tail[i]) + lane % 4 * 16
                         : a.v.template as<uint8_t>(),
                   valid);
        if (a.v_scale && lane % 4 == 0)
          copy_scale(to + 64, there ? rows.scale[i] : a.v_scale.as(), there);
      }
    }
  }
  // Of keys past the last nobody asks.
  __device__ __forceinline__ void note_absent(const Rows& rows, uint32_t number) const {
    uint32_t bits = 0;
    const bool gone[2] = {!rows.code[0], !rows.code[1]};
    if (__any_sync(~0u, gone[0] || gone[1]))
#pragma unroll 1
      for (int key = 0; key < 8; ++key)
        bits |= static_cast<uint32_t>(__shfl_sync(~0u, gone[0], key * 4)) << key |
                static_cast<uint32_t>(__shfl_sync(~0u, gone[1], key * 4)) << (key + 8);
    if (lane == 0)
      reinterpret_cast<uint16_t*>(shared.absent(number))[warp] = static_cast<uint16_t>(bits);
  }
  __device__ __forceinline__ static void copy_scale(uint32_t to, const float* from, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
                 "r"(valid ? 4 : 0)
                 : "memory");
  }
  // Codes of the warp's rows of a panel, in place.
  __device__ __forceinline__ void convert(uint32_t panel) const {
    const uint32_t lane = own(), row = lane / 4 % 8,
                   at = panel + (warp * kRows + row) * kPanelRowBytes;
    uint4 code[2];
    float scale[2] = {1, 1};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(code[i].x), "=r"(code[i].y), "=r"(code[i].z), "=r"(code[i].w)
                   : "r"(at + i * 8 * kPanelRowBytes + lane % 4 * 16)
                   : "memory");
      if (a.v_scale)
        asm volatile("ld.shared.f32 %0, [%1];"
                     : "=f"(scale[i])
                     : "r"(at + i * 8 * kPanelRowBytes + 64)
                     : "memory");
    }
    __syncwarp();
    const uint32_t to = at + (lane % 4 * 2 ^ row) * 16;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      store(to + i * 8 * kPanelRowBytes, code[i].x, code[i].y, scale[i]);
      store((to ^ 16) + i * 8 * kPanelRowBytes, code[i].z, code[i].w, scale[i]);
    }
  }
  // A unit that has come, and with the second the tail.
  __device__ __forceinline__ void convert_unit(int unit, uint32_t number) const {
    __syncwarp();  // other lanes' copies have landed
#pragma unroll 2
    for (int panel = 0; panel < kPanels; ++panel)
      convert(shared.keys(number, unit) + panel * Panel::bytes);
    if (unit == 1 && !joined()) convert(shared.keys(number, kTail));
    sm90::fence_shared();
    __syncwarp();
    if (lane != 0) return;
    sm90::barrier_arrive(shared.key_full(number, unit));
    if (unit == 1) sm90::barrier_arrive(shared.key_full(number, kTail));
  }
  // Eight codes as a chunk.
  __device__ __forceinline__ static void store(uint32_t to, uint32_t first, uint32_t second,
                                               float scale) {
    uint32_t x[4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const CodePairs pairs = E4m3Codes(0).near(half ? second : first);
      x[2 * half] = scaled(pairs.low, scale), x[2 * half + 1] = scaled(pairs.high, scale);
    }
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x[0]), "r"(x[1]),
                 "r"(x[2]), "r"(x[3])
                 : "memory");
  }
  __device__ __forceinline__ static uint32_t scaled(uint32_t pair, float scale) {
    const float2 x = pair_of<FOVEA_F16>(pair);
    return pack<Shape::Dtype>(x.x * scale, x.y * scale);
  }
};

}  // namespace fovea::cuda
