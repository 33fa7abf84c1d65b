// SPDX-License-Identifier: Apache-2.0
// x_kl_indexer_forward and _backward: the sweep, the edges by name, hostile values.
#include "oracle/kl_indexer.h"
#include "cases/kl_over.h"

namespace cases {
namespace {

// Of KlCase, h and g are the teacher's heads and x those of the indexer.
template <class P>
void give_indexer_weights(Call& call, P& p, const KlCase& c, const KlBuild<P>& build,
                          uint64_t seed) {
  const harness::Random random(seed + 1);
  uint64_t n = 0;
  const size_t field =
      call.add("weight", p.weight, Role::in, FOVEA_F32, {build.b, build.s, c.x}, c.lay);
  call.fill(field, [&](const int64_t*) {
    return random.normal(n++) / std::sqrt(static_cast<double>(c.f * c.x));
  });
  call.account(field, [&](const int64_t* i) { return build.rows[i[0] * build.s + i[1]] != 0; });
}

Call build_indexer_forward(const KlCase& c, uint64_t seed) {
  fovea_x_kl_indexer_forward_params* p;
  Call call = Call::make(FOVEA_TEST_OP(x_kl_indexer_forward), p);
  KlBuild<fovea_x_kl_indexer_forward_params> build(call, *p, c, seed);
  build.build();
  give_indexer_weights(call, *p, c, build, seed);
  const auto exact = oracle::indexer_forward(*p, oracle::Mode::exact),
             rounded = oracle::indexer_forward(*p, oracle::Mode::rounded);
  kl_outputs(call, c, build,
             {{0, "kl", exact.kl, rounded.kl},
              {1, "lse_teacher", exact.lse_teacher, rounded.lse_teacher},
              {2, "lse_student", exact.lse_student, rounded.lse_student}});
  return call;
}

Call build_indexer_backward(const KlCase& c, uint64_t seed) {
  fovea_x_kl_indexer_backward_params* p;
  Call call = Call::make(FOVEA_TEST_OP(x_kl_indexer_backward), p);
  KlBuild<fovea_x_kl_indexer_backward_params> build(call, *p, c, seed);
  build.build();
  give_indexer_weights(call, *p, c, build, seed);
  // What the forward gave, rounded as it is stored.
  const auto forward =
      oracle::indexer_forward<double>(oracle::load_indexer(*p), oracle::Mode::exact);
  size_t n = 0;
  build.row_numbers("lse_teacher", p->lse_teacher,
                    [&](const int64_t*, double) { return forward.lse_teacher.value[n++]; });
  const auto given = [&](const char* name, fovea_tensor& slot, auto value) {
    const size_t field = call.add(name, slot, Role::in, FOVEA_F32, {build.b, build.s}, c.lay);
    call.fill(field, value);
    call.account(field, [&](const int64_t* i) { return build.rows[i[0] * build.s + i[1]] != 0; });
  };
  n = 0;
  given("lse_student", p->lse_student,
        [&](const int64_t*) { return forward.lse_student.value[n++]; });
  const harness::Random random(seed + 2);
  uint64_t m = 0;
  given("dkl", p->dkl, [&](const int64_t* i) {
    const double x = random.normal(m++);
    return i[1] % 9 == 7 ? 0 : x;
  });
  const auto exact = oracle::indexer_backward(*p, oracle::Mode::exact),
             rounded = oracle::indexer_backward(*p, oracle::Mode::rounded);
  kl_outputs(call, c, build,
             {{0, "dq_student", exact.dq, rounded.dq},
              {1, "dk_student", exact.dk, rounded.dk},
              {2, "dweight", exact.dweight, rounded.dweight}});
  return call;
}

class IndexerCases : public KlRows {
 public:
  IndexerCases() : KlRows("x_kl_indexer", build_indexer_forward, build_indexer_backward) {
    static constexpr int64_t heads[] = {1, 3, 4, 8};
    sweep(5, {7, 7}, {4}, 7, [](KlCase& c, const int* x) { c.x = heads[x[0]]; });
    edges();
    tuned();
    small();
  }

 private:
  void edges() {
    static constexpr int64_t extents[][3] = {{0, 3, 3}, {2, 0, 5}, {2, 5, 0}, {1, 0, 0}, {1, 1, 1}};
    for (const auto& x : extents) {
      KlCase c;
      c.note = "edge", c.b = x[0], c.s = x[1], c.t = x[2];
      both(c);
    }
    for (const auto& type : KlSweep::kTypes)
      for (KlData data : {KlData::normal, KlData::large, KlData::far, KlData::nan_q, KlData::nan_k,
                          KlData::inf_k}) {
        KlCase c;
        c.note = "edge", c.teacher = type[0], c.student = type[1], c.data = data;
        // On tensor cores a gradient may have the NaN anywhere in the sequence.
        const bool backward = data < KlData::nan_q || type[0] == FOVEA_F32 || type[0] != type[1];
        c.s = 71, c.t = 33, c.span = Span::causal, c.d = c.f = 64, c.outputs = 7;
        add(c, false);  // the first rows see nothing
        if (backward) add(c, true);
        c.s = 40, c.t = 130, c.x = 1;
        add(c, false);
        if (backward) add(c, true);
      }
    KlCase c;
    c.note = "edge", c.data = KlData::nan_k, c.s = c.t = 200, c.span = Span::left;
    both(c);
    c.data = KlData::normal, c.h = 2, c.g = 1, c.x = 2, c.s = 300, c.t = 800, c.b = 1;
    both(c);
    c.x = 16, c.h = 1, c.s = 70, c.t = 90;
    both(c);
  }

  // The tensor-core kernels: Hopper's have no sink keys.
  void tuned() {
    for (int dtype : {FOVEA_BF16, FOVEA_F16})
      for (Span span : {Span::full, Span::causal, Span::left_sink}) {
        KlCase c;
        c.note = "tuned", c.teacher = c.student = dtype, c.span = span, c.outputs = 7;
        c.s = 130, c.t = 217, c.d = 128, c.f = 72;
        const std::string type = dtype_name(dtype);
        both(c, false, span == Span::left_sink ? "sm80." + type : "sm90." + type + ".d128");
      }
  }

  void small() {
    KlCase c;
    c.note = "small", c.b = 1, c.d = 4, c.f = 6, c.s = 3, c.t = 5, c.x = 3, c.outputs = 7;
    both(c, true);
    c.b = 2, c.teacher = FOVEA_BF16, c.span = Span::causal;
    both(c, true);
    c.where = Where::varlen, c.s = 17, c.t = 40, c.student = FOVEA_F16;
    both(c);
    c.where = Where::lengths, c.span = Span::left_sink, c.lay = Lay::odd;
    both(c);
  }
};

std::vector<harness::Case> indexer_cases() {
  return IndexerCases().cases;
}

const Family kFamily("kl_indexer", indexer_cases);

}  // namespace

}  // namespace cases
