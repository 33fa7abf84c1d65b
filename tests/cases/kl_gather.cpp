// SPDX-License-Identifier: Apache-2.0
// x_kl_gather_forward and _backward: the sweep, the edges by name, hostile values.  The oracle is
// kl's, over the keys that the lists name.
#include "cases/kl_over.h"

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

Call build_forward(const KlCase& c, uint64_t seed) {
  using P = fovea_x_kl_gather_forward_params;
  return kl_over_forward<P>(
      FOVEA_TEST_OP(x_kl_gather_forward), c, seed,
      [&](Call& call, P& p, const KlBuild<P>& build) { give_lists(call, p, c, build, seed); });
}
Call build_backward(const KlCase& c, uint64_t seed) {
  using P = fovea_x_kl_gather_backward_params;
  return kl_over_backward<P>(
      FOVEA_TEST_OP(x_kl_gather_backward), c, seed,
      [&](Call& call, P& p, const KlBuild<P>& build) { give_lists(call, p, c, build, seed); });
}

class GatherCases : public KlRows {
 public:
  GatherCases() : KlRows("x_kl_gather", build_forward, build_backward) {
    static constexpr int64_t lists[] = {1, 20, 96, 130};
    sweep(1, {7, 15}, {4, 2}, 9,
          [](KlCase& c, const int* x) { c.list = lists[x[0]], c.shared_list = x[1] != 0; });
    edges();
    small();
  }

 private:
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
    // More dscores than are held at a time.
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
