// SPDX-License-Identifier: Apache-2.0
// fovea_info plans every small call of the contract's tests, said in words.  Its shapes, kernel and
// workspace are those of the call that the tests make of their own reading of the headers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>

#include "contract_call.h"

namespace contract {
namespace {

// Beside this program, wherever both were carried.
std::string program() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() /
         "bin/fovea_info";
}

// The rows that it prints, or its words where it fails.
std::map<std::string, std::string> rows_of(const std::string& words, int* status) {
  FILE* pipe = popen((program() + " " + words + " --host 2>&1").c_str(), "r");
  std::map<std::string, std::string> rows;
  char line[4096];
  while (pipe && std::fgets(line, sizeof line, pipe)) {
    const std::string text = line;
    const size_t name = text.find(' '), fact = text.find_first_not_of(' ', name);
    if (name == std::string::npos || fact == std::string::npos) continue;
    rows[text.substr(0, name)] = text.substr(fact, text.find('\n') - fact);
  }
  *status = pipe ? pclose(pipe) : -1;
  return rows;
}

std::string dtype_text(int dtype) {
  for (const auto& [name, number] : kDtypes)
    if (number == dtype) return name;
  return "?";
}

// A call as words.  Extents that follow from others are left out, and so are those of no tensor.
std::string words_of(const Case& c, const Call& call) {
  std::map<std::string, std::string> extents;
  const bool starts = call.has("query_start") || call.has("key_start") || call.has("start");
  std::set<std::string> skip = {"key_b", "keys", "bytes"};
  if (!call.has("cache_row")) skip.insert("rows");
  if (!starts) skip.insert("r");
  std::ostringstream words;
  words << c.op;
  for (const Field& f : call.op->fields) {
    if (f.kind != tensor) continue;
    const bool gradient = f.output && f.name[0] == 'd' && call.op->find(f.name.substr(1));
    if (!call.has(f)) {
      if (gradient) words << " " << f.name << "=0";
      continue;
    }
    Params params = call.params;
    const fovea_tensor& x = params[f.name];
    words << " " << f.name << "=" << dtype_text(x.dtype);
    for (size_t i = 0; i < call.dims(f).size(); ++i) {
      const std::string dim = call.dims(f)[i];
      if (const size_t plus = dim.find('+'); plus != std::string::npos)
        extents[dim.substr(0, plus)] = std::to_string(x.shape[i] - 1);
      else if (!isdigit(dim[0]) && !skip.count(dim))
        extents.insert({dim, std::to_string(x.shape[i])});
    }
  }
  for (const std::string& setting : split(c.settings)) {
    const size_t at = setting.find('=');
    const Field* f = at == std::string::npos ? nullptr : call.op->find(setting.substr(0, at));
    if (f && f->kind != tensor) extents[f->name] = setting.substr(at + 1);
  }
  for (const auto& [name, value] : extents) words << " " << name << "=" << value;
  return words.str();
}

class Info : public testing::TestWithParam<Case> {};

TEST_P(Info, PlansTheCallThatTheWordsSay) {
  Call call(GetParam());
  fovea_context* ctx = nullptr;
  ASSERT_EQ(fovea_context_create(FOVEA_HOST, 0, &ctx), FOVEA_OK) << fovea_last_error();
  size_t bytes = 0;
  ASSERT_EQ(call.op->query(ctx, call.params.data(), &bytes), FOVEA_OK) << fovea_last_error();
  const std::string words = words_of(GetParam(), call);
  int status = 0;
  std::map<std::string, std::string> rows = rows_of(words, &status);
  EXPECT_EQ(status, 0) << words;
  EXPECT_EQ(rows["kernel"], fovea_context_last_plan(ctx)) << words;
  EXPECT_EQ(rows["workspace"], std::to_string(bytes) + " bytes") << words;
  for (const Field* f : call.tensors()) {
    const fovea_tensor& x = call.params[f->name];
    std::string shape;
    for (int i = 0; i < x.ndim; ++i) shape += (i ? ", " : "") + std::to_string(x.shape[i]);
    EXPECT_EQ(rows[f->name], "(" + shape + ") " + dtype_text(x.dtype)) << words;
  }
  fovea_context_destroy(ctx);
}

INSTANTIATE_TEST_SUITE_P(EachOperation, Info, testing::ValuesIn(small_cases()),
                         [](const auto& row) { return row.param.op + "_" + row.param.name; });

}  // namespace
}  // namespace contract
