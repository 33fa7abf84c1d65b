// SPDX-License-Identifier: Apache-2.0
// The table for AMX-BF16 beside AVX-512 F, BW, DQ, VL and BF16.  Nothing compiled here may be
// linked into code that runs on other CPUs: no header with ordinary inline functions.
#include "host/tiles.h"

#if defined(FOVEA_AMX)
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // in GCC 12's own header
#endif
#include <immintrin.h>

namespace fovea::host {
namespace {

constexpr int64_t kTerms = kTileTerms, kColumns = kTileColumns;
constexpr int64_t kTile = kTerms * kColumns;  // numbers of an operand tile
constexpr int64_t kLine = 64;                 // bytes of a row of a tile, and of a cache line

// The compilers' own functions do not say that they read memory.
template <int To>
inline void load(const void* from, int64_t row) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(row), "i"(To) : "memory");
}
template <int From>
inline void store(void* to, int64_t row) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(row), "i"(From) : "memory");
}
template <int To>
inline void clear() {
  __asm__ volatile("tilezero %%tmm%c0" ::"i"(To));
}
template <int Sum, int Left, int Right>
inline void multiply() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sum), "i"(Left), "i"(Right));
}

// Every tile is 16 rows of 64 bytes.  Registers 0 .. 3 hold sums, 4 and 5 left operands, 6 and 7
// right ones.
class Configured {
 public:
  Configured() {
    Config config;
    for (int i = 0; i < 8; ++i) config.bytes[i] = kLine, config.rows[i] = kColumns;
    __asm__ volatile("ldtilecfg %0" ::"m"(config));
  }
  ~Configured() { __asm__ volatile("tilerelease" ::); }
  Configured(const Configured&) = delete;
  Configured& operator=(const Configured&) = delete;

 private:
  struct alignas(64) Config {
    unsigned char palette = 1, start = 0, reserved[14] = {};
    unsigned short bytes[16] = {};
    unsigned char rows[16] = {};
  };
};

// 16 x 16 words of 4 bytes, in place.
inline void transpose(__m512i (&x)[16]) {
  __m512i y[16];
  for (int i = 0; i < 16; i += 2) {
    y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 2; ++j) {
      x[i + 2 * j] = _mm512_unpacklo_epi64(y[i + j], y[i + j + 2]);
      x[i + 2 * j + 1] = _mm512_unpackhi_epi64(y[i + j], y[i + j + 2]);
    }
  for (int i = 0; i < 4; ++i)
    for (int half = 0; half < 2; ++half) {
      y[8 * half + i] = _mm512_shuffle_i32x4(x[8 * half + i], x[8 * half + 4 + i], 0x88);
      y[8 * half + 4 + i] = _mm512_shuffle_i32x4(x[8 * half + i], x[8 * half + 4 + i], 0xdd);
    }
  for (int i = 0; i < 8; ++i) {
    x[i] = _mm512_shuffle_i32x4(y[i], y[i + 8], 0x88);
    x[i + 8] = _mm512_shuffle_i32x4(y[i], y[i + 8], 0xdd);
  }
}

void pack_queries(int64_t lanes, int64_t d, Bf16Rows q, uint16_t* to) {
  for (int64_t i = 0; i < lanes; i += kColumns)
    for (int64_t c = 0; c < d; c += kTerms, to += kTile) {
      __m512i x[16];
      for (int r = 0; r < 16; ++r) x[r] = _mm512_loadu_si512(q.x + (i + r) * q.row + c);
      transpose(x);
      for (int r = 0; r < 16; ++r) _mm512_storeu_si512(to + r * kTerms, x[r]);
    }
}

