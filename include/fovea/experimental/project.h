/* SPDX-License-Identifier: Apache-2.0 */
/** Projections of heads: learned or calibrated maps of each head by itself.  One product, or up to
 *  three layers; the results are vectors, signs or codes.
 *
 *  Experimental: names, fields and layout may change with any release, and the ABI promise does not
 *  cover them.
 *
 *  Sums are in f32 and in a fixed order: the same bits every run.
 *
 *  Extents of its own:
 *    maps = 2: weights, each for as many products as another
 *    inner = 2: columns behind weight
 *    inner2 = 3: columns behind weight2
 *    inner3 = 2: columns behind weight3 */
#ifndef FOVEA_EXPERIMENTAL_PROJECT_H
#define FOVEA_EXPERIMENTAL_PROJECT_H

#include "../core.h"

#ifdef __cplusplus
extern "C" {
#endif

/** What stands between two layers. */
typedef enum fovea_x_project_act {
  FOVEA_X_PROJECT_ACT_NONE = 0, /**< x */
  FOVEA_X_PROJECT_ACT_SILU = 1, /**< x / (1 + exp(-x)) */
  FOVEA_X_PROJECT_ACT_GELU = 2  /**< x (1 + erf(x / sqrt(2))) / 2 */
} fovea_x_project_act;

/** A row of each head through the layers that are given:
 *
 *    y = act(act(x weight + bias) weight2 + bias2) weight3 + bias3
 *  Then RMSNorm with norm_weight over its f columns, then RoPE with cos and sin.
 *
 *  Of p = max(g, h) products, the smaller of g and h divides p, and so does maps.  Product i reads
 *  head i / (p / g) of x and weight i / (p / maps).  With g <= h it is head i of y.  With g > h
 *  head j of y is the sum of the g / h products of its group, in their order, each with its bias.
 *  Any axis of an input may have stride 0, and views serve weights that are stored otherwise.
 *
 *    MLA, absorb  x = q_nope (b, s, h, d_n), weight = W_UK (h, d_n, rank), y = part of the query
 *    MLA, out     x = o over the latent (b, s, h, rank), weight = W_UV (h, rank, d_v)
 *    MLA, expand  x = latent (b, s, 1, rank), weight = W_UK as (h, rank, d_n), or W_UV
 *    MFA, up      x = (b, s, 1, rank), weight = (h, rank, d), then RoPE
 *    group query  x = q (b, s, g, d), weight = (g, d, f), y with fewer heads
 *    windows      x = a view of (b, windows, g, l d) whose rows overlap
 *    hashes       x = q or k, weight = (h, d, inner) and two more layers, code
 *
 *  An encoding that is added to x, as NSA's, is a bias: encoding weight.
 *
 *  code packs a row of y as it is before it is rounded.  Column c is positive, or not; NaN is not.
 *    bits = 0  bit c % 32 of word c / 32, and 0 past the last column; words = ceil(f / 32)
 *    bits > 0  word l is the sum of 2^t over the positive columns l bits + t; f = bits words
 *
 *  Limits: none on widths.  CUDA has one layer of f16 or bf16 whose widths are multiples of 8 on
 *  tensor cores, every other call in f32 FMA.  Hopper's take it by TMA without a bias, also with a
 *  weight that is a transposed view.  Hidden layers are in the workspace, a part of the rows at a
 *  time: 32 MiB, or one row.
 *  Sources: DeepSeek-V2 (2405.04434), MFA (2412.19255), Loki (2406.02542), SeerAttention
 *  (2410.13276), NSA (2502.11089), MagicPIG (2410.16179), HashAttention (2412.14468). */
typedef struct fovea_x_project_forward_params {
  size_t struct_size;       /**< sizeof(fovea_x_project_forward_params) */
  fovea_tensor x;           /**< [in] (b, s, g, d) f32 f16 bf16 */
  fovea_tensor weight;      /**< [in] (maps, d, inner) as x */
  fovea_tensor bias;        /**< [in, optional] (maps, inner) as x or f32 */
  fovea_tensor weight2;     /**< [in, optional] (maps, inner, inner2) as x */
  fovea_tensor bias2;       /**< [in, optional] (maps, inner2) as x or f32: needs weight2 */
  fovea_tensor weight3;     /**< [in, optional] (maps, inner2, inner3) as x: needs weight2 */
  fovea_tensor bias3;       /**< [in, optional] (maps, inner3) as x or f32: needs weight3 */
  fovea_tensor norm_weight; /**< [in, optional] (f) as x or f32: y becomes y norm_weight /
                                 sqrt(mean(y^2) + norm_eps) */
  fovea_tensor position;    /**< [in, optional] (b, s) i32: row of cos and sin; outside them the
                                 rotated columns are NaN; absent: index on the s axis */
  fovea_tensor cos;         /**< [in, optional] (positions, half) f32: needs sin; columns turn as in
                                 rope_forward */
  fovea_tensor sin;         /**< [in, optional] (positions, half) f32 */
  fovea_tensor y;           /**< [out, optional] (b, s, h, f) as x or f32: f is the last layer's
                                 columns */
  fovea_tensor code;        /**< [out, optional] (b, s, h, words) i32: see above */
  float norm_eps;           /**< > 0; 0: 1e-6; needs norm_weight */
  int32_t act;              /**< fovea_x_project_act */
  int32_t bits;             /**< columns of a code, 1 .. 31; 0: signs */
  int32_t rope_begin;       /**< first rotated column; 2 * half columns turn */
  int32_t rope_interleaved; /**< 1: pairs (2i, 2i + 1); 0: pairs (i, i + half) */
  int32_t reserved;         /**< 0 */
} fovea_x_project_forward_params;

FOVEA_API fovea_status fovea_x_project_forward_workspace(
    fovea_context* ctx, const fovea_x_project_forward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_x_project_forward(fovea_context* ctx,
                                               const fovea_x_project_forward_params* params);

/** Gradients of x_project_forward's y.  Heads that share x or a weight add up in their order.
 *  Hidden layers are computed anew.  Long sums over rows have parts, cut by shapes alone.
 *
 *  Limits: as of x_project_forward; the parts of sums are up to 16 MiB of the workspace. */
typedef struct fovea_x_project_backward_params {
  size_t struct_size;        /**< sizeof(fovea_x_project_backward_params) */
  fovea_tensor x;            /**< [in] (b, s, g, d) f32 f16 bf16 */
  fovea_tensor weight;       /**< [in] (maps, d, inner) as x */
  fovea_tensor bias;         /**< [in, optional] (maps, inner) as x or f32 */
  fovea_tensor weight2;      /**< [in, optional] (maps, inner, inner2) as x */
  fovea_tensor bias2;        /**< [in, optional] (maps, inner2) as x or f32: needs weight2 */
  fovea_tensor weight3;      /**< [in, optional] (maps, inner2, inner3) as x: needs weight2 */
  fovea_tensor bias3;        /**< [in, optional] (maps, inner3) as x or f32: needs weight3 */
  fovea_tensor norm_weight;  /**< [in, optional] (f) as x or f32 */
  fovea_tensor position;     /**< [in, optional] (b, s) i32: row of cos and sin */
  fovea_tensor cos;          /**< [in, optional] (positions, half) f32: needs sin */
  fovea_tensor sin;          /**< [in, optional] (positions, half) f32 */
  fovea_tensor dy;           /**< [in] (b, s, h, f) as x or f32 */
  fovea_tensor dx;           /**< [out, optional] (b, s, g, d) as x */
  fovea_tensor dweight;      /**< [out, optional] (maps, d, inner) f32 */
  fovea_tensor dbias;        /**< [out, optional] (maps, inner) f32: needs bias */
  fovea_tensor dweight2;     /**< [out, optional] (maps, inner, inner2) f32: needs weight2 */
  fovea_tensor dbias2;       /**< [out, optional] (maps, inner2) f32: needs bias2 */
  fovea_tensor dweight3;     /**< [out, optional] (maps, inner2, inner3) f32: needs weight3 */
  fovea_tensor dbias3;       /**< [out, optional] (maps, inner3) f32: needs bias3 */
  fovea_tensor dnorm_weight; /**< [out, optional] (f) f32: needs norm_weight */
  float norm_eps;            /**< > 0; 0: 1e-6; needs norm_weight */
  int32_t act;               /**< fovea_x_project_act */
  int32_t rope_begin;        /**< first rotated column; 2 * half columns turn */
  int32_t rope_interleaved;  /**< 1: pairs (2i, 2i + 1); 0: pairs (i, i + half) */
} fovea_x_project_backward_params;

FOVEA_API fovea_status fovea_x_project_backward_workspace(
    fovea_context* ctx, const fovea_x_project_backward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_x_project_backward(fovea_context* ctx,
                                                const fovea_x_project_backward_params* params);

#ifdef __cplusplus
}
#endif

#endif
