// SPDX-License-Identifier: Apache-2.0
#include "contract_call.h"

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace contract {
namespace {

// The table as constants that need no code: text is split at run time.
struct OpRow {
  const char* name;
  size_t bytes, first_bytes;
  fovea_status (*call)(fovea_context*, const void*);
  fovea_status (*query)(fovea_context*, const void*, size_t*);
};
struct FieldRow {
  const char *op, *name;
  Kind kind;
  size_t offset;
  const char *dims, *paged, *dtypes, *dtype_as, *alias;
  bool required, output, sums, inout;
  const char* values;
};
struct DimRow {
  const char* name;
  int64_t extent;
};

// clang-format off
#define DIM(name, extent)
#define FIELD(op, name, ...)
#define OP(op, first_size)                                                                  \
  {#op, sizeof(fovea_##op##_params), first_size,                                            \
   [](fovea_context* c, const void* p) {                                                    \
     return fovea_##op(c, static_cast<const fovea_##op##_params*>(p)); },                   \
   [](fovea_context* c, const void* p, size_t* n) {                                         \
     return fovea_##op##_workspace(c, static_cast<const fovea_##op##_params*>(p), n); }},
constexpr OpRow kOps[] = {
#include "generated/contract_table.inc"
};
#undef OP
#undef FIELD
#define OP(op, first_size)
#define FIELD(op, name, kind, offset, dims, paged, dtypes, as, alias, ...) \
  {#op, #name, kind, offset, dims, paged, dtypes, as, alias, __VA_ARGS__},
constexpr FieldRow kFields[] = {
#include "generated/contract_table.inc"
};
#undef FIELD
#undef DIM
#define FIELD(op, name, ...)
#define DIM(name, extent) {name, extent},
constexpr DimRow kDims[] = {
#include "generated/contract_table.inc"
};
// clang-format on

std::vector<Op> read_ops() {
  std::vector<Op> list;
  for (const OpRow& row : kOps) {
    list.push_back({row.name, row.bytes, row.first_bytes, row.call, row.query, {}});
    for (const FieldRow& f : kFields)
      if (!std::strcmp(f.op, row.name))
        list.back().fields.push_back({f.name, f.kind, f.offset, split(f.dims), split(f.paged),
                                      split(f.dtypes), f.dtype_as, f.alias, f.required, f.output,
                                      f.sums, f.inout, f.values});
  }
  return list;
}

// Key heads divide the heads.  Those that a single tensor has can grow by one, as the contract's
// tests let them, where they are one.
Case with_heads(const Op& op, Case c) {
  const Words given = split(c.given);
  for (const char* heads : {"g", "x"}) {
    int64_t uses = 0;
    for (const Field& f : op.fields)
      if (f.required || std::count(given.begin(), given.end(), f.name))
        uses += std::count(f.dims.begin(), f.dims.end(), heads);
    if (uses == 1) c.settings += std::string(" ") + heads + "=1";
  }
  return c;
}

// Rows of calls/*.cpp, made at the first use: families register before main().
std::vector<Case>& rows_of_families() {
  static std::vector<Case> rows;
  return rows;
}

// The derived calls of every op and the families' own, in the order of the library.
std::vector<Case> merged() {
  std::vector<Case> all;
  for (const Op& op : ops()) {
    std::vector<Case> own;
    for (const Case& row : rows_of_families())
      if (row.op == op.name) own.push_back(row);
    for (const Case& made : derived(op))
      if (std::none_of(own.begin(), own.end(), [&](const Case& c) { return c.name == made.name; }))
        all.push_back(made);
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

std::vector<Case> select(bool large) {
  std::vector<Case> list = merged();
  std::erase_if(list, [&](const Case& c) { return (c.name == "large") != large; });
  return list;
}

}  // namespace

Calls::Calls(std::initializer_list<Case> rows) {
  for (const Case& row : rows) {
    if (!find_op(row.op)) {
      std::fprintf(stderr, "tests/calls: there is no operation %s\n", row.op.c_str());
      std::abort();
    }
    rows_of_families().push_back(row);
  }
}

const std::vector<Case>& small_cases() {
  static const std::vector<Case> list = select(false);
  return list;
}

const std::vector<Case>& large_cases() {
  static const std::vector<Case> list = select(true);
  return list;
}

std::vector<Case> derived(const Op& op) {
  static const std::map<std::string, bool> places = {{"query_start", true},
                                                     {"key_start", true},
                                                     {"start", true},
                                                     {"page_table", false},
                                                     {"cache_row", false}};
  std::string plain, all, packed, paged;
  for (const Field& f : op.fields) {
    if (f.kind != tensor || f.required) continue;
    if (const auto place = places.find(f.name); place != places.end()) {
      (place->second ? packed : paged) += f.name + " ";
      continue;
    }
    all += f.name + " ";
    // d<x> is the gradient of x: without x there is none.
    const Field* of = f.name[0] == 'd' ? op.find(f.name.substr(1)) : nullptr;
    if (f.output && !f.inout && (!of || of->required)) plain += f.name + " ";
  }
  std::vector<Case> list = {{op.name, "plain", plain, ""}};
  if (all != plain) list.push_back({op.name, "all", all, ""});
  if (!packed.empty()) list.push_back({op.name, "packed", plain + packed, "b=1 r=2"});
  if (!paged.empty()) list.push_back({op.name, "paged", plain + paged, "rows=3"});
  // Products of rows and keys are large earlier than rows alone.
  const bool keys = std::any_of(op.fields.begin(), op.fields.end(), [](const Field& f) {
    return std::count(f.dims.begin(), f.dims.end(), "t") != 0;
  });
  list.push_back({op.name, "large", plain,
                  keys ? "s=64 t=128 u=64 rows_out=64" : "s=2048 u=2048 positions=2048 page=2048"});
  for (Case& c : list) c = with_heads(op, c);
  return list;
}

Words split(const std::string& text) {
  std::istringstream in(text);
  Words words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

const std::vector<Op>& ops() {
  static const std::vector<Op> list = read_ops();
  return list;
}

const Op* find_op(const std::string& name) {
  for (const Op& op : ops())
    if (name == op.name) return &op;
  return nullptr;
}

const std::map<std::string, int64_t>& small_extents() {
  static const std::map<std::string, int64_t> extents = [] {
    std::map<std::string, int64_t> list;
    for (const DimRow& dim : kDims) list[dim.name] = dim.extent;
    return list;
  }();
  return extents;
}

Call::Call(const Case& c) : op(find_op(c.op)), params(*op), extents_(small_extents()) {
  for (const std::string& name : split(c.given)) given_[name] = true;
  std::map<std::string, int> dtypes;
  for (const std::string& setting : split(c.settings)) {
    const size_t at = setting.find_first_of(":=");
    const std::string name = setting.substr(0, at), value = setting.substr(at + 1);
    if (setting[at] == ':') {
      dtypes[name] = kDtypes.at(value);
    } else if (const Field* f = op->find(name)) {
      if (f->kind == f32)
        params.at<float>(f->offset) = std::stof(value);
      else if (f->kind == i32)
        params.at<int32_t>(f->offset) = std::stoi(value);
      else
        params.at<int64_t>(f->offset) = std::stoll(value);
    } else {
      extents_[name] = std::stoll(value);
    }
  }
  for (const Field& f : op->fields) {
    if (f.kind != tensor || !has(f)) continue;
    const int dtype = dtypes.count(f.name) ? dtypes.at(f.name)
                      : f.dtype_as.empty() ? kDtypes.at(f.dtypes[0])
                                           : params[f.dtype_as].dtype;
    give(f, dtype);
  }
}

bool Call::tied(const Field& f, int axis) const {
  const std::string name = canonical(f, dims(f)[axis]);
  if (name == "fixed") return true;
  int uses = 0;
  for (const Field* other : tensors())
    for (const std::string& dim : dims(*other)) uses += canonical(*other, dim) == name;
  return uses > 1;
}

std::string Call::canonical(const Field& f, std::string dim) const {
  if (dim == "bytes" || dim == "block_bytes") return "fixed";  // a bit for each key or block
  if (dim == "tile_rows" || dim == "tile_bytes") return "fixed";
  if (isdigit(dim[0])) return "fixed";
  // Heads of lists and of what they are made from; key blocks that columns make.
  if (op->find("kept_mass") && (dim == "h" || dim == "x" || dim == "y")) return "fixed";
  if (dim == "mask_bytes") return "fixed";
  if (op->find("column_forced") && dim == "u" && has("score_out")) return "fixed";
  // Summaries: heads divide heads, and parts stand side by side.
  if (op->find("group_stride") && (dim == "h" || dim == "x")) return "fixed";
  if (op->find("want") && (dim == "h" || dim == "g" || dim == "f" || dim == "d" || dim == "places"))
    return "fixed";
  // Projections: heads and weights divide heads, and f is the columns of the last weight.
  if (op->find("weight3") && (dim == "g" || dim == "h" || dim == "maps" || dim == "f" ||
                              dim == "words" || dim.rfind("inner", 0) == 0))
    return "fixed";
  // Summaries of the caller's: heads divide heads, and parts stand side by side.
  if (dim == "row_heads" || dim == "column_heads" || dim == "representative_heads" ||
      dim == "summary_width")
    return "fixed";
  // Low-bit caches: what group and bits decide.
  if (op->find("k_tail") &&
      (dim.find("words") != std::string::npos || dim == "page" || dim == "page_groups" ||
       dim == "v_groups" || dim == "residual" || dim == "ring" || dim == "e" || dim == "g"))
    return "fixed";
  if (dim == "buckets" && op->find("code_q")) return "fixed";  // 2^bits
  // Recurrences: heads divide heads, and tokens are keys but where keys have lengths.
  if (op->find("state_row") &&
      (dim == "h" || dim == "g" || dim == "x" || dim.rfind("heads", 0) == 0))
    return "fixed";
  if (op->find("gate_head") && dim == "t" && !has("key_len")) dim = "s";
  // What lengths decide.
  if (op->find("q_plain") &&
      (dim == "means" || dim == "v_means" || dim == "deltas" || dim == "wide"))
    return "fixed";
  if (dim == "padded" || dim.find("_blocks") != std::string::npos) return "fixed";
  if ((dim == "n" || dim == "r+1" || dim == "code_d" || dim == "means" || dim == "k_means" ||
       dim == "deltas" || dim == "g" || dim == "h" || (dim == "d" && has("code"))) &&
      op->find("code_t"))
    return "fixed";
  // Rows of q and of o, with the history that lies between them.
  if ((dim == "s" || dim == "rows_out") && op->find("history")) return "fixed";
  if (dim == "rows" && has("cache_row")) return dim;
  if (dim == "rows") dim = f.name == "page_table" ? "r" : "key_b";
  const bool keys_alone = has("key_start") && (op->find("query_start") || op->find("start"));
  if (dim == "key_b") dim = keys_alone ? "fixed" : "r";
  if (dim == "keys") dim = paged() || has("key_start") ? "fixed" : "t";
  // States have a row for each sequence, or any number with rows that place them.
  if (dim == "slots" && !has("state_row")) dim = "r";
  if (dim == "slots_out" && !has("state_row") && !has("state_out_row")) dim = "r";
  if (dim == "b") dim = packed() ? "fixed" : "r";
  if (dim == "pages") dim = !extents_.count("keys") && asks_keys() ? "fixed" : dim;
  return dim.substr(0, dim.find('+'));
}

bool Call::asks_keys() const {
  for (const Field* f : tensors())
    for (const std::string& dim : dims(*f))
      if (dim == "keys") return true;
  return false;
}

int64_t Call::extent(const Field& f, const std::string& dim) const {
  if (isdigit(dim[0])) return std::stoll(dim);
  const auto known = extents_.find(dim);
  if (known != extents_.end()) return known->second;
  if (dim == "r") return extents_.at("b");
  if (dim.back() == '1' && dim.find('+') != std::string::npos)
    return extent(f, dim.substr(0, dim.find('+'))) + 1;
  if (dim == "key_b")
    return has("key_start") && (op->find("query_start") || op->find("start")) ? 1 : extent(f, "r");
  if (dim == "rows") return f.name == "page_table" ? extent(f, "r") : extent(f, "key_b");
  if (dim == "keys") return paged() ? extents_.at("pages") * extents_.at("page") : extents_.at("t");
  return (extent(f, "keys") + 7) / 8;  // bytes
}

// Rows or keys that the sequences of a field of starts divide among them.
int64_t Call::packed_extent(const Field& f) const {
  if (f.name != "key_start") return extents_.at("s");
  return extents_.at(op->find("k_out") ? "u" : "t");
}

void Call::give(const Field& f, int dtype) {
  int64_t shape[FOVEA_MAX_DIMS] = {};
  double room = 64;
  for (size_t i = 0; i < dims(f).size(); ++i)
    shape[i] = extent(f, dims(f)[i]), room *= static_cast<double>(shape[i]) + 1;
  // Eight bytes an element and a lead, so larger extents fit as well; none has room for wild
  // ones.
  memory_.emplace_back(static_cast<size_t>(room < 0x1p22 ? room : 0x1p17));
  params[f.name] = fovea_contiguous(memory_.back().data(), static_cast<fovea_dtype>(dtype),
                                    static_cast<int32_t>(dims(f).size()), shape);
  auto* words = reinterpret_cast<int32_t*>(memory_.back().data());
  if (f.dims[0] == "r+1")
    for (int i = 0; i <= std::min<int64_t>(shape[0] + 1, 1 << 17); ++i)
      words[i] = static_cast<int32_t>(std::min<int64_t>(2 * i, packed_extent(f)));
  if (f.name == "page_table" || f.name == "pair" || f.name == "cache_row")
    for (int i = 0; i < 6; ++i) words[i] = i;
  // No row of states is written twice.
  static const std::map<std::string, std::string> states = {
      {"state_row", "slots"}, {"state_out_row", "slots_out"}, {"snapshot_row", "snapshots"}};
  if (const auto row = states.find(f.name); row != states.end())
    for (size_t i = 0; i < memory_.back().size(); ++i)
      words[i] = static_cast<int64_t>(i) < extents_.at(row->second) ? static_cast<int32_t>(i) : -1;
  if (f.name == "row")
    for (int64_t i = 0; i < shape[0] * shape[1] && i < 1 << 17; ++i)
      words[i] = static_cast<int32_t>(i % shape[1]) - 1;
}

}  // namespace contract
