// SPDX-License-Identifier: Apache-2.0
// kl_forward and kl_backward: the sweep, the edges by name, hostile values.
#include "cases/all.h"
#include "cases/kl_build.h"
#include "cases/kl_sweep.h"

namespace cases {
namespace {

class KlCases {
 public:
  std::vector<harness::Case> cases;

  KlCases() {
    for (bool backward : {false, true}) sweep(backward);
    edges();
    hostile();
    tuned();
    small();
  }

 private:
  void add(const KlCase& c, bool backward, bool tiny = false, const std::string& kernel = "") {
    cases.push_back({backward ? "kl_backward" : "kl_forward", name_of(c, backward),
                     [c, backward](uint64_t seed) {
                       return backward ? build_kl_backward(c, seed) : build_kl_forward(c, seed);
                     },
                     kernel, "", tiny, c.nondeterministic});
  }
  // Forward with every output, and backward with every output from dkl and dtotal.
  void both(KlCase c, bool tiny = false) {
    add(c, false, tiny);
    c.incoming = 3;
    add(c, true, tiny);
  }

  void sweep(bool backward) {
    const std::vector<int> sizes = {6, 8, 6, 7, 6, 4, 2, 2, 3, 3, 5, 2, 15, 3};
    harness::Pairwise rows(
        sizes,
        [&](const harness::Row& x) {
          const bool totals = backward ? x[13] > 0 : (x[12] + 1) & 8;
          // mean and weights are of the total.
          return totals || (x[7] == 0 && x[8] == 0);
        },
        backward ? 4 : 3);
    for (const harness::Row& x : rows.rows()) {
      KlCase c = KlSweep::shaped(x);
      c.reverse = x[6] != 0, c.mean = x[7] != 0, c.weights = static_cast<KlWeights>(x[8]);
      c.data = x[9] == 1 ? KlData::large : KlData::normal;
      c.lay = static_cast<Lay>(x[10]), c.scale = x[11] ? 0.3f : 0;
      c.outputs = x[12] + 1, c.incoming = x[13] + 1;
      c.note = x[9] == 2 ? "b1" : "";
      if (x[9] == 2) c.b = 1;
      add(c, backward);
    }
  }

  void edges() {
    static constexpr int64_t extents[][4] = {{0, 3, 3, 4}, {2, 0, 5, 4}, {2, 5, 0, 4},
                                             {1, 0, 0, 4}, {1, 3, 3, 0}, {1, 1, 1, 4},
                                             {2, 1, 9, 4}, {2, 9, 1, 4}};
    for (const auto& x : extents)
      for (int type : {0, 3}) {
        KlCase c;
        c.note = "edge", c.teacher = KlSweep::kTypes[type][0], c.student = KlSweep::kTypes[type][1];
        c.b = x[0], c.s = x[1], c.t = x[2], c.h = x[3], c.mean = type != 0;
        both(c);
      }
    // No query heads, and key heads of either side or none.
    for (const auto& heads : {std::pair{0, 0}, {0, 4}, {4, 0}}) {
      KlCase c;
      c.note = "edge", c.h = 0, c.g = heads.first, c.x = heads.second;
      both(c);
    }
    for (const auto& type : KlSweep::kTypes)
      for (bool reverse : {false, true}) {
        KlCase c;
        c.note = "edge", c.teacher = type[0], c.student = type[1], c.reverse = reverse;
        c.s = 71, c.t = 33, c.span = Span::causal, c.d = 64, c.f = 40, c.mean = true;
        both(c);  // the first rows see nothing
        c.weights = KlWeights::some;
        both(c);
        c.weights = KlWeights::zeros;  // nothing to divide by
        both(c);
        c.weights = KlWeights::none, c.span = Span::full, c.s = 40, c.t = 100, c.d = c.f = 64;
        c.g = c.x = 2;
        if (type[0] == type[1]) c.data = KlData::same, both(c);
        c.data = KlData::near;
        both(c);
      }
    // The widest rows, many heads on one, rows and keys off every tile.
    for (int type : {0, 2}) {
      KlCase c;
      c.note = "edge", c.teacher = KlSweep::kTypes[type][0], c.student = KlSweep::kTypes[type][1],
      c.b = 1;
      c.d = 576, c.f = 512, c.s = 20, c.t = 100, c.span = Span::causal;
      both(c);
      c.h = 16, c.g = 1, c.x = 16, c.d = c.f = 32;
      both(c);
      c.h = 2, c.g = c.x = 1, c.d = c.f = 8, c.s = 700, c.t = 800;
      for (Span span : {Span::full, Span::causal, Span::left_sink}) {
        c.span = span;
        both(c);
      }
    }
    KlCase c;
    c.note = "edge", c.nondeterministic = true, c.s = 70, c.t = 90, c.d = c.f = 64;
    add(c, true);
    // Too many rows for the shortest tiles.
    c = {};
    c.note = "edge", c.teacher = c.student = FOVEA_BF16, c.d = c.f = 72;
    c.b = 20, c.h = c.g = c.x = 16, c.s = 40, c.t = 150;
    for (Span span : {Span::full, Span::causal, Span::left})
      for (KlData data : {KlData::normal, KlData::large, KlData::nan_k}) {
        c.span = span, c.data = data;
        add(c, false);
      }
    // Rows whose scores pass all before them by far, beside rows of no account.
    c = {};
    c.note = "edge", c.teacher = c.student = FOVEA_BF16, c.s = 90, c.t = 1500, c.scale = 1.f;
    for (int64_t width : {64, 128})
      for (Where where : {Where::lengths, Where::varlen}) {
        c.d = c.f = width, c.where = where;
        add(c, false);
      }
  }

