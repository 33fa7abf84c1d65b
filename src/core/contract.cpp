// SPDX-License-Identifier: Apache-2.0
// A call against its table, in four steps: every tensor alone; b and r, which say how many
// sequences there are; every extent against the ones before it; outputs against everything else.  A
// name binds to the first extent that has it.  The names with conditions (glossary of core.h) are
// in extent().
#include "core/contract.h"

#include <cstdio>
#include <cstring>

#include "core/dtype.h"

namespace fovea {

#include "core/contract.inc"

namespace {

constexpr int64_t kUnbound = -1;
constexpr int kKeyMax = -2;  // in place of an owner: the scalar field key_max

using Text = char[160];

void describe(const Shape& shape, Text& text) {
  int n = std::snprintf(text, sizeof(Text), "(");
  for (int i = 0; i < shape.rank; ++i) {
    const Dim dim = shape.dims[i];
    const char* comma = i ? ", " : "";
    n += dim.name == dim_literal
             ? std::snprintf(text + n, sizeof(Text) - n, "%s%d", comma, dim.plus)
             : std::snprintf(text + n, sizeof(Text) - n, dim.plus ? "%s%s+%d" : "%s%s", comma,
                             kDimNames[dim.name], dim.plus);
  }
  std::snprintf(text + n, sizeof(Text) - n, ")");
}

// " (d)", or nothing for an extent that is a number.
void label(Dim dim, Text& text) {
  if (dim.name == dim_literal) {
    text[0] = 0;
  } else {
    std::snprintf(text, sizeof(Text), dim.plus ? " (%s+%d)" : " (%s)", kDimNames[dim.name],
                  dim.plus);
  }
}

bool product_overflows(const fovea_tensor& x, int64_t element_bytes, bool* empty) {
  int64_t count = element_bytes, reach = 0;
  bool overflow = false;
  *empty = false;
  for (int i = 0; i < x.ndim; ++i) {
    if (x.shape[i] == 0) {
      *empty = true;
      continue;
    }
    int64_t span;
    overflow |= __builtin_mul_overflow(count, x.shape[i], &count);
    overflow |= __builtin_mul_overflow(x.shape[i] - 1, x.stride[i], &span);
    overflow |= __builtin_add_overflow(reach, span, &reach);
  }
  int64_t bytes;
  return overflow || __builtin_mul_overflow(reach, element_bytes, &bytes) ||
         __builtin_add_overflow(bytes, element_bytes, &bytes);
}

class Check {
 public:
  Check(const Contract& contract, const void* params)
      : contract_(contract), params_(static_cast<const char*>(params)) {
    for (int64_t& value : value_) value = kUnbound;
  }

  void run() {
    paged_ = present(contract_.page_table);
    for (int i = 0; i < contract_.count; ++i) alone(i);
    sequences();
    for (uint64_t rest = given_; rest; rest &= rest - 1) extents(__builtin_ctzll(rest));
    for (uint64_t rest = solid_; rest; rest &= rest - 1) aliases(__builtin_ctzll(rest));
    if (contract_.reserved) {
      int32_t reserved;
      std::memcpy(&reserved, params_ + contract_.reserved, sizeof reserved);
      if (reserved) refuse("%s: reserved is %d, wanted 0", contract_.op, reserved);
    }
  }

 private:
  const Field& field(int i) const { return contract_.fields[i]; }
  const char* name(int i) const { return field(i).name; }
  const fovea_tensor& tensor(int i) const {
    return *reinterpret_cast<const fovea_tensor*>(params_ + field(i).offset);
  }
  bool present(int i) const { return i >= 0 && tensor(i).data; }
  const Shape& shape(const Field& f) const { return paged_ && f.paged.rank ? f.paged : f.shape; }