// Sums of Keys x Lanes tiles, at most four, from key j and lane i on.  Products that wait for no
// other hide the 52 cycles of one.
template <int Keys, int Lanes>
inline void score_block(const TileScores& a, int64_t j, int64_t i) {
  const int64_t row = a.k.row * 2, tile_rows = a.k.row * kColumns, head = a.d * kColumns;
  const uint16_t *k = a.k.x + j * a.k.row, *q = a.q + i * a.d;
  clear<0>(), clear<1>(), clear<2>(), clear<3>();
  for (int64_t c = 0; c < a.d; c += kTerms, k += kTerms, q += kTile) {
    load<6>(q, kLine);
    load<4>(k, row);
    multiply<0, 4, 6>();
    if (Lanes > 1) load<7>(q + head, kLine), multiply<1, 4, 7>();
    if (Keys > 1) load<5>(k + tile_rows, row), multiply<Lanes, 5, 6>();
    if (Keys > 1 && Lanes > 1) multiply<3, 5, 7>();
    if (Keys > 2) load<4>(k + 2 * tile_rows, row), multiply<2, 4, 6>();
    if (Keys > 2) load<5>(k + 3 * tile_rows, row), multiply<3, 5, 6>();
  }
  float* x = a.x + j * a.lanes + i;
  const int64_t x_row = a.lanes * 4, x_rows = a.lanes * kColumns;
  store<0>(x, x_row);
  if (Lanes > 1) store<1>(x + kColumns, x_row);
  if (Keys > 1) store<Lanes>(x + x_rows, x_row);
  if (Keys > 1 && Lanes > 1) store<3>(x + x_rows + kColumns, x_row);
  if (Keys > 2) store<2>(x + 2 * x_rows, x_row), store<3>(x + 3 * x_rows, x_row);
}

void scores(const TileScores& a) {
  const Configured scope;
  for (int64_t j = 0; j < a.keys;) {
    const int64_t left = (a.keys - j) / kColumns;
    if (a.lanes == kColumns && left >= 4) {
      score_block<4, 1>(a, j, 0);
      j += 4 * kColumns;
      continue;
    }
    for (int64_t i = 0; i < a.lanes; i += 2 * kColumns) {
      const bool two = i + kColumns < a.lanes;
      if (left > 1)
        two ? score_block<2, 2>(a, j, i) : score_block<2, 1>(a, j, i);
      else
        two ? score_block<1, 2>(a, j, i) : score_block<1, 1>(a, j, i);
    }
    j += 2 * kColumns;
  }
  const __m512 scale = _mm512_set1_ps(a.scale);
  for (int64_t at = 0; at < a.keys * a.lanes; at += 16)
    _mm512_storeu_ps(a.x + at, _mm512_mul_ps(_mm512_loadu_ps(a.x + at), scale));
}

// Right operands of 32 columns of v: two times `keys` / 32 tiles.
inline void pair_values(int64_t keys, const uint16_t* v, int64_t row, uint16_t* to) {
  const __m512i first = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0);
  const __m512i last = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
  for (int64_t j = 0; j < keys; j += 2, v += 2 * row, to += kTerms) {
    const __m512i a = _mm512_loadu_si512(v), b = _mm512_loadu_si512(v + row);
    const __m512i low = _mm512_unpacklo_epi16(a, b), high = _mm512_unpackhi_epi16(a, b);
    _mm512_storeu_si512(to, _mm512_permutex2var_epi64(low, first, high));
    _mm512_storeu_si512(to + keys * kColumns, _mm512_permutex2var_epi64(low, last, high));
  }
}

// Left operands of x': tiles of 16 lanes by 32 keys, 0 from `keys` on.
void pack_weights(int64_t keys, int64_t lanes, const float* x, uint16_t* to) {
  const int64_t all = (keys + kTerms - 1) / kTerms * kTerms;
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  for (int64_t i = 0; i < lanes; i += kColumns)
    for (int64_t j = 0; j < all; j += kTerms, to += kTile) {
      __m512i p[16];
      for (int64_t r = 0; r < 16; ++r) {
        const int64_t at = j + 2 * r;
        const __m512 a = at < keys ? _mm512_loadu_ps(x + at * lanes + i) : _mm512_setzero_ps();
        const __m512 b =
            at + 1 < keys ? _mm512_loadu_ps(x + (at + 1) * lanes + i) : _mm512_setzero_ps();
        p[r] =
            _mm512_permutexvar_epi16(order, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a)));
      }
      transpose(p);
      for (int r = 0; r < 16; ++r) _mm512_storeu_si512(to + r * kTerms, p[r]);
    }
}

