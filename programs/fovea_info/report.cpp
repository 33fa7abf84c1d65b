// SPDX-License-Identifier: Apache-2.0
#include "report.h"

#include <dlfcn.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>

#include "fovea/attention.h"
#include "operations.h"

namespace info {
namespace {

struct Destroy {
  void operator()(fovea_context* ctx) const { fovea_context_destroy(ctx); }
};
using Context = std::unique_ptr<fovea_context, Destroy>;

std::string build(fovea_build key) {
  const char* text = fovea_build_get(key);
  return text ? text : "unknown to this library";
}

int64_t get(fovea_context* ctx, fovea_property key) {
  int64_t value = 0;
  return fovea_context_get(ctx, key, &value) == FOVEA_OK ? value : 0;
}

// The file that holds the library: this program, where it is linked in.
std::string library_path() {
  Dl_info place;
  if (!dladdr(fovea_build_get(FOVEA_BUILD_VERSION), &place) || !place.dli_fname) return "unknown";
  const std::unique_ptr<char, decltype(&std::free)> path(realpath(place.dli_fname, nullptr),
                                                         std::free);
  return path ? path.get() : place.dli_fname;
}

std::string platform() {
  utsname name;
  if (uname(&name)) return "unknown";
  std::string text = std::string(name.sysname) + "-" + name.release + "-" + name.machine;
#ifdef _CS_GNU_LIBC_VERSION
  char libc[64];
  if (confstr(_CS_GNU_LIBC_VERSION, libc, sizeof libc)) {
    std::string version = libc;  // "glibc 2.36"
    version.erase(std::remove(version.begin(), version.end(), ' '), version.end());
    text += "-with-" + version;
  }
#endif
  return text;
}

std::string cpu() {
  static const char* const kSimd[] = {"avx2",        "fma",      "f16c", "avx512f", "avx512_bf16",
                                      "avx512_fp16", "amx_bf16", "neon", "asimd",   "sve"};
  std::string model, flags;
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t at = line.find(": ");
    if (at == std::string::npos) continue;
    if (model.empty() && line.rfind("model name", 0) == 0) model = line.substr(at + 2);
    if (flags.empty() && (line.rfind("flags", 0) == 0 || line.rfind("Features", 0) == 0))
      flags = line.substr(at + 2);
  }
  const Words has = split(flags);
  std::string told;
  for (const char* name : kSimd)
    if (std::find(has.begin(), has.end(), name) != has.end())
      told += (told.empty() ? "" : " ") + std::string(name);
  utsname name;
  if (model.empty()) model = uname(&name) ? "unknown" : name.machine;
  return model + " (" + (told.empty() ? "flags unknown" : told) + ")";
}

// The instructions that the host's kernels take: the third part of a kernel's name.
std::string simd(fovea_context* ctx) {
  float x = 0;
  const int64_t shape[] = {1, 1, 1, 1};
  size_t bytes = 0;
  fovea_attention_forward_params p = {};
  p.struct_size = sizeof p;
  p.q = p.k = p.v = fovea_contiguous(&x, FOVEA_F32, 4, shape);
  float o = 0;
  p.o = fovea_contiguous(&o, FOVEA_F32, 4, shape);
  if (fovea_attention_forward_workspace(ctx, &p, &bytes)) return "unknown";
  std::istringstream parts(fovea_context_last_plan(ctx));
  std::string part;
  for (int i = 0; i < 3; ++i) std::getline(parts, part, '.');
  return part;
}

std::string memory(fovea_context* ctx) {
  char text[64];
  const double gib = 1 << 30;
  std::snprintf(text, sizeof text, "%.1f of %.1f GiB free",
                static_cast<double>(get(ctx, FOVEA_PROPERTY_FREE_BYTES)) / gib,
                static_cast<double>(get(ctx, FOVEA_PROPERTY_TOTAL_BYTES)) / gib);
  return text;
}

std::string told(fovea_backend backend, int32_t device) {
  fovea_context* made = nullptr;
  if (fovea_context_create(backend, device, &made))
    return std::string("not told: ") + fovea_last_error();
  const Context ctx(made);
  if (backend == FOVEA_CUDA)
    return device_text(made).substr(std::strlen("cuda:") + std::to_string(device).size() + 2) +
           ", " + std::to_string(get(made, FOVEA_PROPERTY_MULTIPROCESSORS)) + " multiprocessors, " +
           memory(made);
  return std::to_string(get(made, FOVEA_PROPERTY_THREADS)) + " threads of " +
         std::to_string(get(made, FOVEA_PROPERTY_MULTIPROCESSORS)) + ", " + memory(made) +
         ", kernels " + simd(made);
}

template <class F>
F* driver(const char* symbol) {
  static void* const libcuda = dlopen("libcuda.so.1", RTLD_NOW);
  return libcuda ? reinterpret_cast<F*>(dlsym(libcuda, symbol)) : nullptr;
}

std::string driver_version() {
  std::string text;
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  std::getline(file, line);
  // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu ..."
  for (const std::string& word : split(line))
    if (text.empty() && word.find_first_not_of("0123456789.") == std::string::npos) text = word;
  int number = 0;
  if (const auto version = driver<int(int*)>("cuDriverGetVersion"); version && !version(&number))
    text += (text.empty() ? "CUDA " : ", CUDA ") + std::to_string(number / 1000) + "." +
            std::to_string(number % 1000 / 10);
  return text.empty() ? "none found" : text;
}

}  // namespace

