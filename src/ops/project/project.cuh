// SPDX-License-Identifier: Apache-2.0
// What runs the steps of x_project on a stream.  `parts` holds the parts of one product's sums.
#pragma once
#include "cuda/launch.h"
#include "ops/project/steps.h"

namespace fovea::cuda {

// A product in f32 FMA, of any operands.
void project_product(Context& ctx, const char* op, const ProjectProduct& p, float* parts);
// Adds the parts, where there is more than one.
void project_add_parts(Context& ctx, const char* op, const ProjectProduct& p, const float* parts);
void project_finish_rows(Context& ctx, const char* op, const Project& a, bool backward,
                         const ProjectRooms& rooms, int64_t first, int64_t count);

// A run of ProjectSteps; product(ctx, op, p, parts) is project_product or alike.
template <auto product_on>
struct ProjectRun {
  Context& ctx;
  const Project& a;
  bool backward;
  ProjectRooms rooms;
  float* parts;

  const char* op() const { return backward ? "x_project_backward" : "x_project_forward"; }
  void product(const ProjectProduct& p) const { product_on(ctx, op(), p, parts); }
  void finish(int64_t first, int64_t count) const {
    project_finish_rows(ctx, op(), a, backward, rooms, first, count);
  }
};

template <auto product_on>
void project_offer(const Project& a, bool backward, Plan& plan) {
  plan.kernel += Text(".") + dtype_name(a.dtype);
  const ProjectLayout layout = project_layout(a, backward, plan.workspace);
  plan.launch = [=](Context& ctx, void* base) {
    if (project_idle(a, backward)) return;
    ProjectRun<product_on> run{ctx, a, backward, layout.at(base), layout.parts.at(base)};
    ProjectSteps(a, backward, run.rooms).each(run);
  };
}

}  // namespace fovea::cuda
