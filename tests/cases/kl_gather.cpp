// SPDX-License-Identifier: Apache-2.0
// x_kl_gather_forward and _backward: the sweep, the edges by name, hostile values.  The oracle is
// kl's, over the keys that the lists name.
#include "cases/all.h"
#include "cases/kl_build.h"
#include "cases/kl_sweep.h"

namespace cases {
namespace {

// Entries in any order: none, keys, keys twice, numbers past the keys.
template <class P>
void give_lists(Call& call, P& p, const KlCase& c, const KlBuild<P>& build, uint64_t seed) {
  const Shape shape = {build.b, c.h, build.s, c.list};
  fovea_tensor x = fovea_contiguous(nullptr, FOVEA_I32, 4, shape.data());
  if (c.shared_list) x.stride[0] /= std::max<int64_t>(c.h, 1), x.stride[1] = 0;
  const size_t field = c.shared_list
                           ? call.add_strided("index", p.index, Role::in, x)
                           : call.add("index", p.index, Role::in, FOVEA_I32, shape, c.lay);
  const harness::Random random(seed + 1);
  call.fill(field, [&](const int64_t* i) {
    const int64_t head = c.shared_list ? 0 : i[1];
    const uint64_t at =
        static_cast<uint64_t>(((i[0] * c.h + head) * build.s + i[2]) * c.list + i[3]);
    if (i[2] % 7 == 3) return -1.0;  // a row without keys
    return static_cast<double>(random.bits(at) % static_cast<uint64_t>(c.t + 3)) - 2;
  });
  call.account(field, [&](const int64_t* i) { return build.rows[i[0] * build.s + i[2]] != 0; });
}

Call build_gather_forward(const KlCase& c, uint64_t seed) {
  fovea_x_kl_gather_forward_params* p;
  Call call = Call::make(FOVEA_TEST_OP(x_kl_gather_forward), p);
  KlBuild<fovea_x_kl_gather_forward_params> build(call, *p, c, seed);
  build.build();
  give_lists(call, *p, c, build, seed);
  const oracle::KlCall a = oracle::load_kl(*p);
  const auto exact = oracle::kl_forward<double>(a, oracle::NoTotal{}, oracle::Mode::exact);
  const auto rounded = oracle::kl_forward<float>(a, oracle::NoTotal{}, oracle::Mode::rounded);
  const auto output = [&](int bit, const char* name, fovea_tensor& slot, const oracle::Out& x,
                          const oracle::Out& y) {
    if (c.outputs >> bit & 1)
      call.expect(call.add(name, slot, Role::out, FOVEA_F32, {build.b, c.h, build.s}, c.lay), x, y);
  };
  output(0, "kl", p->kl, exact.kl, rounded.kl);
  output(1, "lse_teacher", p->lse_teacher, exact.lse_first, rounded.lse_first);
  output(2, "lse_student", p->lse_student, exact.lse_second, rounded.lse_second);
  return call;
}

Call build_gather_backward(const KlCase& c, uint64_t seed) {
  fovea_x_kl_gather_backward_params* p;
  Call call = Call::make(FOVEA_TEST_OP(x_kl_gather_backward), p);
  KlBuild<fovea_x_kl_gather_backward_params> build(call, *p, c, seed);
  build.build();
  give_lists(call, *p, c, build, seed);
  // What the forward gave, rounded as it is stored.
  const oracle::KlCall a = oracle::load_kl(*p);
  const auto forward = oracle::kl_forward<double>(a, oracle::NoTotal{}, oracle::Mode::exact);
  const auto given = [&](const char* name, fovea_tensor& slot, const oracle::Out& values) {
    size_t n = 0;
    build.row_numbers(name, slot, [&](const int64_t*, double) { return values.value[n++]; });
  };
  given("kl", p->kl, forward.kl);
  given("lse_teacher", p->lse_teacher, forward.lse_first);
  given("lse_student", p->lse_student, forward.lse_second);
  build.row_numbers("dkl", p->dkl,
                    [](const int64_t* i, double x) { return i[2] % 9 == 7 ? 0 : x; });
  const oracle::KlIncoming in{oracle::load(p->kl),
                              oracle::load(p->lse_teacher),
                              oracle::load(p->lse_student),
                              oracle::load(p->dkl),
                              {}};
  const auto exact = oracle::kl_backward<double>(a, in, oracle::Mode::exact),
             rounded = oracle::kl_backward<float>(a, in, oracle::Mode::rounded);
  const auto output = [&](int bit, const char* name, fovea_tensor& slot, int dtype,
                          const Shape& shape, const oracle::Out& x, const oracle::Out& y) {
    if (c.outputs >> bit & 1)
      call.expect(call.add(name, slot, Role::out, dtype, shape, c.lay), x, y);
  };
  output(0, "dq_student", p->dq_student, c.student, {build.b, build.s, c.h, c.f}, exact.dq_second,
         rounded.dq_second);
  output(1, "dk_student", p->dk_student, c.student, {build.key_b, build.t, c.x, c.f},
         exact.dk_second, rounded.dk_second);
  output(2, "dq_teacher", p->dq_teacher, c.teacher, {build.b, build.s, c.h, c.d}, exact.dq_first,
         rounded.dq_first);
  output(3, "dk_teacher", p->dk_teacher, c.teacher, {build.key_b, build.t, c.g, c.d},
         exact.dk_first, rounded.dk_first);
  return call;
}

class GatherCases {
 public:
  std::vector<harness::Case> cases;

