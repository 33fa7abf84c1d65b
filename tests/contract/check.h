// SPDX-License-Identifier: Apache-2.0
// What the contract's tests ask of a call: taken, or refused with the promised status and sentence,
// by the op and by its `_workspace` alike.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "contract_call.h"

namespace contract {

inline bool names(const std::string& text, const std::string& word) {
  const auto part = [](char c) { return isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || !part(text[at - 1])) && (end == text.size() || !part(text[end]))) return true;
  }
  return false;
}

struct Context {
  Context() {
    EXPECT_EQ(fovea_context_create(FOVEA_HOST, 0, &ctx), FOVEA_OK) << fovea_last_error();
  }
  ~Context() { fovea_context_destroy(ctx); }
  fovea_context* ctx = nullptr;
};

// Both functions of the op; the same status and sentence from each.
inline fovea_status answer(const Op& op, const void* params, std::string* text) {
  Context context;
  size_t bytes = 77;
  const fovea_status asked = op.query(context.ctx, params, &bytes);
  *text = fovea_last_error();
  if (asked != FOVEA_OK) {
    EXPECT_EQ(bytes, 0u) << *text;
  }
  // A query chooses and runs nothing; the op then runs what was chosen.
  const std::string chosen = fovea_context_last_plan(context.ctx);
  EXPECT_EQ(asked == FOVEA_OK, !chosen.empty());
  EXPECT_STREQ(fovea_context_last_kernel(context.ctx), "");
  const fovea_status called = op.call(context.ctx, params);
  EXPECT_EQ(chosen, fovea_context_last_plan(context.ctx));
  if (called == FOVEA_OK) {
    EXPECT_EQ(chosen, fovea_context_last_kernel(context.ctx));
  }
  EXPECT_EQ(asked, called) << op.name << ": _workspace: " << *text
                           << ", op: " << fovea_last_error();
  EXPECT_EQ(*text, fovea_last_error());
  EXPECT_EQ(called == FOVEA_OK, text->empty());
  EXPECT_EQ(called == FOVEA_OK, *fovea_context_last_kernel(context.ctx) != 0);
  return called;
}

inline void accepts(const Params& params) {
  std::string text;
  EXPECT_EQ(answer(params.op(), params.data(), &text), FOVEA_OK) << text;
}

inline void refuses(const Params& params, const std::string& field,
                    fovea_status status = FOVEA_INVALID_ARGUMENT) {
  std::string text;
  EXPECT_EQ(answer(params.op(), params.data(), &text), status) << text;
  EXPECT_EQ(text.rfind(std::string(params.op().name) + ": ", 0), 0u) << text;
  EXPECT_TRUE(names(text, field)) << text;
}

// Another extent, laid out row-major again, so that elements of an output do not overlap.
inline void resize(fovea_tensor& x, int axis, int64_t extent) {
  x.shape[axis] = extent;
  int64_t pitch = 1;
  for (int i = x.ndim - 1; i >= 0; --i) x.stride[i] = pitch, pitch *= x.shape[i];
}

inline Call valid(const char* op, const char* name) {
  for (const Case& c : small_cases())
    if (c.op == op && c.name == name) return Call(c);
  ADD_FAILURE() << "no case " << op << " " << name;
  return Call(small_cases()[0]);
}

inline void says(const Params& params, const std::string& sentence) {
  std::string text;
  EXPECT_EQ(answer(params.op(), params.data(), &text), FOVEA_INVALID_ARGUMENT);
  EXPECT_EQ(text, sentence);
}

// The call with an integer field changed.
inline Params with(const Params& from, const char* field, int64_t value) {
  Params p = from;
  const Field* f = p.op().find(field);
  f->kind == i64 ? p.at<int64_t>(f->offset) = value : p.at<int32_t>(f->offset) = int32_t(value);
  return p;
}
inline Params with_number(const Params& from, const char* field, float value) {
  Params p = from;
  p.at<float>(p.op().find(field)->offset) = value;
  return p;
}

inline Params without(const Params& from, std::initializer_list<const char*> fields) {
  Params p = from;
  for (const char* field : fields) p[field].data = nullptr;
  return p;
}

}  // namespace contract
