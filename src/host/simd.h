// SPDX-License-Identifier: Apache-2.0
// The vector primitives, one table for each instruction set; simd() is the best one this CPU runs.
// simd.inc is compiled once per table, so this header must stay free of inline functions.
#pragma once
#include <stdint.h>

namespace fovea::host {

// c[m][n] = (accumulate ? row_scale[m] * c[m][n] : 0) + sum_k a(m, k) b[k][n].  n: a multiple of
// Simd::width.  a(m, k) is a[m * a_row + k], transposed: a[k * a_row + m].  Sums run k = 0, 1, ...
struct Gemm {
  int64_t m, n, k;
  const float* a;
  int64_t a_row;
  const float* b;
  int64_t b_row;
  float* c;
  int64_t c_row;
  const float* row_scale;  // nullptr: 1
  bool transposed, accumulate;
};

// Row i of a tile sees its keys [low[i], high[i]) and [first_low[i], first_high[i]).
struct Seen {
  const int32_t *low, *high, *first_low, *first_high;  // low nullptr: every row sees every key
};

// Of two softmaxes p, r over the same keys, so far: their maxima and sums, and
// cross = sum_j e^(x_j - top_x) ((x_j - top_x) - (y_j - top_y)).
struct DualSoftmax {
  float *top_x, *top_y, *sum_x, *sum_y, *cross;
};

// Of two softmaxes and their mixture, for each lane; share is x's.
struct Mixture {
  const float *lse_x, *lse_y;
  float *kl_x, *kl_y;
  float share;
};

// y[j][i] = sum_uv w[u columns + v] x[j + v][i + u] for j < keys, i < lanes, u < rows <= 16,
// v < columns <= 31, summed in that order.  lanes: a multiple of Simd::width; x has as many lanes
// and rows - 1 more behind its last row.
struct Convolve {
  int64_t keys, lanes;
  const float* x;
  int64_t x_row;
  const float* w;
  int64_t rows, columns;
  float* y;
  int64_t y_row;
};

// sum[u columns + v] += sum_ij y[j][i] x[j + v][i + u], any number of lanes; what lies past them in
// whole vectors is loaded, but does not count.
struct Correlate {
  int64_t keys, lanes;
  const float* x;
  int64_t x_row;
  const float* y;
  int64_t y_row;
  int64_t rows, columns;
  double* sum;
  float* room;  // of rows * columns vectors
};

// to[t][s] = sum_c x[t][c] key[s][c] prod_r decay[r][c] over s < r <= t, for s <= t < 16; `before`:
// over s < r < t, for s < t, and 0 where s is t.  d: a multiple of Simd::width.
struct DecayedDots {
  int64_t d;
  const float *x, *key, *decay;
  int64_t row;  // of these three
  float* to;
  int64_t to_row;
  bool before;
};

// One token of a recurrence on a state of `rows` (d) by `columns`, H_c a row of it.  from nullptr:
// a state of zeros, to nullptr: the state after the token is not kept; to may be from.
//   H~_c = decay_c column H_c, where that factor is 0: 0
//   low:  H_c becomes H~_c + key_c value + low_c sum_c p_c H_c
//   p:    H_c becomes H~_c + key_c (beta value - sum_c p_c H~_c)
//   else: H_c becomes H~_c + key_c value
// y[i] = sum_c query[i][c] H_c of the state after the token, or with read_before of the one before.
// key nullptr: y alone, of `from`.
struct TokenStep {
  int64_t rows, columns;
  const float* from;
  int64_t from_row;
  float* to;
  int64_t to_row;
  const float *decay, *column;  // column nullptr: 1
  const float *key, *value, *p, *low;
  float beta;
  bool read_before;
  int64_t outputs;
  const float* query;  // (outputs, rows)
  float* y;            // (outputs, columns)
};

// The adjoint of DecayedDots, w_ts the product of the decays of a pair, all rows of `row`:
//   dx[t] += sum_s grad[t][s] w_ts key[s],  dkey[s] += sum_t grad[t][s] w_ts x[t]
//   dlog[r] += sum of grad[t][s] w_ts x[t] key[s] over the pairs that have decay r
struct DecayedGrads {
  DecayedDots of;  // to: grad, only read
  float *dx, *dkey, *dlog;
};

// to[r][n] = scale_r code_rn + zero_r for n < count.  Codes of 2 or 4 bits fill a row's words, the
// first in the lowest bits; scale and zero are f16.
struct Unpack {
  int64_t rows, count;
  const uint32_t* words;
  int64_t word_row;
  int32_t bits;
  const uint16_t *scale, *zero;
  int64_t scale_row, zero_row;
  float* to;
  int64_t to_row;
};

// x[j][i] = x[j][i] key[j] lane[i] + factor add[j add_step] + shift[i], each of them if it is
// given; key goes with lane.  lanes: a multiple of Simd::width.
struct ScaleScores {
  int64_t keys, lanes;
  float* x;
  const float *key, *lane;
  float factor;
  const float* add;
  int64_t add_step;
  const float* shift;
};

// Weights x[j][i] >= 0 to the nearest numbers of a format.  Those of e4m3 are times `lift`, 448 at
// most.  Others have a scale for `run` keys of a lane: the weights are its multiples, or with
// `scale` (runs, lanes) codes, and the scales are there.
struct RoundWeights {
  enum Format : int32_t { e4m3_256, e4m3_448, half, i8, e2m1_two, e2m1_one };  // as fovea_p_format
  int32_t format;
  int64_t keys, lanes;
  float* x;
  float lift;
  int64_t run;
  float* scale;  // or nullptr
};

// Score tiles are x[key][row], `lanes` rows in lanes: a multiple of Simd::width.
struct Simd {
  const char* name;
  int width;  // floats in a vector