  GatherCases() {
    for (bool backward : {false, true}) sweep(backward);
    edges();
    small();
  }

 private:
  void add(const KlCase& c, bool backward, bool tiny = false, const std::string& kernel = "") {
    cases.push_back({backward ? "x_kl_gather_backward" : "x_kl_gather_forward", name_of(c, false),
                     [c, backward](uint64_t seed) {
                       return backward ? build_gather_backward(c, seed)
                                       : build_gather_forward(c, seed);
                     },
                     kernel, "", tiny});
  }
  void both(const KlCase& c, bool tiny = false, const std::string& kernel = "") {
    add(c, false, tiny, kernel);
    add(c, true, tiny, kernel);
  }

  void sweep(bool backward) {
    static constexpr int64_t lists[] = {1, 20, 96, 130};
    const std::vector<int> sizes = {6, 8, 6, 7, 1, 4, 2, 5, 2, backward ? 15 : 7, 4, 2};
    harness::Pairwise rows(
        sizes, [](const harness::Row&) { return true; }, backward ? 10 : 9);
    for (const harness::Row& x : rows.rows()) {
      KlCase c = KlSweep::shaped(x);
      c.data = x[6] ? KlData::large : KlData::normal;
      c.lay = static_cast<Lay>(x[7]), c.scale = x[8] ? 0.3f : 0, c.outputs = x[9] + 1;
      c.list = lists[x[10]], c.shared_list = x[11] != 0;
      add(c, backward);
    }
  }

  void edges() {
    static constexpr int64_t extents[][5] = {{0, 3, 3, 4, 5}, {2, 0, 5, 4, 5}, {2, 5, 0, 4, 5},
                                             {1, 3, 3, 0, 5}, {1, 1, 1, 4, 1}, {2, 5, 7, 4, 0}};
    for (const auto& x : extents) {
      KlCase c;
      c.note = "edge", c.b = x[0], c.s = x[1], c.t = x[2], c.h = x[3], c.list = x[4];
      both(c);
    }
    // No query heads, key heads of either side or none, lists of all heads or of each.
    for (const auto& heads : {std::pair{0, 0}, {0, 4}, {4, 0}, {2, 4}})
      for (bool shared : {false, true}) {
        KlCase c;
        c.note = "edge", c.h = 0, c.g = heads.first, c.x = heads.second, c.list = 5;
        c.shared_list = shared;
        both(c);
      }
    for (const auto& type : KlSweep::kTypes)
      for (KlData data : {KlData::normal, KlData::large, KlData::far, KlData::nan_q, KlData::nan_k,
                          KlData::inf_k, KlData::inf_q, KlData::near}) {
        KlCase c;
        c.note = "edge", c.teacher = type[0], c.student = type[1], c.data = data;
        c.s = 71, c.t = 33, c.d = c.f = 64, c.g = c.x = 2, c.list = 12;
        both(c);
      }
    KlCase c;
    c.note = "edge", c.h = 2, c.g = c.x = 1, c.s = 300, c.t = 2500, c.list = 200, c.b = 1;
    both(c);  // keys of several blocks
    // A list and keys that all heads share.
    for (int dtype : {FOVEA_BF16, FOVEA_F16})
      for (int64_t h : {4, 18}) {
        const std::string kernel = std::string("sm80.") + dtype_name(dtype);
        KlCase c;
        c.note = "edge", c.teacher = c.student = dtype, c.h = h, c.g = c.x = 1;
        c.shared_list = true, c.s = 33, c.t = 150, c.d = 128, c.f = 72, c.list = 130;
        c.span = Span::causal;
        both(c, false, kernel);
        c.where = Where::varlen, c.data = KlData::nan_k, c.list = 20;
        both(c, false, kernel);
        c.where = Where::lengths, c.data = KlData::nan_q, c.b = 3, c.t = 300;
        add(c, false, false, kernel);
        c.outputs = 5;  // dq: the NaN may be in dk of every key
        add(c, true, false, kernel);
        c.outputs = 15;
        c.data = KlData::normal, c.t = 3;  // every key many times
        both(c, false, kernel);
        c.where = Where::batched, c.s = 0;
        both(c, false);  // without rows any kernel will do
      }
    // More slopes than are held at a time.
    c = {};
    c.note = "edge", c.teacher = c.student = FOVEA_BF16, c.b = 1, c.g = c.x = 1;
    c.shared_list = true, c.s = 2200, c.t = 300, c.list = 1000;
    add(c, true);
  }

  void small() {
    KlCase c;
    c.note = "small", c.b = 1, c.d = 4, c.f = 6, c.s = 3, c.t = 5, c.list = 4;
    both(c, true);
    c.b = 2, c.teacher = FOVEA_BF16, c.shared_list = true;
    both(c, true);
    c.where = Where::varlen, c.s = 17, c.t = 40, c.student = FOVEA_F16, c.list = 9;
    both(c);
    c.where = Where::lengths, c.shared_list = false, c.lay = Lay::odd;
    both(c);
  }
};

std::vector<harness::Case> gather_cases() {
  return GatherCases().cases;
}

const Family kFamily("kl_gather", gather_cases);

}  // namespace

}  // namespace cases