  void alone(int i) {
    const Field& f = field(i);
    const fovea_tensor& x = tensor(i);
    const Shape& wanted = shape(f);
    if (!x.data) {
      if (f.optional) return;
      bool empty = false;
      if (x.ndim == wanted.rank)
        for (int axis = 0; axis < x.ndim; ++axis) empty |= x.shape[axis] == 0;
      if (!empty) {
        Text text;
        describe(wanted, text);
        refuse("%s: %s.data is NULL, wanted a tensor %s", contract_.op, f.name, text);
      }
    }
    if (x.ndim != wanted.rank) {
      Text text;
      describe(wanted, text);
      refuse("%s: %s.ndim is %d, wanted %d: %s", contract_.op, f.name, x.ndim, wanted.rank, text);
    }
    if (!accepts(f, x.dtype)) fail_dtype(f, x.dtype);
    for (int axis = 0; axis < x.ndim; ++axis) {
      if (x.shape[axis] < 0) {
        Text text;
        label(wanted.dims[axis], text);
        refuse("%s: %s.shape[%d]%s is %lld, wanted >= 0", contract_.op, f.name, axis, text,
               lld(x.shape[axis]));
      }
      if (x.stride[axis] < 0)
        refuse("%s: %s.stride[%d] is %lld, wanted >= 0", contract_.op, f.name, axis,
               lld(x.stride[axis]));
    }
    const int64_t bytes = dtype_bytes(x.dtype);
    bool empty;
    if (product_overflows(x, bytes, &empty))
      refuse("%s: %s.shape and %s.stride reach past 2^63 bytes, wanted offsets that fit int64_t",
             contract_.op, f.name, f.name);
    // Nothing of an empty tensor is touched: what its strides say does not matter.
    if (!empty) strides(f, x);
    if (reinterpret_cast<uintptr_t>(x.data) % static_cast<uintptr_t>(bytes))
      refuse("%s: %s.data is %p, wanted a multiple of %lld (one %s)", contract_.op, f.name, x.data,
             lld(bytes), dtype_name(x.dtype));
    given_ |= uint64_t{1} << i;
    if (!empty && x.data) solid_ |= uint64_t{1} << i;
  }

  void strides(const Field& f, const fovea_tensor& x) const {
    int64_t count = 1, any = 0;
    for (int axis = 0; axis < x.ndim; ++axis) count *= x.shape[axis], any |= x.stride[axis];
    if (count > 1 && !any)
      refuse(
          "%s: %s.stride is 0 on every axis over %lld elements: fill it in, as fovea_contiguous "
          "does",
          contract_.op, f.name, lld(count));
    for (int axis = 0; f.out && !f.sums && axis < x.ndim; ++axis)
      if (x.stride[axis] == 0 && x.shape[axis] > 1)
        refuse("%s: %s.stride[%d] is 0 over an extent of %lld, wanted > 0: it is written to",
               contract_.op, f.name, axis, lld(x.shape[axis]));
  }

  // The axes of an output nest: each one steps over all that the axes of smaller strides reach, so
  // no element is written twice.  Axes of stride 0 sum and are left out.
  void nests(const Field& f, const fovea_tensor& x) const {
    int order[kMaxDims], n = 0;
    for (int axis = x.ndim - 1; axis >= 0; --axis) {  // of equal strides the last is the inner one
      if (x.shape[axis] < 2 || x.stride[axis] == 0) continue;
      int at = n++;
      for (; at > 0 && x.stride[order[at - 1]] > x.stride[axis]; --at) order[at] = order[at - 1];
      order[at] = axis;
    }
    int64_t reach = 0;
    for (int i = 0; i < n; ++i) {
      const int axis = order[i];
      if (x.stride[axis] <= reach)
        refuse(
            "%s: %s.stride[%d] is %lld, wanted more than %lld, which axis %d reaches: elements of "
            "an output may not overlap",
            contract_.op, f.name, axis, lld(x.stride[axis]), lld(reach), order[i - 1]);
      reach += (x.shape[axis] - 1) * x.stride[axis];
    }
  }

  bool accepts(const Field& f, int32_t dtype) const {
    if (f.dtype_as >= 0 && dtype == tensor(f.dtype_as).dtype) return true;
    return dtype > 0 && dtype < 32 && (f.dtypes >> dtype & 1);
  }

