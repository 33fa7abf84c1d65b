// SPDX-License-Identifier: Apache-2.0
// What the experimental operations of the kl family share: outputs from the contract table, rows of
// cases, and for those whose oracle is kl's own over other keys the calls as well.
#pragma once
#include "cases/kl_build.h"
#include "cases/kl_sweep.h"
#include "cases/table.h"

namespace cases {

// An output, given where its bit of KlCase::outputs is set and the operation has it.
struct KlOutput {
  int bit;
  const char* name;
  const oracle::Out &exact, &rounded;
};

template <class P>
void kl_outputs(Call& call, const KlCase& c, const KlBuild<P>& build,
                std::initializer_list<KlOutput> outputs) {
  const Letters letters = {
      {"b", build.b}, {"s", build.s}, {"h", c.h},     {"g", c.g},         {"x", c.x},
      {"d", c.d},     {"f", c.f},     {"t", build.t}, {"u", build.units}, {"key_b", build.key_b}};
  for (const KlOutput& o : outputs)
    if (has_field(call, o.name) && c.outputs >> o.bit & 1)
      call.expect(add_field(call, o.name, letters, c.lay), o.exact, o.rounded);
}

// A call of kl's tensors over other keys: more(call, params, build) gives what the operation reads
// beside them, results(call, params, build, oracle's call) the rest.
template <class P, class More, class Results>
Call kl_over(const harness::Op& op, const KlCase& c, uint64_t seed, More more, Results results) {
  P* p;
  Call call = Call::make(op, p);
  KlBuild<P> build(call, *p, c, seed);
  build.build();
  more(call, *p, build);
  results(call, *p, build, oracle::load_kl(*p));
  return call;
}

template <class P, class More>
Call kl_over_forward(const harness::Op& op, const KlCase& c, uint64_t seed, More more) {
  return kl_over<P>(
      op, c, seed, more, [&](Call& call, P&, const KlBuild<P>& build, const oracle::KlCall& a) {
        const auto exact = oracle::kl_forward<double>(a, oracle::NoTotal{}, oracle::Mode::exact);
        const auto rounded = oracle::kl_forward<float>(a, oracle::NoTotal{}, oracle::Mode::rounded);
        kl_outputs(call, c, build,
                   {{0, "kl", exact.kl, rounded.kl},
                    {1, "lse_teacher", exact.lse_first, rounded.lse_first},
                    {2, "lse_student", exact.lse_second, rounded.lse_second}});
      });
}

template <class P, class More>
Call kl_over_backward(const harness::Op& op, const KlCase& c, uint64_t seed, More more) {
  const auto results = [&](Call& call, P& p, KlBuild<P>& build, const oracle::KlCall& a) {
    // What the forward gave, rounded as it is stored.
    const auto forward = oracle::kl_forward<double>(a, oracle::NoTotal{}, oracle::Mode::exact);
    const auto given = [&](const char* name, fovea_tensor& slot, const oracle::Out& values) {
      size_t n = 0;
      build.row_numbers(name, slot, [&](const int64_t*, double) { return values.value[n++]; });
    };
    if constexpr (requires { p.kl; }) given("kl", p.kl, forward.kl);
    given("lse_teacher", p.lse_teacher, forward.lse_first);
    given("lse_student", p.lse_student, forward.lse_second);
    build.row_numbers("dkl", p.dkl,
                      [](const int64_t* i, double x) { return i[2] % 9 == 7 ? 0 : x; });
    const oracle::Dense dkl = oracle::load(p.dkl);
    oracle::Dense kl = dkl;  // of the teacher's gradient alone
    if constexpr (requires { p.kl; }) kl = oracle::load(p.kl);
    const oracle::KlIncoming in{
        kl, oracle::load(p.lse_teacher), oracle::load(p.lse_student), dkl, {}};
    const auto exact = oracle::kl_backward<double>(a, in, oracle::Mode::exact),
               rounded = oracle::kl_backward<float>(a, in, oracle::Mode::rounded);
    kl_outputs(call, c, build,
               {{0, "dq_student", exact.dq_second, rounded.dq_second},
                {1, "dk_student", exact.dk_second, rounded.dk_second},
                {2, "dq_teacher", exact.dq_first, rounded.dq_first},
                {3, "dk_teacher", exact.dk_first, rounded.dk_first}});
  };
  return kl_over<P>(op, c, seed, more, results);
}

// The rows of a family: a forward and a backward of each case.
class KlRows {
 public:
  using Build = Call (*)(const KlCase&, uint64_t seed);
  std::vector<harness::Case> cases;

  KlRows(const char* op, Build forward, Build backward)
      : op_(op), forward_(forward), backward_(backward) {}

  void add(const KlCase& c, bool backward, bool tiny = false, const std::string& kernel = "") {
    const Build build = backward ? backward_ : forward_;
    cases.push_back({op_ + (backward ? "_backward" : "_forward"), name_of(c, false),
                     [c, build](uint64_t seed) { return build(c, seed); }, kernel, "", tiny});
  }
  void both(const KlCase& c, bool tiny = false, const std::string& kernel = "") {
    add(c, false, tiny, kernel);
    add(c, true, tiny, kernel);
  }
  // A covering array.  `outputs` are the numbers of choices of a forward and a backward, `own`
  // those of the family's own axes, of which set(case, x) reads x[0], x[1] and so on.
  template <class Set>
  void sweep(int spans, std::pair<int, int> outputs, const std::vector<int>& own, uint64_t seed,
             Set set) {
    for (const bool backward : {false, true}) {
      std::vector<int> sizes = {6, 8, 6, 7, spans,
                                4, 2, 5, 2, backward ? outputs.second : outputs.first};
      sizes.insert(sizes.end(), own.begin(), own.end());
      harness::Pairwise rows(
          sizes, [](const harness::Row&) { return true; }, backward ? seed + 1 : seed);
      for (const harness::Row& x : rows.rows()) {
        KlCase c = KlSweep::shaped(x);
        c.data = x[6] ? KlData::large : KlData::normal;
        c.lay = static_cast<Lay>(x[7]), c.scale = x[8] ? 0.3f : 0, c.outputs = x[9] + 1;
        set(c, x.data() + 10);
        add(c, backward);
      }
    }
  }

 private:
  const std::string op_;
  const Build forward_, backward_;
};

}  // namespace cases
