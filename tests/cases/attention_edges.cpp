// SPDX-License-Identifier: Apache-2.0
// The edges of attention by name: empty extents, short keys, long rows, every page size, shared
// memory, hostile values; and the small ones that sanitizers and golden vectors use.
#include "cases/all.h"
#include "cases/attention_sweep.h"

namespace cases {
namespace {

class Edges {
 public:
  std::vector<harness::Case> cases;

  Edges() {
    empty();
    heads_and_keys();
    lengths();
    hostile();
    memory();
    gradients();
    kernels();
    shares();
    small();
    codes();
    axes();
  }

 private:
  // Forward and backward of the same row; `tiny` ones are exported.
  void both(const AttentionCase& c, bool tiny = false) {
    cases.push_back(forward_case(c));
    cases.back().tiny = tiny;
    if (c.where == Where::paged || c.where == Where::cache_row || c.shared == Shared::v_in_k ||
        c.data >= Data::nan_q)
      return;
    cases.push_back(backward_case(c));
    cases.back().tiny = tiny;
  }
  template <class Change>
  void each_dtype(AttentionCase c, Change change) {
    for (int dtype : kDtypes) {
      AttentionCase x = c;
      x.dtype = dtype;
      change(x);
      both(x);
    }
  }
  static AttentionCase row(int64_t b, int64_t s, int64_t t, int64_t h, int64_t g, int64_t d,
                           int64_t e) {
    AttentionCase c;
    c.b = b, c.s = s, c.t = t, c.h = h, c.g = g, c.d = d, c.e = e;
    return c;
  }

  void empty() {
    for (const auto& n :
         {row(0, 3, 3, 2, 1, 8, 8), row(1, 0, 5, 2, 2, 64, 64), row(2, 5, 0, 2, 1, 64, 64),
          row(1, 0, 0, 2, 1, 8, 8), row(1, 3, 3, 0, 1, 8, 8), row(1, 3, 3, 0, 0, 8, 8),
          row(1, 1, 1, 1, 1, 1, 1), row(1, 1, 1, 1, 1, 128, 128)})
      each_dtype(n, [](AttentionCase& c) { c.note = "edge"; });
    // No key at all: lse is the sink's.
    each_dtype(row(2, 5, 0, 4, 2, 64, 64),
               [](AttentionCase& c) { c.note = "edge", c.sink_logit = c.dlse = true; });
    // Causal with fewer keys than rows: the first rows are empty.
    for (bool sink : {false, true})
      each_dtype(row(2, 71, 33, 4, 2, 64, 64), [&](AttentionCase& c) {
        c.note = "edge", c.span = Span::causal, c.sink_logit = c.dlse = sink;
      });
    each_dtype(row(1, 300, 40, 2, 1, 128, 128),
               [](AttentionCase& c) { c.note = "edge", c.span = Span::left; });
    for (Positions positions : {Positions::none, Positions::query})
      each_dtype(row(2, 150, 210, 4, 2, 64, 64), [&](AttentionCase& c) {
        c.note = "edge", c.span = Span::chunk_sink, c.positions = positions;
      });
  }

  void heads_and_keys() {
    each_dtype(row(1, 40, 50, 16, 16, 64, 64),
               [](AttentionCase& c) { c.note = "edge", c.span = Span::causal; });
    each_dtype(row(1, 40, 50, 16, 1, 128, 128),
               [](AttentionCase& c) { c.note = "edge", c.span = Span::causal; });
    each_dtype(row(1, 3, 40, 128, 1, 64, 64), [](AttentionCase& c) { c.note = "edge"; });
    for (int64_t page : {1, 3, 16, 100, 128, 256})
      each_dtype(row(3, 2, 300, 8, 2, 64, 64), [&](AttentionCase& c) {
        c.note = "edge", c.where = Where::paged, c.page = page, c.span = Span::causal;
        if (page == 16) c.splits = 4;
      });
    // Absorbed MLA, and its split form: rope part and latent as q, k and q_value, v.
    each_dtype(row(2, 1, 200, 16, 1, 576, 512), [](AttentionCase& c) {
      c.note = "edge", c.shared = Shared::v_in_k, c.where = Where::paged, c.page = 64;
    });
    // Rows of the host's tile registers, read where they lie, in parts; the last tile is short.
    for (int64_t h : {20, 80})
      each_dtype(row(1, 1, 1200, h, 1, 576, 512), [](AttentionCase& c) {
        c.note = "edge", c.shared = Shared::v_in_k, c.splits = 3;
      });
    for (int dtype : kDtypes) {
      AttentionCase c = row(2, 1, 200, 16, 1, 64, 512);
      c.note = "edge", c.dtype = dtype, c.q_value = true, c.where = Where::paged, c.page = 64;
      cases.push_back(forward_case(c));
    }
  }