std::string device_text(fovea_context* ctx) {
  const auto device = static_cast<int>(get(ctx, FOVEA_PROPERTY_DEVICE));
  if (get(ctx, FOVEA_PROPERTY_BACKEND) == FOVEA_HOST)
    return "host, " + std::to_string(get(ctx, FOVEA_PROPERTY_THREADS)) + " threads, kernels " +
           simd(ctx);
  char name[256] = "";
  if (const auto of = driver<int(char*, int, int)>("cuDeviceGetName"); of)
    if (of(name, sizeof name, device)) name[0] = 0;
  const int64_t arch = get(ctx, FOVEA_PROPERTY_ARCHITECTURE);
  return "cuda:" + std::to_string(device) + ", " + name + (*name ? ", " : "") +
         "compute capability " + std::to_string(arch / 10) + "." + std::to_string(arch % 10);
}

std::vector<Row> report() {
  const std::string operations = build(FOVEA_BUILD_OPERATIONS);
  std::vector<Row> rows = {
      {"fovea", std::to_string(FOVEA_VERSION_MAJOR) + "." + std::to_string(FOVEA_VERSION_MINOR) +
                    "." + std::to_string(FOVEA_VERSION_PATCH)},
      {"library", build(FOVEA_BUILD_VERSION) + ", " + library_path()},
      {"git", build(FOVEA_BUILD_GIT)},
      {"compiler", build(FOVEA_BUILD_COMPILER)},
      {"CUDA toolkit", build(FOVEA_BUILD_TOOLKIT)},
      {"architectures", build(FOVEA_BUILD_ARCHITECTURES)},
      {"operations", std::to_string(1 + std::count(operations.begin(), operations.end(), ','))},
      {"platform", platform()},
      {"CPU", cpu()},
      {"host", told(FOVEA_HOST, 0)},
      {"CUDA driver", driver_version()},
  };
  int32_t count = 0;
  if (fovea_device_count(FOVEA_CUDA, &count))
    rows.push_back({"CUDA devices", std::string("not told: ") + fovea_last_error()});
  else if (!count)
    rows.push_back({"CUDA devices", "none: no driver, no GPU, or no CUDA in this library"});
  for (int32_t device = 0; device < count; ++device)
    rows.push_back({"cuda:" + std::to_string(device), told(FOVEA_CUDA, device)});
  std::vector<Row> set;
  for (char** entry = environ; *entry; ++entry)
    if (const char* at = std::strchr(*entry, '='); at && !std::strncmp(*entry, "FOVEA_", 6))
      set.push_back({std::string(*entry, static_cast<size_t>(at - *entry)), std::string(at + 1)});
  std::sort(set.begin(), set.end());
  rows.insert(rows.end(), set.begin(), set.end());
  return rows;
}

void print(const std::vector<Row>& rows) {
  size_t width = 0;
  for (const Row& row : rows) width = std::max(width, row.first.size());
  for (const auto& [name, fact] : rows)
    std::printf("%-*s  %s\n", static_cast<int>(width), name.c_str(), fact.c_str());
}

}  // namespace info
