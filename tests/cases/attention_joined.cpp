// SPDX-License-Identifier: Apache-2.0
// attention_forward with q_value: MLA's latents as v and their rotated part as k, v in 16 bits or
// as codes of e4m3 (FP8-MLA) or i8.  And latents of codes with their rotated part, v being their
// first columns. Each case names the Hopper kernel that it is for.
#include "cases/all.h"
#include "cases/attention_sweep.h"

namespace cases {
namespace {

class Joined {
 public:
  std::vector<harness::Case> cases;

  Joined() {
    for (int dtype : {FOVEA_BF16, FOVEA_F16})
      for (int v_dtype : {0, static_cast<int>(FOVEA_E4M3), static_cast<int>(FOVEA_I8)}) {
        if (dtype == FOVEA_F16 && v_dtype == FOVEA_I8) continue;
        AttentionCase c;
        c.note = "joined", c.dtype = dtype, c.v_dtype = v_dtype, c.q_value = true;
        c.b = 2, c.s = 1, c.t = 200, c.h = 16, c.g = 1, c.d = 64, c.e = 512;
        if (v_dtype) c.v_scales = CodeScales::grouped, c.shared = Shared::record;
        kernel_ = std::string("sm90_wide.") + (dtype == FOVEA_F16 ? "f16" : "bf16") +
                  ".d576.q_value" + named(v_dtype);
        keys(c), pages(c), scales(c), between(c);
        if (dtype == FOVEA_F16 || v_dtype == FOVEA_I8) continue;
        heads(c), limits(c), many(c);
      }
    for (int dtype : {FOVEA_BF16, FOVEA_F16}) in_k(dtype, FOVEA_E4M3);
    in_k(FOVEA_BF16, FOVEA_I8);
  }

 private:
  static std::string named(int codes) {
    return codes ? std::string(".") + dtype_name(codes) : std::string();
  }
  void add(const AttentionCase& c, const char* more = "") {
    cases.push_back(forward_case(c, kernel_ + more));
  }

