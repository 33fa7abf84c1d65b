// SPDX-License-Identifier: Apache-2.0
// Holds one call on one backend to everything the library promises of every call:
//   the outputs are the oracle's; no byte but the outputs' has changed, guard bands included;
//   neither garbage in what is of no account, nor the workspace's place, size and contents, nor (on
//   the host) the number of threads, nor a second run changes one bit.
#pragma once
#include <gtest/gtest.h>

#include "harness/bound.h"
#include "harness/compare.h"

namespace harness {

struct Way {
  bool poisoned;         // garbage in everything of no account
  bool given_workspace;  // exactly the queried bytes, garbage in them, guarded
  int threads;           // host only; 0: all
};

inline std::string describe(const Way& way) {
  return std::string(way.poisoned ? "poisoned" : "clean") +
         (way.given_workspace ? ", given workspace" : "") +
         (way.threads == 1 ? ", one thread" : "");
}

// Nothing but outputs may differ from what was uploaded.
inline std::string find_damage(const Call& call, const Bytes& before, const Bytes& after) {
  for (size_t s = 0; s < before.size(); ++s) {
    const auto& cover = call.storages[s].cover;
    for (size_t i = 0; i < cover.size(); ++i) {
      if (before[s][i] == after[s][i] || cover[i] == kWritten || cover[i] == kUpdated) continue;
      std::string owner;
      int64_t start = 0;
      for (const Field& f : call.fields)
        if (f.storage == s) owner += (owner.empty() ? "" : ", ") + f.name, start = f.start;
      static constexpr const char* kinds[] = {"a gap", "an element to leave alone", "an input"};
      return owner + ": byte " + std::to_string(static_cast<int64_t>(i) - start) + " (" +
             kinds[cover[i]] + ") was changed";
    }
  }
  return "";
}

inline std::vector<double> values_of(const Call& call, size_t field, const Bytes& bytes) {
  std::vector<double> values;
  const Field& f = call.fields[field];
  call.each(field, [&](const int64_t*, int64_t byte) {
    values.push_back(oracle::decode(f.tensor.dtype, bytes[f.storage].data() + byte));
  });
  return values;
}

// A call's fields as other draws of the oracle's roundings have them, made once each.
class Draws {
 public:
  explicit Draws(const Call& call) : call_(call) {}
  const Out* operator()(size_t field, uint64_t draw) {
    if (!call_.drawn) return nullptr;
    while (made_.size() < draw) {
      made_.push_back(call_.drawn(made_.size() + 1));
      for (size_t i = 0; i < call_.storages.size(); ++i)
        if (made_.back().storages[i].image != call_.storages[i].image)
          throw std::logic_error("a draw of roundings changes what the call reads");
    }
    const Field& f = made_[draw - 1].fields[field];
    if (f.exact.value.size() != call_.fields[field].exact.value.size())
      throw std::logic_error("a draw of roundings changes what the call gives");
    return &f.rounded;
  }

