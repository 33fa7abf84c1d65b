// SPDX-License-Identifier: Apache-2.0
// choose() over kernels of its own: the order, the names and the reasons, and the texts that
// kernels make reasons of.  The host has one kernel, so without a GPU no call of the library
// reaches this.
#include "core/plan.h"
#include "core/reasons.h"

#include <gtest/gtest.h>

#include <string>

namespace fovea {
namespace {

// Request: how many of the best kernels refuse.
template <int Rank>
Text offer(const Context&, const int& refused, Plan& plan) {
  plan.kernel += ".d64";
  if (Rank < refused) return "d is " + Text::number(64 + Rank) + ", wanted another";
  return "";
}
Text long_offer(const Context&, const int&, Plan&) {
  Text reason;
  for (int i = 0; i < 300; ++i) reason += "x";
  return reason;
}

constexpr Kernel<int> kHost{"", offer<9>}, kBest{"sm90", offer<0>}, kNext{"sm80", offer<1>},
    kLast{"simt", offer<2>}, kLong{"long", long_offer};

Context& context(Context& ctx, fovea_backend backend) {
  ctx.backend = backend;
  return ctx;
}

Plan chosen(fovea_backend backend, int refused) {
  Context ctx;
  return choose<int>("op", context(ctx, backend), refused, kHost, {kBest, kNext, kLast});
}

TEST(Choose, TheBestKernelLeavesNoReason) {
  const Plan plan = chosen(FOVEA_CUDA, 0);
  EXPECT_STREQ(plan.kernel.c_str(), "op.cuda.sm90.d64");
  EXPECT_STREQ(plan.reasons.c_str(), "");
}

TEST(Choose, EachKernelThatIsPassedOverSaysWhy) {
  EXPECT_STREQ(chosen(FOVEA_CUDA, 1).reasons.c_str(), "sm90: d is 64, wanted another");
  const Plan plan = chosen(FOVEA_CUDA, 2);
  EXPECT_STREQ(plan.kernel.c_str(), "op.cuda.simt.d64");
  EXPECT_STREQ(plan.reasons.c_str(),
               "sm90: d is 64, wanted another; sm80: d is 65, wanted another");
}

TEST(Choose, TheHostHasOneKernel) {
  const Plan plan = chosen(FOVEA_HOST, 9);
  EXPECT_STREQ(plan.kernel.c_str(), "op.host.d64");
  EXPECT_STREQ(plan.reasons.c_str(), "");
}

TEST(Choose, WhereNoneServesTheErrorHoldsEveryReason) {
  try {
    chosen(FOVEA_CUDA, 3);
    FAIL() << "wanted a refusal";
  } catch (const Error& error) {
    EXPECT_EQ(error.status, FOVEA_UNSUPPORTED);
    EXPECT_STREQ(
        error.text,
        "op on cuda: sm90: d is 64, wanted another; sm80: d is 65, wanted another; simt: d "
        "is 66, wanted another");
  }
}

TEST(Choose, ReasonsThatAreTooLongAreCut) {
  Context ctx;
  const Plan plan = choose<int>("op", context(ctx, FOVEA_CUDA), 0, kHost,
                                {kLong, kLong, kLong, kLong, kLong, kLast});
  EXPECT_STREQ(plan.kernel.c_str(), "op.cuda.simt.d64");
  EXPECT_EQ(std::string(plan.reasons.c_str()).size(), size_t{kErrorBytes - 1});
}

TEST(Reasons, NameFieldGotAndWanted) {
  EXPECT_STREQ(reason("page", 5, "at least " + Text::number(16)).c_str(),
               "page is 5, wanted at least 16");
  EXPECT_STREQ(reason_given("bias").c_str(), "bias is given, wanted none");
  EXPECT_STREQ(reason_dtype(FOVEA_F32).c_str(), "dtype is f32, wanted f16 or bf16");
  EXPECT_STREQ(reason_dtype("o.dtype", FOVEA_F32, FOVEA_BF16, "q").c_str(),
               "o.dtype is f32, wanted bf16 as in q");
  EXPECT_STREQ(reason_capability(86, "9.0").c_str(), "compute capability is 8.6, wanted 9.0");
  EXPECT_STREQ(reason_shared(9, 8).c_str(),
               "a block needs 9 bytes of shared memory, this device has 8");
  EXPECT_STREQ(no_instance(FOVEA_BF16, "d", 320, "e", 64).c_str(),
               "no instance in this build for bf16, d = 320, e = 64");
}

TEST(Reasons, OfWidths) {
  EXPECT_STREQ(refuse_widths(64, 256, 8, 256).c_str(), "");
  EXPECT_STREQ(refuse_widths(64, 320, 8).c_str(), "");
  EXPECT_STREQ(refuse_widths(81, 84, 8).c_str(), "d is 81, wanted a multiple of 8");
  EXPECT_STREQ(refuse_widths(64, 84, 8).c_str(), "e is 84, wanted a multiple of 8");
  EXPECT_STREQ(refuse_widths(64, 320, 8, 256).c_str(),
               "e is 320, wanted a multiple of 8 up to 256");
}

TEST(Reasons, FitTheirText) {
  const std::string rows = reason_rows("k_student").c_str();
  EXPECT_EQ(rows.substr(rows.size() - 9), " 16 bytes");
}

}  // namespace
}  // namespace fovea
