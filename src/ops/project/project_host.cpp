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

// Elements [i, i + rows) x [j, j + columns) of a matrix, rows `pitch` apart.
void pack(const host::Simd& simd, const ProjectMatrix& x, int64_t z, int64_t i, int64_t rows,
          int64_t j, int64_t columns, float* to, int64_t pitch) {
  if (!x.data) {
    for (int64_t r = 0; r < rows; ++r) std::fill_n(to + r * pitch, columns, 1.0f);
    return;
  }
  for (int64_t done = 0, count; done < columns; done += count) {
    count = std::min(columns - done, x.column.width - (j + done) % x.column.width);
    const int64_t at = x.column.at(z, j + done);
    for (int64_t r = 0; r < rows; ++r) {
      float* row = to + r * pitch + done;
      host::load_row(simd, x.data, x.dtype, x.row.at(z, i + r) + at, x.column.stride[3], count,
                     row);
      if (x.act)
        for (int64_t c = 0; c < count; ++c) row[c] = project_act(x.act, row[c]);
    }
  }
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
    std::fill_n(c, rows * pitch, 0.0f);
    for (int64_t k = part * p.each(); k < end; k += kK) {
      const int64_t terms = std::min(kK, end - k);
      // Terms that are rows of a tensor: its columns are A's rows.
      const bool transposed = p.a.data && p.a.row.width > 1;
      if (transposed) {
        ProjectMatrix turned = p.a;
        std::swap(turned.row, turned.column);
        pack(simd_, turned, z, k, terms, m, rows, x, kM);
      } else {
        pack(simd_, p.a, z, m, rows, k, terms, x, kK);
      }
      for (int64_t r = 0; r < terms; ++r)
        std::fill(w + r * pitch + columns, w + (r + 1) * pitch, 0.0f);
      pack(simd_, p.b, z, k, terms, n, columns, w, pitch);
      simd_.gemm({rows, pitch, terms, x, transposed ? kM : kK, w, pitch, c, pitch, nullptr,
                  transposed, true});
    }
    float* parts = plan_.rooms.parts.at(base_);
    for (int64_t r = 0; r < rows; ++r) {
      if (p.parts > 1) {
        std::copy_n(c + r * pitch, columns, parts + ((part * p.z + z) * p.m + m + r) * p.n + n);
        continue;
      }
      const int64_t at = p.c.row.at(z, m + r);
      for (int64_t i = 0; i < columns; ++i)
        project_store(p, z, n + i, at + p.c.column.at(z, n + i), c[r * pitch + i]);
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