  // Caches of 8 bits.
  void codes() {
    AttentionCase c = row(2, 5, 90, 4, 2, 64, 64);
    c.note = "edge";
    for (int dtype : kDtypes)
      for (int type : {FOVEA_E4M3, FOVEA_E5M2, FOVEA_I8})
        for (CodeScales scales :
             {CodeScales::none, CodeScales::head, CodeScales::token_head, CodeScales::grouped}) {
          AttentionCase x = c;
          x.dtype = dtype, x.k_dtype = x.v_dtype = type, x.k_scales = x.v_scales = scales;
          x.span = Span::causal;
          if (scales != CodeScales::head) x.where = Where::paged, x.page = 16;
          cases.push_back(forward_case(x));
        }
    for (Data data : {Data::nan_k, Data::nan_v})
      for (int type : {FOVEA_E4M3, FOVEA_E5M2}) {
        AttentionCase x = c;
        x.data = data, x.k_dtype = x.v_dtype = type, x.k_scales = CodeScales::token_head;
        cases.push_back(forward_case(x));
      }
    // MLA's latent in codes, its rotated part in 16 bits.
    AttentionCase mla = row(2, 1, 200, 16, 1, 64, 512);
    mla.note = "edge", mla.dtype = FOVEA_BF16, mla.q_value = true;
    mla.where = Where::paged, mla.page = 64;
    mla.v_dtype = FOVEA_E4M3, mla.v_scales = CodeScales::grouped;
    cases.push_back(forward_case(mla));
    AttentionCase small = row(2, 3, 7, 4, 2, 8, 8);
    small.note = "small", small.k_dtype = FOVEA_E4M3, small.v_dtype = FOVEA_I8;
    small.k_scales = CodeScales::token_head, small.v_scales = CodeScales::head,
    small.axis = Axis::step;
    small.span = Span::left_sink;
    cases.push_back(forward_case(small));
    cases.back().tiny = true;
  }

  // Positions by numbers.
  void axes() {
    for (Axis axis : {Axis::context, Axis::step, Axis::outside, Axis::behind})
      for (Span span : {Span::full, Span::causal, Span::left, Span::left_sink, Span::chunk,
                        Span::head_window, Span::chunk_sink})
        for (int dtype : {FOVEA_F32, FOVEA_BF16}) {
          AttentionCase c = row(3, 150, 210, 4, 2, 64, 64);
          c.note = "edge", c.axis = axis, c.span = span, c.dtype = dtype;
          cases.push_back(forward_case(c));
          c.s = 3, c.where = Where::paged, c.page = 16, c.alibi = true;
          cases.push_back(forward_case(c));
        }
  }

