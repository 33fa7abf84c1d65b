// SPDX-License-Identifier: Apache-2.0
// x_kl_jensen_shannon_forward and _backward: the sweep, the edges by name, hostile values.
#include "oracle/kl_jensen_shannon.h"
#include "cases/kl_over.h"

namespace cases {
namespace {

Call build_jensen_shannon_forward(const KlCase& c, uint64_t seed) {
  fovea_x_kl_jensen_shannon_forward_params* p;
  Call call = Call::make(FOVEA_TEST_OP(x_kl_jensen_shannon_forward), p);
  KlBuild<fovea_x_kl_jensen_shannon_forward_params> build(call, *p, c, seed);
  build.build();
  p->weight = c.share;
  const auto exact = oracle::jensen_shannon_forward(*p, oracle::Mode::exact),
             rounded = oracle::jensen_shannon_forward(*p, oracle::Mode::rounded);
  kl_outputs(call, c, build,
             {{0, "js", exact.js, rounded.js},
              {1, "kl_teacher", exact.kl_teacher, rounded.kl_teacher},
              {1, "kl_student", exact.kl_student, rounded.kl_student},
              {2, "lse_teacher", exact.lse_teacher, rounded.lse_teacher},
              {3, "lse_student", exact.lse_student, rounded.lse_student}});
  return call;
}

Call build_jensen_shannon_backward(const KlCase& c, uint64_t seed) {
  fovea_x_kl_jensen_shannon_backward_params* p;
  Call call = Call::make(FOVEA_TEST_OP(x_kl_jensen_shannon_backward), p);
  KlBuild<fovea_x_kl_jensen_shannon_backward_params> build(call, *p, c, seed);
  build.build();
  p->weight = c.share;
  // What the forward gave, rounded as it is stored.
  const auto forward = oracle::jensen_shannon_forward<double>(
      oracle::load_kl(*p), oracle::share_of(*p), oracle::Mode::exact);
  const auto given = [&](const char* name, fovea_tensor& slot, const oracle::Out& values) {
    size_t n = 0;
    build.row_numbers(name, slot, [&](const int64_t*, double) { return values.value[n++]; });
  };
  given("kl_teacher", p->kl_teacher, forward.kl_teacher);
  given("kl_student", p->kl_student, forward.kl_student);
  given("lse_teacher", p->lse_teacher, forward.lse_teacher);
  given("lse_student", p->lse_student, forward.lse_student);
  build.row_numbers("djs", p->djs,
                    [](const int64_t* i, double x) { return i[2] % 9 == 7 ? 0 : x; });
  const auto exact = oracle::jensen_shannon_backward(*p, oracle::Mode::exact),
             rounded = oracle::jensen_shannon_backward(*p, oracle::Mode::rounded);
  kl_outputs(call, c, build,
             {{0, "dq_student", exact.dq_second, rounded.dq_second},
              {1, "dk_student", exact.dk_second, rounded.dk_second},
              {2, "dq_teacher", exact.dq_first, rounded.dq_first},
              {3, "dk_teacher", exact.dk_first, rounded.dk_first}});
  return call;
}

class JensenShannonCases : public KlRows {
 public:
  JensenShannonCases()
      : KlRows("x_kl_jensen_shannon", build_jensen_shannon_forward, build_jensen_shannon_backward) {
    sweep(6, {15, 15}, {3}, 5, [](KlCase& c, const int* x) {
      c.share = x[0] == 0 ? 0 : x[0] == 1 ? 0.125f : 0.9f;
    });
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
      c.note = "edge", c.b = x[0], c.s = x[1], c.t = x[2], c.h = x[3];
      both(c);
    }
    // No query heads, and key heads of either side or none.
    for (const auto& heads : {std::pair{0, 0}, {0, 4}, {4, 0}}) {
      KlCase c;
      c.note = "edge", c.h = 0, c.g = heads.first, c.x = heads.second;
      both(c);
    }
    for (const auto& type : KlSweep::kTypes)
      for (KlData data : {KlData::normal, KlData::large, KlData::far, KlData::nan_q, KlData::nan_k,
                          KlData::inf_k, KlData::inf_q, KlData::near}) {
        KlCase c;
        c.note = "edge", c.teacher = type[0], c.student = type[1], c.data = data;
        c.s = 71, c.t = 33, c.span = Span::causal, c.d = c.f = 64, c.g = c.x = 2;
        both(c);  // the first rows see nothing
        c.s = 40, c.t = 130, c.share = 0.01f;
        both(c);
      }
    KlCase c;
    c.note = "edge", c.data = KlData::same, c.g = c.x = 2, c.s = 40, c.t = 100;
    both(c);
    c.data = KlData::nan_k, c.s = c.t = 200, c.span = Span::left;
    both(c);
    c.data = KlData::normal, c.h = 2, c.g = c.x = 1, c.s = 700, c.t = 800;
    both(c);
  }

  // Every instance of the tuned kernels of kl that serves a mixture, by its name.
  void tuned() {
    for (int dtype : {FOVEA_BF16, FOVEA_F16})
      for (Span span : {Span::full, Span::causal}) {
        const std::string name = std::string("sm90.") + dtype_name(dtype) + ".d";
        KlCase c;
        c.note = "tuned", c.teacher = c.student = dtype, c.b = 1, c.s = 130, c.t = 217, c.x = 2;
        c.span = span;
        c.d = 64, c.f = 128, add(c, false, false, name + "64.128");
        c.d = 128, c.f = 64, add(c, false, false, name + "128.64");
        c.outputs = 12, add(c, true, false, name + "128.64");
        c.outputs = 15, c.f = 128;
        add(c, false, false, name + "128.128.short"), add(c, true, false, name + "128.128");
        c.d = c.f = 192, add(c, false, false, name + "256.256");
        c.d = c.f = 64;
        add(c, false, false, name + "64.64.short"), add(c, true, false, name + "64.64");
        c.d = c.f = 72, c.b = 20, c.h = 20, c.g = c.x = 10, c.s = 70, c.t = 40;
        add(c, false, false, name + "128.128");
        c.d = c.f = 64, add(c, false, false, name + "64.64");
      }
  }

  void small() {
    KlCase c;
    c.note = "small", c.b = 1, c.d = 4, c.f = 6, c.s = 3, c.t = 5;
    both(c, true);
    c.b = 2, c.teacher = FOVEA_BF16, c.span = Span::causal, c.share = 0.75f;
    both(c, true);
    c.where = Where::varlen, c.s = 17, c.t = 40, c.student = FOVEA_F16;
    both(c);
    c.where = Where::lengths, c.span = Span::head_window, c.lay = Lay::odd;
    both(c);
  }
};

std::vector<harness::Case> jensen_shannon_cases() {
  return JensenShannonCases().cases;
}

const Family kFamily("kl_jensen_shannon", jensen_shannon_cases);

}  // namespace

}  // namespace cases