 private:
  const Call& call_;
  std::vector<Call> made_;
};

inline void expect_outputs(const Call& call, const Bytes& after) {
  Draws draws(call);
  for (size_t i = 0; i < call.fields.size(); ++i) {
    const Field& f = call.fields[i];
    if (!f.expected()) continue;
    const std::string wrong = compare(f.exact, f.rounded, values_of(call, i, after), f.bitwise,
                                      [&](uint64_t draw) { return draws(i, draw); });
    EXPECT_EQ(wrong, "") << "output " << f.name;
  }
}

inline std::string first_difference(const Call& call, const Bytes& a, const Bytes& b) {
  for (size_t i = 0; i < call.fields.size(); ++i) {
    const Field& f = call.fields[i];
    if (!f.expected()) continue;
    std::string text;
    size_t n = 0;
    call.each(i, [&](const int64_t*, int64_t byte) {
      const size_t size = static_cast<size_t>(oracle::bytes_of(f.tensor.dtype));
      const uint8_t *x = a[f.storage].data() + byte, *y = b[f.storage].data() + byte;
      const bool written = f.exact.written[n++];
      if (!written || !text.empty() || !std::memcmp(x, y, size)) return;
      const double got_x = oracle::decode(f.tensor.dtype, x),
                   got_y = oracle::decode(f.tensor.dtype, y);
      if (std::isnan(got_x) && std::isnan(got_y)) return;
      text = f.name + " element " + std::to_string(n - 1) + ": " + std::to_string(got_x) + " and " +
             std::to_string(got_y);
    });
    if (!text.empty()) return text;
  }
  return "";
}

// Runs the call and reads everything back; asserts that it left alone what it must.
inline Bytes run_way(Context& ctx, const Call& call, const Way& way) {
  Bound bound(ctx, call);
  if (ctx.backend == FOVEA_HOST) must(fovea_context_set_threads(ctx, way.threads), "set_threads");
  size_t bytes = 0;
  EXPECT_EQ(call.op.query(ctx, bound.params(), &bytes), FOVEA_OK) << fovea_last_error();
  const Bytes before = bound.upload(call, way.poisoned);
  std::unique_ptr<Memory> workspace;
  std::vector<uint8_t> garbage;
  if (way.given_workspace) {
    garbage.assign(bytes + 2 * kGuard, 0xff);
    workspace = std::make_unique<Memory>(ctx, garbage.size());
    workspace->write(garbage);
    must(fovea_context_set_workspace(ctx, static_cast<uint8_t*>(workspace->data) + kGuard, bytes),
         "set_workspace");
  }
  const fovea_status status = bound.run(call);
  EXPECT_EQ(status, FOVEA_OK) << fovea_last_error();
  must(fovea_context_synchronize(ctx), "synchronize");
  Bytes after = bound.download();
  EXPECT_EQ(find_damage(call, before, after), "") << describe(way);
  if (workspace) {
    must(fovea_context_set_workspace(ctx, nullptr, 0), "set_workspace");
    const std::vector<uint8_t> left = workspace->read();
    for (size_t i = 0; i < left.size(); ++i)
      if ((i < kGuard || i >= kGuard + bytes) && left[i] != 0xff) {
        ADD_FAILURE() << "workspace of " << bytes << " bytes: byte "
                      << static_cast<int64_t>(i) - kGuard << " was changed";
        break;
      }
  }
  return after;
}

// Whether a device has the kernels named so ("sm90" in it: compute capability 9.0).
inline bool has_kernels(Context& ctx, const std::string& name) {
  int64_t architecture = 0;
  must(fovea_context_get(ctx, FOVEA_PROPERTY_ARCHITECTURE, &architecture), "context_get");
  return name.find("sm90") == std::string::npos || architecture == 90;
}

// `kernel`: what last_kernel must begin with after "<op>.<backend>."; "" asks for nothing more.
inline void check(Context& ctx, const Call& call, std::string kernel = "",
                  bool bits_may_differ = false) {
  if (!has_kernels(ctx, kernel)) kernel.clear();
  const Way first{true, false, 0};
  const Bytes a = run_way(ctx, call, first);
  if (testing::Test::HasFailure()) return;
  testing::Test::RecordProperty("kernel", fovea_context_last_kernel(ctx));
  const std::string wanted =
      std::string(call.op.name) + "." + name_of(ctx.backend) + (kernel.empty() ? "" : ".") + kernel;
  EXPECT_EQ((fovea_context_last_kernel(ctx) + std::string(".")).substr(0, wanted.size() + 1),
            wanted + ".");
  expect_outputs(call, a);
  const Way other{false, true, 1};
  const Bytes b = run_way(ctx, call, other);
  if (bits_may_differ) return expect_outputs(call, b);
  const std::string difference = first_difference(call, a, b);
  if (difference.empty()) return;
  ADD_FAILURE() << "runs differ (" << describe(first) << "; " << describe(other)
                << "): " << difference;
  for (const Way& way : {first, Way{false, false, 0}, Way{true, true, 0}, Way{true, false, 1}}) {
    const std::string alone = first_difference(call, a, run_way(ctx, call, way));
    if (!alone.empty())
      ADD_FAILURE() << "also when only this changes: " << describe(way) << ": " << alone;
  }
}

}  // namespace harness