  void lengths() {
    static constexpr int64_t long_ones[][2] = {{256, 512},   {384, 256},   {640, 128},
                                               {1023, 1024}, {1024, 1023}, {2048, 2048}};
    int n = 0;
    for (const auto& x : long_ones)
      for (Span span : {Span::full, Span::causal, Span::left}) {
        AttentionCase c = row(1, x[0], x[1], 1, 1, n % 2 ? 8 : 16, n % 2 ? 8 : 16);
        c.note = "edge", c.span = span, c.dtype = kDtypes[n++ % 3];
        both(c);
      }
    AttentionCase c = row(1, 4224, 4224, 1, 1, 8, 8);
    c.note = "edge", c.span = Span::left;
    cases.push_back(forward_case(c));
    for (int dtype : kDtypes)
      for (int splits : {0, 1, 64}) {
        AttentionCase d = row(1, 1, 131072, 1, 1, 64, 64);
        d.note = "edge", d.dtype = dtype, d.splits = splits;
        if (dtype == FOVEA_F32 || splits == 0) cases.push_back(forward_case(d));
      }
    for (int splits : {1, 2, 7, 64, 1000}) {
      AttentionCase d = row(2, 3, 700, 8, 2, 64, 64);
      d.note = "edge", d.dtype = FOVEA_BF16, d.splits = splits, d.span = Span::causal,
      d.sink_logit = splits % 2;
      cases.push_back(forward_case(d));
      d.dtype = FOVEA_F32, d.where = Where::varlen;
      cases.push_back(forward_case(d));
    }
  }

  void hostile() {
    for (Data data : {Data::huge, Data::sharp, Data::nan_q, Data::nan_k, Data::nan_v})
      each_dtype(row(2, 37, 90, 4, 2, 64, 64), [&](AttentionCase& c) {
        c.note = "edge", c.data = data;
        if (data == Data::sharp) c.span = Span::causal, c.softcap = true;
      });
    for (Masked masked : {Masked::tiles, Masked::all})
      each_dtype(row(2, 70, 300, 2, 1, 64, 64),
                 [&](AttentionCase& c) { c.note = "edge", c.mask = true, c.masked = masked; });
    each_dtype(row(1, 70, 300, 2, 1, 128, 128), [](AttentionCase& c) {
      c.note = "edge", c.mask = true, c.masked = Masked::all, c.sink_logit = true;
    });
    each_dtype(row(2, 40, 130, 4, 2, 64, 64), [](AttentionCase& c) {
      c.note = "edge", c.bias = Bias::minus_inf, c.span = Span::causal;
    });
    each_dtype(row(1, 65, 70, 2, 1, 64, 64),
               [](AttentionCase& c) { c.note = "edge", c.scale = 1; });
  }

  void memory() {
    for (Shared shared : {Shared::kv, Shared::broadcast}) {
      each_dtype(row(3, 33, 65, 4, 2, 64, 64), [&](AttentionCase& c) {
        c.note = "edge", c.shared = shared, c.span = Span::causal;
      });
      each_dtype(row(3, 9, 65, 4, 2, 40, 40),
                 [&](AttentionCase& c) { c.note = "edge", c.shared = shared; });
    }
    AttentionCase c = row(3, 5, 65, 4, 2, 64, 64);
    c.note = "edge", c.shared = Shared::kv, c.where = Where::paged, c.page = 16,
    c.dtype = FOVEA_BF16;
    cases.push_back(forward_case(c));
    for (Lay lay : {Lay::head_first, Lay::gaps, Lay::odd, Lay::wide})
      each_dtype(row(2, 66, 67, 4, 2, 64, 64),
                 [&](AttentionCase& x) { x.note = "edge", x.lay = lay, x.span = Span::causal; });
    for (int outputs : {1, 2, 4, 8, 16, 32, 3, 5, 6})
      for (int dtype : {FOVEA_F32, FOVEA_BF16}) {
        AttentionCase x = row(2, 34, 45, 4, 2, 64, 64);
        x.note = "edge", x.dtype = dtype, x.outputs = outputs, x.sink_logit = x.alibi = true,
        x.bias = Bias::full;
        cases.push_back(backward_case(x));
        x.sums = true;
        if (outputs & 48) cases.push_back(backward_case(x));
      }
  }

  // Gradients in f32 beside 16 bits: each alone and all, wherever rows and keys lie.
  void gradients() {
    for (int f32 : {1, 2, 4, 7})
      for (Where where : {Where::batched, Where::lengths, Where::varlen, Where::key_first}) {
        AttentionCase c = row(2, 34, 45, 4, 2, 40, 24);
        c.note = "edge", c.dtype = f32 % 2 ? FOVEA_BF16 : FOVEA_F16, c.f32 = f32, c.where = where;
        c.span = Span::causal, c.lay = f32 == 7 ? Lay::odd : Lay::gaps;
        cases.push_back(backward_case(c));
      }
    AttentionCase parts = row(1, 34, 700, 2, 1, 16, 16);  // of keys, whose dq are added
    parts.note = "edge", parts.dtype = FOVEA_BF16, parts.f32 = 7;
    cases.push_back(backward_case(parts));
  }