  void hostile() {
    for (const auto& type : KlSweep::kTypes)
      for (KlData data :
           {KlData::large, KlData::far, KlData::nan_q, KlData::nan_k, KlData::inf_k, KlData::inf_q})
        for (bool reverse : {false, true}) {
          KlCase c;
          c.note = "edge", c.teacher = type[0], c.student = type[1], c.reverse = reverse;
          c.data = data, c.s = 40, c.t = 130, c.d = c.f = 64, c.span = Span::causal;
          both(c);
          c.s = 71, c.t = 33;  // some rows see nothing, one all but the key that is no number
          both(c);
        }
    // A key that is no number, seen by rows of an unmasked tile and of a masked one.
    KlCase c;
    c.note = "edge", c.data = KlData::nan_k, c.s = 200, c.t = 200, c.span = Span::left;
    both(c);
  }

  // Every instance of the tuned kernels (src/ops/kl/forward.inc, backward.inc), by its name.
  void tuned() {
    for (int dtype : {FOVEA_BF16, FOVEA_F16}) {
      const std::string name = std::string("sm90.") + dtype_name(dtype) + ".d";
      KlCase c;
      c.note = "tuned", c.teacher = c.student = dtype, c.b = 1, c.s = 130, c.t = 217, c.x = 2;
      const auto forward = [&](const char* kernel) { add(c, false, false, name + kernel); };
      const auto backward = [&](const char* kernel) {
        c.incoming = 3;
        add(c, true, false, name + kernel);
      };
      c.d = 64, c.f = 128, forward("64.128");
      for (bool reverse : {false, true}) {
        c.d = reverse ? 64 : 128, c.f = reverse ? 128 : 64, c.reverse = reverse;
        forward("128.64");
        c.outputs = reverse ? 3 : 12;  // of the one that weighs
        backward("128.64");
        c.outputs = 15;
      }
      for (Where where : {Where::batched, Where::lengths, Where::varlen})
        for (Span span : {Span::full, Span::causal, Span::left, Span::band}) {
          c.reverse = span == Span::left, c.mean = c.reverse;
          c.where = where, c.span = span, c.b = where == Where::lengths ? 3 : 1;
          c.d = c.f = 64, forward("64.64.short"), backward("64.64");
          c.d = c.f = 128, forward("128.128.short"), backward("128.128");
          c.d = 192, c.f = 256, forward("256.256");
        }
      // Key heads of which one is of several of the other's, or neither a multiple.
      for (const auto& heads : {KlSweep::kHeads[1], KlSweep::kHeads[3], KlSweep::kHeads[4]})
        for (Where where : {Where::batched, Where::lengths, Where::varlen}) {
          KlCase shared = c;
          shared.h = heads[0], shared.g = heads[1], shared.x = heads[2];
          shared.where = where, shared.span = where == Where::varlen ? Span::left : Span::causal;
          shared.b = where == Where::lengths ? 3 : 1, shared.incoming = 3;
          for (int64_t width : {64, 128}) {
            shared.d = shared.f = width;
            const std::string widths = std::to_string(width) + "." + std::to_string(width);
            add(shared, true, false, name + widths);
          }
        }
      c.where = Where::batched, c.reverse = c.mean = false, c.d = c.f = 72, c.t = 40;
      c.span = Span::causal, c.b = 20, c.h = 20, c.g = c.x = 10, c.s = 70, forward("128.128");
      c.d = c.f = 64, forward("64.64");
      // Rows enough for the longest tiles, with and without a mask.
      c.span = Span::full, c.where = Where::lengths, c.s = 4100, c.t = 2050;
      c.b = 6, c.h = c.g = c.x = 1, forward("64.64.long");
      c.d = c.f = 72, forward("128.128.long");
      if (dtype == FOVEA_F16) continue;
      c.span = Span::causal, c.b = 12, c.t = 4096, forward("128.128.long");
      c.d = c.f = 64, forward("64.64.long");
    }
  }

