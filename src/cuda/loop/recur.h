// SPDX-License-Identifier: Apache-2.0
// The recurrences of x_gla and x_delta on CUDA, token by token: every valid call.  For one token of
// many sequences it is the decode step.
#pragma once
#include <span>

#include "core/plan.h"
#include "core/recur_gradients.h"

namespace fovea::cuda {

struct RecurCall;
struct RecurBackwardCall;

// The kernels of one form (recur_forward.cuh, recur_backward.cuh), which an operation instantiates.
using RecurForward = void (*)(Context& ctx, const char* op, const RecurCall& call, int64_t work);
struct RecurKernels {
  RecurForward forward;
  void (*backward)(Context& ctx, const char* op, const RecurBackwardCall& call, int64_t blocks,
                   int64_t work);
};
template <Recurrence Form>
void recur_forward(Context& ctx, const char* op, const RecurCall& call, int64_t work);
template <Recurrence Form>
void recur_backward(Context& ctx, const char* op, const RecurBackwardCall& call, int64_t blocks,
                    int64_t work);

// Hopper's, for drafts of many heads (recur_drafts_sm90.cuh).
template <Recurrence Form>
void recur_drafts(Context& ctx, const char* op, const RecurCall& call, int64_t work);
struct DraftInstance {
  Recurrence form;
  RecurForward kernel;  // nullptr: no instance
};

void plan_recur(const char* op, const Recur& a, RecurForward kernel, Plan& plan);
void plan_recur_backward(const Context& ctx, const char* op, const RecurBackward& b,
                         const RecurKernels& kernels, Plan& plan);

// "" or why none of these kernels serves the call.
Text plan_drafts(const Context& ctx, const char* op, const Recur& a,
                 std::span<const DraftInstance> instances, Plan& plan);

// What adds up the terms of a call: how many sums it takes, and the launches.
int64_t recur_sums(const RecurBackward& b);
void add_recur_terms(Context& ctx, const char* op, const RecurBackward& b, double* sums);

// One launch of the forward recurrence: `a` as it is, without its normaliser.
void run_recur(Context& ctx, const char* op, const Recur& a, RecurForward kernel);

}  // namespace fovea::cuda