  // Groups of heads that one block, two blocks or a block a head take: how full the device is
  // decides (src/cuda/loop/key_terms.cu).
  void shares() {
    static constexpr struct {
      int64_t b, h;
      Span span;
    } calls[] = {{70, 2, Span::full}, {120, 2, Span::causal}, {50, 4, Span::full}};
    for (int64_t d : {64, 128, 256})
      for (const auto& call : calls) {
        AttentionCase c = row(call.b, 70, 40, call.h, 1, d, d);
        c.note = "shares", c.dtype = FOVEA_BF16, c.span = call.span;
        cases.push_back(backward_case(c, "sm90.bf16.d" + std::to_string(d)));
        if (&call != calls || d == 128) continue;
        c.f32 = 7;
        cases.push_back(backward_case(c, "sm90.bf16.d" + std::to_string(d)));
      }
  }

  // Every instance of a tuned kernel, by its name (src/ops/attention/*.inc).
  void kernels() {
    static constexpr Widths widths[] = {{64, 64}, {96, 96}, {128, 128}, {192, 128}, {256, 256}};
    for (int dtype : {FOVEA_F16, FOVEA_BF16})
      for (const Widths& w : widths) {
        AttentionCase c = row(1, 130, 257, 4, 2, w.d, w.e);
        c.note = "tuned", c.dtype = dtype, c.span = Span::causal;
        const std::string type = dtype == FOVEA_F16 ? "f16" : "bf16";
        const std::string name = "sm80." + type + ".d" + std::to_string(w.d) + ".";
        const std::string hopper = "sm90." + type + ".d" + std::to_string(w.d);
        cases.push_back(backward_case(c, hopper));
        AttentionCase sink = c;
        sink.sink_logit = sink.dlse = true;
        cases.push_back(backward_case(sink, hopper));
        sink.nondeterministic = true;
        cases.push_back(backward_case(sink, hopper));
        sink.nondeterministic = false;
        for (int outputs : {1, 2, 4}) {
          AttentionCase x = c;
          x.outputs = outputs;
          cases.push_back(backward_case(x, hopper));
        }
        single(c, hopper, name);
        sink.splits = c.splits = 1;
        cases.push_back(forward_case(sink, hopper + ".whole"));
        for (Where where : {Where::batched, Where::lengths, Where::varlen, Where::key_first})
          for (Span span : {Span::full, Span::causal, Span::left, Span::band}) {
            AttentionCase x = c;
            x.b = 3, x.where = where, x.span = span;
            cases.push_back(forward_case(x, hopper + ".whole"));
            x.splits = 0;
            cases.push_back(backward_case(x, hopper));
          }
        many(c, hopper);
        one_key_head(c, hopper);
        spans(c, hopper);
        if (w.d == 64 || w.d == 128) keyed(c, hopper, name);
        // The copy engine has no stride of 0.
        AttentionCase portable = c;
        portable.b = 2, portable.shared = Shared::broadcast;
        cases.push_back(forward_case(portable, name + "whole"));
        AttentionCase paged = c;
        paged.where = Where::paged, paged.page = 8;
        cases.push_back(forward_case(paged, name + "paged"));
        for (int64_t page : {16, 64, 256}) {
          paged.b = 3, paged.page = page, paged.span = page == 64 ? Span::causal : Span::band;
          cases.push_back(forward_case(paged, hopper + ".paged"));
        }
        AttentionCase decode = c;
        decode.s = 3, decode.splits = 0;
        cases.push_back(forward_case(decode, few(c, hopper)));
        decode.splits = 3, decode.span = Span::full;
        cases.push_back(forward_case(decode, few(c, hopper)));
        decode.where = Where::paged, decode.page = 8;
        cases.push_back(forward_case(decode, name + "split"));
        for (int64_t page : {16, 32})
          for (Lay lay : {Lay::contiguous, Lay::head_first, Lay::gaps}) {
            decode.page = page, decode.lay = lay;
            cases.push_back(forward_case(decode, few(decode, hopper)));
          }
        decode.lay = Lay::contiguous;
        decode.page = 128, decode.span = Span::causal;
        cases.push_back(forward_case(decode, hopper + ".split"));
        decode.span = Span::full;
        decode.where = Where::batched, decode.page = 0;
        c.softcap = c.sink_logit = true;
        cases.push_back(forward_case(c, hopper + ".capped"));
        AttentionCase rich = c;
        rich.alibi = true;
        cases.push_back(forward_case(rich, name + "rich"));
        cases.push_back(backward_case(c, name + "rich"));
        decode.softcap = decode.alibi = true;
        cases.push_back(forward_case(decode, name + "rich"));
      }
  }

