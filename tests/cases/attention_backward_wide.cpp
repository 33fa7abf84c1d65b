// SPDX-License-Identifier: Apache-2.0
// attention_backward with heads wider than 256.  Each case names the kernel that it is for.
#include "cases/all.h"
#include "cases/attention_sweep.h"

namespace cases {
namespace {

class WideBackward {
 public:
  std::vector<harness::Case> cases;

  WideBackward() {
    for (int dtype : {FOVEA_BF16, FOVEA_F16})
      for (const Widths& w : {Widths{576, 512}, Widths{512, 512}, Widths{256, 512}}) {
        AttentionCase c;
        c.note = "wide", c.dtype = dtype, c.d = w.d, c.e = w.e;
        c.s = 70, c.t = 101, c.h = 4, c.g = 2, c.span = Span::causal;
        tiles(c);
        if (dtype == FOVEA_F16 && w.d != 576) continue;
        plain(c), rich(c);
      }
    between();
  }

 private:
  void add(const AttentionCase& c, const char* kind) {
    cases.push_back(backward_case(
        c, std::string("sm80_wide.") + (c.dtype == FOVEA_F16 ? "f16" : "bf16") + ".d576." + kind));
  }

  // Rows and keys about a tile of 32 and of 64, each sum alone.
  void tiles(AttentionCase c) {
    c.h = c.g = 1;
    static constexpr int64_t lengths[][2] = {{1, 1},   {32, 33}, {33, 32},   {64, 64},
                                             {65, 96}, {97, 65}, {128, 129}, {1, 200}};
    for (const auto& [s, t] : lengths)
      for (Span span : {Span::full, Span::causal}) {
        c.s = s, c.t = t, c.span = span;
        add(c, "plain");
      }
    for (int outputs : {1, 2, 4, 5, 6}) {
      c.outputs = outputs;
      add(c, "plain");
    }
    c.outputs = 63;
    for (int f32 : {1, 2, 4, 7}) {
      c.f32 = f32;
      c.softcap = false, add(c, "plain");
      c.softcap = true, add(c, "rich");
    }
  }
  void plain(AttentionCase c) {
    for (Where where : {Where::batched, Where::lengths, Where::varlen, Where::key_first})
      for (Span span : {Span::full, Span::causal, Span::left, Span::band}) {
        c.b = where == Where::batched ? 1 : 2, c.where = where, c.span = span;
        c.sink_logit = span == Span::left, c.dlse = span == Span::band;
        add(c, "plain");
      }
    c.b = 1, c.where = Where::batched, c.span = Span::causal;
    for (Lay lay : {Lay::head_first, Lay::gaps}) {
      c.lay = lay;
      add(c, "plain");
    }
    c.lay = Lay::contiguous;
    if (c.d >= c.e) {
      c.shared = Shared::v_in_k;
      add(c, "plain");
      c.shared = Shared::none;
    }
    for (int64_t heads : {1, 8}) {
      c.h = heads, c.g = 1, c.dlse = true;
      add(c, "plain");
      c.f32 = 7, add(c, "plain"), c.f32 = 0;
    }
    for (Data data : {Data::sharp, Data::huge}) {
      c.data = data;
      add(c, "plain");
    }
  }
  void rich(AttentionCase c) {
    c.b = 2, c.where = Where::lengths;
    for (Span span : {Span::left_sink, Span::chunk, Span::head_window, Span::chunk_sink}) {
      c.span = span;
      add(c, "rich");
    }
    c.span = Span::causal;
    AttentionCase x = c;
    x.softcap = x.sink_logit = true;
    add(x, "rich");
    x = c, x.alibi = true;
    add(x, "rich");
    for (Bias bias : {Bias::full, Bias::broadcast, Bias::minus_inf, Bias::bf16}) {
      x = c, x.bias = bias;
      add(x, "rich");
    }
    x = c, x.mask = true;
    add(x, "rich");
    x.masked = Masked::tiles;
    add(x, "rich");
    for (Positions positions : {Positions::query, Positions::both}) {
      x = c, x.positions = positions, x.dlse = true;
      add(x, "rich");
    }
  }
  // Widths whose last panels are partly empty, and of which one is narrow.
  void between() {
    AttentionCase c;
    c.note = "wide", c.dtype = FOVEA_BF16, c.s = 50, c.t = 77, c.h = 4, c.g = 2;
    for (const Widths& w : {Widths{264, 256}, Widths{320, 8}, Widths{8, 264}, Widths{328, 456},
                            Widths{576, 8}, Widths{64, 576}, Widths{512, 576}, Widths{520, 512}}) {
      c.d = w.d, c.e = w.e;
      add(c, "plain");
      c.softcap = true;
      add(c, "rich");
      c.softcap = false;
    }
    c.d = c.e = 576;  // more shared memory than a block has
    cases.push_back(backward_case(c, "simt.bf16"));
  }
};

std::vector<harness::Case> attention_backward_wide_cases() {
  return WideBackward().cases;
}

const Family kFamily("attention_backward_wide", attention_backward_wide_cases);

}  // namespace
}  // namespace cases