  [[noreturn]] void fail_dtype(const Field& f, int32_t dtype) const {
    Text got, wanted = "";
    int n = 0;
    if (f.dtype_as >= 0)
      n = std::snprintf(wanted, sizeof wanted, "%s as in %s", dtype_name(tensor(f.dtype_as).dtype),
                        name(f.dtype_as));
    for (int32_t i = 1; i < 32; ++i)
      if (f.dtypes >> i & 1)
        n += std::snprintf(wanted + n, sizeof wanted - n, "%s%s", n ? " or " : "", dtype_name(i));
    if (dtype_info(dtype).bits) {
      std::snprintf(got, sizeof got, "%s", dtype_name(dtype));
    } else {
      std::snprintf(got, sizeof got, "%d (no fovea_dtype)", dtype);
    }
    refuse("%s: %s.dtype is %s, wanted %s", contract_.op, f.name, got, wanted);
  }

  // r is the length of the *_start tensors less 1; without one it is b.
  void sequences() {
    int b_field = -1, b_axis = 0;
    for (uint64_t rest = given_; rest; rest &= rest - 1) {
      const int i = __builtin_ctzll(rest);
      const Shape& wanted = shape(field(i));
      if (wanted.dims[0].name == dim_r && wanted.dims[0].plus && value_[dim_r] == kUnbound) {
        if (tensor(i).shape[0] < 1)
          refuse("%s: %s.shape[0] (r+1) is 0, wanted >= 1", contract_.op, name(i));
        bind(dim_r, tensor(i).shape[0] - 1, i);
      }
      for (int axis = 0; axis < wanted.rank && b_field < 0; ++axis)
        if (wanted.dims[axis].name == dim_b) b_field = i, b_axis = axis;
    }
    if (b_field < 0) return;
    const int64_t b = tensor(b_field).shape[b_axis];
    bind(dim_b, b, b_field);
    if (present(contract_.packed)) {
      if (b != 1)
        refuse("%s: %s.shape[%d] (b) is %lld, wanted 1 with %s: packed", contract_.op,
               name(b_field), b_axis, lld(b), name(contract_.packed));
    } else if (value_[dim_r] == kUnbound) {
      bind(dim_r, b, b_field);
    } else if (b != value_[dim_r]) {
      fail_extent(b_field, b_axis, {dim_b}, b, value_[dim_r], owner_[dim_r]);
    }
  }

  void bind(uint8_t dim, int64_t value, int owner) {
    value_[dim] = value;
    owner_[dim] = static_cast<int16_t>(owner);
  }

  void extents(int i) {
    const Shape& wanted = shape(field(i));
    for (int axis = 0; axis < wanted.rank; ++axis) extent(i, axis, wanted.dims[axis]);
  }

  void extent(int i, int axis, Dim dim) {
    const int64_t got = tensor(i).shape[axis];
    uint8_t key = dim.name;
    if (key == dim_literal) {
      if (got != dim.plus) fail_extent(i, axis, dim, got, dim.plus, -1);
      return;
    }
    // A contiguous cache and a page table have a row for each sequence, or, with cache_row, any
    // number; with key_start all keys stand in one row.
    if (key == dim_rows && !present(contract_.cache_row))
      key = i == contract_.page_table ? dim_r : dim_key_b;
    if (key == dim_key_b) {
      if (present(contract_.key_start) && contract_.key_start != contract_.packed) {
        if (got != 1) fail_extent(i, axis, dim, got, 1, contract_.key_start);
        return;
      }
      key = dim_r;
    }
    if (key == dim_keys || key == dim_bytes) {
      const int64_t columns = key_columns(i);
      const int64_t bytes = columns / 8 + (columns % 8 != 0);
      if (key == dim_keys) {
        if (got != columns) fail_extent(i, axis, dim, got, columns, columns_owner_);
      } else if (got != bytes) {
        refuse(
            "%s: %s.shape[%d] (bytes) is %lld, wanted %lld: a bit for each of %lld keys; pad with "
            "the stride",
            contract_.op, name(i), axis, lld(got), lld(bytes), lld(columns));
      }
      return;
    }
    if (value_[key] == kUnbound) {
      bind(key, got - dim.plus, i);
    } else if (got != value_[key] + dim.plus) {
      fail_extent(i, axis, dim, got, value_[key] + dim.plus, owner_[key]);
    }
  }

