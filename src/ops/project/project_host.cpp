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

constexpr int64_t kInPlace = 12;  // rows of C up to which scattered rows of B are not gathered

// Where `count` indices of an axis from `index` on lie: `step` apart, up to `most` of them.
struct Line {
  Line(const ProjectAxis& axis, int64_t z, int64_t index, int64_t most) : at(axis.at(z, index)) {
    if (axis.width > 1) {
      step = axis.stride[3], count = std::min(most, axis.width - index % axis.width);
    } else if (axis.heads == 1) {
      step = axis.stride[1];
      count = std::min(most, axis.s - (axis.first_row + index) % axis.s);
    }
  }
  int64_t at, step = 0, count = 1;
};

// Elements [i, i + rows) x [j, j + columns) of a matrix, rows `pitch` apart.
void pack(const host::Simd& simd, const ProjectMatrix& x, int64_t z, int64_t i, int64_t rows,
          int64_t j, int64_t columns, float* to, int64_t pitch) {
  if (!x.data) {
    for (int64_t r = 0; r < rows; ++r) std::fill_n(to + r * pitch, columns, 1.0f);
    return;
  }
  for (int64_t top = 0; top < rows;) {
    const Line down(x.row, z, i + top, rows - top);
    for (int64_t done = 0; done < columns;) {
      const Line across(x.column, z, j + done, columns - done);
      for (int64_t r = 0; r < down.count; ++r) {
        float* row = to + (top + r) * pitch + done;
        host::load_row(simd, x.data, x.dtype, down.at + r * down.step + across.at, across.step,
                       across.count, row);
        if (x.act)
          for (int64_t c = 0; c < across.count; ++c) row[c] = project_act(x.act, row[c]);
      }
      done += across.count;
    }
    top += down.count;
  }
}

// Such elements where they lie, if rows of f32 a constant pitch apart are there.
struct InPlace {
  InPlace(const ProjectMatrix& x, int64_t z, int64_t i, int64_t rows, int64_t j, int64_t columns) {
    if (!x.data || x.dtype != FOVEA_F32 || x.act) return;
    const Line down(x.row, z, i, rows), across(x.column, z, j, columns);
    if (down.count < rows || across.count < columns || (columns > 1 && across.step != 1)) return;
    data = static_cast<const float*>(x.data) + down.at + across.at, pitch = down.step;
  }
  const float* data = nullptr;
  int64_t pitch = 0;
};

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
    const double cost = static_cast<double>(p.z * p.m * p.n) * (static_cast<double>(p.k) / 40 + 1);
    pool_->run(p.z * down * across * p.parts, cost, [&](int64_t item, int32_t worker) {
      const int64_t part = item % p.parts, tile = item / p.parts;
      sums(p, tile / across / down, tile / across % down * kM, tile % across * kN, part, worker);
    });
    if (p.parts == 1) return;
    const int64_t plane = p.z * p.m * p.n;
    const float* parts = plan_.rooms.parts.at(base_);
    pool_->run(p.z * p.m, static_cast<double>(plane * p.parts), [&](int64_t row, int32_t) {
      float sum[kN];
      for (int64_t n = 0; n < p.n; n += kN) {
        const int64_t columns = std::min(kN, p.n - n);
        for (int64_t i = 0; i < columns; ++i) {
          double of_parts = 0;
          for (int64_t part = 0; part < p.parts; ++part)
            of_parts += static_cast<double>(parts[part * plane + row * p.n + n + i]);
          sum[i] = static_cast<float>(of_parts);
        }
        store(p, row / p.m, row % p.m, n, columns, sum);
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
    float* c = plan_.c.at(room);
    const int64_t rows = std::min(kM, p.m - m), columns = std::min(kN, p.n - n);
    const int64_t pitch = host::padded(columns), begin = part * p.each();
    const int64_t end = std::min(p.k, begin + p.each());
    if (begin >= end) std::fill_n(c, rows * pitch, 0.0f);
    for (int64_t k = begin; k < end; k += kK)
      step(p, z, {m, rows, n, columns, k, std::min(kK, end - k)}, pitch, k > begin, room);
    float* parts = plan_.rooms.parts.at(base_);
    if (p.parts == 1) add_bias(p, z, n, rows, columns, c, pitch);
    for (int64_t r = 0; r < rows; ++r) {
      if (p.parts > 1)
        std::copy_n(c + r * pitch, columns, parts + ((part * p.z + z) * p.m + m + r) * p.n + n);
      else
        store(p, z, m + r, n, columns, c + r * pitch);
    }
  }

  struct Tile {
    int64_t m, rows, n, columns, k, terms;
  };
  // c = or += the product of `terms` terms.
  void step(const ProjectProduct& p, int64_t z, const Tile& t, int64_t pitch, bool add,
            void* room) const {
    // Terms that are rows of a tensor: its columns are A's rows.
    const bool transposed = p.a.data && p.a.row.width > 1;
    ProjectMatrix a = p.a;
    if (transposed) std::swap(a.row, a.column);
    InPlace x = transposed ? InPlace(a, z, t.k, t.terms, t.m, t.rows)
                           : InPlace(a, z, t.m, t.rows, t.k, t.terms);
    if (!x.data) {
      float* to = plan_.x.at(room);
      x.data = to, x.pitch = transposed ? kM : kK;
      if (transposed)
        pack(simd_, a, z, t.k, t.terms, t.m, t.rows, to, kM);
      else
        pack(simd_, a, z, t.m, t.rows, t.k, t.terms, to, kK);
    }
    InPlace w(p.b, z, t.k, t.terms, t.n, t.columns);
    // Rows far apart fall into few sets of the cache: not to be read often.
    const bool near = t.rows <= kInPlace || w.pitch <= 2 * t.columns;
    if (!w.data || pitch > t.columns || !near) {
      float* to = plan_.w.at(room);
      for (int64_t r = 0; pitch > t.columns && r < t.terms; ++r)
        std::fill(to + r * pitch + t.columns, to + (r + 1) * pitch, 0.0f);
      pack(simd_, p.b, z, t.k, t.terms, t.n, t.columns, to, pitch);
      w.data = to, w.pitch = pitch;
    }
    simd_.gemm({t.rows, pitch, t.terms, x.data, x.pitch, w.data, w.pitch, plan_.c.at(room), pitch,
                nullptr, transposed, add});
  }

  void add_bias(const ProjectProduct& p, int64_t z, int64_t n, int64_t rows, int64_t columns,
                float* c, int64_t pitch) const {
    float bias[kN];
    for (int64_t i = z * p.group; p.bias && i < (z + 1) * p.group; ++i) {
      host::load_row(simd_, p.bias.data, p.bias_dtype,
                     i / p.users * p.bias.stride[0] + n * p.bias.stride[1], p.bias.stride[1],
                     columns, bias);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t j = 0; j < columns; ++j) c[r * pitch + j] += bias[j];
    }
  }

  // Columns [n, n + columns) of row m of C have these sums, with their biases.
  static void store(const ProjectProduct& p, int64_t z, int64_t m, int64_t n, int64_t columns,
                    const float* sum) {
    const int64_t row = p.c.row.at(z, m);
    for (int64_t done = 0; done < columns;) {
      const Line to(p.c.column, z, n + done, columns - done);
      if (p.slope || p.add)
        for (int64_t i = 0; i < to.count; ++i)
          project_store_sum(p, row + to.at + i * to.step, sum[done + i]);
      else
        host::store_row(p.c.data, p.c.dtype, row + to.at, to.step, to.count, sum + done, 1);
      done += to.count;
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
