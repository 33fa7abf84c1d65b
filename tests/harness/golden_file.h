// SPDX-License-Identifier: Apache-2.0
// Reads and calls a golden vector (harness/golden.h has the format) as the bindings do.
#pragma once
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>

#include "contract_call.h"
#include "oracle/dense.h"

namespace harness {

class GoldenFile {
 public:
  explicit GoldenFile(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), {});
    uint64_t size = 0;
    std::memcpy(&size, bytes.data(), sizeof size);
    header_ = bytes.substr(8, size);
    data_.assign(bytes.begin() + static_cast<int64_t>(8 + size), bytes.end());
    op = text("op"), recipe = text("recipe"), tolerance = std::stod(text("tolerance"));
    each(
        R"re("(\w+(?:\.after)?)": \{"dtype": "(\w+)", "shape": \[([^\]]*)\], "data_offsets": \[(\d+))re",
        header_, [&](const std::smatch& m) {
          static const std::map<std::string, fovea_dtype> kNames = {
              {"F32", FOVEA_F32}, {"F16", FOVEA_F16},      {"BF16", FOVEA_BF16},
              {"I32", FOVEA_I32}, {"I64", FOVEA_I64},      {"U8", FOVEA_U8},
              {"I8", FOVEA_I8},   {"F8_E4M3", FOVEA_E4M3}, {"F8_E5M2", FOVEA_E5M2}};
          std::vector<int64_t> shape;
          each(R"re(\d+)re", m[3],
               [&](const std::smatch& n) { shape.push_back(std::stoll(n[0])); });
          tensors[m[1]] = fovea_contiguous(data_.data() + std::stoll(m[4]), kNames.at(m[2]),
                                           static_cast<int32_t>(shape.size()), shape.data());
        });
    each(R"re(\w+)re", text("outputs"), [&](const std::smatch& m) { outputs.push_back(m[0]); });
    each(R"re(\\"(\w+)\\": ([-+.\deE]+))re", header_,
         [&](const std::smatch& m) { numbers[m[1]] = std::stod(m[2]); });
  }

  // Runs the call by its name, and gives the sentence of what is wrong, or "".
  std::string run(fovea_context* ctx) const {
    const contract::Op& which = *contract::find_op(op);
    contract::Params params(which);
    std::map<std::string, std::vector<uint8_t>> results;
    for (const auto& [name, x] : tensors) {
      if (name.find('.') != std::string::npos) continue;
      params[name] = x;
      if (std::find(outputs.begin(), outputs.end(), name) == outputs.end()) continue;
      const auto* at = static_cast<const uint8_t*>(x.data);
      std::vector<uint8_t>& result = results[name];
      result.assign(at, at + oracle::count_of(x) * oracle::bytes_of(x.dtype));
      if (!tensors.count(name + ".after")) std::fill(result.begin(), result.end(), 0xff);
      params[name].data = result.data();
    }
    const auto set = [&] {
      for (const auto& [name, value] : numbers) {
        const contract::Field& f = *which.find(name);
        if (f.kind == contract::i64) params.at<int64_t>(f.offset) = static_cast<int64_t>(value);
        if (f.kind == contract::i32) params.at<int32_t>(f.offset) = static_cast<int32_t>(value);
        if (f.kind == contract::f32) params.at<float>(f.offset) = static_cast<float>(value);
      }
    };
    set();
    if (!recipe.empty() && fovea_x_recipe_apply(recipe.c_str(), which.name, params.data()))
      return fovea_last_error();
    set();  // they stand
    if (which.call(ctx, params.data())) return fovea_last_error();
    for (const auto& [name, result] : results) {
      const auto after = tensors.find(name + ".after");
      const fovea_tensor& want = after == tensors.end() ? tensors.at(name) : after->second;
      const int64_t size = oracle::bytes_of(want.dtype);
      for (int64_t n = 0; n < oracle::count_of(want); ++n) {
        const double g = oracle::decode(want.dtype, result.data() + n * size);
        const double w =
            oracle::decode(want.dtype, static_cast<const uint8_t*>(want.data) + n * size);
        const bool near =
            g == w || (std::isnan(g) && std::isnan(w)) ||
            (oracle::is_float(want.dtype) && std::abs(g - w) <= tolerance * (1 + std::abs(w)));
        if (!near)
          return name + "[" + std::to_string(n) + "] is " + std::to_string(g) + ", wanted " +
                 std::to_string(w);
      }
    }
    return "";
  }

  std::string op, recipe;
  double tolerance;
  std::vector<std::string> outputs;
  std::map<std::string, fovea_tensor> tensors;
  std::map<std::string, double> numbers;

 private:
  template <class Visit>
  static void each(const char* pattern, const std::string& text, Visit visit) {
    const std::regex regex(pattern);
    for (std::sregex_iterator at(text.begin(), text.end(), regex), end; at != end; ++at) visit(*at);
  }
  // A value of the metadata, "" where it has none.
  std::string text(const std::string& key) const {
    std::smatch m;
    return std::regex_search(header_, m, std::regex("\"" + key + "\": \"([^\"\\\\]*)\""))
               ? m[1]
               : std::string();
  }

  std::string header_;
  mutable std::vector<uint8_t> data_;
};

}  // namespace harness
