// SPDX-License-Identifier: Apache-2.0
#include "ops/kl/resolve.h"

#include "core/fields.h"

namespace fovea {
namespace {

constexpr char kForward[] = "kl_forward";
constexpr char kBackward[] = "kl_backward";

struct Names {
  const char *q, *k, *width, *key_heads, *scale, *zero;
};
constexpr Names kTeacher = {"q_teacher", "k_teacher", "d", "g", "scale_teacher", "1 / sqrt(d)"};
constexpr Names kStudent = {"q_student", "k_student", "f", "x", "scale_student", "1 / sqrt(f)"};

KlSide side_of(const char* op, const Names& name, const fovea_tensor& q, const fovea_tensor& k,
               const fovea_tensor& lse, float scale) {
  KlSide side{};
  side.q = view_of<4>(q), side.k = view_of<4>(k), side.lse = view_of<3>(lse);
  side.dtype = q.dtype, side.width = q.shape[3], side.key_heads = k.shape[2];
  const int64_t h = q.shape[2];
  if (h && (!side.key_heads || h % side.key_heads))
    fail(FOVEA_INVALID_ARGUMENT, "%s: %s.shape[2] (%s) is %lld, wanted a divisor of the %lld heads",
         op, name.k, name.key_heads, static_cast<long long>(side.key_heads),
         static_cast<long long>(h));
  if (side.width < 1)
    fail(FOVEA_INVALID_ARGUMENT, "%s: %s.shape[3] (%s) is 0, wanted >= 1", op, name.q, name.width);
  if (side.width > kWidthMax)
    fail(FOVEA_UNSUPPORTED, "%s: %s.shape[3] (%s) is %lld, wanted at most %lld", op, name.q,
         name.width, static_cast<long long>(side.width), static_cast<long long>(kWidthMax));
  side.scale = read_scale(op, name.scale, scale, side.width, name.zero);
  return side;
}

// What forward and backward share; `total` or its gradient is in the call.
template <class P>
Kl shared(const char* op, const P& p, bool total, const char* total_name) {
  Kl a{};
  const KlSide teacher =
      side_of(op, kTeacher, p.q_teacher, p.k_teacher, p.lse_teacher, p.scale_teacher);
  const KlSide student =
      side_of(op, kStudent, p.q_student, p.k_student, p.lse_student, p.scale_student);
  const bool reverse = p.direction == FOVEA_DIRECTION_STUDENT_TEACHER;
  if (!reverse && p.direction != FOVEA_DIRECTION_TEACHER_STUDENT)
    fail(FOVEA_INVALID_ARGUMENT, "%s: direction is %d, wanted a fovea_direction", op, p.direction);
  a.first = reverse ? student : teacher, a.second = reverse ? teacher : student;

  Attend at{};
  at.b = p.q_teacher.shape[0], at.s = p.q_teacher.shape[1];
  read_sequences(at, op, p);
  place_keys(at.sequences, op, "k_teacher", p.k_teacher, {}, p.key_max);
  a.b = at.b, a.s = at.s, a.t = p.k_teacher.shape[1], a.h = p.q_teacher.shape[2];
  a.sequences = at.sequences;
  a.mask.window = read_windows(op, p);
  a.mask.head_window = view_of<2>(p.head_window);

  a.kl = view_of<3>(p.kl), a.row_weight = view_of<3>(p.row_weight);
  check_flag(op, "mean", p.mean);
  a.mean = p.mean != 0;
  if (p.mean && !total)
    fail(FOVEA_INVALID_ARGUMENT, "%s: mean is 1 without %s, wanted 0", op, total_name);
  if (p.row_weight.data && !total)
    fail(FOVEA_INVALID_ARGUMENT, "%s: row_weight is given without %s: it weighs nothing else", op,
         total_name);
  return a;
}

}  // namespace

Kl resolve(const fovea_kl_forward_params& p) {
  Kl a = shared(kForward, p, p.total.data, "total");
  a.total = view_of<1>(p.total);
  if (!p.kl.data && !p.lse_teacher.data && !p.lse_student.data && !p.total.data && a.b && a.s &&
      a.h)
    fail(FOVEA_INVALID_ARGUMENT,
         "%s: kl, lse_teacher, lse_student and total are all absent, wanted one of them at least",
         kForward);
  return a;
}

KlBackward resolve(const fovea_kl_backward_params& p) {
  KlBackward a{};
  a.forward = shared(kBackward, p, p.dtotal.data, "dtotal");
  const bool reverse = p.direction == FOVEA_DIRECTION_STUDENT_TEACHER;
  KlSide& teacher = reverse ? a.forward.second : a.forward.first;
  KlSide& student = reverse ? a.forward.first : a.forward.second;
  teacher.dq = view_of<4>(p.dq_teacher), teacher.dk = view_of<4>(p.dk_teacher);
  student.dq = view_of<4>(p.dq_student), student.dk = view_of<4>(p.dk_student);
  a.dkl = view_of<3>(p.dkl), a.dtotal = view_of<1>(p.dtotal);
  check_flag(kBackward, "nondeterministic", p.nondeterministic);
  a.nondeterministic = p.nondeterministic != 0;
  if (!p.dkl.data && !p.dtotal.data && a.forward.b && a.forward.s && a.forward.h)
    fail(FOVEA_INVALID_ARGUMENT, "%s: dkl and dtotal are both absent, wanted one of them or both",
         kBackward);
  return a;
}

}  // namespace fovea