  // Gradients in f32, each alone and all; a stride of 0 leaves the call to sm_80's.
  void single(AttentionCase c, const std::string& hopper, const std::string& portable) {
    for (int f32 : {1, 2, 4, 7}) {
      c.f32 = f32;
      cases.push_back(backward_case(c, hopper));
    }
    AttentionCase x = c;
    x.softcap = true;
    cases.push_back(backward_case(x, portable + "rich"));
    c.b = 2, c.where = Where::lengths, c.span = Span::full;
    cases.push_back(backward_case(c, hopper));
    c.where = Where::batched, c.shared = Shared::broadcast;
    cases.push_back(backward_case(c, portable + "plain"));
  }

  // A bias of keys alone: rows of keys at odd and even addresses, packed, with first keys.
  void keyed(AttentionCase c, const std::string& hopper, const std::string& portable) {
    c.splits = 1, c.bias = Bias::by_key;
    for (Where where : {Where::batched, Where::lengths, Where::varlen, Where::key_first})
      for (int64_t t : {257, 384}) {
        AttentionCase x = c;
        x.b = 3, x.t = t, x.where = where, x.span = t == 384 ? Span::full : Span::causal;
        x.sink_logit = t == 384;
        cases.push_back(forward_case(x, hopper + ".keyed"));
      }
    c.softcap = true;
    cases.push_back(forward_case(c, portable + "rich"));
    c.softcap = false, c.bias = Bias::full;
    cases.push_back(forward_case(c, portable + "rich"));
  }

  // Rows that see other intervals of keys than those of one window.
  void spans(AttentionCase c, const std::string& hopper) {
    c.splits = 1;
    for (Span span : {Span::left_sink, Span::head_window, Span::chunk, Span::chunk_sink}) {
      c.span = span;
      span_of(c, hopper);
    }
    for (const auto& [axis, span] : {std::pair{Axis::context, Span::causal},
                                     {Axis::step, Span::causal},
                                     {Axis::step, Span::left_sink},
                                     {Axis::outside, Span::full},
                                     {Axis::behind, Span::head_window}}) {
      c.axis = axis, c.span = span;
      span_of(c, hopper);
    }
    // More work items than multiprocessors, windows of many tiles, sink keys of more than one.
    c.b = 70, c.s = 150, c.t = 700, c.axis = Axis::none, c.span = Span::head_window;
    cases.push_back(forward_case(c, hopper + ".span"));
    c.b = 2, c.h = 8, c.s = 600, c.t = 900, c.span = Span::left_sink;
    cases.push_back(forward_case(c, hopper + ".span"));
  }
  void span_of(AttentionCase c, const std::string& hopper) {
    c.b = 3;
    for (Where where : {Where::batched, Where::varlen}) {
      c.where = where;
      cases.push_back(forward_case(c, hopper + ".span"));
    }
    c.where = Where::paged, c.page = 16;
    cases.push_back(forward_case(c, hopper + ".span_paged"));
    c.splits = c.span == Span::causal ? 3 : 0, c.s = 3, c.t = 700;
    cases.push_back(forward_case(c, hopper + ".span_split"));
    c.where = Where::lengths, c.page = 0;
    cases.push_back(forward_case(c, hopper + ".span_split"));
  }

