// SPDX-License-Identifier: Apache-2.0
// Every operation is called rightly, then wrongly in each way its header comments forbid, one field
// at a time.  The answer must be the promised status with a sentence that starts with the op and
// names the field, and `_workspace` must give the very same one.  The table is the comments
// themselves, read by tools/api.py; the expectations here share nothing with the library.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <climits>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "contract_call.h"
#include "contract_cases.h"

namespace {

using namespace contract;

bool names(const std::string& text, const std::string& word) {
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
fovea_status answer(const Op& op, const void* params, std::string* text) {
  Context context;
  size_t bytes = 77;
  const fovea_status asked = op.query(context.ctx, params, &bytes);
  *text = fovea_last_error();
  if (asked != FOVEA_OK) {
    EXPECT_EQ(bytes, 0u) << *text;
  }
  const fovea_status called = op.call(context.ctx, params);
  EXPECT_EQ(asked, called) << op.name << ": _workspace: " << *text
                           << ", op: " << fovea_last_error();
  EXPECT_EQ(*text, fovea_last_error());
  EXPECT_EQ(called == FOVEA_OK, text->empty());
  EXPECT_EQ(called == FOVEA_OK, *fovea_context_last_kernel(context.ctx) != 0);
  return called;
}

void accepts(const Params& params) {
  std::string text;
  EXPECT_EQ(answer(params.op(), params.data(), &text), FOVEA_OK) << text;
}

void refuses(const Params& params, const std::string& field,
             fovea_status status = FOVEA_INVALID_ARGUMENT) {
  std::string text;
  EXPECT_EQ(answer(params.op(), params.data(), &text), status) << text;
  EXPECT_EQ(text.rfind(std::string(params.op().name) + ": ", 0), 0u) << text;
  EXPECT_TRUE(names(text, field)) << text;
}

// Another extent, laid out row-major again, so that elements of an output do not overlap.
void resize(fovea_tensor& x, int axis, int64_t extent) {
  x.shape[axis] = extent;
  int64_t pitch = 1;
  for (int i = x.ndim - 1; i >= 0; --i) x.stride[i] = pitch, pitch *= x.shape[i];
}

class Contract : public testing::TestWithParam<Case> {
 protected:
  Contract() : call(GetParam()) {}

  // f(params, tensor) on a fresh copy of the valid call for each tensor it gives.
  void each(const std::function<void(Params&, fovea_tensor&, const Field&)>& f) {
    for (const Field* field : call.tensors()) {
      SCOPED_TRACE(field->name);
      Params params = call.params;
      f(params, params[field->name], *field);
    }
  }
  void each_axis(const std::function<void(Params&, fovea_tensor&, const Field&, int)>& f) {
    each([&](Params&, fovea_tensor& x, const Field& field) {
      for (int axis = 0; axis < x.ndim; ++axis) {
        SCOPED_TRACE(axis);
        Params params = call.params;
        f(params, params[field.name], field, axis);
      }
    });
  }
  Call call;
};

TEST_P(Contract, ValidCallIsDone) {
  accepts(call.params);
}

TEST_P(Contract, Rank) {
  each([&](Params& params, fovea_tensor& x, const Field& f) {
    for (const int ndim : {x.ndim - 1, x.ndim + 1, -1, FOVEA_MAX_DIMS + 1, INT_MAX, INT_MIN}) {
      x.ndim = ndim;
      refuses(params, f.name + ".ndim");
    }
  });
}

TEST_P(Contract, ExtentsAgree) {
  each_axis([&](Params& params, fovea_tensor& x, const Field& f, int axis) {
    resize(x, axis, x.shape[axis] + 1);
    if (call.tied(f, axis)) {
      refuses(params, f.name);
    } else {
      accepts(params);
    }
    const std::string dim = call.dims(f)[axis];
    if (dim == "bytes" || dim == "block_bytes") {
      resize(x, axis, x.shape[axis] - 2);
      refuses(params, f.name);
    }
  });
}

TEST_P(Contract, ExtentsAndStridesAreInRange) {
  each_axis([&](Params& params, fovea_tensor& x, const Field& f, int axis) {
    const int64_t extent = x.shape[axis], stride = x.stride[axis];
    for (const int64_t bad : {int64_t{-1}, INT64_MIN}) {
      x.shape[axis] = bad;
      refuses(params, f.name + ".shape");
      x.shape[axis] = extent, x.stride[axis] = bad;
      refuses(params, f.name + ".stride");
      x.stride[axis] = stride;
    }
    x.stride[axis] = INT64_MAX;
    if (extent > 1) refuses(params, f.name + ".stride");
    x.shape[axis] = INT64_MAX, x.stride[axis] = 1;
    if (x.ndim > 1) refuses(params, f.name);
  });
}

TEST_P(Contract, Dtype) {
  each([&](Params& params, fovea_tensor& x, const Field& f) {
    const int own = x.dtype;
    for (int dtype = -1; dtype < 40; ++dtype) {
      bool listed = dtype == own && !f.dtype_as.empty();
      for (const std::string& name : f.dtypes) listed |= kDtypes.at(name) == dtype;
      if (listed) continue;
      SCOPED_TRACE(dtype);
      x.dtype = dtype;
      refuses(params, f.name + ".dtype");
    }
    for (const int dtype : {INT_MAX, INT_MIN}) {
      x.dtype = dtype;
      refuses(params, f.name + ".dtype");
    }
  });
}

TEST_P(Contract, RequiredTensorsAreGiven) {
  each([&](Params& params, fovea_tensor& x, const Field& f) {
    x.data = nullptr;
    if (f.required) refuses(params, f.name + ".data");
    x = {};
    if (f.required) refuses(params, f.name + ".data");
  });
}

TEST_P(Contract, Alignment) {
  each([&](Params& params, fovea_tensor& x, const Field& f) {
    const bool byte = x.dtype == FOVEA_U8 || x.dtype == FOVEA_I8 || x.dtype == FOVEA_E4M3 ||
                      x.dtype == FOVEA_E5M2;
    x.data = static_cast<char*>(x.data) + 1;
    if (!byte) refuses(params, f.name + ".data");
  });
}

TEST_P(Contract, OutputsAreDistinctElements) {
  each_axis([&](Params& params, fovea_tensor& x, const Field& f, int axis) {
    if (!f.output || x.shape[axis] < 2) return;
    x.stride[axis] = 0;
    if (f.sums) {
      accepts(params);
    } else {
      refuses(params, f.name + ".stride");
    }
  });
}

// Each pair of axes with one stride: two of their elements are one.
TEST_P(Contract, ElementsOfAnOutputDoNotOverlap) {
  each_axis([&](Params& params, fovea_tensor& x, const Field& f, int axis) {
    if (!f.output || x.shape[axis] < 2) return;
    for (int inner = axis + 1; inner < x.ndim; ++inner) {
      if (x.shape[inner] < 2) continue;
      x.stride[axis] = (x.shape[inner] - 1) * x.stride[inner];
      refuses(params, f.name + ".stride");
    }
  });
  each([&](Params& params, fovea_tensor& x, const Field& f) {
    if (!f.output) return;
    for (int64_t& stride : x.stride) stride *= 2;
    accepts(params);
  });
}

TEST_P(Contract, StridesAreNotForgotten) {
  each([&](Params& params, fovea_tensor& x, const Field& f) {
    int64_t count = 1;
    for (int axis = 0; axis < x.ndim; ++axis) count *= x.shape[axis], x.stride[axis] = 0;
    if (count > 1) {
      refuses(params, f.name + ".stride");
    } else {
      accepts(params);
    }
  });
}

TEST_P(Contract, OutputsShareNoMemory) {
  each([&](Params& params, fovea_tensor& x, const Field& f) {
    if (!f.output) return;
    void* const own = x.data;
    for (const Field* other : call.tensors()) {
      if (other->name == f.name || other->name == f.alias || other->alias == f.name) continue;
      SCOPED_TRACE(other->name);
      x.data = params[other->name].data;
      refuses(params, f.name);
      refuses(params, other->name);
      x.data = own;
    }
  });
}

TEST_P(Contract, ReservedIsZero) {
  for (const Field& f : call.op->fields) {
    if (f.kind != reserved) continue;
    call.params.at<int32_t>(f.offset) = 1;
    refuses(call.params, f.name);
  }
}

// A caller built against an older header (its struct ends earlier), this one, and a newer one.
TEST_P(Contract, StructSizeOfEveryCaller) {
  Params& params = call.params;
  const size_t bytes = call.op->bytes;
  for (const size_t forgotten : {size_t{0}, call.op->first_bytes - 1, size_t{8}}) {
    params.set_size(forgotten);
    refuses(params, "struct_size");
  }
  for (const size_t newer : {bytes + 8, bytes + 16}) {
    params.set_size(newer);
    accepts(params);  // its new field is unset
    for (size_t at = bytes; at < newer; ++at) {
      params.at<unsigned char>(at) = 1;
      refuses(params, "struct_size", FOVEA_UNSUPPORTED);
      params.at<unsigned char>(at) = 0;
    }
  }
  for (const size_t garbage : {SIZE_MAX, SIZE_MAX / 2, size_t{1} << 32}) {
    params.set_size(garbage);
    refuses(params, "struct_size");
  }
}

// Nothing past the caller's struct_size is read: it ends where readable memory ends.
TEST_P(Contract, OldCallersStructIsReadToItsEndOnly) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* memory =
      mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_EQ(mprotect(static_cast<char*>(memory) + page, page, PROT_NONE), 0);
  for (const size_t caller : {call.op->first_bytes, call.op->bytes}) {
    call.params.set_size(caller);
    void* end = static_cast<char*>(memory) + page - caller;
    std::memcpy(end, call.params.data(), caller);
    std::string text;
    EXPECT_EQ(answer(*call.op, end, &text), FOVEA_OK) << text;
  }
  munmap(memory, 2 * page);
}

TEST_P(Contract, NullArguments) {
  const Op& op = *call.op;
  const std::string name = op.name;
  Context context;
  size_t bytes = 0;
  const void* params = call.params.data();
  const auto told = [&](const std::string& text) { EXPECT_EQ(text, fovea_last_error()); };
  EXPECT_EQ(op.call(nullptr, params), FOVEA_INVALID_ARGUMENT);
  told(name + ": ctx is NULL");
  EXPECT_EQ(op.query(nullptr, params, &bytes), FOVEA_INVALID_ARGUMENT);
  told(name + ": ctx is NULL");
  EXPECT_EQ(op.call(context.ctx, nullptr), FOVEA_INVALID_ARGUMENT);
  told(name + ": params is NULL");
  EXPECT_EQ(op.query(context.ctx, nullptr, &bytes), FOVEA_INVALID_ARGUMENT);
  told(name + ": params is NULL");
  EXPECT_EQ(op.query(context.ctx, params, nullptr), FOVEA_INVALID_ARGUMENT);
  told(name + "_workspace: bytes is NULL");
}

INSTANTIATE_TEST_SUITE_P(Every, Contract, testing::ValuesIn(kCases), [](const auto& info) {
  return std::string(info.param.op) + "_" + info.param.name;
});

Call valid(const char* op, const char* name) {
  for (const Case& c : kCases)
    if (std::string(c.op) == op && std::string(c.name) == name) return Call(c);
  ADD_FAILURE() << "no case " << op << " " << name;
  return Call(kCases[0]);
}

void says(const Params& params, const std::string& sentence) {
  std::string text;
  EXPECT_EQ(answer(params.op(), params.data(), &text), FOVEA_INVALID_ARGUMENT);
  EXPECT_EQ(text, sentence);
}

TEST(ContractCases, EveryTensorOfEveryOpIsInACase) {
  for (const Op& op : ops())
    for (const Field& f : op.fields) {
      bool seen = f.kind != tensor;
      for (const Case& c : kCases) seen |= std::string(c.op) == op.name && Call(c).has(f);
      EXPECT_TRUE(seen) << op.name << "." << f.name;
    }
}

TEST(ContractWording, NamesGotAndWanted) {
  Call call = valid("attention_forward", "plain");
  Params p = call.params;
  ++p["k"].shape[3];
  says(p, "attention_forward: k.shape[3] (d) is 9, wanted 8 as in q");
  p = call.params, p["k"].dtype = FOVEA_F16;
  says(p, "attention_forward: k.dtype is f16, wanted f32 as in q");
  p = call.params, p["q"].dtype = 99;
  says(p, "attention_forward: q.dtype is 99 (no fovea_dtype), wanted f32 or f16 or bf16");
  p = call.params, p["v"].ndim = 3;
  says(p, "attention_forward: v.ndim is 3, wanted 4: (rows, t, g, e)");
  p = call.params, p["o"].data = nullptr;
  says(p, "attention_forward: o.data is NULL, wanted a tensor (b, s, h, e)");
  p = call.params, p["lse"].stride[1] = 0;
  says(p,
       "attention_forward: lse.stride[1] is 0 over an extent of 4, wanted > 0: it is written to");
  p = call.params, p["o"].data = p["q"].data;
  says(p, "attention_forward: o.data is that of q, wanted memory of its own");
  Call packed = valid("attention_forward", "packed");
  p = packed.params, p["mask"].shape[3] = 0;
  says(p,
       "attention_forward: mask.shape[3] (bytes) is 0, wanted 1: a bit for each of 5 keys; pad "
       "with the stride");
  p = packed.params, ++p["key_start"].shape[0];
  says(p, "attention_forward: key_start.shape[0] (r+1) is 4, wanted 3 as in query_start");
  p = packed.params, p["query_start"].shape[0] = 0;
  says(p, "attention_forward: query_start.shape[0] (r+1) is 0, wanted >= 1");
  p = packed.params, p["q"].shape[0] = 2;
  says(p, "attention_forward: q.shape[0] (b) is 2, wanted 1 with query_start: packed");
  p = valid("attention_forward", "packed_keys").params, ++p["bias"].shape[3];
  says(p, "attention_forward: bias.shape[3] (keys) is 5, wanted 4 as in key_max");
  // Extents alone overflow, though every stride is 0.
  p = call.params, p["q"].shape[0] = p["q"].shape[1] = int64_t{1} << 31;
  for (int64_t& stride : p["q"].stride) stride = 0;
  says(p,
       "attention_forward: q.shape and q.stride reach past 2^63 bytes, wanted offsets that fit "
       "int64_t");
}

// A byte for each key, where a bit is wanted, would be read as eight keys a byte.
TEST(ContractMask, ARowIsABitForEachKey) {
  Call call({"attention_forward", "", "mask", "t=32"});
  Params p = call.params;
  accepts(p);
  p["mask"].shape[3] = 32;
  says(p,
       "attention_forward: mask.shape[3] (bytes) is 32, wanted 4: a bit for each of 32 keys; pad "
       "with the stride");
  p["mask"].shape[3] = 5;
  refuses(p, "mask.shape");
  p["mask"].shape[3] = 4;
  p["mask"].stride[2] = 16, p["mask"].stride[1] = 3 * 16, p["mask"].stride[0] = 4 * 3 * 16;
  accepts(p);
}

TEST(ContractStrides, OverlappingOutput) {
  Call call({"attention_forward", "", "lse", "e=8"});
  Params p = call.params;
  for (int axis = 0; axis < 4; ++axis)
    p["o"].stride[axis] = (const int64_t[]){1024, 256, 1, 1}[axis];
  says(p,
       "attention_forward: o.stride[2] is 1, wanted more than 7, which axis 3 reaches: elements of "
       "an output may not overlap");
  p["o"].stride[2] = 8, p["o"].stride[1] = 31;
  says(p,
       "attention_forward: o.stride[1] is 31, wanted more than 31, which axis 2 reaches: elements "
       "of an output may not overlap");
  p["o"].stride[1] = 32, p["o"].stride[0] = 96;
  accepts(p);
  p["o"].stride[0] = 1, p["o"].stride[3] = 2;  // the batch inmost: any order of axes will do
  p["o"].stride[2] = 16, p["o"].stride[1] = 64;
  accepts(p);
  p["o"].shape[1] = p["q"].shape[1] = p["lse"].shape[2] = 0;  // nothing is written
  for (int64_t& stride : p["o"].stride) stride = 1;
  accepts(p);
}

// An output that sums has strides of 0 on some axes; the others do not overlap.
TEST(ContractStrides, SumsOverSomeAxes) {
  Call call({"attention_backward", "", "bias dbias", ""});
  Params p = call.params;
  p["dbias"].stride[0] = p["dbias"].stride[2] = 0;
  p["dbias"].stride[1] = 5;
  accepts(p);
  p["dbias"].stride[1] = 4;
  says(p,
       "attention_backward: dbias.stride[1] is 4, wanted more than 4, which axis 3 reaches: "
       "elements of an output may not overlap");
}

TEST(ContractStrides, Forgotten) {
  Call call({"attention_forward", "", "key_len", ""});
  Params p = call.params;
  for (int64_t& stride : p["q"].stride) stride = 0;
  says(p,
       "attention_forward: q.stride is 0 on every axis over 192 elements: fill it in, as "
       "fovea_contiguous does");
  p = call.params, p["key_len"].stride[0] = 0;
  says(p,
       "attention_forward: key_len.stride is 0 on every axis over 2 elements: fill it in, as "
       "fovea_contiguous does");
  p = call.params;
  for (int64_t& stride : p["o"].stride) stride = 0;
  says(p,
       "attention_forward: o.stride is 0 on every axis over 144 elements: fill it in, as "
       "fovea_contiguous does");
  p = call.params;
  for (int axis = 0; axis < 3; ++axis) p["k"].stride[axis] = 0;  // one key, broadcast
  accepts(p);
}

// What a comment says an output may be: the same elements, or nothing.
TEST(ContractAlias, OutputMayBeTheNamedInput) {
  Call rope = valid("rope_forward", "plain");
  Params p = rope.params;
  p["y"].data = p["x"].data;
  accepts(p);
  std::swap(p["y"].stride[0], p["y"].stride[1]);
  refuses(p, "x");

  Call append = valid("cache_append", "keys");
  p = append.params, p["key_len_out"].data = p["key_len"].data;
  accepts(p);

  Call copy = valid("cache_copy", "plain");
  p = copy.params, p["target"].data = p["source"].data;
  accepts(p);
  for (int64_t& stride : p["target"].stride) stride *= 2;
  refuses(p, "source");
}

TEST(ContractAlias, MergeMayWriteItsFirstPart) {
  Call plain = valid("merge_forward", "plain");
  Params p = plain.params;
  p["o"].data = p["o_part"].data, p["lse"].data = p["lse_part"].data;
  accepts(p);
  for (int64_t& stride : p["o"].stride) stride *= 2;
  refuses(p, "o_part");
  for (int64_t& stride : p["o"].stride) stride /= 2;
  p["o"].dtype = FOVEA_BF16;
  refuses(p, "o.dtype");
  Call rows = valid("merge_forward", "rows");
  p = rows.params, p["o"].data = p["o_part"].data;
  says(p, "merge_forward: o.data is that of o_part, wanted memory of its own");
}

// The call with an integer field changed.
Params with(const Params& from, const char* field, int64_t value) {
  Params p = from;
  const Field* f = p.op().find(field);
  f->kind == i64 ? p.at<int64_t>(f->offset) = value : p.at<int32_t>(f->offset) = int32_t(value);
  return p;
}

// What the comments of quant.h say of its numbers.
TEST(ContractQuant, NumbersAndWhatGoesTogether) {
  const Params quantize = valid("quant_quantize", "plain").params;
  says(with(quantize, "block", 32), "quant_quantize: block is 32, wanted 0, 64 or 128");
  says(with(quantize, "hadamard", 2), "quant_quantize: hadamard is 2, wanted 0 or 1");
  says(with(quantize, "seed", 5), "quant_quantize: seed is 5 without hadamard, wanted 0");
  says(with(quantize, "code_order", 2),
       "quant_quantize: code_order is 2, wanted a fovea_code_order");
  Params p = quantize;
  p["code"].data = p["code_t"].data = nullptr;
  says(p, "quant_quantize: code.data and code_t.data are NULL, wanted one of them or both");
  p = quantize, p["code_t"].data = nullptr;
  says(with(p, "code_order", 1), "quant_quantize: code_order is 1 without code_t, wanted 0");
  p = quantize, resize(p["scale"], 2, 2);
  says(p, "quant_quantize: scale.shape[2] (n) is 2, wanted 1");

  const Params forward = valid("quant_forward", "scales").params;
  says(with(forward, "q_block", 16), "quant_forward: q_block is 16, wanted 0, 64 or 128");
  says(with(forward, "k_block", -64), "quant_forward: k_block is -64, wanted 0, 64 or 128");
  says(with(forward, "causal", 3), "quant_forward: causal is 3, wanted 0 or 1");
  says(with(with(forward, "causal", 1), "window_right", 2),
       "quant_forward: window_right is 2 with causal = 1, wanted 0 or 1");
  for (const char* field : {"query_max", "key_max", "window_left", "window_right"})
    refuses(with(forward, field, -1), field);
  p = forward, p["v_t"].data = nullptr;
  says(p, "quant_forward: v.data and v_t.data are both NULL, wanted one of them");
  p = forward, p["k_scale"].data = nullptr;
  says(with(p, "k_block", 64), "quant_forward: k_block is 64 without k_scale, wanted 0");
  p = forward, p["v_t"].shape[3] = 256;
  says(p, "quant_forward: v_t.shape[3] (padded) is 256, wanted 128");
  p = forward, p.at<float>(p.op().find("softcap")->offset) = -1;
  refuses(p, "softcap");
  p = forward, p.at<float>(p.op().find("scale")->offset) = -1;
  refuses(p, "scale");
  p = valid("quant_forward", "plain").params;
  says(with(p, "code_order", 1), "quant_forward: code_order is 1 without v_t, wanted 0");
  p["q"].shape[2] = p["o"].shape[2] = p["lse"].shape[1] = p["sink_logit"].shape[0] = 3;
  refuses(p, "k.shape");
}

// What the comments of kl.h say of its numbers.
TEST(ContractKl, NumbersAndWhatGoesTogether) {
  const Call plain_call = valid("kl_forward", "plain"),
             backward_call = valid("kl_backward", "total");
  const Params plain = plain_call.params;
  accepts(with(plain, "direction", 1));
  says(with(plain, "direction", 2), "kl_forward: direction is 2, wanted a fovea_direction");
  says(with(plain, "mean", 1), "kl_forward: mean is 1 without total, wanted 0");
  refuses(with(plain, "mean", 2), "mean");
  refuses(with(plain, "causal", 2), "causal");
  refuses(with(plain, "sink_keys", 1), "sink_keys");
  for (const char* field : {"query_max", "key_max", "window_left", "window_right", "sink_keys"})
    refuses(with(plain, field, -1), field);
  Params p = plain;
  for (const char* field : {"kl", "lse_teacher", "lse_student"}) p[field].data = nullptr;
  says(p,
       "kl_forward: kl, lse_teacher, lse_student and total are all absent, wanted one of them at "
       "least");
  for (const char* field : {"scale_teacher", "scale_student"}) {
    p = plain, p.at<float>(p.op().find(field)->offset) = -1;
    refuses(p, field);
  }
  p = plain, p["k_student"].shape[2] = 3;
  says(p, "kl_forward: k_student.shape[2] (x) is 3, wanted a divisor of the 4 heads");
  p = plain, p["k_teacher"].shape[2] = 0;
  refuses(p, "k_teacher.shape");
  p = plain, p["q_student"].shape[3] = p["k_student"].shape[3] = 577;
  for (int i = 0; i < 3; ++i) p["q_student"].stride[i] = p["k_student"].stride[i] = 577;
  refuses(p, "q_student.shape", FOVEA_UNSUPPORTED);
  p = valid("kl_forward", "total").params, p["total"].data = nullptr;
  says(p, "kl_forward: row_weight is given without total: it weighs nothing else");
  refuses(with(valid("kl_forward", "total").params, "causal", 1), "head_window");

  const Params backward = backward_call.params;
  accepts(with(backward, "nondeterministic", 1));
  refuses(with(backward, "nondeterministic", 2), "nondeterministic");
  p = backward, p["dtotal"].data = nullptr;
  says(p, "kl_backward: row_weight is given without dtotal: it weighs nothing else");
  p["row_weight"].data = nullptr;
  accepts(p);
  says(with(p, "mean", 1), "kl_backward: mean is 1 without dtotal, wanted 0");
  p["dkl"].data = nullptr;
  says(p, "kl_backward: dkl and dtotal are both absent, wanted one of them or both");
}

// What the comments of experimental/kl.h say of its numbers.
TEST(ContractKlExperimental, JensenShannon) {
  for (const std::string op : {"x_kl_jensen_shannon_forward", "x_kl_jensen_shannon_backward"}) {
    const Call call = valid(op.c_str(), "plain");
    const Params plain = call.params;
    Params p = plain;
    const auto number = [&](const char* field, float value) {
      p = plain, p.at<float>(p.op().find(field)->offset) = value;
    };
    number("weight", 1);
    says(p, op + ": weight is 1, wanted between 0 and 1, or 0 for 0.5");
    for (const float bad : {-0.5f, HUGE_VALF, NAN}) {
      for (const char* field : {"weight", "scale_teacher", "scale_student"}) {
        number(field, bad);
        refuses(p, field);
      }
    }
    number("weight", 0.25f);
    accepts(p);
    refuses(with(plain, "causal", 2), "causal");
    for (const char* field : {"query_max", "key_max", "window_left", "window_right", "sink_keys"})
      refuses(with(plain, field, -1), field);
  }
  const Call call = valid("x_kl_jensen_shannon_forward", "plain");
  Params p = call.params;
  for (const char* field : {"js", "kl_teacher", "kl_student", "lse_teacher", "lse_student"})
    p[field].data = nullptr;
  refuses(p, "js");
  p = call.params, p["k_student"].shape[2] = 3;
  says(p,
       "x_kl_jensen_shannon_forward: k_student.shape[2] (x) is 3, wanted a divisor of the 4 heads");
}

TEST(ContractKlExperimental, Indexer) {
  for (const std::string op : {"x_kl_indexer_forward", "x_kl_indexer_backward"}) {
    const Call call = valid(op.c_str(), "plain");
    const Params plain = call.params;
    refuses(with(plain, "causal", 2), "causal");
    refuses(with(plain, "sink_keys", 1), "sink_keys");
    for (const char* field : {"query_max", "key_max", "window_left", "window_right", "sink_keys"})
      refuses(with(plain, field, -1), field);
    Params p = plain;
    p.at<float>(p.op().find("scale_teacher")->offset) = -1;
    refuses(p, "scale_teacher");
    p = plain, p["k_student"].shape[2] = 2;
    refuses(p, "k_student.shape");
    p = plain, p["k_teacher"].shape[2] = 3;
    says(p, op + ": k_teacher.shape[2] (g) is 3, wanted a divisor of the 4 heads");
  }
  const Call call = valid("x_kl_indexer_forward", "plain");
  Params p = call.params;
  for (const char* field : {"kl", "lse_teacher", "lse_student"}) p[field].data = nullptr;
  refuses(p, "kl");
  p = call.params;
  p["q_student"].shape[2] = p["weight"].shape[2] = 0;
  says(p, "x_kl_indexer_forward: q_student.shape[2] (x) is 0, wanted >= 1");
}

TEST(ContractKlExperimental, Gather) {
  for (const std::string op : {"x_kl_gather_forward", "x_kl_gather_backward"}) {
    const Call call = valid(op.c_str(), "plain");
    const Params plain = call.params;
    for (const char* field : {"query_max", "key_max"}) refuses(with(plain, field, -1), field);
    for (const char* field : {"scale_teacher", "scale_student"}) {
      Params p = plain;
      p.at<float>(p.op().find(field)->offset) = -1;
      refuses(p, field);
    }
    Params p = plain;
    p["k_student"].shape[2] = 3;
    refuses(p, "x");
    p = plain, p["index"].stride[1] = 0;
    accepts(p);
  }
  const Call call = valid("x_kl_gather_forward", "plain");
  Params p = call.params;
  for (const char* field : {"kl", "lse_teacher", "lse_student"}) p[field].data = nullptr;
  refuses(p, "kl");
}

TEST(ContractKlExperimental, Pool) {
  for (const std::string op : {"x_kl_pool_forward", "x_kl_pool_backward"}) {
    const Call call = valid(op.c_str(), "packed");
    const Params plain = call.params;
    accepts(with(plain, "pool", 1));
    says(with(plain, "pool", 2), op + ": pool is 2, wanted a fovea_x_pool");
    says(with(plain, "block_keys", 1),
         op + ": k_student.shape[1] (u) is 5, wanted at least 7 blocks");
    accepts(with(plain, "block_keys", INT64_MAX));
    refuses(with(plain, "causal", 2), "causal");
    for (const char* field :
         {"query_max", "key_max", "window_left", "window_right", "sink_keys", "block_keys"})
      refuses(with(plain, field, -1), field);
    for (const char* field : {"scale_teacher", "scale_student"}) {
      Params p = plain;
      p.at<float>(p.op().find(field)->offset) = -1;
      refuses(p, field);
    }
  }
  const Call call = valid("x_kl_pool_forward", "plain");
  Params p = call.params;
  for (const char* field : {"kl", "lse_teacher", "lse_student"}) p[field].data = nullptr;
  refuses(p, "kl");
}

// What the comments of conv_attention.h say of its numbers.
TEST(ContractConvAttention, NumbersAndExtents) {
  for (const std::string op : {"conv_attention_forward", "conv_attention_backward"}) {
    const Params call = valid(op.c_str(), "plain").params;
    const auto taps = [&](int axis, int64_t extent) {
      Params p = call;
      resize(p["weight"], axis, extent);
      if (op == "conv_attention_backward") resize(p["dweight"], axis, extent);
      return p;
    };
    says(taps(1, 17), op + ": weight.shape[1] (kernel_rows) is 17, wanted 1 .. 16");
    says(taps(1, 0), op + ": weight.shape[1] (kernel_rows) is 0, wanted 1 .. 16");
    says(taps(2, 32), op + ": weight.shape[2] (kernel_columns) is 32, wanted 1 .. 31");
    says(taps(2, 0), op + ": weight.shape[2] (kernel_columns) is 0, wanted 1 .. 31");
    says(with(call, "causal", 2), op + ": causal is 2, wanted 0 or 1");
    for (const char* field : {"query_max", "key_max", "history"})
      refuses(with(call, field, -1), field);
    says(with(call, "history", 4),
         op + ": history is 4 in 1 sequences, wanted at most the 3 rows of q");
    says(with(call, "history", 1),
         op + ": o.shape[1] (rows_out) is 3, wanted 2: the 3 rows of q.shape[1] less 1 of history");
    refuses(with(call, "history", INT64_MAX), "history");
    const Params packed = valid(op.c_str(), "packed").params;
    says(with(packed, "history", 2),
         op + ": history is 2 in 2 sequences, wanted at most the 3 rows of q");
    refuses(with(packed, "history", INT64_MAX), "history");
    Params p = call;
    for (const float bad : {-1.0f, HUGE_VALF, NAN}) {
      p.at<float>(p.op().find("scale")->offset) = bad;
      refuses(p, "scale");
    }
    p = call;
    p["weight"].dtype = FOVEA_F16;
    refuses(p, "weight.dtype");
  }
  refuses(with(valid("conv_attention_forward", "plain").params, "splits", -1), "splits");
  refuses(with(valid("conv_attention_backward", "plain").params, "nondeterministic", 2),
          "nondeterministic");
}

// What the comments of experimental/multi_token.h say of its numbers.
TEST(ContractMultiToken, NumbersAndExtents) {
  for (const std::string op : {"x_multi_token_forward", "x_multi_token_backward"}) {
    const bool backward = op == "x_multi_token_backward";
    const Call made = valid(op.c_str(), "mixed");
    const Params call = made.params;
    const auto group = [&](int64_t heads) {
      Params p = call;
      for (const char* name : {"mix_before", "mix_after"}) resize(p[name], 1, heads);
      if (backward)
        for (const char* name : {"dmix_before", "dmix_after"}) resize(p[name], 1, heads);
      return p;
    };
    accepts(group(1));
    for (int64_t bad : {0, 3, 8, 17})
      says(group(bad), op + ": mix_before.shape[1] (group_heads) is " + std::to_string(bad) +
                           ", wanted 1 .. 16, a divisor of q's 4 heads");
    const Params plain = valid(op.c_str(), "plain").params;
    says(with(plain, "causal", 2), op + ": causal is 2, wanted 0 or 1");
    for (const char* field : {"query_max", "key_max", "history"})
      refuses(with(plain, field, -1), field);
    says(with(plain, "history", 1),
         op + ": " + (backward ? "dout" : "o") +
             ".shape[1] (rows_out) is 3, wanted 2: the 3 rows of q.shape[1] less 1 of history");
    for (const float bad : {-1.0f, HUGE_VALF, NAN}) {
      Params p = plain;
      p.at<float>(p.op().find("scale")->offset) = bad;
      refuses(p, "scale");
    }
  }
  Params p = valid("x_multi_token_backward", "mixed").params;
  p["mix_after"].data = nullptr;
  says(p, "x_multi_token_backward: dmix_after is given without mix_after, wanted both");
}

TEST(ContractMultiToken, GroupNorm) {
  for (const char* op : {"x_group_norm_forward", "x_group_norm_backward"})
    for (const char* field : {"factor", "eps"})
      for (const float bad : {-1.0f, HUGE_VALF, NAN}) {
        Params p = valid(op, "plain").params;
        p.at<float>(p.op().find(field)->offset) = bad;
        refuses(p, field);
      }
}

// What the comments of trace.h say of its numbers.
TEST(ContractTrace, NumbersAndWhatGoesTogether) {
  const Params plain = valid("trace_forward", "plain").params;
  says(with(plain, "keep", 0), "trace_forward: keep is 0, wanted 1 .. 256");
  says(with(plain, "keep", 257), "trace_forward: keep is 257, wanted 1 .. 256");
  says(with(plain, "keep", 3), "trace_forward: selected.shape[3] (keep) is 2, wanted 3: keep");
  says(with(plain, "block_rows", 8),
       "trace_forward: block_rows is 8, wanted 16, 32, 64 or 128, or 0 for 64");
  says(with(plain, "block_keys", -16),
       "trace_forward: block_keys is -16, wanted 16, 32, 64 or 128, or 0 for 64");
  for (const char* field : {"exact", "causal"}) refuses(with(plain, field, 2), field);
  refuses(with(plain, "layer", -1), "layer");
  says(with(plain, "edge_kind", 3), "trace_forward: edge_kind is 3, wanted a fovea_edge_kind");
  Params p = plain;
  for (const char* name : {"keep_row", "block_mask", "selected", "score"})
    resize(p[name], std::string(name) == "keep_row" ? 0 : 2, 2);
  says(p, "trace_forward: keep_row.shape[0] (n) is 2, wanted 1: blocks of q's rows");
  p = plain, p["block_mask"].shape[3] = 0;
  says(p,
       "trace_forward: block_mask.shape[3] (block_bytes) is 0, wanted 1: a bit for each of 1 key "
       "blocks; pad with the stride");
  p["block_mask"].shape[3] = 5;
  says(p,
       "trace_forward: block_mask.shape[3] (block_bytes) is 5, wanted 1: a bit for each of 1 key "
       "blocks; pad with the stride");
  p = plain, p["v"].data = nullptr;
  says(p, "trace_forward: v.data is NULL with o, wanted the values it is made of");
  // Without keys and v the width is that of o, or of edge_value.
  const Call bare = valid("trace_forward", "edges");
  p = bare.params, p["v"].data = nullptr, p["k"].shape[1] = 0;
  accepts(p);
  p["edge_value"].shape[4] = 0;
  says(p, "trace_forward: edge_value.shape[4] (e) is 0, wanted >= 1");
  p["edge_value"].shape[4] = 577;
  for (int i = 0; i < 4; ++i) p["edge_value"].stride[i] *= 577;
  refuses(p, "edge_value.shape[4]", FOVEA_UNSUPPORTED);
  p["o"] = Params(plain)["o"];
  refuses(p, "edge_value.shape[4]");
  p = plain, p.at<float>(p.op().find("scale")->offset) = -1;
  refuses(p, "scale");
  p = plain, p["k"].shape[2] = p["v"].shape[2] = 3;
  refuses(p, "k.shape");

  const Call whole = valid("trace_forward", "edges");
  const Params& edges = whole.params;
  p = edges, p["edge_count"].data = nullptr;
  says(p,
       "trace_forward: edge_count.data is NULL with edge: what does not fit would be lost unseen");
  p["edge"].data = p["edge_weight"].data = nullptr;
  says(p, "trace_forward: edge_offset is given without edge_count");
  p = edges, p["edge_count"].data = p["edge_offset"].data;
  accepts(p);
  says(with(valid("trace_forward", "paged").params, "block_keys", 32),
       "trace_forward: k.shape[1] (page) is 64, wanted 32: block_keys");
}

// An empty tensor needs no memory; one with elements does.
TEST(ContractEmpty, NoElementsNoMemory) {
  Call call = valid("attention_forward", "plain");
  Params p = call.params;
  for (const char* name : {"q", "o", "lse"}) p[name].shape[name[0] == 'l' ? 2 : 1] = 0;
  accepts(p);
  p["o"].data = p["q"].data;  // no element is shared
  accepts(p);
  p["q"].data = p["o"].data = nullptr;
  accepts(p);
  p["k"].data = nullptr;
  refuses(p, "k.data");
}

TEST(ContractLastDimension, AnyStride) {
  Call call = valid("attention_forward", "plain");
  for (const char* name : {"q", "k", "v", "o"}) {
    SCOPED_TRACE(name);
    Params p = call.params;
    for (int64_t& stride : p[name].stride) stride *= 2;
    accepts(p);
  }
}

// Two ways to say where a sequence's keys are cannot both hold.
TEST(ContractTogether, PackedKeysHaveNoRows) {
  const Case cases[] = {{"attention_forward", "", "key_start cache_row", "r=2"},
                        {"attention_forward", "", "key_start page_table", "r=2"},
                        {"conv_attention_forward", "", "key_start cache_row", "r=2"},
                        {"conv_attention_forward", "", "key_start page_table", "r=2"},
                        {"cache_append", "", "k_new k key_start cache_row", "r=2 rows=1"},
                        {"cache_append", "", "k_new k key_start page_table", "r=2"}};
  for (const Case& c : cases) refuses(Call(c).params, "key_start");
}

}  // namespace
