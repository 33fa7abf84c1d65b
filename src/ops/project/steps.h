// SPDX-License-Identifier: Apache-2.0
// The steps of a call of x_project, for what runs them: Run has product(p) and finish(first,
// count), the rows of a chunk.  With u_l before the activation of layer l and du its gradient:
//   u_l = act(u_(l-1)) weight_l + bias_l
//   dweight_l = act(u_(l-1))^T du_l,  du_(l-1) = du_l weight_l^T act'(u_(l-1)), in place of u_(l-1)
#pragma once
#include <algorithm>

#include "ops/project/project.h"

namespace fovea {

// What rows of h heads need beside a product: a norm, a rotation, a code.
inline bool project_finishes(const Project& a, bool backward) {
  return a.norm_weight || a.rope.half || (!backward && a.code);
}

class ProjectSteps {
 public:
  ProjectSteps(const Project& a, bool backward, const ProjectRooms& rooms)
      : a_(a), backward_(backward), rooms_(rooms), finishes_(project_finishes(a, backward)) {}

  // f(first row, rows) for every chunk; without rows once: their sums are 0.
  template <class Run>
  void each(Run& run) {
    first_ = 0;
    do {
      count_ = std::min(rooms_.rows, a_.rows() - first_);
      backward_ ? backward(run) : forward(run);
      first_ += count_;
    } while (first_ < a_.rows());
  }

  // The most floats that the parts of any sum take.
  int64_t part_floats() {
    struct Count {
      void product(const ProjectProduct& p) {
        if (p.parts > 1) most = std::max(most, p.parts * p.z * p.m * p.n);
      }
      void finish(int64_t, int64_t) {}
      int64_t most = 0;
    } count;
    first_ = 0, count_ = std::min(rooms_.rows, a_.rows());
    if (backward_) backward(count);
    return count.most;
  }

 private:
  static constexpr int64_t kPartTerms = 512;                // the least worth a part
  static constexpr int64_t kPartFloats = int64_t{4} << 20;  // of all parts
  static constexpr int64_t kPartsMost = 256;

  static ProjectAxis columns(int64_t stride, int64_t width = INT64_MAX) {
    ProjectAxis axis;
    axis.width = width, axis.stride[3] = stride;
    return axis;
  }
  // `heads` heads of each product z, `share` products to a head of the tensor.
  static ProjectAxis heads(ProjectAxis axis, int64_t stride, int64_t heads, int64_t share) {
    axis.heads = axis.step = heads, axis.share = share, axis.stride[2] = stride;
    return axis;
  }
  ProjectAxis rows(const View<4>& x, bool chunk) const {
    ProjectAxis axis;
    axis.stride[0] = x.stride[0], axis.stride[1] = x.stride[1];
    if (!chunk) axis.s = a_.s, axis.first_row = first_;
    return axis;
  }

  // A tensor of rows as an operand.
  struct Side {
    View<4> x;
    int32_t dtype, act;
    int64_t share;
    bool chunk;
  };
  static Side room(float* data, int64_t heads, int64_t width, int32_t act, int64_t share) {
    return {{data, {0, heads * width, width, 1}}, FOVEA_F32, act, share, true};
  }
  // What layer l reads, and the gradient of what it gives.
  Side input(int l) const {
    if (l == 0) return {a_.x, a_.dtype, FOVEA_X_PROJECT_ACT_NONE, a_.readers(), false};
    return room(rooms_.hidden[l - 1], a_.products(), a_.width[l], a_.act, 1);
  }
  Side gradient(int l) const {
    if (l < a_.layers - 1)
      return room(rooms_.hidden[l], a_.products(), a_.width[l + 1], FOVEA_X_PROJECT_ACT_NONE, 1);
    if (finishes_) return room(rooms_.z, a_.h, a_.f(), FOVEA_X_PROJECT_ACT_NONE, a_.group());
    return {a_.y, a_.y_dtype, FOVEA_X_PROJECT_ACT_NONE, a_.group(), false};
  }

  // Rows by (n heads of `width` columns each).
  ProjectMatrix by_rows(const Side& x, int64_t n, int64_t width) const {
    return {x.x.data, x.dtype, x.act, rows(x.x, x.chunk),
            heads(columns(x.x.stride[3], width), x.x.stride[2], n, x.share)};
  }
  // (Rows, n heads) by columns, or transposed.
  ProjectMatrix down_rows(const Side& x, int64_t n, bool transposed) const {
    const ProjectAxis down = heads(rows(x.x, x.chunk), x.x.stride[2], n, x.share);
    const ProjectAxis across = columns(x.x.stride[3]);
    return transposed ? ProjectMatrix{x.x.data, x.dtype, x.act, across, down}
                      : ProjectMatrix{x.x.data, x.dtype, x.act, down, across};
  }
  // (n weights, rows of `width`) by columns; strides of the two.
  ProjectMatrix weight(int l, int64_t n, int64_t width, int row, int column) const {
    const View<3>& w = a_.layer[l].weight;
    return {w.data, a_.dtype, FOVEA_X_PROJECT_ACT_NONE,
            heads(columns(w.stride[row], width), w.stride[0], n, a_.users()),
            columns(w.stride[column])};
  }
  static ProjectProduct product(int64_t z, int64_t m, int64_t n, int64_t k) {
    ProjectProduct p{};
    p.z = z, p.m = m, p.n = n, p.k = k, p.group = p.users = p.parts = 1;
    return p;
  }