  // Of a few rows: width 128 has another tile of keys for pages whose heads are padded.
  static std::string few(const AttentionCase& c, const std::string& hopper) {
    const bool padded = c.where == Where::paged && c.lay == Lay::gaps;
    return hopper + ".split" + (c.d != 128 ? "" : padded ? ".64x128" : ".64x64");
  }

  // Query heads of one key head (MFA), whose splits a kernel of its own merges: a warp a row, or a
  // team of warps.  Splits without keys; rows of a second token.
  void one_key_head(AttentionCase c, const std::string& hopper) {
    c.h = 64, c.g = 1, c.b = 2, c.s = 1, c.t = 1500;
    for (int splits : {2, 7, 9, 24}) {
      c.splits = splits, c.where = splits % 2 ? Where::lengths : Where::batched;
      c.sink_logit = splits > 8, c.o_f32 = splits == 7, c.lse = splits != 2;
      cases.push_back(forward_case(c, few(c, hopper)));
    }
    c.s = 2, c.span = Span::causal, c.where = Where::paged, c.page = 64, c.splits = 12;
    cases.push_back(forward_case(c, hopper + ".split"));
  }

  // More works than a GPU has multiprocessors: blocks that go on to a second one.
  void many(AttentionCase c, const std::string& hopper) {
    c.b = 70, c.s = 70, c.t = 90, c.splits = 1;
    for (Where where : {Where::batched, Where::varlen}) {
      c.where = where;
      for (Span span : {Span::full, Span::causal}) {
        c.span = span;
        cases.push_back(forward_case(c, hopper + ".whole"));
      }
    }
    c.b = 140, c.s = 1, c.t = 150, c.splits = 0, c.where = Where::lengths;
    cases.push_back(forward_case(c, few(c, hopper)));
    c.where = Where::paged;
    for (int64_t page : {16, 64}) {
      c.page = page;
      cases.push_back(forward_case(c, few(c, hopper)));
    }
    c.page = 0;
    if (c.d != 64) return;
    c.b = 2, c.s = 256, c.t = 300, c.splits = 1, c.where = Where::batched, c.span = Span::causal;
    cases.push_back(forward_case(c, hopper + ".whole.256x64"));
    c.s = 130;
    cases.push_back(forward_case(c, hopper + ".whole.192x128"));
  }

  // A few rows, everything on: for compute-sanitizer and the bindings.
  void small() {
    AttentionCase c = row(2, 5, 7, 4, 2, 8, 8);
    c.note = "small";
    c.span = Span::causal;
    both(c, true);
    c.dtype = FOVEA_BF16, c.span = Span::left_sink, c.sink_logit = c.softcap = c.alibi = true,
    c.bias = Bias::full, c.d = c.e = 16;
    both(c, true);
    c.f32 = 7;
    cases.push_back(backward_case(c));
    cases.back().tiny = true;
    int n = 0;
    for (int dtype : kDtypes)
      for (Where where :
           {Where::batched, Where::lengths, Where::varlen, Where::key_first, Where::paged})
        for (int64_t d : {40, 64, 128}) {
          AttentionCase x = row(2, 17, 70, 4, 2, d, d);
          x.note = "small", x.dtype = dtype, x.where = where,
          x.page = where == Where::paged ? 16 : 0;
          x.span = static_cast<Span>(n % 7), x.mask = n % 4 == 1, x.bias = static_cast<Bias>(n % 5),
          x.sink_logit = n % 3 == 0;
          x.softcap = n % 5 == 2, x.alibi = n % 6 == 3, x.dlse = n % 2, ++n;
          both(x);
        }
  }
};

std::vector<harness::Case> attention_cases() {
  std::vector<harness::Case> out;
  for (const auto& more : {attention_forward_sweep(), attention_codes_sweep(),
                           attention_backward_sweep(), Edges().cases})
    out.insert(out.end(), more.begin(), more.end());
  return out;
}

const Family kFamily("attention", attention_cases);

}  // namespace

}  // namespace cases
