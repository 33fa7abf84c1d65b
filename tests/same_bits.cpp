// SPDX-License-Identifier: Apache-2.0
// Every conformance case in two libraries of one process, output bytes compared:
//   same_bits OLD/libfovea.so [--gtest_filter=attention_forward/cuda*]
// A difference names the field, the element and the kernels; a summary counts them by operation.
// Cases that only this library serves, or only the other, count as differences.
#include <dlfcn.h>

#include <map>

#include "cases/all.h"

namespace {

// The functions of one library that a call needs.
struct Library {
  decltype(&fovea_context_create) create;
  decltype(&fovea_context_destroy) destroy;
  decltype(&fovea_context_synchronize) synchronize;
  decltype(&fovea_context_last_kernel) last_kernel;
  decltype(&fovea_alloc) alloc;
  decltype(&fovea_free) free;
  decltype(&fovea_copy) copy;
  decltype(&fovea_last_error) last_error;
  void* handle;
  std::map<fovea_backend, fovea_context*> contexts;

  explicit Library(void* from) : handle(from) {
    load(create, "context_create"), load(destroy, "context_destroy"),
        load(synchronize, "context_synchronize");
    load(last_kernel, "context_last_kernel"), load(alloc, "alloc"), load(free, "free");
    load(copy, "copy"), load(last_error, "last_error");
  }
  ~Library() {
    for (const auto& [backend, ctx] : contexts) destroy(ctx);
  }
  Library(const Library&) = delete;
  // The context of a backend is made once and kept.
  fovea_context* context(fovea_backend backend) {
    fovea_context*& ctx = contexts[backend];
    if (!ctx) harness::must(create(backend, 0, &ctx), "context_create");
    return ctx;
  }
  template <class F>
  void load(F& to, const std::string& name) const {
    to = reinterpret_cast<F>(dlsym(handle, ("fovea_" + name).c_str()));
    if (!to) throw std::runtime_error("no fovea_" + name + " in the library");
  }
};

Library *ours, *theirs;

struct Result {
  fovea_status status;
  std::string kernel, error;
  harness::Bytes bytes;
};

Result run(const Library& lib, fovea_context* ctx, const harness::Call& call) {
  fovea_status (*op)(fovea_context*, const void*);
  lib.load(op, call.op.name);
  std::vector<uint8_t> params = call.params;
  std::vector<void*> memory;
  for (size_t i = 0; i < call.storages.size(); ++i) {
    const std::vector<uint8_t> image = call.image(i, true);
    memory.push_back(nullptr);
    harness::must(lib.alloc(ctx, FOVEA_MEMORY_DEVICE, image.size(), &memory.back()), "alloc");
    harness::must(lib.copy(ctx, memory.back(), image.data(), image.size()), "copy");
  }
  for (const harness::Field& f : call.fields)
    reinterpret_cast<fovea_tensor*>(params.data() + f.slot)->data =
        static_cast<uint8_t*>(memory[f.storage]) + f.start;
  Result result{op(ctx, params.data()), lib.last_kernel(ctx), lib.last_error(), {}};
  for (size_t i = 0; i < memory.size(); ++i) {
    std::vector<uint8_t> bytes(call.storages[i].image.size());
    harness::must(lib.copy(ctx, bytes.data(), memory[i], bytes.size()), "copy");
    harness::must(lib.synchronize(ctx), "synchronize");
    lib.free(ctx, memory[i]);
    result.bytes.push_back(std::move(bytes));
  }
  return result;
}

std::map<std::string, std::pair<int, int>> counts;  // of an operation: cases, those that differ

// The first written element whose bytes differ, "" for none.  A NaN is a NaN.
std::string difference(const harness::Call& call, const Result& x, const Result& y) {
  if (x.status != y.status)
    return "status " + std::to_string(x.status) + " (" + x.error + ") and " +
           std::to_string(y.status) + " (" + y.error + ")";
  if (x.status != FOVEA_OK) return "";
  const std::string text = harness::first_difference(call, x.bytes, y.bytes);
  return text.empty() ? "" : text + " [" + x.kernel + " and " + y.kernel + "]";
}

class SameBits : public testing::Test {
 public:
  SameBits(fovea_backend backend, const harness::Case& c) : backend_(backend), case_(c) {}
  void TestBody() override {
    const harness::Call call = case_.build(harness::seed_of(case_.name));
    Result results[2];
    Library* const libraries[2] = {ours, theirs};
    for (int i = 0; i < 2; ++i) {
      results[i] = run(*libraries[i], libraries[i]->context(backend_), call);
    }
    auto& [cases, differ] = counts[case_.op + "/" + harness::name_of(backend_)];
    const std::string text = difference(call, results[0], results[1]);
    ++cases, differ += !text.empty();
    EXPECT_EQ(text, "");
  }

 private:
  const fovea_backend backend_;
  const harness::Case case_;
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc != 2) {
    std::fprintf(stderr, "usage: same_bits LIBRARY [--gtest_filter=...]\n");
    return 2;
  }
  void* const peer = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (!peer) {
    std::fprintf(stderr, "same_bits: %s\n", dlerror());
    return 2;
  }
  Library mine(RTLD_DEFAULT), other(peer);
  ours = &mine, theirs = &other;
  for (fovea_backend backend : harness::backends())
    for (const harness::Case& c : cases::all())
      if (!c.bits_may_differ)
        testing::RegisterTest((c.op + "/" + harness::name_of(backend)).c_str(), c.name.c_str(),
                              nullptr, nullptr, __FILE__, __LINE__,
                              [backend, c]() -> SameBits* { return new SameBits(backend, c); });
  const int failed = RUN_ALL_TESTS();
  for (const auto& [name, n] : counts)
    std::printf("%s: %d of %d cases differ\n", name.c_str(), n.second, n.first);
  return failed;
}
