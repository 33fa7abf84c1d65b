// SPDX-License-Identifier: Apache-2.0
// | field | wanted |
// | --- | --- |
// | start, query_start, key_start | first 0, ascending, last at most the packed extent |
// | query_len, key_len | 0 .. the rows or keys that a sequence has room for |
// | key_first | 0 .. key_len |
// | page_table | -1 .. pool - 1 |
// | cache_row | -1 .. the last row of page_table, or of k |
// | pair | -1 .. the last page of each pool |
#include "core/inspect.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace fovea {
namespace {

class Inspector {
 public:
  Inspector(Context& ctx, const Contract& contract, const void* params)
      : ctx_(ctx), contract_(contract), params_(static_cast<const char*>(params)) {}

  void run() {
    for (const char* name : {"start", "query_start", "key_start"}) starts(name);
    lengths("query_len", has("query_start") ? "query_start" : "", extent("s"));
    lengths("key_len", has("key_start") ? "key_start" : "", keys());
    first_keys();
    entries("page_table", extent("pool") - 1);
    entries("cache_row", rows() - 1);
    pairs();
  }

 private:
  const fovea_tensor* tensor(const char* name) const {
    for (int i = 0; i < contract_.count; ++i)
      if (!strcmp(contract_.fields[i].name, name)) {
        const auto* x = reinterpret_cast<const fovea_tensor*>(params_ + contract_.fields[i].offset);
        return x->data ? x : nullptr;
      }
    return nullptr;
  }
  bool has(const char* name) const { return tensor(name); }

  // The extent that the contract gives this name, of the first tensor that has it; or -1.
  int64_t extent(const char* name) const {
    for (int i = 0; i < contract_.count; ++i) {
      const Field& field = contract_.fields[i];
      const fovea_tensor* x = tensor(field.name);
      if (!x) continue;
      const Shape& shape = has("page_table") && field.paged.rank ? field.paged : field.shape;
      for (int axis = 0; axis < std::min<int>(shape.rank, x->ndim); ++axis)
        if (!shape.dims[axis].plus && !strcmp(dim_name(shape.dims[axis].name), name))
          return x->shape[axis];
    }
    return -1;
  }
  // Keys that a sequence without key_start has room for.
  int64_t keys() const {
    if (has("page_table")) return extent("pages") * extent("page");
    return extent("t") >= 0 ? extent("t") : extent("u");
  }
  int64_t rows() const {
    const fovea_tensor* table = tensor("page_table");
    return table ? table->shape[0] : extent("rows");
  }

  // The values of an i32 field, rows one after another.
  std::vector<int32_t> read(const fovea_tensor& x) const {
    int64_t count = 1, last = 0;
    for (int axis = 0; axis < x.ndim; ++axis) {
      count *= x.shape[axis];
      last += (x.shape[axis] - 1) * x.stride[axis];
    }
    if (count <= 0) return {};
    std::vector<int32_t> copied, out;
    const auto* from = static_cast<const int32_t*>(x.data);
    if (ctx_.backend != FOVEA_HOST) {
      copied.resize(last + 1);
      ctx_.device->copy(copied.data(), from, copied.size() * sizeof(int32_t));
      ctx_.device->synchronize();
      from = copied.data();
    }
    const int64_t inner = x.ndim > 1 ? x.shape[1] : 1;
    for (int64_t i = 0; i < x.shape[0]; ++i)
      for (int64_t j = 0; j < inner; ++j)
        out.push_back(from[i * x.stride[0] + (x.ndim > 1 ? j * x.stride[1] : 0)]);
    return out;
  }

  void range(const char* name, const fovea_tensor& x, int64_t i, int64_t got, int64_t from,
             int64_t to) const {
    if (got >= from && got <= to) return;
    char index[48];
    if (x.ndim == 1)
      snprintf(index, sizeof index, "[%lld]", lld(i));
    else
      snprintf(index, sizeof index, "[%lld][%lld]", lld(i / x.shape[1]), lld(i % x.shape[1]));
    refuse("%s: %s%s is %lld, wanted %lld .. %lld (FOVEA_CHECK)", contract_.op, name, index,
           lld(got), lld(from), lld(to));
  }

  void starts(const char* name) const {
    const fovea_tensor* x = tensor(name);
    if (!x) return;
    // query_start and start count packed rows, key_start packed keys.
    const char* packed[] = {"s", "t", "u"};
    const bool of_keys = !strcmp(name, "key_start");
    int64_t most = extent(packed[of_keys ? 1 : 0]);
    if (!strcmp(contract_.op, "cache_get")) most = extent(packed[2]);
    const std::vector<int32_t> value = read(*x);
    for (size_t i = 0; i < value.size(); ++i)
      range(name, *x, i, value[i], i ? value[i - 1] : 0, i ? std::max<int64_t>(most, 0) : 0);
  }

  void lengths(const char* name, const char* start, int64_t room) const {
    const fovea_tensor* x = tensor(name);
    if (!x) return;
    const std::vector<int32_t> begin = *start ? read(*tensor(start)) : std::vector<int32_t>();
    const std::vector<int32_t> value = read(*x);
    for (size_t i = 0; i < value.size(); ++i)
      range(name, *x, i, value[i], 0,
            i + 1 < begin.size() ? begin[i + 1] - begin[i] : std::max<int64_t>(room, 0));
  }

  void first_keys() const {
    const fovea_tensor* x = tensor("key_first");
    if (!x) return;
    const std::vector<int32_t> length =
        has("key_len") ? read(*tensor("key_len")) : std::vector<int32_t>();
    const std::vector<int32_t> value = read(*x);
    for (size_t i = 0; i < value.size(); ++i)
      range("key_first", *x, i, value[i], 0, i < length.size() ? length[i] : keys());
  }

  void entries(const char* name, int64_t most) const {
    const fovea_tensor* x = tensor(name);
    if (!x) return;
    const std::vector<int32_t> value = read(*x);
    for (size_t i = 0; i < value.size(); ++i) range(name, *x, i, value[i], -1, most);
  }

  void pairs() const {
    const fovea_tensor* x = tensor("pair");
    if (!x) return;
    const int64_t most[] = {extent("pool") - 1, extent("pool2") - 1};
    const std::vector<int32_t> value = read(*x);
    for (size_t i = 0; i < value.size(); ++i) range("pair", *x, i, value[i], -1, most[i % 2]);
  }

  Context& ctx_;
  const Contract& contract_;
  const char* params_;
};

}  // namespace

bool inspecting() noexcept {
  static const bool asked = [] {
    const char* value = getenv("FOVEA_CHECK");
    return value && *value && strcmp(value, "0") != 0;
  }();
  return asked;
}

void inspect(Context& ctx, const Contract& contract, const void* params) {
  if (ctx.device->capturing()) return;
  Inspector(ctx, contract, params).run();
}

}  // namespace fovea
