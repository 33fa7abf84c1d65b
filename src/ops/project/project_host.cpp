// SPDX-License-Identifier: Apache-2.0
// x_project on the CPU.  An item of a product is a part of the sums of a tile of 64 x 256 elements
// of C; strided operands are packed 256 terms at a time.  Parts are added in their order.
#include "host/sweep.h"
#include "ops/project/steps.h"

namespace fovea {
namespace {

using host::ceil_div;

constexpr int64_t kM = 64, kN = 256, kK = 256;  // of a tile, and terms of a step

struct ProjectPlan {
  Project a;
  bool backward;
  ProjectLayout rooms;
  Slot<float> x, w, c;  // of a worker
  host::WorkerScratch scratch;
};

// Elements of an axis that lie one step apart: from `index` on, at most `most` of them.
struct Run {
  int64_t at, step, count;

  Run(const ProjectAxis& x, int64_t z, int64_t index, int64_t most)
      : at(x.at(z, index)), step(x.stride[3]), count(most) {
    if (x.width > 1) {
      count = std::min(most, x.width - index % x.width);
    } else if (x.heads == 1) {
      step = x.stride[1];
      const bool even = x.s < INT64_MAX && x.stride[0] == x.s * x.stride[1];
      if (!even) count = std::min(most, x.s - (x.first_row + index) % x.s);
    } else {
      count = 1;
    }
  }
};

// Elements [i, i + rows) x [j, j + columns) of a matrix, rows `pitch` apart.
void pack(const host::Simd& simd, const ProjectMatrix& x, int64_t z, int64_t i, int64_t rows,
          int64_t j, int64_t columns, float* to, int64_t pitch) {
  if (!x.data) {
    for (int64_t r = 0; r < rows; ++r) std::fill_n(to + r * pitch, columns, 1.0f);
    return;
  }
  for (int64_t r = 0; r < rows;) {
    const Run down(x.row, z, i + r, rows - r);
    for (int64_t c = 0; c < columns;) {
      const Run across(x.column, z, j + c, columns - c);
      for (int64_t k = 0; k < down.count; ++k) {
        float* row = to + (r + k) * pitch + c;
        host::load_row(simd, x.data, x.dtype, down.at + k * down.step + across.at, across.step,
                       across.count, row);
        if (x.act)
          for (int64_t n = 0; n < across.count; ++n) row[n] = project_act(x.act, row[n]);
      }
      c += across.count;
    }
    r += down.count;
  }
}

struct Tile {
  const float* data;
  int64_t pitch;
};

// The same where they lie, if that is rows of f32 with whole vectors of `width`, or packed.
Tile tile_of(const host::Simd& simd, const ProjectMatrix& x, int64_t z, int64_t i, int64_t rows,
             int64_t j, int64_t columns, float* room, int64_t pitch, int64_t width) {
  if (x.data && x.dtype == FOVEA_F32 && !x.act && columns % width == 0) {
    const Run down(x.row, z, i, rows), across(x.column, z, j, columns);
    if (down.count == rows && across.count == columns && across.step == 1)
      return {static_cast<const float*>(x.data) + down.at + across.at, down.step};
  }
  for (int64_t r = 0; r < rows && columns % width; ++r)
    std::fill(room + r * pitch + columns, room + (r + 1) * pitch, 0.0f);
  pack(simd, x, z, i, rows, j, columns, room, pitch);
  return {room, pitch};
}

class ProjectRun {
 public:
  ProjectRun(const ProjectPlan& plan, void* base)
      : plan_(plan), a_(plan.a), simd_(host::simd()), base_(base), rooms_(plan.rooms.at(base)) {}

  void run(Context& ctx) {
    if (project_idle(a_, plan_.backward)) return;
    pool_ = &host::pool(ctx);
    ProjectSteps(a_, plan_.backward, rooms_).each(*this);
  }

  void product(const ProjectProduct& p) const {
    const int64_t down = ceil_div(p.m, kM), across = ceil_div(p.n, kN);
    const double cost = static_cast<double>(p.z * p.m * p.n) * (static_cast<double>(p.k) / 12 + 2);
    pool_->run(p.z * down * across * p.parts, cost, [&](int64_t item, int32_t worker) {
      const int64_t part = item % p.parts, tile = item / p.parts;
      sums(p, tile / across / down, tile / across % down * kM, tile % across * kN, part, worker);
    });
    if (p.parts == 1) return;
    const int64_t plane = p.z * p.m * p.n;
    const float* parts = plan_.rooms.parts.at(base_);
    pool_->run(p.z * p.m, static_cast<double>(plane * p.parts), [&](int64_t row, int32_t) {
      const int64_t z = row / p.m, at = p.c.row.at(z, row % p.m);
      for (int64_t n = 0; n < p.n; ++n) {
        double sum = 0;
        for (int64_t part = 0; part < p.parts; ++part)
          sum += static_cast<double>(parts[part * plane + row * p.n + n]);
        project_store(p, z, n, at + p.c.column.at(z, n), static_cast<float>(sum));
      }
    });
  }