  // Steps of one to four tokens, and prompts.
  void heads(AttentionCase c) {
    for (int64_t h : {1, 8, 16, 40, 64, 128})
      for (int64_t s : {1, 2, 3, 4}) {
        c.h = h, c.s = s, c.span = s > 1 ? Span::causal : Span::full;
        c.where = s % 2 ? Where::batched : Where::lengths;
        add(c);
      }
    c.b = 1, c.h = 3, c.s = 200, c.t = 260, c.span = Span::causal, c.where = Where::batched;
    add(c);
    c.h = 6, c.g = 2, c.s = 70, c.where = Where::varlen;
    add(c);
  }
  // Lengths about a tile, tiles in odd and even numbers, splits of all sizes.
  void keys(AttentionCase c) {
    c.b = 1;
    for (int64_t t : {1, 63, 64, 65, 129, 700})
      for (int splits : {1, 3, 1000}) {
        if (splits > 1 && t <= 64) continue;
        c.t = t, c.splits = splits, c.sink_logit = splits % 2, c.o_f32 = t == 129;
        add(c);
      }
    c.t = 190, c.splits = 0, c.b = 2;
    for (Where where : {Where::key_first, Where::cache_row, Where::lengths, Where::varlen}) {
      c.where = where;
      add(c);
    }
    c.where = Where::lengths, c.b = 5;
    for (Data data : {Data::sharp, Data::huge, Data::nan_q, Data::nan_k, Data::nan_v}) {
      c.data = data;
      add(c);
    }
  }
  // Pages of all sizes, some absent.  Codes have one road for them all.
  void pages(AttentionCase c) {
    c.where = Where::paged, c.t = 333;
    for (int64_t page : {1, 5, 16, 48, 64, 128})
      for (int splits : {0, 1}) {
        c.page = page, c.splits = splits, c.s = 1 + splits;
        c.span = splits ? Span::causal : Span::full;
        const bool boxes = page >= 16 && (page < 64 ? 64 % page : page % 64) == 0;
        c.note = boxes && !c.v_dtype ? "tuned" : "joined";  // tuned: pages from their first token
        add(c, boxes || c.v_dtype ? "" : ".gather");
      }
    c.g = 2, c.note = c.v_dtype ? "joined" : "tuned";
    for (int64_t page : {16, 7}) {
      c.page = page;
      add(c, page == 16 || c.v_dtype ? "" : ".gather");
    }
  }
  void scales(AttentionCase c) {
    if (!c.v_dtype) return;
    c.shared = Shared::none;
    for (CodeScales scales : {CodeScales::none, CodeScales::head, CodeScales::token,
                              CodeScales::token_head, CodeScales::grouped})
      for (int64_t page : {0, 16}) {
        c.v_scales = scales, c.page = page, c.where = page ? Where::paged : Where::lengths;
        c.g = page ? 2 : 1;
        add(c);
      }
  }
  // Windows, sinks, softcap, positions by numbers.
  void limits(AttentionCase c) {
    c.t = 333, c.s = 3;
    for (Span span : {Span::left, Span::band})
      for (int64_t page : {0, 16, 7}) {
        c.span = span, c.page = page, c.where = page ? Where::paged : Where::batched;
        c.note = page == 16 ? "tuned" : "joined";
        add(c, page == 7 && !c.v_dtype ? ".gather" : "");
      }
    if (c.v_dtype) return;  // no such instance of codes
    c.where = Where::batched, c.page = 0, c.note = "joined";
    for (Span span : {Span::left_sink, Span::chunk, Span::head_window}) {
      c.span = span;
      add(c, ".span");
    }
    c.span = Span::causal, c.axis = Axis::step;
    add(c, ".span");
    c.axis = Axis::none, c.softcap = c.sink_logit = true, c.splits = 3;
    add(c, ".span");
  }
  // More work items than multiprocessors, each of few keys.
  void many(AttentionCase c) {
    c.b = 150, c.t = 70, c.h = 2, c.splits = 1, c.where = Where::lengths;
    add(c);
    c.where = Where::paged, c.page = 16, c.note = "tuned";
    add(c);
  }
  // Widths below those of the instance.
  void between(AttentionCase c) {
    c.h = 20, c.g = 2, c.s = 2, c.shared = Shared::none;
    if (c.v_dtype) c.v_scales = CodeScales::token_head;
    for (auto [d, e] :
         {std::pair<int64_t, int64_t>{8, 512}, {40, 512}, {64, 48}, {40, 256}, {64, 384}})
      for (int64_t page : {0, 9, 32}) {
        if (c.v_dtype && e < 512) continue;
        c.d = d, c.e = e, c.page = page, c.where = page ? Where::paged : Where::batched;
        c.note = page == 32 ? "tuned" : "joined";
        add(c, page == 9 && !c.v_dtype ? ".gather" : "");
      }
  }
  void in_k(int dtype, int codes) {
    AttentionCase c;
    c.note = "in_k", c.dtype = dtype, c.k_dtype = c.v_dtype = codes, c.shared = Shared::v_in_k;
    c.k_scales = c.v_scales = CodeScales::token_head;
    c.b = 2, c.s = 1, c.t = 200, c.h = 16, c.g = 1, c.d = 576, c.e = 512;
    kernel_ = std::string("sm90_wide.") + (dtype == FOVEA_F16 ? "f16" : "bf16") + ".d576.v_in_k" +
              named(codes);
    AttentionCase x = c;
    for (CodeScales scales : {CodeScales::none, CodeScales::head, CodeScales::token})
      for (int64_t page : {0, 1, 16, 64}) {
        x.k_scales = x.v_scales = scales, x.page = page;
        x.where = page ? Where::paged : Where::lengths, x.g = page == 16 ? 2 : 1;
        add(x);
      }
    x = c;
    for (int64_t h : {1, 40, 128})
      for (int64_t s : {1, 3}) {
        x.h = h, x.s = s, x.span = s > 1 ? Span::causal : Span::full;
        add(x);
      }
    x.h = 3, x.s = 70, x.where = Where::varlen;
    add(x);
    x = c;
    for (int64_t t : {1, 64, 65, 700})
      for (int splits : {1, 3}) {
        x.t = t, x.splits = splits, x.sink_logit = splits == 3;
        add(x);
      }
    x = c, x.t = 333, x.s = 2;
    for (Span span : {Span::left, Span::band})
      for (int64_t h : {16, 7}) {
        x.span = span, x.h = h;
        add(x);
      }
    x = c, x.where = Where::lengths, x.data = Data::nan_k;
    add(x);
    x = c, x.h = 20, x.g = 2;
    for (auto [d, e] : {std::pair<int64_t, int64_t>{512, 512}, {528, 512}, {544, 264}, {560, 8}}) {
      x.d = d, x.e = e;
      add(x);
    }
  }

  std::string kernel_;
};

std::vector<harness::Case> attention_joined_cases() {
  return Joined().cases;
}

const Family kFamily("attention_joined", attention_joined_cases);

}  // namespace
}  // namespace cases