  void (*gemm)(const Gemm& x);

  // A gemm of untransposed a that accumulates nothing, each sum a chain of fused multiply-adds: the
  // same bits from every table.
  void (*chains)(const Gemm& x);

  // x[j][i] = <k_j, q_i> for rows <= 4; q is [rows][q_row].
  void (*dots)(int64_t keys, int64_t rows, int64_t d, const float* k, int64_t k_row, const float* q,
               int64_t q_row, float* x, int64_t lanes);

  // One step of the online softmax: x becomes 2^(log2(e) x - top), and top, sum move on; shrink is
  // what earlier sums are to be multiplied with.  top is in units of log2.
  void (*softmax)(int64_t keys, int64_t lanes, float* x, float* top, float* sum, float* shrink);

  // x becomes p = 2^(log2(e) x - lse2), dp becomes p (dp - delta), 0 where p is.
  void (*softmax_backward)(int64_t keys, int64_t lanes, float* x, float* dp, const float* lse2,
                           const float* delta);

  // One step of the two online softmaxes of x and y and their cross term.  A logit that is no
  // number makes NaN of its sum.  x and y are overwritten.
  void (*dual_softmax)(int64_t keys, int64_t lanes, float* x, float* y, const Seen& seen,
                       const DualSoftmax& state);

  // p = e^(x - lse_x), r = e^(y - lse_y): x becomes grad p ((x - lse_x) - (y - lse_y) - kl), y
  // becomes grad (r - p), both 0 where a row does not see a key.
  void (*dual_backward)(int64_t keys, int64_t lanes, float* x, float* y, const Seen& seen,
                        const float* lse_x, const float* lse_y, const float* kl, const float* grad);

  // With p = e^(x - lse_x), r = e^(y - lse_y), m = share p + (1 - share) r: kl_x += p ln(p / m),
  // kl_y += r ln(r / m) over the keys a row sees.
  void (*mixture)(int64_t keys, int64_t lanes, const float* x, const float* y, const Seen& seen,
                  const Mixture& of);

  // x becomes grad share p (ln(p / m) - kl_x), y grad (1 - share) r (ln(r / m) - kl_y), both 0
  // where a row does not see a key.
  void (*mixture_backward)(int64_t keys, int64_t lanes, float* x, float* y, const Seen& seen,
                           const Mixture& of, const float* grad);

  // The maxima and sums of an online softmax.  A logit that is no number makes NaN of its sum.
  void (*softmax_sums)(int64_t keys, int64_t lanes, const float* x, const Seen& seen, float* top,
                       float* sum);

