// SPDX-License-Identifier: Apache-2.0
// fovea.hpp against the library: who owns what, errors as sentences, views, every operation's run.
// A sanitizer build of it sees leaks and double frees.
#include <array>
#include <cmath>
#include <fovea/experimental/fovea.hpp>
#include <fovea/fovea.hpp>
#include <string>
#include <vector>

#include "check.h"

#if __cplusplus >= 202002L
#include <span>
#endif

namespace {

static_assert(!std::is_copy_constructible_v<fovea::Context> &&
              !std::is_copy_assignable_v<fovea::Context> &&
              std::is_nothrow_move_constructible_v<fovea::Context> &&
              std::is_nothrow_move_assignable_v<fovea::Context>);
static_assert(!std::is_copy_constructible_v<fovea::Buffer<float>> &&
              !std::is_copy_assignable_v<fovea::Buffer<float>> &&
              std::is_nothrow_move_constructible_v<fovea::Buffer<float>> &&
              std::is_nothrow_move_assignable_v<fovea::Buffer<float>>);
static_assert(fovea::dtype_of<fovea::bf16>::value == FOVEA_BF16 && sizeof(fovea::bf16) == 2 &&
              fovea::dtype_of<std::int32_t>::value == FOVEA_I32 &&
              fovea::dtype_of<std::int64_t>::value == FOVEA_I64 &&
              fovea::dtype_of<std::uint8_t>::value == FOVEA_U8);

// The sentence of the Error that `call` throws, with its status; "" when it throws none.
template <class Call>
std::string sentence(fovea_status wanted, const Call& call) {
  try {
    call();
  } catch (const fovea::Error& error) {
    return error.status() == wanted ? error.what() : std::string("status ") + error.what();
  }
  return "";
}
#define EXPECT_ERROR(status, words, call) \
  EXPECT_TEXT(sentence((status), [&] { call; }).c_str(), (words))

void contexts() {
  auto ctx = fovea::Context::host();
  ctx.set_threads(2);
  EXPECT(ctx.get(FOVEA_PROPERTY_THREADS) == 2);
  EXPECT(ctx.get(FOVEA_PROPERTY_BACKEND) == FOVEA_HOST);
  EXPECT(!*ctx.last_kernel() && !*ctx.last_plan() && !*ctx.last_reasons());
  ctx.set_stream(nullptr);
  ctx.synchronize();
  EXPECT_ERROR(FOVEA_INVALID_ARGUMENT, "stream", ctx.set_stream(&ctx));
  EXPECT_ERROR(FOVEA_INVALID_ARGUMENT, "device", fovea::Context::try_create(FOVEA_HOST, 9).value());

  fovea_context* raw = ctx;
  fovea::Context moved = std::move(ctx);
  EXPECT(static_cast<fovea_context*>(moved) == raw);
  EXPECT(!ctx);
  EXPECT_ERROR(FOVEA_INVALID_ARGUMENT, "ctx", ctx.synchronize());
  ctx = std::move(moved);
  ctx = fovea::Context::host();  // the first one is destroyed here
  moved = fovea::Context(ctx.release());
  EXPECT(!ctx && moved);
  moved.wait(moved);
}

void buffers() {
  auto ctx = fovea::Context::host();
  const std::vector<float> from{1, 2, 3, 4};
  std::vector<float> to(4);
  void* gone = nullptr;
  {
    fovea::Buffer<float> a(ctx, from), b(ctx, 2), empty, none(ctx, 0);
    EXPECT(a.size() == 4 && a.bytes() == 16 && a.data()[3] > 3);
    EXPECT(!empty.data() && !none.data() && none.size() == 0);
    a.copy_to(to);
    EXPECT(to == from);
    EXPECT_ERROR(FOVEA_INVALID_ARGUMENT, "Buffer: the number of elements is 4, wanted 2",
                 b.copy_from(from));
    EXPECT_ERROR(FOVEA_INVALID_ARGUMENT, "Buffer: the number of elements is 4, wanted 2",
                 b.copy_to(to));
    gone = b.data();
    b = std::move(a);  // frees what b had
    EXPECT(b.size() == 4 && !a.data() && a.size() == 0);
    EXPECT(fovea_free(ctx, gone) == FOVEA_INVALID_ARGUMENT);
    gone = b.data();
    fovea::Buffer<float> c(std::move(b));
    EXPECT(c.data() == gone && !b.data());
    const fovea::Buffer<float>& view = c;
    EXPECT(fovea::input(view, {2, 2}).data == gone);
    EXPECT_ERROR(FOVEA_INVALID_ARGUMENT, "is 4, wanted as shape says 6", fovea::tensor(c, {2, 3}));
  }
  EXPECT(fovea_free(ctx, gone) == FOVEA_INVALID_ARGUMENT);  // freed, once
  EXPECT_ERROR(FOVEA_OUT_OF_MEMORY, "18446744073709551615 bytes",
               fovea::Buffer<double>(ctx, static_cast<std::size_t>(-1) / 4));
  EXPECT_ERROR(FOVEA_INVALID_ARGUMENT, "ctx", fovea::Buffer<float>(nullptr, 4));
}

void views() {
  std::vector<float> x(24);
  const std::vector<fovea::bf16> half(6);
  std::array<std::int32_t, 3> lengths{1, 2, 3};
  static const float constant[4] = {1, 2, 3, 4}, single[1] = {1};
  const fovea_tensor a = fovea::tensor(x, {x.size() / 12, 3L, 4});
  EXPECT(a.ndim == 3 && a.shape[0] == 2 && a.stride[0] == 12 && a.stride[1] == 4 &&
         a.stride[2] == 1);
  EXPECT(a.dtype == FOVEA_F32 && a.data == x.data());
  EXPECT(fovea::input(half, {2, 3}).dtype == FOVEA_BF16);
  EXPECT(fovea::tensor(lengths, {3}).dtype == FOVEA_I32);
  EXPECT(fovea::input(constant, {4}).data == constant);
  EXPECT(fovea::input(half.data(), {1}).data == half.data());
  EXPECT(fovea::input(x.data(), {24}).data == x.data() && fovea::input(x, {24}).stride[0] == 1);
  EXPECT(fovea::input(half, {2, 2}, {3, 1}).stride[0] == 3);
  EXPECT(fovea::input(half.data(), {2, 2}, {3, 1}).stride[0] == 3);
  EXPECT(fovea::input(static_cast<const void*>(x.data()), FOVEA_F16, {2, 2}).dtype == FOVEA_F16);
  EXPECT(fovea::tensor(static_cast<void*>(x.data()), FOVEA_I8, {2}, {7}).stride[0] == 7);
  EXPECT(fovea::tensor(lengths.data(), lengths).shape[2] == 3);  // extents from a container
  static const std::int64_t shape[] = {2, 12};
  EXPECT(fovea::tensor(x, shape).shape[1] == 12);
  EXPECT(fovea::input(single, {}).ndim == 0);
#if __cplusplus >= 202002L
  EXPECT(fovea::tensor(std::span(x).first(8), {2, 4}).data == x.data());
  EXPECT(fovea::input(std::span<const float>(x), {24}).shape[0] == 24);
#endif
  const fovea_tensor t = fovea::tensor(x, {2, 4, 3}, {12, 1, 4});  // x with its last axes swapped
  EXPECT(t.stride[0] == 12 && t.stride[1] == 1 && t.stride[2] == 4);
  EXPECT(fovea::tensor(x, {1000, 24}, {0, 1}).stride[0] == 0);  // broadcast
  EXPECT(fovea::tensor(x, {0, 24}, {24, 1}).shape[0] == 0);

  const auto bad = FOVEA_INVALID_ARGUMENT;
  EXPECT_ERROR(bad, "tensor: the number of elements is 24, wanted as shape says 18",
               fovea::tensor(x, {2, 9}));
  EXPECT_ERROR(bad, "tensor: shape[1] is -3, wanted at least 0", fovea::tensor(x, {8, -3}));
  EXPECT_ERROR(bad, "is 6, wanted at most 5", fovea::tensor(x, {1, 1, 1, 1, 1, 24}));
  EXPECT_ERROR(bad, "is 24, wanted as strides reach at least 25",
               fovea::tensor(x, {2, 12}, {13, 1}));
  EXPECT_ERROR(bad, "strides is 1, wanted as many as extents, 2", fovea::tensor(x, {2, 12}, {1}));
  EXPECT_ERROR(bad, "strides is 0, wanted as many as extents, 1", fovea::tensor(x, {24}, {}));
  EXPECT_ERROR(bad, "is 6, wanted as shape says 8", fovea::input(half, {2, 4}));
  EXPECT_ERROR(bad, "stride[0] is -1", fovea::tensor(x, {24}, {-1}));
  EXPECT_ERROR(bad, "64 bits", fovea::tensor(x, {INT64_MAX, INT64_MAX}));
  EXPECT_ERROR(bad, "64 bits", fovea::tensor(x, {3, 3}, {INT64_MAX, INT64_MAX}));
  EXPECT(fovea::tensor(x.data(), {2, 12}, {1}).ndim == -1);  // unchecked: operations refuse it
  EXPECT(fovea::tensor(x.data(), {1, 1, 1, 1, 1, 24}).ndim == -1);
}

// q, k and v in the order (b, h, s, d) by strides, and in C++20 designated initializers.
void attention() {
  auto ctx = fovea::Context::host();
  const int b = 2, s = 5, h = 3, d = 8;
  std::vector<float> q(b * s * h * d), swapped(q.size()), o(q.size()), strided(q.size());
  for (int n = 0; n < b * s * h * d; n++) {
    const int column = n % d, head = n / d % h, row = n / d / h % s, batch = n / d / h / s;
    q[static_cast<std::size_t>(n)] = static_cast<float>(n * 37 % 101) / 50 - 1;
    swapped[static_cast<std::size_t>(((batch * h + head) * s + row) * d + column)] =
        q[static_cast<std::size_t>(n)];
  }
  auto p = fovea::params<fovea_attention_forward_params>();
  EXPECT(p.struct_size == sizeof p && !p.q.data && p.causal == 0);
  p.q = p.k = p.v = fovea::input(std::as_const(q), {b, s, h, d});
  p.o = fovea::tensor(o, {b, s, h, d});
  p.causal = 1;
  fovea::run(ctx, p);
  EXPECT_TEXT(ctx.last_kernel(), "attention_forward.host");
  EXPECT_TEXT(ctx.last_plan(), ctx.last_kernel());
  EXPECT(!*ctx.last_reasons());  // the host has one kernel
  for (std::size_t i = 0; i < static_cast<std::size_t>(h * d); i++)
    EXPECT(std::abs(o[i] - q[i]) < 1e-6F);  // row 0 sees key 0 alone

  const fovea::Extents shape = {b, s, h, d}, stride = {h * s * d, d, s * d, 1};
#if __cplusplus >= 202002L
  const auto view = fovea::tensor(swapped, shape, stride);
  p = fovea::params(fovea_attention_forward_params{
      .q = view, .k = view, .v = view, .o = fovea::tensor(strided, shape), .causal = 1});
#else
  p.q = p.k = p.v = fovea::tensor(swapped, shape, stride);
  p.o = fovea::tensor(strided, shape);
#endif
  EXPECT(fovea::workspace_bytes(ctx, p) < (1U << 30));
  fovea::run(ctx, p);
  EXPECT(strided == o);

  p.k = fovea::tensor(q, {b, s, d, h});
  EXPECT_ERROR(FOVEA_INVALID_ARGUMENT, "attention_forward: k.shape", fovea::run(ctx, p));
  EXPECT_ERROR(FOVEA_INVALID_ARGUMENT, "attention_forward: k.shape",
               fovea::workspace_bytes(ctx, p));
  EXPECT_ERROR(FOVEA_INVALID_ARGUMENT, "ctx", fovea::run(nullptr, p));
}

// One operation: its name, its functions, and that the library refuses a call without tensors.
template <class Params>
void operation(fovea_context* ctx, const char* name, std::string& names) {
  static_assert(
      std::is_same_v<decltype(fovea::try_run(ctx, std::declval<const Params&>())), fovea_status>);
  static_assert(std::is_void_v<decltype(fovea::run(ctx, std::declval<const Params&>()))>);
  static_assert(fovea::params<Params>().struct_size == sizeof(Params));
  static_assert(noexcept(fovea::try_run(ctx, std::declval<const Params&>())));
  const std::string wanted = std::string(name) + ": ";
  EXPECT(std::strcmp(fovea::Operation<Params>::name(), name) == 0);
  EXPECT_ERROR(FOVEA_INVALID_ARGUMENT, wanted.c_str(), fovea::run(ctx, fovea::params<Params>()));
  EXPECT_ERROR(FOVEA_INVALID_ARGUMENT, wanted.c_str(),
               fovea::workspace_bytes(ctx, fovea::params<Params>()));
  EXPECT_ERROR(FOVEA_INVALID_ARGUMENT, "struct_size is 0", fovea::run(ctx, Params{}));
  names += (names.empty() ? "" : ",") + std::string(name);
}

void operations() {
  auto ctx = fovea::Context::host();
  std::string names;
#define CHECK(op) operation<fovea_##op##_params>(ctx, #op, names);
  FOVEA_CPP_OPERATIONS(CHECK)
  FOVEA_CPP_OPERATIONS_EXPERIMENTAL(CHECK)
  EXPECT_TEXT(names.c_str(), fovea_build_get(FOVEA_BUILD_OPERATIONS));  // all of the library's
}

void methods() {
  auto p = fovea::params<fovea_attention_forward_params>();
  fovea::recipe("streamingllm", p);
  EXPECT(p.causal == 1 && p.sink_keys == 4 && p.window_left == 2000);
  EXPECT(fovea::try_recipe("moa", p) == FOVEA_INVALID_ARGUMENT);
  EXPECT_ERROR(FOVEA_INVALID_ARGUMENT, "there is no 'none'", fovea::recipe("none", p));
  auto other = fovea::params<fovea_merge_forward_params>();
  EXPECT_ERROR(FOVEA_INVALID_ARGUMENT, "operation is merge_forward",
               fovea::recipe("streamingllm", other));
}

}  // namespace

int main() {
  contexts();
  buffers();
  views();
  attention();
  operations();
  methods();
  check_plain();
  std::printf("hpp: %d failures\n", failures);
  return failures != 0;
}