  void layer(int l, ProjectProduct* p) const {
    const bool last = l == a_.layers - 1;
    const int64_t n = last ? a_.group() : 1;
    *p = product(last ? a_.h : a_.products(), count_, a_.width[l + 1], n * a_.width[l]);
    p->a = by_rows(input(l), n, a_.width[l]);
    p->b = weight(l, n, a_.width[l], 1, 2);
    p->bias = a_.layer[l].bias, p->bias_dtype = a_.layer[l].bias_dtype;
    p->group = n, p->users = a_.users();
    Side to = gradient(l);
    to.share = 1;
    p->c = by_rows(to, 1, a_.width[l + 1]);
  }
  template <class Run>
  void forward(Run& run) const {
    ProjectProduct p;
    for (int l = 0; l < a_.layers; ++l) layer(l, &p), run.product(p);
    if (finishes_) run.finish(first_, count_);
  }

  // A sum over the rows of a chunk, in parts; later chunks are added.
  template <class Run>
  void sum(Run& run, ProjectProduct& p) const {
    const int64_t room = p.z && p.m && p.n ? kPartFloats / p.z / p.m / p.n : 1;
    p.parts = std::clamp<int64_t>(p.k / kPartTerms, 1, std::clamp<int64_t>(room, 1, kPartsMost));
    p.add = first_ != 0;
    run.product(p);
  }
  // dbias_l, and dweight_l with the input of the layer.
  template <class Run>
  void weights(Run& run, int l) const {
    const int64_t n = a_.users();
    const ProjectLayer& to = a_.layer[l];
    for (const bool of_bias : {false, true}) {
      if (of_bias ? !to.dbias : !to.dweight) continue;
      ProjectProduct p = product(a_.maps, of_bias ? 1 : a_.width[l], a_.width[l + 1], count_ * n);
      if (!of_bias) p.a = down_rows(input(l), n, true);
      p.b = down_rows(gradient(l), n, false);
      p.c.data = of_bias ? to.dbias.data : to.dweight.data;
      const int64_t* stride = of_bias ? to.dbias.stride : to.dweight.stride;
      p.c.row = heads(columns(of_bias ? 0 : stride[1]), stride[0], 1, 1);
      p.c.column = columns(stride[of_bias ? 1 : 2]);
      sum(run, p);
    }
  }
  template <class Run>
  void backward(Run& run) const {
    ProjectProduct p;
    for (int l = 0; l + 1 < a_.layers; ++l) layer(l, &p), run.product(p);
    if (a_.norm_weight) layer(a_.layers - 1, &p), run.product(p);
    if (finishes_) run.finish(first_, count_);
    if (a_.dnorm_weight) {
      p = product(1, 1, a_.f(), count_ * a_.h);
      p.b = down_rows(room(rooms_.t, a_.h, a_.f(), FOVEA_X_PROJECT_ACT_NONE, 1), a_.h, false);
      p.c.data = a_.dnorm_weight.data, p.c.column = columns(a_.dnorm_weight.stride[0]);
      sum(run, p);
    }
    for (int l = a_.layers - 1; l >= 0; --l) {
      weights(run, l);
      if (l == 0 && !a_.dx) break;
      const int64_t n = l ? 1 : a_.readers();
      p = product(l ? a_.products() : a_.g, count_, a_.width[l], n * a_.width[l + 1]);
      p.a = by_rows(gradient(l), n, a_.width[l + 1]);
      p.b = weight(l, n, a_.width[l + 1], 2, 1);
      Side to = l ? input(l) : Side{a_.dx, a_.dtype, FOVEA_X_PROJECT_ACT_NONE, 1, false};
      to.act = FOVEA_X_PROJECT_ACT_NONE, to.share = 1;
      p.c = by_rows(to, 1, a_.width[l]);
      p.slope = l > 0, p.act = a_.act;
      run.product(p);
    }
  }

  const Project& a_;
  const bool backward_;
  const ProjectRooms rooms_;
  const bool finishes_;
  int64_t first_ = 0, count_ = 0;
};

// Whether a call has anything to compute.
inline bool project_idle(const Project& a, bool backward) {
  bool idle = !a.dx && !a.dnorm_weight;
  for (const ProjectLayer& l : a.layer) idle = idle && !l.dweight && !l.dbias;
  return backward ? idle : !a.y && !a.code;
}

// The rooms of a chunk of rows: 32 MiB, or one row.
inline ProjectLayout project_layout(const Project& a, bool backward, Layout& workspace) {
  ProjectLayout layout{};
  layout.rows = a.rows();
  if (project_idle(a, backward) || !a.rows()) return layout;
  constexpr double most = 8 << 20;
  const bool finishes = project_finishes(a, backward), twice = backward && a.norm_weight;
  double floats = 0;
  for (int l = 1; l < a.layers; ++l)
    floats += static_cast<double>(a.products()) * static_cast<double>(a.width[l]);
  floats += static_cast<double>(a.h) * static_cast<double>(a.f()) * (finishes + twice);
  if (floats * static_cast<double>(layout.rows) > most) {
    layout.rows = std::max<int64_t>(1, static_cast<int64_t>(most / floats));
    if (layout.rows > 64) layout.rows = layout.rows / 64 * 64;
  }
  for (int l = 1; l < a.layers; ++l)
    layout.hidden[l - 1] = workspace.add<float>(layout.rows, a.products(), a.width[l]);
  layout.z = workspace.add<float>(finishes ? layout.rows : 0, a.h, a.f());
  layout.t = workspace.add<float>(twice ? layout.rows : 0, a.h, a.f());
  ProjectRooms rooms{};
  rooms.rows = layout.rows;
  layout.parts = workspace.add<float>(ProjectSteps(a, backward, rooms).part_floats());
  return layout;
}

}  // namespace fovea
