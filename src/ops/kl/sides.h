// SPDX-License-Identifier: Apache-2.0
// What the divergences read alike: two sides, the rows and keys, and what a row sees.
#pragma once
#include <initializer_list>

#include "core/fields.h"
#include "ops/kl/kernels.h"

namespace fovea {

struct SideNames {
  const char *q, *k, *width, *key_heads, *scale, *zero;
};
inline constexpr SideNames kTeacher = {"q_teacher", "k_teacher",     "d",
                                       "g",         "scale_teacher", "1 / sqrt(d)"};
inline constexpr SideNames kStudent = {"q_student", "k_student",     "f",
                                       "x",         "scale_student", "1 / sqrt(f)"};

// Scale 1, any number of heads on any number.
inline KlSide plain_side(const char* op, const SideNames& name, const fovea_tensor& q,
                         const fovea_tensor& k) {
  KlSide side{};
  side.q = view_of<4>(q), side.k = view_of<4>(k);
  side.dtype = q.dtype, side.width = q.shape[3], side.key_heads = k.shape[2], side.scale = 1;
  if (side.width < 1) refuse("%s: %s.shape[3] (%s) is 0, wanted >= 1", op, name.q, name.width);
  if (side.width > kWidthMax)
    fail(FOVEA_UNSUPPORTED, "%s: %s.shape[3] (%s) is %lld, wanted at most %lld", op, name.q,
         name.width, lld(side.width), lld(kWidthMax));
  return side;
}

inline KlSide side_of(const char* op, const SideNames& name, const fovea_tensor& q,
                      const fovea_tensor& k, const fovea_tensor& lse, float scale) {
  KlSide side = plain_side(op, name, q, k);
  side.lse = view_of<3>(lse);
  const int64_t h = q.shape[2];
  if (h && (!side.key_heads || h % side.key_heads))
    refuse("%s: %s.shape[2] (%s) is %lld, wanted a divisor of the %lld heads", op, name.k,
           name.key_heads, lld(side.key_heads), lld(h));
  side.scale = read_scale(op, name.scale, scale, side.width, name.zero);
  return side;
}

// The rows and keys of the call.
template <class P>
Kl rows_and_keys(const char* op, const P& p) {
  Kl a{};
  Attend at{};
  at.b = p.q_teacher.shape[0], at.s = p.q_teacher.shape[1], at.h = p.q_teacher.shape[2];
  read_sequences(at, op, p);
  place_keys(at.sequences, op, "k_teacher", p.k_teacher, {}, p.key_max);
  a.b = at.b, a.s = at.s, a.t = p.k_teacher.shape[1];
  a.h = a.b && a.s ? at.h : 0;  // without rows no head has any, however many there are
  a.sequences = at.sequences;
  return a;
}

// Refuses a call with rows that gives none of these outputs.
inline void want_one(const char* op, const Kl& a, const char* names,
                     std::initializer_list<const fovea_tensor*> outputs) {
  for (const fovea_tensor* x : outputs)
    if (x->data) return;
  if (a.b && a.s && a.h) refuse("%s: %s are all absent, wanted one of them at least", op, names);
}

template <class P>
void read_gradients(KlSide& teacher, KlSide& student, const P& p) {
  teacher.dq = gradient_of<4>(p.dq_teacher), teacher.dk = gradient_of<4>(p.dk_teacher);
  student.dq = gradient_of<4>(p.dq_student), student.dk = gradient_of<4>(p.dk_student);
}

// Both sides, the rows and keys, and what a row sees.
template <class P>
Kl sides_of(const char* op, const P& p, bool reverse) {
  Kl a = rows_and_keys(op, p);
  const KlSide teacher =
      side_of(op, kTeacher, p.q_teacher, p.k_teacher, p.lse_teacher, p.scale_teacher);
  const KlSide student =
      side_of(op, kStudent, p.q_student, p.k_student, p.lse_student, p.scale_student);
  a.first = reverse ? student : teacher, a.second = reverse ? teacher : student;
  a.mask.window = read_windows(op, p);
  a.mask.head_window = view_of<2>(p.head_window);
  return a;
}

}  // namespace fovea
