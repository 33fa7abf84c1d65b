// SPDX-License-Identifier: Apache-2.0
#include "random/draw.h"

namespace random_calls {

namespace {

struct Ruled {
  std::vector<const char*> ops;
  Facts facts;
};

// Made at the first use, since families register before main().
std::vector<Ruled>& rules() {
  static std::vector<Ruled> known;
  return known;
}

bool is(const std::string& text, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (text == name) return true;
  return false;
}

}  // namespace

Rules::Rules(std::initializer_list<const char*> ops, const Facts& facts) {
  rules().push_back({ops, facts});
}

void each_facts(const Op& op, const std::function<void(const Facts&)>& f) {
  for (const Ruled& ruled : rules())
    if (std::any_of(ruled.ops.begin(), ruled.ops.end(), [&](const char* begin) {
          return !std::strncmp(op.name, begin, std::strlen(begin));
        }))
      f(ruled.facts);
}

// Optional tensors, in the sets that the headers allow.
void Draw::choose_tensors() {
  for (const Field& f : op_.fields) {
    if (f.kind != contract::tensor) continue;
    if (f.required || (f.output ? !one_in(4) : one_in(4))) given_.insert(f.name);
  }
  if (knows("cos") && !op_.find("cos")->required && has("cos") != has("sin"))
    drop("cos"), drop("sin");
  if ((has("page_table") || has("cache_row")) && knows("query_start")) drop("key_start");
  // Most gradients of what is absent are refused.
  for (const Field& f : op_.fields)
    if (f.name[0] == 'd' && knows(f.name.c_str() + 1) && !has(f.name.c_str() + 1) && !f.required)
      if (f.output && !one_in(16)) drop(f.name);
  each_facts(op_, [&](const Facts& f) {
    if (f.tensors) f.tensors(*this);
  });
  paged_ = has("page_table");
  packed_rows_ = has("query_start") || has("start") || (has("key_start") && !knows("query_start"));
  packed_keys_ = has("key_start") && knows("query_start");
}

void Draw::choose_extents() {
  x("b") = one_in(40) ? 0 : one_of({1, 1, 1, 2, 2, 3});
  x("r") = x("b");
  if (packed_rows_) x("b") = 1, x("r") = one_in(30) ? 0 : one_of({1, 2, 2, 3, 5});
  x("g") = one_in(60) ? 0 : one_of({1, 1, 1, 2, 2, 3, 4});
  x("h") = one_in(60) ? 0 : x("g") * one_of({1, 1, 2, 2, 3, 4, 8, 16});
  x("x") = x("h") ? x("h") / one_of({1, 2, 3, 4, 8, 16, 32, 64}) : x("g");
  if (x("x") == 0 || (x("h") && x("h") % x("x"))) x("x") = 1;
  x("s") = length(), x("t") = length();
  if (one_in(3)) x("t") = x("s");
  if (one_in(3)) x("s") = one_of({1, 1, 1, 2, 4});  // decode
  x("d") = width();
  x("e") = one_in(2) ? x("d") : width();
  x("f") = one_in(2) ? x("d") : width();
  x("u") = has("row") || knows("k_out") ? length() : x("s");
  x("half") = x("d") / 2;
  if (x("half") > 1 && one_in(2)) x("half") = random_.integer(0, x("half"));
  x("width") = one_in(2) ? x("d") : random_.integer(1, std::max<int64_t>(1, x("d")));
  x("positions") = length();
  each_facts(op_, [&](const Facts& f) {
    if (f.letters) f.letters(*this);
  });
  fit();
  if (one_in(50)) wild();
  each_facts(op_, [&](const Facts& f) {
    if (f.extents) f.extents(*this);
  });
  pages();
  x("key_b") = packed_keys_ ? 1 : x("r");
  if (has("cache_row") && !packed_keys_) x("rows") = one_of({0, 1, 2, 3, 5});
}

// The longer of rows and keys is halved until the work is small.
void Draw::fit() {
  const auto work = [&] {
    return static_cast<double>(std::max<int64_t>(1, x("b")) * std::max<int64_t>(1, x("h"))) *
           static_cast<double>(x("s") * x("t")) * taps *
           static_cast<double>(x("d") + std::max(x("e"), x("f")));
  };
  while (work() > budget_.work) {
    int64_t& longer = x("s") > x("t") ? x("s") : x("t");
    longer = longer > 1 ? longer * 2 / 3 : 0;
    if (x("s") == 0 || x("t") == 0) break;
  }
  if (!has("row") && !knows("k_out")) x("u") = x("s");
}

// Nothing to do, beside an extent that nobody could walk.
void Draw::wild() {
  static const char* const letters[] = {"b", "h", "g", "s", "t",    "d",
                                        "e", "f", "x", "n", "half", "positions"};
  const auto any = [&]() -> int64_t& {
    return x(letters[random_.integer(0, std::size(letters) - 1)]);
  };
  any() = 0;
  any() = int64_t{1} << one_of({31, 33, 40, 61});
  if (!packed_rows_) x("r") = x("b");
  if (!has("row") && !knows("k_out")) x("u") = x("s");
}

void Draw::pages() {
  if (!extents_.count("page")) x("page") = one_of({1, 2, 4, 8, 16, 16, 32, 64, 64, 128, 5, 48});
  const bool pools = !knows("page_table") && knows("pair");
  if (!paged_ && !pools) {
    x("pages") = 0;
    if (knows("block_mask")) x("block_bytes") = ceil_div(ceil_div(x("t"), x("page")), 8);
    x("rows") = packed_keys_ ? 1 : x("r");
    return;
  }
  x("pages") = std::min<int64_t>(ceil_div(x("t"), x("page")), 12);
  x("pool") = pools ? random_.integer(0, 6) : random_.integer(0, x("pages") * 2 + 1);
  x("pool2") = random_.integer(0, 6);
  if (knows("block_mask")) x("block_bytes") = ceil_div(x("pages"), 8);
  x("rows") = x("r");
}

void Draw::choose_scalars() {
  const auto length_of = [&](const char* letter) {
    return one_of({1, 2, random_.integer(0, x(letter) + 2), int64_t{1} << 40});
  };
  maybe<int64_t>("query_max", length_of("s"));
  maybe<int64_t>("key_max", length_of("t"));
  // Bias and mask have a column for each of key_max keys.
  if (knows("key_max") && (has("bias") || has("mask") || (paged_ && has("key_position"))))
    if (scalar<int64_t>("key_max") > 1000) scalar<int64_t>("key_max") = 0;
  if (!has("head_window")) {
    maybe<int64_t>("window_left", random_.integer(0, 40));
    if (knows("sink_keys") && knows("window_left") && scalar<int64_t>("window_left"))
      maybe<int64_t>("sink_keys", one_of({0, 1, 4}));
    if (knows("causal") && one_in(2)) {
      scalar<int32_t>("causal") = 1;
    } else {
      maybe<int64_t>("window_right", random_.integer(0, 40));
    }
  }
  maybe<int64_t>("local_chunk", one_of({0, 1, 16, 64}));
  maybe<int32_t>("splits", static_cast<int32_t>(one_of({1, 2, 3, 8, 100})));
  choose_values();
  const int64_t room = x("d") - 2 * x("half");
  if (has("cos") && room > 0 && knows("rope_begin") && one_in(2))
    scalar<int32_t>("rope_begin") = static_cast<int32_t>(random_.integer(0, room));
  each_facts(op_, [&](const Facts& f) {
    if (f.scalars) f.scalars(*this);
  });
  if (knows("nondeterministic")) call_.bits_may_differ = scalar<int32_t>("nondeterministic");
}

// Flags, enums and positive numbers, as their comments have them.
void Draw::choose_values() {
  for (const Field& f : op_.fields) {
    const char* name = f.name.c_str();
    if (f.kind == contract::f32 && f.name.find("scale") == 0) {
      maybe(name, one_in(6) ? 30.0f : 0.3f);
    } else if (f.kind == contract::f32 && f.values == "+") {
      static constexpr float list[] = {1e-3f, 1, 1.5f, 20};
      maybe(name, list[below(std::size(list))]);
    } else if (f.kind == contract::i32 && !f.values.empty() && f.name != "causal") {
      if (f.name == "rope_interleaved" && !has("cos")) continue;
      const contract::Words values = contract::split(f.values);
      maybe(name,
            std::stoi(
                values[static_cast<size_t>(1 + below(static_cast<int64_t>(values.size()) - 1))]));
    }
  }
}

// The key columns that a row of scores has (core.h).
int64_t Draw::columns() {
  const int64_t key_max = knows("key_max") ? scalar<int64_t>("key_max") : 0;
  if ((paged_ || packed_keys_) && key_max > 0) return key_max;
  return paged_ ? x("pages") * x("page") : x("t");
}

int64_t Draw::extent(const Field& f, const std::string& dim) {
  if (isdigit(static_cast<unsigned char>(dim[0]))) return std::stoll(dim);
  if (const size_t plus = dim.find('+'); plus != std::string::npos)
    return extent(f, dim.substr(0, plus)) + 1;
  if (dim == "keys") return columns();
  if (dim == "bytes") return ceil_div(columns(), 8);
  if (dim == "rows")
    return has("cache_row") ? x("rows") : f.name == "page_table" ? x("r") : x("key_b");
  // A letter that no rule knows.
  if (!extents_.count(dim)) x(dim.c_str()) = one_in(30) ? 0 : one_of({1, 2, 3, 5, 8, 17});
  return x(dim.c_str());
}

// Inputs are of the types that have kernels of their own more often than not.
int Draw::dtype_of(const Field& f) {
  if (const auto wanted = wanted_.find(f.name); wanted != wanted_.end()) return wanted->second;
  const bool scaled = has((f.name + "_scale").c_str()) || has((f.name + "_scale_out").c_str());
  // With scales an input may be codes, where its types are told.
  if (!f.dtype_as.empty() && (f.dtypes.empty() || (!scaled && one_in(2)))) {
    const Field& as = *op_.find(f.dtype_as);
    for (const Tensor& x : call_.tensors)
      if (x.field->name == as.name) return x.view.dtype;
    return as.dtypes.empty() ? FOVEA_F32 : contract::kDtypes.at(as.dtypes[0]);
  }
  if (f.dtypes.empty()) return FOVEA_F32;
  const auto pick = [&] {
    return contract::kDtypes.at(
        f.dtypes[random_.integer(0, static_cast<int64_t>(f.dtypes.size()) - 1)]);
  };
  if (f.output && scaled)  // codes
    return static_cast<int>(one_of({FOVEA_E4M3, FOVEA_E5M2, FOVEA_I8}));
  return pick();
}

void Draw::add(const Field& f) {
  Tensor x{&f, {}};
  x.input = !f.output || f.inout;
  const contract::Words& dims = paged_ && !f.paged.empty() ? f.paged : f.dims;
  x.view.dtype = dtype_of(f);
  x.view.ndim = static_cast<int32_t>(dims.size());
  for (size_t i = 0; i < dims.size(); ++i) x.view.shape[i] = extent(f, dims[i]);
  lay(x.view, f);
  call_.tensors.push_back(x);
}

// Strides: rows of C order, axes swapped, gaps, an unaligned last axis, or one axis of stride 0.
void Draw::lay(fovea_tensor& x, const Field& f) {
  const bool places =
      f.dims[0] == "r+1" ||
      is(f.name, {"page_table", "cache_row", "pair", "state_row", "state_out_row", "snapshot_row"});
  std::vector<int> order;
  for (int i = x.ndim - 1; i >= 0; --i) order.push_back(i);
  const int64_t kind = places ? 0 : random_.integer(0, 9);
  if ((kind == 6 || kind == 7) && x.ndim >= 3)
    std::swap(order[1], order[static_cast<size_t>(random_.integer(1, x.ndim - 1))]);
  __int128 pitch = kind == 8 ? 2 : 1;
  for (size_t n = 0; n < order.size(); ++n) {
    x.stride[order[n]] = pitch > INT64_MAX / 4 ? INT64_MAX / 4 : static_cast<int64_t>(pitch);
    const __int128 own = x.stride[order[n]];
    pitch = own * std::max<int64_t>(x.shape[order[n]], 1);
    if (kind == 5) pitch = n == 0 ? (pitch + 7) / 8 * 8 + 8 : pitch + own;
    if (kind == 9) pitch += n == 0 ? 3 - pitch % 2 : own;
  }
  const bool sums = f.sums && one_in(3);
  if (places || (f.output && !sums) || (!sums && !one_in(12))) return;
  // Not all strides 0: that is taken for strides forgotten.
  const int64_t axis = random_.integer(0, x.ndim - 1);
  int others = 0;
  for (int i = 0; i < x.ndim; ++i) others += i != axis && x.stride[i] > 0;
  if (others) x.stride[axis] = 0;
}

// Outputs that may be an input, and v as columns of k.
void Draw::share() {
  const auto find = [&](const std::string& name) {
    for (size_t i = 0; i < call_.tensors.size(); ++i)
      if (call_.tensors[i].field->name == name) return static_cast<int>(i);
    return -1;
  };
  for (Tensor& x : call_.tensors) {
    if (x.field->alias.empty() || has("row") || !one_in(3)) continue;
    const int other = find(x.field->alias);
    if (other < 0) continue;
    const fovea_tensor& y = call_.tensors[other].view;
    const int skip = y.ndim - x.view.ndim;
    bool zero = y.dtype != x.view.dtype || (skip && y.shape[0] < 1);
    for (int i = 0; i < x.view.ndim; ++i)
      zero |= y.stride[i + skip] == 0 || y.shape[i + skip] != x.view.shape[i];
    if (zero) continue;
    for (int i = 0; i < x.view.ndim; ++i) x.view.stride[i] = y.stride[i + skip];
    x.shares = other;
  }
  const int k = find("k"), v = find("v");
  if (k < 0 || v < 0 || call_.tensors[v].field->output || !one_in(10)) return;
  fovea_tensor &a = call_.tensors[k].view, &b = call_.tensors[v].view;
  if (a.dtype != b.dtype || a.ndim != b.ndim) return;
  for (int i = 0; i < a.ndim; ++i)
    if (a.shape[i] < b.shape[i]) return;
  std::copy(a.stride, a.stride + 4, b.stride);
  call_.tensors[v].shares = k;
}

void Draw::place() {
  __int128 bytes = kGuard;
  for (Tensor& x : call_.tensors) {
    const int64_t size = oracle::bytes_of(x.view.dtype);
    __int128 span = size;
    for (int i = 0; i < x.view.ndim; ++i)
      span += static_cast<__int128>(x.view.shape[i] - 1) * x.view.stride[i] * size;
    if (elements_of(x.view) == 0) span = 0;
    if (span > budget_.bytes || elements_of(x.view) > budget_.bytes) span = budget_.bytes + 1;
    x.span = static_cast<int64_t>(span);
    if (x.shares >= 0) continue;
    // One in four starts at an address that suits its own type and nothing wider.
    x.at = static_cast<int64_t>(bytes) + (one_in(4) ? size : 0);
    bytes += (span + size + kGuard - 1) / kGuard * kGuard + kGuard;
    x.null = span == 0 && x.field->required && one_in(3);
  }
  for (Tensor& x : call_.tensors)
    if (x.shares >= 0) x.at = call_.tensors[x.shares].at;
  call_.bytes = bytes > INT64_MAX ? INT64_MAX : static_cast<int64_t>(bytes);
  for (Tensor& x : call_.tensors) call_.slot(x) = x.view;
}

}  // namespace random_calls