// The sums of 16 lanes and 16 columns are a tile in memory; lanes that keep theirs are left alone.
void shrink_sums(const TileValues& a) {
  for (int64_t i = 0; i < a.lanes; i += kColumns) {
    bool kept = true;
    for (int64_t r = 0; r < kColumns; ++r) kept &= a.shrink[i + r] == 1;
    if (kept) continue;
    for (int64_t c = 0; c < a.e; c += kColumns) {
      float* o = a.o + c * a.lanes + i * kColumns;
      for (int64_t r = 0; r < kColumns; ++r, o += kColumns)
        _mm512_storeu_ps(o, _mm512_mul_ps(_mm512_loadu_ps(o), _mm512_set1_ps(a.shrink[i + r])));
    }
  }
}

void values(const TileValues& a) {
  const int64_t all = (a.keys + kTerms - 1) / kTerms * kTerms, steps = all / kTerms;
  const int64_t lanes = a.lanes / kColumns, next = a.lanes * kColumns;
  pack_weights(a.keys, a.lanes, a.x, a.p);
  shrink_sums(a);
  const Configured scope;
  // The next columns are paired before these are multiplied: stores take a while to be loaded.
  uint16_t *v = a.pairs, *after = v + all * kTerms;
  pair_values(all, a.v.x, a.v.row, v);
  for (int64_t c = 0; c < a.e; c += kTerms) {
    if (c + kTerms < a.e) pair_values(all, a.v.x + c + kTerms, a.v.row, after);
    const uint16_t* v2 = v + steps * kTile;
    for (int64_t i = 0; i < lanes; i += 2) {
      const bool more = i + 1 < lanes;
      const uint16_t *p = a.p + i * steps * kTile, *p2 = p + steps * kTile;
      float *o = a.o + c * a.lanes + i * kColumns * kColumns, *o2 = o + kColumns * kColumns;
      load<0>(o, kLine), load<1>(o + next, kLine);
      if (more) load<2>(o2, kLine), load<3>(o2 + next, kLine);
      for (int64_t s = 0; s < steps; ++s) {
        load<4>(p + s * kTile, kLine);
        load<6>(v + s * kTile, kLine);
        multiply<0, 4, 6>();
        load<7>(v2 + s * kTile, kLine);
        multiply<1, 4, 7>();
        if (more) {
          load<5>(p2 + s * kTile, kLine);
          multiply<2, 5, 6>();
          multiply<3, 5, 7>();
        }
      }
      store<0>(o, kLine), store<1>(o + next, kLine);
      if (more) store<2>(o2, kLine), store<3>(o2 + next, kLine);
    }
    uint16_t* const done = v;
    v = after, after = done;
  }
}

bool finite(int64_t rows, int64_t columns, Bf16Rows x) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  for (int64_t j = 0; j < rows; ++j) {
    const uint16_t* row = x.x + j * x.row;
    __mmask32 odd = 0;
    for (int64_t c = 0; c < columns; c += 32) {
      const __mmask32 there =
          columns - c < 32 ? (__mmask32{1} << (columns - c)) - 1 : ~__mmask32{0};
      const __m512i bits = _mm512_and_si512(_mm512_maskz_loadu_epi16(there, row + c), exponent);
      odd |= _mm512_cmpeq_epi16_mask(bits, exponent);
    }
    if (odd) return false;
  }
  return true;
}

}  // namespace

extern const Tiles tiles_amx;
const Tiles tiles_amx = {"amx", pack_queries, scores, values, finite};

}  // namespace fovea::host

#endif
