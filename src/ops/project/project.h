// SPDX-License-Identifier: Apache-2.0
// Calls of x_project, resolved, and the steps they consist of, once for host and device:
//   ProjectProduct  C = A B of strided matrices, z times, with a bias, an activation or its slope
//   project_finish  one row: RMSNorm, RoPE, the code, and their gradients
//   ProjectSteps    products and rows in order, a chunk of rows at a time
#pragma once
#include <cmath>

#include "core/plan.h"
#include "core/rotate.h"
#include "fovea/experimental/project.h"

namespace fovea {

constexpr int kProjectLayers = 3;

struct ProjectLayer {
  View<3> weight, dweight;
  View<2> bias, dbias;
  int32_t bias_dtype;
};

struct Project {
  View<4> x, y, code, dx;  // y: dy in the backward
  ProjectLayer layer[kProjectLayers];
  View<1> norm_weight, dnorm_weight;
  View<2> position;
  Rope rope;
  int32_t dtype, y_dtype, norm_dtype, act, bits, layers;
  int64_t b, s, g, h, maps, words;
  int64_t width[kProjectLayers + 1];  // columns before and behind each layer
  float eps;

  FOVEA_HD int64_t f() const { return width[layers]; }
  int64_t products() const { return !h ? 0 : g > h ? g : h; }
  int64_t rows() const { return b * s; }
  // Products that read one head of x, give one head of y, or have one weight.
  int64_t readers() const { return g ? products() / g : 0; }
  int64_t group() const { return h ? products() / h : 0; }
  int64_t users() const { return maps ? products() / maps : 0; }
};

// Where an index of one side of a matrix lies:
//   index = (row * heads + head) * width + column, the head that of product (z * step + head)
struct ProjectAxis {
  int64_t heads = 1, width = 1, step = 0, share = 1;
  int64_t first_row = 0, s = INT64_MAX;
  int64_t stride[4] = {};  // batch, row, head, column

