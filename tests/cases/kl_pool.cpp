// SPDX-License-Identifier: Apache-2.0
// x_kl_pool_forward and _backward: the sweep, the edges by name, hostile values.  The oracle is
// kl's, with the teacher's pooled logits and blocks in place of keys.
#include "cases/kl_over.h"

namespace cases {
namespace {

template <class P>
void nothing(Call&, P&, const KlBuild<P>&) {}

Call build_forward(const KlCase& c, uint64_t seed) {
  using P = fovea_x_kl_pool_forward_params;
  return kl_over_forward<P>(FOVEA_TEST_OP(x_kl_pool_forward), c, seed, nothing<P>);
}
Call build_backward(const KlCase& c, uint64_t seed) {
  using P = fovea_x_kl_pool_backward_params;
  return kl_over_backward<P>(FOVEA_TEST_OP(x_kl_pool_backward), c, seed, nothing<P>);
}

class PoolCases : public KlRows {
 public:
  PoolCases() : KlRows("x_kl_pool", build_forward, build_backward) {
    static constexpr int64_t blocks[] = {0, 1, 7, 16};
    sweep(6, {7, 3}, {4, 2}, 11,
          [](KlCase& c, const int* x) { c.block = blocks[x[0]], c.pool_max = x[1] != 0; });
    edges();
    tuned();
    small();
  }

 private:
  void edges() {
    static constexpr int64_t extents[][4] = {{0, 3, 3, 4}, {2, 0, 5, 4}, {2, 5, 0, 4},
                                             {1, 0, 0, 4}, {1, 3, 3, 0}, {1, 1, 1, 4}};
    for (const auto& x : extents) {
      KlCase c;
      c.note = "edge", c.b = x[0], c.s = x[1], c.t = x[2], c.h = x[3], c.block = 2;
      both(c);
    }
    // No query heads, and key heads of either side or none.
    for (const auto& heads : {std::pair{0, 0}, {0, 4}, {4, 0}}) {
      KlCase c;
      c.note = "edge", c.h = 0, c.g = heads.first, c.x = heads.second;
      c.block = 2;
      both(c);
    }
    for (const auto& type : KlSweep::kTypes)
      for (KlData data : {KlData::normal, KlData::large, KlData::far, KlData::nan_q, KlData::nan_k,
                          KlData::inf_k, KlData::inf_q})
        for (bool max : {false, true}) {
          KlCase c;
          c.note = "edge", c.teacher = type[0], c.student = type[1], c.data = data;
          c.s = 71, c.t = 33, c.span = Span::causal, c.d = c.f = 64, c.g = c.x = 2;
          c.block = 8, c.pool_max = max;
          both(c);  // the first rows see nothing
        }
    KlCase c;
    c.note = "edge", c.h = 2, c.g = c.x = 1, c.s = 70, c.t = 450, c.b = 1, c.block = 2;
    c.span = Span::left_sink;
    both(c);  // several tiles of blocks
    c.t = 300, c.block = 200, c.pool_max = true;
    both(c);  // blocks of several tiles
    c.block = 1 << 30;
    both(c);
    // More dscores than are held at a time.
    c = {};
    c.note = "edge", c.b = 1, c.s = 520, c.t = 4200, c.h = 4, c.block = 1, c.span = Span::causal;
    add(c, true);
  }

  // The tensor-core kernels: blocks of whole tiles; on Hopper dS where both widths fit an
  // instance (pool.inc).
  void tuned() {
    for (int dtype : {FOVEA_BF16, FOVEA_F16})
      for (int64_t block : {64, 128, 192})
        for (Span span : {Span::full, Span::causal, Span::left})
          for (Where where : {Where::batched, Where::varlen}) {
            KlCase c;
            c.note = "tuned", c.teacher = c.student = dtype, c.block = block, c.span = span;
            c.where = where, c.pool_max = span == Span::causal,
            c.b = where == Where::varlen ? 3 : 1;
            c.s = 130, c.t = 460, c.d = c.f = span == Span::left ? 72 : 128;
            const std::string type = dtype_name(dtype);
            add(c, false, false, "sm80." + type);
            add(c, true, false, (block == 192 ? "sm80." : "sm90.") + type);
          }
    // One row of a warp's holds a NaN or an infinity.
    for (KlData data : {KlData::nan_q, KlData::nan_k, KlData::inf_k, KlData::inf_q}) {
      KlCase c;
      c.note = "tuned", c.b = 1, c.teacher = c.student = FOVEA_BF16, c.block = 64, c.data = data;
      c.s = 71, c.t = 133, c.d = c.f = 64, c.pool_max = true;
      add(c, true, false, "sm90.bf16");
    }
    // Several tiles of 64 blocks, rows of several tiles and parts; a window leaves whole tiles of
    // blocks unseen.
    for (Span span : {Span::full, Span::causal, Span::left}) {
      KlCase c;
      c.note = "tiles", c.b = 1, c.teacher = c.student = FOVEA_BF16, c.block = 64, c.span = span;
      c.h = 2, c.g = 2, c.x = 1, c.d = c.f = 32;
      c.s = span == Span::left ? 140 : 330, c.t = span == Span::left ? 13000 : 4500;
      add(c, false, false, "sm80.bf16");
      add(c, true, false, "sm90.bf16");
    }
  }

  void small() {
    KlCase c;
    c.note = "small", c.b = 1, c.d = 4, c.f = 6, c.s = 3, c.t = 5, c.block = 2;
    both(c, true);
    c.b = 2, c.teacher = FOVEA_BF16, c.span = Span::causal, c.pool_max = true;
    both(c, true);
    c.where = Where::varlen, c.s = 17, c.t = 40, c.student = FOVEA_F16, c.block = 8;
    both(c);
    c.where = Where::lengths, c.span = Span::head_window, c.lay = Lay::odd;
    both(c);
  }
};

std::vector<harness::Case> pool_cases() {
  return PoolCases().cases;
}

const Family kFamily("kl_pool", pool_cases);

}  // namespace

}  // namespace cases
