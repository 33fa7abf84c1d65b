// SPDX-License-Identifier: Apache-2.0
// Every operation is called rightly, then wrongly in each way its header comments forbid, one field
// at a time.  The answer must be the promised status with a sentence that starts with the op and
// names the field, and `_workspace` must give the very same one.  The table is the comments
// themselves, read by tools/api.py; the expectations here share nothing with the library.  What the
// comments of one family say in words is held in contract/<family>.cpp.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <climits>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "contract/check.h"

namespace contract {
namespace {

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

// Whether `f` may be `other`, itself or by way of a third.
bool may_be(const Op& op, const Field* f, const std::string& other) {
  for (; f && !f->alias.empty(); f = op.find(f->alias))
    if (f->alias == other) return true;
  return false;
}

TEST_P(Contract, OutputsShareNoMemory) {
  each([&](Params& params, fovea_tensor& x, const Field& f) {
    if (!f.output) return;
    void* const own = x.data;
    for (const Field* other : call.tensors()) {
      if (other->name == f.name || may_be(*call.op, &f, other->name) ||
          may_be(*call.op, other, f.name))
        continue;
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

INSTANTIATE_TEST_SUITE_P(Every, Contract, testing::ValuesIn(small_cases()),
                         [](const auto& info) { return info.param.op + "_" + info.param.name; });

TEST(ContractCases, EveryTensorOfEveryOpIsInACase) {
  for (const Op& op : ops())
    for (const Field& f : op.fields) {
      bool seen = f.kind != tensor;
      for (const Case& c : small_cases()) seen |= c.op == op.name && Call(c).has(f);
      EXPECT_TRUE(seen) << op.name << "." << f.name;
    }
}

TEST(ContractWording, NamesGotAndWanted) {
  Call call = valid("attention_forward", "plain");
  Params p = call.params;
  ++p["k"].shape[3];
  says(p, "attention_forward: k.shape[3] (d) is 9, wanted 8 as in q");
  p = call.params, p["k"].dtype = FOVEA_F16;
  says(p, "attention_forward: k.dtype is f16, wanted f32 as in q or e4m3 or e5m2 or i8");
  p = call.params, p["q"].dtype = 99;
  says(p, "attention_forward: q.dtype is 99 (no fovea_dtype), wanted f32 or f16 or bf16");
  p = call.params, p["v"].ndim = 3;
  says(p, "attention_forward: v.ndim is 3, wanted 4: (rows, t, g, e)");
  p = call.params, resize(p["k"], 2, 3), resize(p["v"], 2, 3);  // SDPA's order ends here too
  says(p,
       "attention_forward: k.shape[2] (g) is 3, wanted a divisor of q's 4 heads: (b, s, h, d), not "
       "SDPA's order");
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
}  // namespace contract
