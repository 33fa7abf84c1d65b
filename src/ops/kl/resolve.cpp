// SPDX-License-Identifier: Apache-2.0
#include "ops/kl/resolve.h"

#include "core/fields.h"

namespace fovea {
namespace {

constexpr char kForward[] = "kl_forward";
constexpr char kBackward[] = "kl_backward";
constexpr char kJensenShannonForward[] = "x_kl_jensen_shannon_forward";
constexpr char kJensenShannonBackward[] = "x_kl_jensen_shannon_backward";

struct Names {
  const char *q, *k, *width, *key_heads, *scale, *zero;
};
constexpr Names kTeacher = {"q_teacher", "k_teacher", "d", "g", "scale_teacher", "1 / sqrt(d)"};
constexpr Names kStudent = {"q_student", "k_student", "f", "x", "scale_student", "1 / sqrt(f)"};

KlSide plain_side(const char* op, const Names& name, const fovea_tensor& q, const fovea_tensor& k) {
  KlSide side{};
  side.q = view_of<4>(q), side.k = view_of<4>(k);
  side.dtype = q.dtype, side.width = q.shape[3], side.key_heads = k.shape[2], side.scale = 1;
  if (side.width < 1)
    fail(FOVEA_INVALID_ARGUMENT, "%s: %s.shape[3] (%s) is 0, wanted >= 1", op, name.q, name.width);
  if (side.width > kWidthMax)
    fail(FOVEA_UNSUPPORTED, "%s: %s.shape[3] (%s) is %lld, wanted at most %lld", op, name.q,
         name.width, static_cast<long long>(side.width), static_cast<long long>(kWidthMax));
  return side;
}

KlSide side_of(const char* op, const Names& name, const fovea_tensor& q, const fovea_tensor& k,
               const fovea_tensor& lse, float scale) {
  KlSide side = plain_side(op, name, q, k);
  side.lse = view_of<3>(lse);
  const int64_t h = q.shape[2];
  if (h && (!side.key_heads || h % side.key_heads))
    fail(FOVEA_INVALID_ARGUMENT, "%s: %s.shape[2] (%s) is %lld, wanted a divisor of the %lld heads",
         op, name.k, name.key_heads, static_cast<long long>(side.key_heads),
         static_cast<long long>(h));
  check_number(op, name.scale, scale, name.zero);
  side.scale =
      scale > 0 ? scale : static_cast<float>(1.0 / std::sqrt(static_cast<double>(side.width)));
  return side;
}

// The rows and keys of the call.
template <class P>
Kl rows_and_keys(const char* op, const P& p) {
  Kl a{};
  Attend at{};
  at.b = p.q_teacher.shape[0], at.s = p.q_teacher.shape[1];
  read_sequences(at, op, p);
  place_keys(at.sequences, op, "k_teacher", p.k_teacher, {}, p.key_max);
  a.b = at.b, a.s = at.s, a.t = p.k_teacher.shape[1], a.h = p.q_teacher.shape[2];
  a.sequences = at.sequences;
  return a;
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

// What forward and backward share; `total` or its gradient is in the call.
template <class P>
Kl shared(const char* op, const P& p, bool total, const char* total_name) {
  const bool reverse = p.direction == FOVEA_DIRECTION_STUDENT_TEACHER;
  if (!reverse && p.direction != FOVEA_DIRECTION_TEACHER_STUDENT)
    fail(FOVEA_INVALID_ARGUMENT, "%s: direction is %d, wanted a fovea_direction", op, p.direction);
  Kl a = sides_of(op, p, reverse);
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

template <class P>
Kl jensen_shannon(const char* op, const P& p) {
  Kl a = sides_of(op, p, false);
  if (!(p.weight >= 0 && p.weight < 1))
    fail(FOVEA_INVALID_ARGUMENT, "%s: weight is %g, wanted between 0 and 1, or 0 for 0.5", op,
         p.weight);
  a.share = p.weight > 0 ? p.weight : 0.5f;
  a.kl = view_of<3>(p.kl_teacher), a.kl_second = view_of<3>(p.kl_student);
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

Kl resolve(const fovea_x_kl_jensen_shannon_forward_params& p) {
  Kl a = jensen_shannon(kJensenShannonForward, p);
  a.js = view_of<3>(p.js);
  if (!p.js.data && !p.kl_teacher.data && !p.kl_student.data && !p.lse_teacher.data &&
      !p.lse_student.data && a.b && a.s && a.h)
    fail(
        FOVEA_INVALID_ARGUMENT,
        "%s: js, kl_teacher, kl_student, lse_teacher and lse_student are all absent, wanted one of "
        "them at least",
        kJensenShannonForward);
  return a;
}

KlBackward resolve(const fovea_x_kl_jensen_shannon_backward_params& p) {
  KlBackward a{};
  a.forward = jensen_shannon(kJensenShannonBackward, p);
  KlSide &teacher = a.forward.first, &student = a.forward.second;
  teacher.dq = view_of<4>(p.dq_teacher), teacher.dk = view_of<4>(p.dk_teacher);
  student.dq = view_of<4>(p.dq_student), student.dk = view_of<4>(p.dk_student);
  a.dkl = view_of<3>(p.djs);
  return a;
}

namespace {

template <class P>
KlIndexer indexer(const char* op, const P& p) {
  KlIndexer a{};
  a.teacher = rows_and_keys(op, p);
  a.teacher.first = side_of(op, kTeacher, p.q_teacher, p.k_teacher, p.lse_teacher, p.scale_teacher);
  a.student = plain_side(op, kStudent, p.q_student, p.k_student);
  if (p.q_teacher.shape[2] < 1)
    fail(FOVEA_INVALID_ARGUMENT, "%s: q_teacher.shape[2] (h) is 0, wanted >= 1", op);
  if (p.q_student.shape[2] < 1)
    fail(FOVEA_INVALID_ARGUMENT, "%s: q_student.shape[2] (x) is 0, wanted >= 1", op);
  a.teacher.mask.window = read_window(op, p);
  read_sinks(a.teacher.mask.window, op, p);
  a.heads = p.q_student.shape[2], a.weight = view_of<3>(p.weight);
  a.lse = view_of<2>(p.lse_student);
  return a;
}

}  // namespace

KlIndexer resolve(const fovea_x_kl_indexer_forward_params& p) {
  constexpr char op[] = "x_kl_indexer_forward";
  KlIndexer a = indexer(op, p);
  a.kl = view_of<2>(p.kl);
  if (!p.kl.data && !p.lse_teacher.data && !p.lse_student.data && a.teacher.b && a.teacher.s)
    fail(FOVEA_INVALID_ARGUMENT,
         "%s: kl, lse_teacher and lse_student are all absent, wanted one of them at least", op);
  return a;
}

KlIndexer resolve(const fovea_x_kl_indexer_backward_params& p) {
  KlIndexer a = indexer("x_kl_indexer_backward", p);
  a.student.dq = view_of<4>(p.dq_student), a.student.dk = view_of<4>(p.dk_student);
  a.dweight = view_of<3>(p.dweight), a.dkl = view_of<2>(p.dkl);
  return a;
}

namespace {

template <class P>
KlGather gather(const char* op, const P& p) {
  KlGather a{};
  a.kl = rows_and_keys(op, p);
  a.kl.first = side_of(op, kTeacher, p.q_teacher, p.k_teacher, p.lse_teacher, p.scale_teacher);
  a.kl.second = side_of(op, kStudent, p.q_student, p.k_student, p.lse_student, p.scale_student);
  a.kl.kl = view_of<3>(p.kl);
  a.index = view_of<4>(p.index), a.n = p.index.shape[3];
  return a;
}

}  // namespace

KlGather resolve(const fovea_x_kl_gather_forward_params& p) {
  constexpr char op[] = "x_kl_gather_forward";
  KlGather a = gather(op, p);
  if (!p.kl.data && !p.lse_teacher.data && !p.lse_student.data && a.kl.b && a.kl.s && a.kl.h)
    fail(FOVEA_INVALID_ARGUMENT,
         "%s: kl, lse_teacher and lse_student are all absent, wanted one of them at least", op);
  return a;
}

KlGather resolve(const fovea_x_kl_gather_backward_params& p) {
  KlGather a = gather("x_kl_gather_backward", p);
  KlSide &teacher = a.kl.first, &student = a.kl.second;
  teacher.dq = view_of<4>(p.dq_teacher), teacher.dk = view_of<4>(p.dk_teacher);
  student.dq = view_of<4>(p.dq_student), student.dk = view_of<4>(p.dk_student);
  a.dkl = view_of<3>(p.dkl);
  return a;
}

namespace {

constexpr int64_t kBlockKeys = 64;

template <class P>
KlPool pool(const char* op, const P& p) {
  KlPool a{};
  a.kl = sides_of(op, p, false);
  check_not_negative(op, "block_keys", p.block_keys);
  a.block_keys = p.block_keys ? p.block_keys : kBlockKeys;
  if (p.pool != FOVEA_X_POOL_SUM && p.pool != FOVEA_X_POOL_MAX)
    fail(FOVEA_INVALID_ARGUMENT, "%s: pool is %d, wanted a fovea_x_pool", op, p.pool);
  a.max = p.pool == FOVEA_X_POOL_MAX;
  a.u = p.k_student.shape[1];
  const int64_t t = a.kl.t, whole = t / a.block_keys;
  const int64_t wanted =
      p.key_start.data ? whole + p.key_start.shape[0] - 1 : whole + (t % a.block_keys != 0);
  if (a.u < wanted)
    fail(FOVEA_INVALID_ARGUMENT, "%s: k_student.shape[1] (u) is %lld, wanted at least %lld blocks",
         op, static_cast<long long>(a.u), static_cast<long long>(wanted));
  return a;
}

}  // namespace

KlPool resolve(const fovea_x_kl_pool_forward_params& p) {
  constexpr char op[] = "x_kl_pool_forward";
  KlPool a = pool(op, p);
  a.kl.kl = view_of<3>(p.kl);
  if (!p.kl.data && !p.lse_teacher.data && !p.lse_student.data && a.kl.b && a.kl.s && a.kl.h)
    fail(FOVEA_INVALID_ARGUMENT,
         "%s: kl, lse_teacher and lse_student are all absent, wanted one of them at least", op);
  return a;
}

KlPool resolve(const fovea_x_kl_pool_backward_params& p) {
  KlPool a = pool("x_kl_pool_backward", p);
  a.kl.second.dq = view_of<4>(p.dq_student), a.kl.second.dk = view_of<4>(p.dk_student);
  a.dkl = view_of<3>(p.dkl);
  return a;
}

}  // namespace fovea
