// SPDX-License-Identifier: Apache-2.0
// Between the launcher of x_gla_backward and its tuned instances (backward.inc), which are compiled
// apart.
#pragma once
#include <cuda.h>  // CUtensorMap; nothing of libcuda is linked

#include "core/recur_gradients.h"
#include "cuda/device.h"
#include "ops/gla/forward.cuh"

namespace fovea::cuda {

struct GlaGradientWork90 {
  Recur a;
  CUtensorMap q, k, v;
  int32_t tiles;    // of 64 value columns
  int32_t copies;   // blocks that share the outputs of a chain
  int32_t cluster;  // of copies: none writes a state before all have read theirs
  int64_t blocks;

  Floats<3> select;   // factor of an output's row (batch, token, head)
  View<2> skip;       // (head, value column): times v, which is dout, it is added to the output
  Floats<4> partner;  // 16 bits: rows whose dots with the outputs' are kept
  CUtensorMap partner_map;
  int32_t partner_share;  // heads that share one of the partner's
  float* dots;            // (e / 64, heads, b, s)
  float4* kept;  // states in f32 around segments, (place, heads, e / 64), as lanes have them
  static constexpr int64_t segment = 512;  // tokens between those, a multiple of 64

  // Of the state before token i * segment of a sequence, or after its last.
  static FOVEA_HD int64_t place(const Recur& a, const RunTokens& run, int64_t i) {
    return (run.batch * a.s + run.begin) / segment + 2 * run.sequence + i;
  }
  static int64_t places(const Recur& a) { return a.b * a.s / segment + 2 * a.run.count + 1; }
};

struct GlaGradientInstance90 {
  int32_t dtype, d;
  bool gated;
  int way;
  void (*launch)(Context&, const GlaGradientWork90&);
};

// A row of backward.inc.
struct GlaGradientConfig90 {
  int dtype, d;
  int gated;    // there is a head gate, or select
  int stages;   // of K and V
  int queries;  // stages of Q
  int way;      // backward_sm90.cuh
};

// Explicitly instantiated, one file for each width.
template <GlaGradientConfig90 C>
GlaGradientInstance90 gla_gradient_sm90_instance();

// Where many state heads share one head of q and k (backward_shared_sm90.cuh).
struct GlaSharedWork90 {
  Recur a;  // the call, a.o is dout
  CUtensorMap q, k, v, dout;
  View<4> dstate_out, dstate_in;  // dstate_in: or not given
  // Of a chunk, a state head and 64 value columns, swizzled tiles [value][key] of bf16:
  unsigned char* states;              // H before the chunk
  unsigned char* slopes;              // W after it
  float4 *kept_states, *kept_slopes;  // as GlaGradientWork90::kept; or not given
  float *dq, *dk;                     // (b, s, heads of q times parts, d): terms
  float *q_dots, *k_dots;             // (heads, b, s); or not given
  int64_t slots, chains;              // chunks; (sequence, head, 64 value columns)
  int32_t tiles, parts, each;         // of 64 value columns; blocks of a group; their heads

  FOVEA_HD int64_t slot(int64_t sequence, int64_t begin, int64_t chunk) const {
    return chunk_slot(a, sequence, begin, chunk);
  }
};

struct GlaSharedInstance90 {
  int32_t dtype, d;
  void (*launch)(Context&, const GlaSharedWork90&);
};

// A row of backward_shared.inc.
struct GlaSharedConfig90 {
  int dtype, d;
  int stages;  // of the chains
  int values;  // stages of a head's tiles
};

template <GlaSharedConfig90 C>
GlaSharedInstance90 gla_shared_sm90_instance();

// With key gates (backward_keys_sm90.cuh).
struct GlaKeyGradientWork90 {
  GlaWork90 forward;  // of the tiles: each token has an output, and a.o is dout
  Recur a;            // the call as it is
  CUtensorMap dout;
  View<4> dstate_out, dstate_in;
  // Of a chunk, a state head and 64 value columns, swizzled tiles [value][key] of 16 bits:
  unsigned char* states;    // H before the chunk
  unsigned char* slopes;    // W after it: the gradient of the state over scale
  Floats<4> dq, dk, dv;     // (batch, token, head, column): outputs or terms; or not given
  bool dq_whole, dk_whole;  // the same with the bonus
  Floats<4> dgate;          // the output: of the raw gate; or not given
  float* dg;                // (b s, heads, d): of the log of the decay; or not given
  float* de;                // (b s, heads): of scale q . (bonus . k), over scale; with bonus
  float* dbonus;            // (slots, heads, d): a chunk's; or not given
  bool only_q;              // nothing but dq is asked for, and states of the walk forwards
  bool outputs;             // dq is an output: rows before the first are not written
  int32_t ahead;            // blocks that run at once
  int64_t chains;           // (sequence, head, 64 value columns)
};

struct GlaKeyGradientInstance90 {
  int32_t dtype, d;
  void (*launch)(Context&, const char* op, const GlaKeyGradientWork90&);
};

// A row of backward_keys.inc.
struct GlaKeyGradientConfig90 {
  int dtype, d;
  int stages;  // of the chains
};

template <GlaKeyGradientConfig90 C>
GlaKeyGradientInstance90 gla_key_gradient_sm90_instance();

}  // namespace fovea::cuda