  FOVEA_HD int64_t at(int64_t z, int64_t index) const {
    const int64_t column = index % width, rest = index / width;
    const int64_t head = (z * step + rest % heads) / share, row = first_row + rest / heads;
    return row / s * stride[0] + row % s * stride[1] + head * stride[2] + column * stride[3];
  }
};

// Element (i, j) lies at row.at(i) + column.at(j); without data it is 1.
struct ProjectMatrix {
  void* data = nullptr;
  int32_t dtype = FOVEA_F32, act = FOVEA_X_PROJECT_ACT_NONE;  // act: of what is read
  ProjectAxis row, column;
};

struct ProjectProduct {
  int64_t z, m, n, k;
  ProjectMatrix a, b, c;
  View<2> bias;  // those of products [z group, (z + 1) group) are added
  int32_t bias_dtype;
  int64_t group, users;
  bool slope;  // C is multiplied by act's slope at what C held
  bool add;    // C is added to what it held
  int32_t act;
  int64_t parts;  // of k, which are added in their order
  FOVEA_HD int64_t each() const { return (k + parts - 1) / parts; }
};

FOVEA_HD float project_act(int32_t act, float x) {
  if (act == FOVEA_X_PROJECT_ACT_SILU) return x / (1 + expf(-x));
  if (act == FOVEA_X_PROJECT_ACT_GELU) return x * (1 + erff(x * 0.70710678f)) / 2;
  return x;
}
FOVEA_HD float project_slope(int32_t act, float x) {
  if (act == FOVEA_X_PROJECT_ACT_SILU) {
    const float on = 1 / (1 + expf(-x));
    return on * (1 + x * (1 - on));
  }
  if (act == FOVEA_X_PROJECT_ACT_GELU)
    return (1 + erff(x * 0.70710678f)) / 2 + x * 0.39894228f * expf(-x * x / 2);
  return 1;
}

// The element of C at `at` has this sum, with its biases.
FOVEA_HD void project_store_sum(const ProjectProduct& p, int64_t at, float sum) {
  if (p.slope) sum *= project_slope(p.act, load_fp(p.c.data, p.c.dtype, at));
  if (p.add) sum += load_fp(p.c.data, p.c.dtype, at);
  store_fp(p.c.data, p.c.dtype, at, sum);
}
// The same of a sum without: they are those of column n.
FOVEA_HD void project_store(const ProjectProduct& p, int64_t z, int64_t n, int64_t at, float sum) {
  if (p.bias)
    for (int64_t i = z * p.group; i < (z + 1) * p.group; ++i)
      sum +=
          load_fp(p.bias.data, p.bias_dtype, i / p.users * p.bias.stride[0] + n * p.bias.stride[1]);
  project_store_sum(p, at, sum);
}

// Rows of f32 in the workspace, of one chunk.
struct ProjectRooms {
  float* hidden[kProjectLayers - 1];  // (rows, p, width): before the activation
  float* z;                           // (rows, h, f)
  float* t;                           // the same, of the backward with a norm
  int64_t rows;                       // of a chunk
};
struct ProjectLayout {
  Slot<float> hidden[kProjectLayers - 1], z, t, parts;
  int64_t rows;
  ProjectRooms at(void* base) const {
    return {{hidden[0].at(base), hidden[1].at(base)}, z.at(base), t.at(base), rows};
  }
};

// Threads that share a row: one on the host, a warp on the device.
struct OneThread {
  int lane = 0, lanes = 1;
  float sum(float x) const { return x; }
  void wait() const {}
};

// Turns a row of f32 in place.
template <class Threads>
FOVEA_HD void project_turn(const Rope& rope, const Turn& turn, float* x, const Threads& threads) {
  for (int64_t unit = threads.lane; unit < rope.half; unit += threads.lanes)
    rotate_unit<1>(
        rope, turn, unit, [&](int64_t c, float(&value)[1]) { value[0] = x[c]; },
        [&](int64_t c, const float(&value)[1]) { x[c] = value[0]; }, [](int64_t) {});
  threads.wait();
}

struct ProjectRow {
  int64_t batch, i, head;
  FOVEA_HD int64_t at(const View<4>& x) const {
    return batch * x.stride[0] + i * x.stride[1] + head * x.stride[2];
  }
  FOVEA_HD Turn turn(const Project& a, float sign) const {
    return turn_at(a.rope, a.position ? *a.position.at<int32_t>(batch, i) : i, sign);
  }
};

// 1 / sqrt(mean(z^2) + eps) of a row.
template <class Threads>
FOVEA_HD float project_size(const Project& a, const float* z, const Threads& threads) {
  float squares = 0;
  for (int64_t c = threads.lane; c < a.f(); c += threads.lanes) squares += z[c] * z[c];
  return 1 / sqrtf(threads.sum(squares) / static_cast<float>(a.f()) + a.eps);
}
FOVEA_HD float project_gain(const Project& a, int64_t c) {
  return load_fp(a.norm_weight.data, a.norm_dtype, c * a.norm_weight.stride[0]);
}

// y and code of a row whose sums are z.
template <class Threads>
FOVEA_HD void project_finish(const Project& a, const ProjectRow& row, float* z,
                             const Threads& threads) {
  if (a.norm_weight) {
    const float size = project_size(a, z, threads);
    for (int64_t c = threads.lane; c < a.f(); c += threads.lanes) z[c] *= size * project_gain(a, c);
    threads.wait();
  }
  if (a.rope.half) project_turn(a.rope, row.turn(a, 1), z, threads);
  if (a.y)
    for (int64_t c = threads.lane; c < a.f(); c += threads.lanes)
      store_fp(a.y.data, a.y_dtype, row.at(a.y) + c * a.y.stride[3], z[c]);
  if (!a.code) return;
  const int64_t each = a.bits ? a.bits : 32;
  for (int64_t word = threads.lane; word < a.words; word += threads.lanes) {
    uint32_t code = 0;
    for (int64_t c = word * each; c < (word + 1) * each && c < a.f(); ++c)
      if (z[c] > 0) code |= 1u << (c - word * each);
    a.code.as<uint32_t>()[row.at(a.code) + word * a.code.stride[3]] = code;
  }
}

// dz of a row in place of z, and in t the row's terms of dnorm_weight.
template <class Threads>
FOVEA_HD void project_finish_backward(const Project& a, const ProjectRow& row, float* z, float* t,
                                      const Threads& threads) {
  float* dy = a.norm_weight ? t : z;
  for (int64_t c = threads.lane; c < a.f(); c += threads.lanes)
    dy[c] = load_fp(a.y.data, a.y_dtype, row.at(a.y) + c * a.y.stride[3]);
  threads.wait();
  if (a.rope.half) project_turn(a.rope, row.turn(a, -1), dy, threads);
  if (!a.norm_weight) return;
  const float size = project_size(a, z, threads);
  float pull = 0;
  for (int64_t c = threads.lane; c < a.f(); c += threads.lanes)
    pull += t[c] * project_gain(a, c) * (z[c] * size);
  pull = threads.sum(pull) / static_cast<float>(a.f());
  for (int64_t c = threads.lane; c < a.f(); c += threads.lanes) {
    const float unit = z[c] * size;
    z[c] = size * (t[c] * project_gain(a, c) - unit * pull), t[c] *= unit;
  }
}

// The row of a chunk's z that `index` is.
FOVEA_HD ProjectRow project_row(const Project& a, int64_t first_row, int64_t index) {
  const int64_t row = first_row + index / a.h;
  return {row / a.s, row % a.s, index % a.h};
}

extern const Kernel<Project> project_forward_host, project_backward_host;

// CUDA builds only.  sm90: plain rows on Hopper; sm80: one layer of 16-bit rows on tensor cores;
// simt: every call.
extern const Kernel<Project> project_forward_sm90, project_forward_sm80, project_forward_simt;
extern const Kernel<Project> project_backward_sm90, project_backward_sm80, project_backward_simt;

}  // namespace fovea
