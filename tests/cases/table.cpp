// SPDX-License-Identifier: Apache-2.0
#include "cases/table.h"

#include <stdexcept>

#include "harness/pairwise.h"

namespace cases {
namespace {

const contract::Field& field_of(const harness::Call& call, const std::string& name) {
  return *contract::find_op(call.op.name)->find(name);
}

fovea_tensor& slot_of(harness::Call& call, const contract::Field& f) {
  return *reinterpret_cast<fovea_tensor*>(call.params.data() + f.offset);
}

harness::Call empty_call(const contract::Op& op) {
  harness::Call call;
  call.op = {op.name, op.call, op.query};
  call.params.resize(op.bytes);
  std::memcpy(call.params.data(), &op.bytes, sizeof op.bytes);
  return call;
}

void set_number(harness::Call& call, const contract::Field& f, const std::string& text) {
  uint8_t* const at = call.params.data() + f.offset;
  if (f.kind == contract::i64) {
    const int64_t x = std::stoll(text);
    std::memcpy(at, &x, sizeof x);
  } else if (f.kind == contract::f32) {
    const float x = std::stof(text);
    std::memcpy(at, &x, sizeof x);
  } else {
    const int32_t x = std::stoi(text);
    std::memcpy(at, &x, sizeof x);
  }
}

}  // namespace

bool has_field(const harness::Call& call, const std::string& name) {
  return contract::find_op(call.op.name)->find(name) != nullptr;
}

size_t add_field(harness::Call& call, const std::string& name, const Letters& letters,
                 harness::Lay lay, int dtype, bool paged) {
  const contract::Field& f = field_of(call, name);
  if (dtype < 0 && f.dtype_as.empty()) dtype = contract::kDtypes.at(f.dtypes[0]);
  if (dtype < 0) dtype = slot_of(call, field_of(call, f.dtype_as)).dtype;
  harness::Shape shape;
  for (const std::string& dim : paged && !f.paged.empty() ? f.paged : f.dims)
    shape.push_back(isdigit(static_cast<unsigned char>(dim[0])) ? std::stoll(dim)
                                                                : letters.at(dim));
  const harness::Role role = f.inout    ? harness::Role::inout
                             : f.output ? harness::Role::out
                                        : harness::Role::in;
  return call.add(name.c_str(), slot_of(call, f), role, dtype, shape, lay);
}

TableCall::TableCall(const char* op, const std::string& words, uint64_t seed)
    : call(empty_call(*contract::find_op(op))),
      letters(contract::small_extents()),
      op_(*contract::find_op(op)),
      words_(words),
      seed_(seed) {
  for (const std::string& word : contract::split(words)) {
    const size_t at = word.find_first_of(":=");
    const std::string name = word.substr(0, at);
    const contract::Field* f = op_.find(name);
    if (at == std::string::npos) {
      bool known = f;
      for (size_t n = 0; n < std::size(harness::kLayNames); ++n)
        if (name == harness::kLayNames[n]) lay = static_cast<harness::Lay>(n), known = true;
      if (!known) throw std::invalid_argument(std::string(op) + " has no " + name);
      if (f) given_[name] = true;
    } else if (word[at] == ':') {
      dtypes_[name] = contract::kDtypes.at(word.substr(at + 1));
    } else if (f) {
      set_number(call, *f, word.substr(at + 1));
    } else {
      letters[name] = named[name] = std::stoll(word.substr(at + 1));
    }
  }
  letters["r"] = letters["key_b"] = letters["rows"] = letters["b"];
  letters["keys"] = letters["t"];
  letters["bytes"] = (letters["t"] + 7) / 8;
  for (const contract::Field& f : op_.fields)
    if (f.kind == contract::tensor && f.required) given_[f.name] = true;
}

int64_t TableCall::rows_of(int64_t batch) const {
  const int64_t s = letters.at("s");
  return batch == 0 ? s : batch * 5 % (s + 1);
}

void TableCall::inputs(const std::vector<std::string>& later) {
  for (const contract::Field& f : op_.fields) {
    if (f.kind != contract::tensor || !has(f.name) || (f.output && !f.inout)) continue;
    if (std::find(later.begin(), later.end(), f.name) == later.end()) input(f.name);
  }
}

void TableCall::input(const std::string& field) {
  const bool integer = op_.find(field)->dtypes == contract::Words{"i32"};
  add_field(call, field, letters, integer ? harness::Lay::contiguous : lay,
            dtypes_.count(field) ? dtypes_.at(field) : -1, has("page_table"));
}

void TableCall::view(const std::string& field, const std::string& of) {
  const contract::Field& f = *op_.find(field);
  const size_t base = call.field(of);
  fovea_tensor x = call.fields[base].tensor;
  x.shape[x.ndim - 1] = letters.at(f.dims.back());
  call.add_view(field.c_str(), slot_of(call, f), harness::Role::in, x, base, 0);
}

void TableCall::outputs() {
  for (const contract::Field& f : op_.fields)
    if (f.kind == contract::tensor && f.output && !f.inout && has(f.name))
      add_field(call, f.name, letters, lay, dtypes_.count(f.name) ? dtypes_.at(f.name) : -1,
                has("page_table"));
}

void TableCall::apply(const std::string& recipe) {
  harness::must(fovea_x_recipe_apply(recipe.c_str(), op_.name, call.params.data()), op_.name);
  for (const std::string& word : contract::split(words_)) {
    const size_t at = word.find('=');
    const contract::Field* f = at == std::string::npos ? nullptr : op_.find(word.substr(0, at));
    if (f) set_number(call, *f, word.substr(at + 1));
  }
}

void TableCall::expect(const std::vector<Expected>& expected) {
  for (const Expected& x : expected)
    if (has(x.name)) call.expect(call.field(x.name), x.exact, x.rounded, x.bitwise);
}

std::string name_of_words(const std::string& words, const std::string& note) {
  std::string name;
  for (std::string word : contract::split(words + " " + note)) {
    std::erase_if(word, [](char c) { return c == ':' || c == '='; });
    name += (name.empty() ? "" : "_") + word;
  }
  return name;
}

std::vector<std::string> covering(const std::vector<std::vector<std::string>>& axes,
                                  uint64_t seed) {
  std::vector<int> sizes;
  for (const auto& axis : axes) sizes.push_back(static_cast<int>(axis.size()));
  harness::Pairwise rows(
      sizes, [](const harness::Row&) { return true; }, seed);
  std::vector<std::string> list;
  for (const harness::Row& row : rows.rows()) {
    std::string words;
    for (size_t a = 0; a < axes.size(); ++a)
      words += (words.empty() ? "" : " ") + axes[a][static_cast<size_t>(row[a])];
    list.push_back(words);
  }
  return list;
}

harness::Call settled(const std::string& words, uint64_t seed,
                      const std::function<harness::Call(uint64_t)>& draw) {
  for (uint64_t attempt = 0; attempt <= 60; ++attempt) try {
      return draw(seed + attempt * 0x9e37);
    } catch (const Close&) {
    }
  throw std::runtime_error(words + ": every draw is close");
}

WordCases& WordCases::add(const std::string& words, const std::string& note, bool small) {
  const auto draw = [build = build_, words](uint64_t seed) { return build(words, seed); };
  cases_.push_back({op_, name_of_words(words, note),
                    [draw, words](uint64_t seed) { return settled(words, seed, draw); }, "", "",
                    small});
  return *this;
}

void WordCases::sweep(const std::string& common, const std::vector<std::vector<std::string>>& axes,
                      const std::string& note, uint64_t seed) {
  for (const std::string& words : covering(axes, seed)) add(common + " " + words, note);
}

Table::Table(const char* op, Oracle oracle, std::map<std::string, Fill> fills)
    : op_(op), oracle_(std::move(oracle)), fills_(std::move(fills)) {}

Table& Table::sweep(const std::vector<std::vector<std::string>>& axes, uint64_t seed) {
  for (const std::string& words : covering(axes, seed)) add(words, "", false, "");
  return *this;
}

Table& Table::each(const char* note, const std::vector<std::string>& words, bool small) {
  for (const std::string& one : words) add(one, note, small, "");
  return *this;
}

Table& Table::kernel(const char* note, const std::vector<std::string>& words,
                     const char* cuda_kernel) {
  for (const std::string& one : words) add(one, note, false, cuda_kernel);
  return *this;
}

void Table::add(const std::string& words, const std::string& note, bool small, const char* kernel) {
  const auto draw = [op = op_, words, oracle = oracle_, fills = fills_, views = views_,
                     shape = shape_, contents = contents_, recipe = recipe_](uint64_t seed) {
    TableCall made(op, words, seed);
    if (shape) shape(made);
    std::vector<std::string> later;
    for (const auto& [field, of] : views) later.push_back(field);
    made.inputs(later);
    for (const auto& [field, of] : views) made.view(field, of);
    harness::Call& call = made.call;
    uint64_t stream = 0;
    for (size_t i = 0; i < call.fields.size(); ++i) {
      const std::string& field = call.fields[i].name;
      if (views.count(field)) continue;
      const auto rule = fills.find(field);
      const harness::Random random(seed ^ ++stream << 32);
      uint64_t n = 0;
      call.fill(i, [&](const int64_t* index) {
        if (rule != fills.end()) return rule->second(index, random.normal(n++));
        if (contents) return contents(made, field, index, random.normal(n++));
        if (field == "query_len") return static_cast<double>(made.rows_of(index[0]));
        return random.normal(n++);
      });
      const contract::Words& dims = contract::find_op(op)->find(field)->dims;
      if (made.has("query_len") && dims.size() > 1 && dims[0] == "b" && dims[1] == "s")
        call.account(i, [&](const int64_t* at) { return at[1] < made.rows_of(at[0]); });
    }
    made.outputs();
    if (!recipe.empty()) made.apply(recipe);
    made.expect(oracle(made));
    return std::move(made.call);
  };
  const auto build = [draw, words](uint64_t seed) { return settled(words, seed, draw); };
  const std::string of = recipe_.empty() ? "" : "recipe_" + recipe_ + "_";
  cases_.push_back(
      {op_, of + name_of_words(words, note), build, kernel, "", small, false, recipe_});
}

}  // namespace cases