  // The key columns that a row of scores has.  k and page_table stand before every field that asks.
  int64_t key_columns(int asking) {
    int64_t key_max = 0;
    if (contract_.key_max) std::memcpy(&key_max, params_ + contract_.key_max, sizeof key_max);
    if ((paged_ || present(contract_.key_start)) && key_max > 0) {
      columns_owner_ = kKeyMax;
      return key_max;
    }
    columns_owner_ = paged_ ? contract_.page_table : owner_[dim_t];
    if (!paged_) return value_[dim_t];
    int64_t columns;
    if (__builtin_mul_overflow(tensor(contract_.page_table).shape[1], value_[dim_page], &columns))
      refuse("%s: %s has pages * page keys, which do not fit int64_t", contract_.op, name(asking));
    return columns;
  }

  [[noreturn]] void fail_extent(int i, int axis, Dim dim, int64_t got, int64_t wanted,
                                int owner) const {
    Text text, as = "";
    label(dim, text);
    if (owner != -1)
      std::snprintf(as, sizeof as, " as in %s", owner == kKeyMax ? "key_max" : name(owner));
    refuse("%s: %s.shape[%d]%s is %lld, wanted %lld%s", contract_.op, name(i), axis, text, lld(got),
           lld(wanted), as);
  }

  void aliases(int i) const {
    if (!field(i).out) return;
    nests(field(i), tensor(i));
    for (uint64_t rest = solid_; rest; rest &= rest - 1) {
      const int j = __builtin_ctzll(rest);
      if (j == i || tensor(j).data != tensor(i).data) continue;
      if (may_be(i, j)) {
        same_elements(i, j);
      } else if (!may_be(j, i)) {
        refuse("%s: %s.data is that of %s, wanted memory of its own", contract_.op, name(i),
               name(j));
      }
    }
  }

  // A field that may be one that may be a third may be that as well.
  bool may_be(int i, int other) const {
    for (; i >= 0 && field(i).alias >= 0 && !present(field(i).alias_without); i = field(i).alias)
      if (field(i).alias == other) return true;
    return false;
  }

  // An output that may be an input must be it element by element, or it overwrites what is unread.
  void same_elements(int out, int in) const {
    const fovea_tensor &x = tensor(out), &y = tensor(in);
    if (x.dtype != y.dtype)
      refuse("%s: %s.dtype is %s, wanted %s as in %s, whose memory it is", contract_.op, name(out),
             dtype_name(x.dtype), dtype_name(y.dtype), name(in));
    const int skip = field(out).alias_first ? 1 : 0;
    for (int axis = 0; axis < x.ndim; ++axis)
      if (x.shape[axis] > 1 && x.stride[axis] != y.stride[axis + skip])
        refuse("%s: %s.stride[%d] is %lld, wanted %lld as in %s, whose memory it is", contract_.op,
               name(out), axis, lld(x.stride[axis]), lld(y.stride[axis + skip]), name(in));
  }

  const Contract& contract_;
  const char* params_;
  bool paged_ = false;
  uint64_t given_ = 0;  // bit i: tensor i takes part, empty ones included
  uint64_t solid_ = 0;  // bit i: it has elements
  int64_t value_[dim_count];
  int16_t owner_[dim_count];  // field that bound the name
  int columns_owner_ = -1;
};

}  // namespace

const char* dim_name(uint8_t name) {
  return kDimNames[name];
}

void check_contract(const Contract& contract, const void* params) {
  Check(contract, params).run();
}

bool writes(const Contract& contract, const void* params) {
  for (int i = 0; i < contract.count; ++i) {
    const Field& field = contract.fields[i];
    const auto& x =
        *reinterpret_cast<const fovea_tensor*>(static_cast<const char*>(params) + field.offset);
    bool element = field.out && x.data;
    for (int axis = 0; axis < x.ndim && element; ++axis) element = x.shape[axis] > 0;
    if (element) return true;
  }
  return false;
}

}  // namespace fovea