  void finish(int64_t first, int64_t count) const {
    const double cost = static_cast<double>(count * a_.h) * static_cast<double>(a_.f()) * 4;
    pool_->run(count * a_.h, cost, [&](int64_t index, int32_t) {
      const ProjectRow row = project_row(a_, first, index);
      float* z = rooms_.z + index * a_.f();
      if (plan_.backward)
        project_finish_backward(a_, row, z, rooms_.t ? rooms_.t + index * a_.f() : nullptr,
                                OneThread());
      else
        project_finish(a_, row, z, OneThread());
    });
  }

 private:
  void sums(const ProjectProduct& p, int64_t z, int64_t m, int64_t n, int64_t part,
            int32_t worker) const {
    void* room = plan_.scratch.at(base_, worker);
    float *x = plan_.x.at(room), *w = plan_.w.at(room), *c = plan_.c.at(room);
    const int64_t rows = std::min(kM, p.m - m), columns = std::min(kN, p.n - n);
    const int64_t pitch = host::padded(columns), end = std::min(p.k, (part + 1) * p.each());
    const int64_t begin = part * p.each();
    if (begin >= end) std::fill_n(c, rows * pitch, 0.0f);
    for (int64_t k = begin; k < end; k += kK) {
      const int64_t terms = std::min(kK, end - k);
      // Terms that are rows of a tensor: its columns are A's rows.
      const bool transposed = p.a.data && p.a.row.width > 1;
      ProjectMatrix turned = p.a;
      if (transposed) std::swap(turned.row, turned.column);
      const Tile a = transposed ? tile_of(simd_, turned, z, k, terms, m, rows, x, kM, 1)
                                : tile_of(simd_, p.a, z, m, rows, k, terms, x, kK, 1);
      const Tile b = tile_of(simd_, p.b, z, k, terms, n, columns, w, pitch, simd_.width);
      simd_.gemm({rows, pitch, terms, a.data, a.pitch, b.data, b.pitch, c, pitch, nullptr,
                  transposed, k > begin});
    }
    store(p, z, m, rows, n, columns, part, c, pitch);
  }

  // Sums to C, or to those of their part.
  void store(const ProjectProduct& p, int64_t z, int64_t m, int64_t rows, int64_t n,
             int64_t columns, int64_t part, const float* sums, int64_t pitch) const {
    float* parts = plan_.rooms.parts.at(base_);
    for (int64_t r = 0; r < rows; ++r) {
      const float* from = sums + r * pitch;
      if (p.parts > 1) {
        std::copy_n(from, columns, parts + ((part * p.z + z) * p.m + m + r) * p.n + n);
        continue;
      }
      const int64_t at = p.c.row.at(z, m + r);
      for (int64_t i = 0; i < columns;) {
        const Run across(p.c.column, z, n + i, columns - i);
        if (p.bias || p.slope || p.add)
          for (int64_t j = i; j < i + across.count; ++j)
            project_store(p, z, n + j, at + across.at + (j - i) * across.step, from[j]);
        else
          host::store_row(p.c.data, p.c.dtype, at + across.at, across.step, across.count, from + i,
                          1);
        i += across.count;
      }
    }
  }

  const ProjectPlan& plan_;
  const Project& a_;
  const host::Simd& simd_;
  void* base_;
  const ProjectRooms rooms_;
  host::Pool* pool_ = nullptr;
};

void lay_out(const Context& ctx, const Project& a, bool backward, Plan& plan) {
  ProjectPlan p{};
  p.a = a, p.backward = backward;
  p.rooms = project_layout(a, backward, plan.workspace);
  Layout worker;
  p.x = worker.add<float>(kM, kK), p.w = worker.add<float>(kK, kN), p.c = worker.add<float>(kM, kN);
  const double items = project_idle(a, backward) ? 0 : ctx.threads;
  p.scratch = host::WorkerScratch(ctx, items, worker, plan.workspace);
  host::host_plan<ProjectRun>(plan, p, Text(".") + dtype_name(a.dtype));
}

}  // namespace

extern const Kernel<Project> project_forward_host = {
    "", [](const Context& ctx, const Project& a, Plan& plan) {
      lay_out(ctx, a, false, plan);
      return Text();
    }};

extern const Kernel<Project> project_backward_host = {
    "", [](const Context& ctx, const Project& a, Plan& plan) {
      lay_out(ctx, a, true, plan);
      return Text();
    }};

}  // namespace fovea