  // A few rows, everything on: for sanitizers and the bindings.
  void small() {
    KlCase c;
    c.note = "small", c.b = 1, c.d = 4, c.f = 6, c.s = 3, c.t = 5;
    both(c, true);
    c.b = 2, c.teacher = FOVEA_BF16, c.span = Span::causal, c.reverse = c.mean = true;
    c.weights = KlWeights::some;
    both(c, true);
    c.where = Where::varlen, c.s = 17, c.t = 40, c.student = FOVEA_F16;
    both(c);
    c.where = Where::lengths, c.span = Span::head_window, c.lay = Lay::odd;
    both(c);
  }
};

std::vector<harness::Case> kl_cases() {
  return KlCases().cases;
}

const Family kFamily("kl", kl_cases);

}  // namespace

Call build_kl_forward(const KlCase& c, uint64_t seed) {
  fovea_kl_forward_params* p;
  Call call = Call::make(FOVEA_TEST_OP(kl_forward), p);
  KlBuild<fovea_kl_forward_params> build(call, *p, c, seed);
  build.build();
  const Shape rows = {build.b, c.h, build.s};
  const auto output = [&](int bit, const char* name, fovea_tensor& slot, const Shape& shape) {
    if (c.outputs >> bit & 1) call.add(name, slot, Role::out, FOVEA_F32, shape, c.lay);
  };
  output(0, "kl", p->kl, rows);
  output(1, "lse_teacher", p->lse_teacher, rows);
  output(2, "lse_student", p->lse_student, rows);
  output(3, "total", p->total, {1});
  oracle::KlResult exact = oracle::kl_forward(*p, oracle::Mode::exact),
                   rounded = oracle::kl_forward(*p, oracle::Mode::rounded);
  const auto expect = [&](const char* name, oracle::Out& x, oracle::Out& y) {
    if (call.field(name) < call.fields.size())
      call.expect(call.field(name), std::move(x), std::move(y));
  };
  expect("kl", exact.kl, rounded.kl);
  expect(c.reverse ? "lse_student" : "lse_teacher", exact.lse_first, rounded.lse_first);
  expect(c.reverse ? "lse_teacher" : "lse_student", exact.lse_second, rounded.lse_second);
  expect("total", exact.total, rounded.total);
  return call;
}

Call build_kl_backward(const KlCase& c, uint64_t seed) {
  fovea_kl_backward_params* p;
  Call call = Call::make(FOVEA_TEST_OP(kl_backward), p);
  KlBuild<fovea_kl_backward_params> build(call, *p, c, seed);
  build.build();
  p->nondeterministic = c.nondeterministic;
  // What the forward gave, rounded as it is stored.
  const oracle::KlCall a = oracle::load_kl(*p);
  struct {
    fovea_tensor total = {};
  } nothing;
  const oracle::KlResult forward = oracle::kl_forward<double>(a, nothing, oracle::Mode::exact);
  const auto given = [&](const char* name, fovea_tensor& slot, const oracle::Out& values) {
    size_t n = 0;
    build.row_numbers(name, slot, [&](const int64_t*, double) { return values.value[n++]; });
  };
  given("kl", p->kl, forward.kl);
  given("lse_teacher", p->lse_teacher, c.reverse ? forward.lse_second : forward.lse_first);
  given("lse_student", p->lse_student, c.reverse ? forward.lse_first : forward.lse_second);
  if (c.incoming & 1)
    build.row_numbers("dkl", p->dkl,
                      [](const int64_t* i, double x) { return i[2] % 9 == 7 ? 0 : x; });
  if (c.incoming & 2)
    call.fill_list(call.add("dtotal", p->dtotal, Role::in, FOVEA_F32, {1}), {c.mean ? 7.5 : 0.6});
  const auto output = [&](int bit, const char* name, fovea_tensor& slot, int dtype,
                          const Shape& shape) {
    if (c.outputs >> bit & 1) call.add(name, slot, Role::out, dtype, shape, c.lay);
  };
  output(0, "dq_student", p->dq_student, c.student, {build.b, build.s, c.h, c.f});
  output(1, "dk_student", p->dk_student, c.student, {build.key_b, build.t, c.x, c.f});
  output(2, "dq_teacher", p->dq_teacher, c.teacher, {build.b, build.s, c.h, c.d});
  output(3, "dk_teacher", p->dk_teacher, c.teacher, {build.key_b, build.t, c.g, c.d});
  oracle::KlGradients exact = oracle::kl_backward(*p, oracle::Mode::exact),
                      rounded = oracle::kl_backward(*p, oracle::Mode::rounded);
  const auto expect = [&](const std::string& name, oracle::Out& x, oracle::Out& y) {
    if (call.field(name) < call.fields.size())
      call.expect(call.field(name), std::move(x), std::move(y));
  };
  const std::string first = c.reverse ? "student" : "teacher",
                    second = c.reverse ? "teacher" : "student";
  expect("dq_" + first, exact.dq_first, rounded.dq_first);
  expect("dk_" + first, exact.dk_first, rounded.dk_first);
  expect("dq_" + second, exact.dq_second, rounded.dq_second);
  expect("dk_" + second, exact.dk_second, rounded.dk_second);
  return call;
}

}  // namespace cases
