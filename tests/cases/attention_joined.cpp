// SPDX-License-Identifier: Apache-2.0
// attention_forward with q_value: MLA's latents as v and their rotated part as k.  Each case names
// the Hopper kernel that it is for.
#include "cases/all.h"
#include "cases/attention_sweep.h"

namespace cases {
namespace {

class Joined {
 public:
  std::vector<harness::Case> cases;

  Joined() {
    for (int dtype : {FOVEA_BF16, FOVEA_F16}) {
      AttentionCase c;
      c.note = "joined", c.dtype = dtype, c.q_value = true;
      c.b = 2, c.s = 1, c.t = 200, c.h = 16, c.g = 1, c.d = 64, c.e = 512;
      kernel_ = std::string("sm90_wide.") + (dtype == FOVEA_F16 ? "f16" : "bf16") + ".d576.q_value";
      keys(c), pages(c), between(c);
      if (dtype == FOVEA_BF16) heads(c), limits(c), many(c);
    }
  }

 private:
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
  // Pages of all sizes, some absent.
  void pages(AttentionCase c) {
    c.where = Where::paged, c.t = 333;
    for (int64_t page : {1, 5, 16, 48, 64, 128})
      for (int splits : {0, 1}) {
        c.page = page, c.splits = splits, c.s = 1 + splits;
        c.span = splits ? Span::causal : Span::full;
        const bool boxes = page >= 16 && (page < 64 ? 64 % page : page % 64) == 0;
        c.note = boxes ? "tuned" : "joined";  // tuned: pages from their first token
        add(c, boxes ? "" : ".gather");
      }
    c.g = 2, c.note = "tuned";
    for (int64_t page : {16, 7}) {
      c.page = page;
      add(c, page == 16 ? "" : ".gather");
    }
  }
  // Windows, sinks, softcap, positions by numbers.
  void limits(AttentionCase c) {
    c.t = 333, c.s = 3;
    for (Span span : {Span::left, Span::band})
      for (int64_t page : {0, 16, 7}) {
        c.span = span, c.page = page, c.where = page ? Where::paged : Where::batched;
        c.note = page == 16 ? "tuned" : "joined";
        add(c, page == 7 ? ".gather" : "");
      }
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
    c.h = 20, c.g = 2, c.s = 2;
    for (auto [d, e] :
         {std::pair<int64_t, int64_t>{8, 512}, {40, 512}, {64, 48}, {40, 256}, {64, 384}})
      for (int64_t page : {0, 9, 32}) {
        c.d = d, c.e = e, c.page = page, c.where = page ? Where::paged : Where::batched;
        c.note = page == 32 ? "tuned" : "joined";
        add(c, page == 9 ? ".gather" : "");
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
