// SPDX-License-Identifier: Apache-2.0
// | field | wanted |
// | --- | --- |
// | start, query_start, key_start | first 0, ascending, last at most the packed extent |
// | query_len, key_len | 0 .. the rows or keys that a sequence has room for |
// | key_first, block_len | 0 .. key_len |
// | page_table, pair | -1 .. the last page of the pool |
// | cache_row | -1 .. the last row of page_table, or of k |
// | index, of no blocks | -1 .. the last key |
// | row | -1 .. the last row of o |
// | keep_row | 0 .. keep |
// | len | 0 .. the tokens that a sequence has room for |
// | output_from | 0 .. len |
// | state_row, state_out_row, snapshot_row | -1 .. the last of slots, slots_out, snapshots |
// Calls of row blocks and key blocks do not say in the contract how many rows and keys that is:
// their lengths and starts have no upper bound here.
#include "core/inspect.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <vector>

namespace fovea {
namespace {

class Inspector {
 public:
  Inspector(Context& ctx, const Contract& contract, const void* params)
      : ctx_(ctx), contract_(contract), params_(static_cast<const char*>(params)) {}

  void run() {
    const bool blocks = extent("n") >= 0 && extent("s") < 0 && extent("t") < 0;
    const int64_t rows_of_q = blocks ? INT32_MAX : extent("s"),
                  keys_of_k = blocks ? INT32_MAX : keys();
    starts("start", rows_of_q);
    starts("query_start", rows_of_q);
    // cache_get packs k_out, of u tokens; all others pack k.
    starts("key_start", blocks ? INT32_MAX : knows("k_out") ? extent("u") : extent("t"));
    lengths("query_len", lasts("", "query_start", rows_of_q));
    lengths("key_len", lasts("", "key_start", keys_of_k));
    lengths("key_first", lasts("key_len", "key_start", keys_of_k));
    lengths("block_len", lasts("key_len", "", keys_of_k));
    entries("page_table", -1, {extent("pool") - 1});
    entries("cache_row", -1, {rows() - 1});
    entries("pair", -1, {extent("pool") - 1, extent("pool2") - 1});
    // Of lists with counts every number has a meaning, and places past a count hold anything.
    if (!knows("index_count")) entries("index", -1, {keys_of_k - 1});
    entries("row", -1, {rows_of_q - 1});
    entries("keep_row", 0, {extent("keep")});
    lengths("len", lasts("", "start", rows_of_q));
    lengths("output_from", lasts("len", "start", rows_of_q));
    rows_of_states("state_row", extent("slots"));
    rows_of_states("state_out_row", extent("slots_out"));
    rows_of_states("snapshot_row", extent("snapshots"));
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
  bool knows(const char* name) const {
    for (int i = 0; i < contract_.count; ++i)
      if (!strcmp(contract_.fields[i].name, name)) return true;
    return false;
  }
  bool is_output(const char* name) const {
    for (int i = 0; i < contract_.count; ++i)
      if (!strcmp(contract_.fields[i].name, name)) return contract_.fields[i].out;
    return false;
  }

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

  // The values of an i32 input, rows one after another; none where it is absent or of another type.
  std::vector<int32_t> read(const char* name) const {
    const fovea_tensor* x = tensor(name);
    if (x && (x->dtype != FOVEA_I32 || is_output(name))) return {};
    int64_t count = x ? 1 : 0, last = 0;
    for (int axis = 0; x && axis < x->ndim; ++axis) {
      count *= x->shape[axis];
      last += (x->shape[axis] - 1) * x->stride[axis];
    }
    if (count == 0) return {};
    std::vector<int32_t> copied, out(count);
    const auto* from = static_cast<const int32_t*>(x->data);
    if (ctx_.backend != FOVEA_HOST) {
      copied.resize(last + 1);
      ctx_.device->copy(copied.data(), from, copied.size() * sizeof(int32_t));
      ctx_.device->synchronize();
      from = copied.data();
    }
    for (int64_t i = 0; i < count; ++i) {
      int64_t at = 0, rest = i;
      for (int axis = x->ndim - 1; axis >= 0; rest /= x->shape[axis--])
        at += rest % x->shape[axis] * x->stride[axis];
      out[i] = from[at];
    }
    return out;
  }

  // Refuses the i-th value of a field unless it is from .. to.
  void hold(const char* name, int64_t i, int64_t got, int64_t from, int64_t to) const {
    if (got >= from && got <= to) return;
    const fovea_tensor& x = *tensor(name);
    Text index;
    for (int axis = x.ndim - 1; axis >= 0; i /= x.shape[axis--])
      index = Text("[") + Text::number(i % x.shape[axis]) + "]" + index;
    refuse("%s: %s%s is %lld, wanted %lld .. %lld (FOVEA_CHECK)", contract_.op, name, index.c_str(),
           lld(got), lld(from), lld(to));
  }

  void starts(const char* name, int64_t most) const {
    const std::vector<int32_t> value = read(name);
    for (size_t i = 0; i < value.size(); ++i)
      hold(name, i, value[i], i ? value[i - 1] : 0, i ? most : 0);
  }

  // The most that each sequence's length may be: its entry of `length`, else what `start` gives it;
  // `room` beyond their ends, for sequences without either.
  std::vector<int64_t> lasts(const char* length, const char* start, int64_t room) const {
    const std::vector<int32_t> given = read(length), begin = read(start);
    std::vector<int64_t> most(given.begin(), given.end());
    for (size_t i = most.size(); i + 1 < begin.size(); ++i) most.push_back(begin[i + 1] - begin[i]);
    most.push_back(room);
    return most;
  }

  void lengths(const char* name, const std::vector<int64_t>& most) const {
    const std::vector<int32_t> value = read(name);
    for (size_t i = 0; i < value.size(); ++i)
      hold(name, i, value[i], 0, most[std::min(i, most.size() - 1)]);
  }

  // The last values by turns, along the last axis.
  void entries(const char* name, int64_t first, std::initializer_list<int64_t> last) const {
    const std::vector<int32_t> value = read(name);
    for (size_t i = 0; i < value.size(); ++i)
      hold(name, i, value[i], first, last.begin()[i % last.size()]);
  }
  // Without states, -1, no row is read.
  void rows_of_states(const char* name, int64_t states) const {
    if (states >= 0) entries(name, -1, {states - 1});
  }

  Context& ctx_;
  const Contract& contract_;
  const char* params_;
};

}  // namespace

bool inspecting() noexcept {
  // No static local: the child of a fork() would wait for the thread that was making it.
  static std::atomic<int> asked{-1};
  if (asked.load(std::memory_order_relaxed) < 0) {
    const char* value = getenv("FOVEA_CHECK");
    asked.store(value && *value && strcmp(value, "0") != 0, std::memory_order_relaxed);
  }
  return asked.load(std::memory_order_relaxed) > 0;
}

void inspect(Context& ctx, const Contract& contract, const void* params) {
  if (ctx.device->capturing()) return;
  Inspector(ctx, contract, params).run();
}

}  // namespace fovea
