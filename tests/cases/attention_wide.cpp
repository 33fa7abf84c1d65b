// SPDX-License-Identifier: Apache-2.0
// attention_forward with heads wider than 256: absorbed MLA (v is the first columns of k), and
// values of their own.  Each case names the Hopper kernel that it is for.
#include "cases/all.h"
#include "cases/attention_sweep.h"

namespace cases {
namespace {

class Wide {
 public:
  std::vector<harness::Case> cases;

  Wide() {
    const Kind absorbed{576, 512, true};
    for (int dtype : {FOVEA_BF16, FOVEA_F16})
      for (const Kind& kind : {absorbed, Kind{512, 512, true}, Kind{576, 512, false},
                               Kind{512, 512, false}, Kind{256, 512, false}}) {
        AttentionCase c;
        c.note = "wide", c.dtype = dtype, c.d = kind.d, c.e = kind.e;
        c.shared = kind.v_in_k ? Shared::v_in_k : Shared::none;
        c.b = 2, c.s = 1, c.t = 200, c.h = 16, c.g = 1;
        kernel_ = std::string("sm90_wide.") + (dtype == FOVEA_F16 ? "f16" : "bf16") + ".d" +
                  std::to_string(kind.d) + (kind.v_in_k ? ".v_in_k" : "");
        keys(c), pages(c);
        if (dtype == FOVEA_F16) continue;
        if (kind.v_in_k && kind.d == absorbed.d)
          heads(c, {1, 8, 16, 40, 64, 128}, {1, 2, 3, 4});
        else
          heads(c, {8, 40, 128}, {1, 3});
        prefill(c), limits(c), many(c);
      }
    between();
  }

 private:
  struct Kind {
    int64_t d, e;
    bool v_in_k;
  };
  void add(const AttentionCase& c, const char* more = "") {
    cases.push_back(forward_case(c, kernel_ + more));
  }

  // Any number of heads and rows: packed row tiles that begin inside a group.
  void heads(AttentionCase c, std::initializer_list<int64_t> heads,
             std::initializer_list<int64_t> rows) {
    for (int64_t h : heads)
      for (int64_t s : rows) {
        c.h = h, c.s = s, c.span = s > 1 ? Span::causal : Span::full;
        c.where = s % 2 ? Where::batched : Where::lengths;
        add(c);
      }
  }
  void prefill(AttentionCase c) {
    c.b = 1, c.s = 200, c.t = 260, c.h = 3, c.span = Span::causal, c.where = Where::batched;
    add(c);
    c.h = 6, c.g = 2, c.s = 70, c.where = Where::varlen;
    add(c);
    c.h = c.g = 3, c.span = Span::left;
    add(c);
  }
  // Pages that TMA brings, and those whose rows are copied one by one.
  void pages(AttentionCase c) {
    c.where = Where::paged, c.t = 333;
    for (int64_t page : {1, 5, 16, 32, 48, 64, 100, 128})
      for (int splits : {0, 1}) {
        c.page = page, c.splits = splits, c.s = 1 + splits;
        c.span = splits ? Span::causal : Span::full;
        const bool boxes = page >= 16 && (page < 64 ? 64 % page : page % 64) == 0;
        c.note = boxes ? "tuned" : "wide";  // tuned: pages from their first token
        add(c, boxes ? "" : ".gather");
      }
    c.g = 2, c.lay = Lay::gaps;
    for (int64_t page : {16, 7}) {
      c.page = page;
      add(c);
    }
  }
  // Lengths about a tile, tiles in odd and even numbers, splits of all sizes.
  void keys(AttentionCase c) {
    c.where = Where::batched, c.b = 1;
    for (int64_t t : {1, 64, 65, 129, 700})
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
    for (Data data : {Data::sharp, Data::huge, Data::nan_q, Data::nan_k}) {
      c.data = data;
      add(c);
    }
  }
  // Windows, sinks, softcap, positions by numbers.
  void limits(AttentionCase c) {
    c.t = 333, c.s = 3;
    for (Span span : {Span::left, Span::band, Span::left_sink, Span::chunk, Span::head_window,
                      Span::chunk_sink})
      for (Where where : {Where::batched, Where::paged}) {
        c.span = span, c.where = where, c.page = where == Where::paged ? 16 : 0;
        add(c, span == Span::left || span == Span::band ? "" : ".span");
        c.page = c.page ? 7 : 0;
        if (c.page) add(c, span == Span::left || span == Span::band ? ".gather" : ".span.gather");
      }
    c.where = Where::batched, c.page = 0, c.span = Span::causal;
    for (Axis axis : {Axis::context, Axis::step, Axis::outside, Axis::behind}) {
      c.axis = axis;
      add(c, ".span");
    }
    c.axis = Axis::none, c.softcap = c.sink_logit = true;
    for (int splits : {1, 3}) {
      c.splits = splits;
      for (Span span : {Span::causal, Span::left_sink}) {
        c.span = span;
        add(c, ".span");
      }
    }
  }
  // More work items than multiprocessors, each of few keys.
  void many(AttentionCase c) {
    c.b = 150, c.t = 70, c.h = 2, c.splits = 1, c.where = Where::lengths;
    add(c);
    c.where = Where::paged, c.page = 16, c.note = "tuned";
    add(c);
    c.page = 1, c.note = "wide";
    add(c, ".gather");
    c.b = 3, c.s = 260, c.t = 100, c.h = 12, c.where = Where::batched, c.page = 0;
    c.span = Span::causal;
    if (c.d != 512) add(c);
  }
  // Widths between those of instances.
  void between() {
    AttentionCase c;
    c.note = "wide", c.dtype = FOVEA_BF16, c.b = 2, c.s = 2, c.t = 150, c.h = 20, c.g = 2;
    struct Width {
      int64_t d, e;
      bool v_in_k;
      const char* kernel;
    };
    for (const Width& w : {Width{264, 256, true, "d512.v_in_k"},
                           {320, 256, false, "d512"},
                           {384, 384, true, "d512.v_in_k"},
                           {520, 8, true, "d576.v_in_k"},
                           {528, 264, false, "d576"},
                           {64, 512, false, "d256"},
                           {192, 320, false, "d256"},
                           {8, 264, false, "d256"},
                           {576, 8, false, "d576"}}) {
      c.d = w.d, c.e = w.e, c.shared = w.v_in_k ? Shared::v_in_k : Shared::none;
      kernel_ = std::string("sm90_wide.bf16.") + w.kernel;
      for (int64_t page : {0, 9, 32}) {
        c.where = page ? Where::paged : Where::batched, c.page = page;
        add(c);
      }
    }
  }

  std::string kernel_;
};

std::vector<harness::Case> attention_wide_cases() {
  return Wide().cases;
}

const Family kFamily("attention_wide", attention_wide_cases);

}  // namespace
}  // namespace cases