  // p += share e^(x - lse) where a row sees a key.
  void (*add_softmax)(int64_t keys, int64_t lanes, const float* x, const Seen& seen,
                      const float* lse, float share, float* p);

  // kl += p (ln p - (y - lse)), 0 where p is.
  void (*divergence)(int64_t keys, int64_t lanes, const float* p, const float* y, const float* lse,
                     float* kl);

  // y becomes grad (e^(y - lse) - p), 0 where a row does not see a key.
  void (*divergence_backward)(int64_t keys, int64_t lanes, const float* p, float* y,
                              const Seen& seen, const float* lse, const float* grad);

  // y += w max(z, 0), w of each lane.
  void (*add_relu)(int64_t keys, int64_t lanes, const float* z, const float* w, float* y);

  // dw += dy max(z, 0), and z becomes w dy, 0 where z <= 0 or dy is 0; a dy that is
  // no number stays.
  void (*relu_backward)(int64_t keys, int64_t lanes, const float* dy, float* z, const float* w,
                        float* dw);

  // x = cap tanh(x / cap); slope, if given, = 1 - tanh^2.
  void (*softcap)(int64_t count, float* x, float cap, float* slope);

  // x = -inf but where low[i] <= j < high[i] or first_low[i] <= j < first_high[i].
  void (*mask)(int64_t keys, int64_t lanes, float* x, const int32_t* low, const int32_t* high,
               const int32_t* first_low, const int32_t* first_high);

  // The largest of x, a NaN counting as -inf.  count: a multiple of Simd::width.
  float (*largest)(int64_t count, const float* x);

  // Contiguous f16, bf16 (fovea_dtype) to float.
  void (*widen)(int64_t count, const void* from, int32_t dtype, float* to);

  // Any NaN or infinity among rows of `columns` floats?
  bool (*finite)(int64_t rows, int64_t columns, const float* x, int64_t x_row);

  // y = factor x, and <x, y>.
  void (*scale)(int64_t count, const float* x, float factor, float* y);
  float (*dot)(int64_t count, const float* x, const float* y);

  void (*convolve)(const Convolve& c);
  void (*correlate)(const Correlate& c);

  // x = e^x within 1 ulp, 1 / (1 + e^-x) and ln(1 + e^x) within 3; 0 below 2^-125.
  void (*exponential)(int64_t count, float* x);
  void (*logistic)(int64_t count, float* x);
  void (*softplus)(int64_t count, float* x);

  void (*decayed_dots)(const DecayedDots& a);

  // The same bits of a column, however many others there are.
  void (*token_step)(const TokenStep& a);

  void (*decayed_grads)(const DecayedGrads& a);

  // y[c][r] = x[r][c].
  void (*transpose)(int64_t rows, int64_t columns, const float* x, int64_t x_row, float* y,
                    int64_t y_row);

  void (*unpack)(const Unpack& x);

  // factor times codes that lie side by side; kind: e4m3 0, i8 1, or two a byte: i4 2, e2m1 3.
  void (*decode)(int64_t count, const void* codes, int32_t kind, float factor, float* to);
  // Codes of x factor, a byte each, to the nearest, ties to the even one, the largest where it is
  // beyond; 0 where factor is.  step: of factor, 0 or 1.
  void (*encode)(int64_t count, const float* x, int32_t kind, const float* factor, int64_t step,
                 uint8_t* to);
  // The largest |x|, or a NaN if there is one.
  float (*magnitude)(int64_t count, const float* x);
  // bf16 of numbers that have eight digits at most.
  void (*upper_halves)(int64_t count, const float* x, uint16_t* to);
  void (*scale_scores)(const ScaleScores& a);
  void (*round_weights)(const RoundWeights& a);
  // o[r][c] = keep[r] o[r][c] + by[r] x[r][c]; nullptr: 1.  count: a multiple of Simd::width.
  void (*add_scaled)(int64_t rows, int64_t count, int64_t row, const float* x, const float* by,
                     const float* keep, float* o);
  // To f16 and back.  count: a multiple of Simd::width.
  void (*round_half)(int64_t count, float* x);
};

extern const Simd simd_base;
#if defined(__x86_64__)
extern const Simd simd_avx2, simd_avx512;
#endif

const Simd& simd();

}  // namespace fovea::host
