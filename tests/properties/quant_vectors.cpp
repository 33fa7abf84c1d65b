// SPDX-License-Identifier: Apache-2.0
// Codes and scales computed by hand, from formats' definitions and papers.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "generated/headers.h"

namespace {

struct Made {
  std::vector<uint8_t> code, scale;
  std::vector<float> back;
  float scale_f32() const {
    float x;
    std::memcpy(&x, scale.data(), sizeof x);
    return x;
  }
};

fovea_tensor view(void* data, int dtype, std::vector<int64_t> shape) {
  return fovea_contiguous(data, static_cast<fovea_dtype>(dtype), static_cast<int32_t>(shape.size()),
                          shape.data());
}

// One token of x, and what its codes stand for.
Made made(std::vector<float> x, int dtype, int format, int group, int hadamard = 0,
          int64_t seed = 0) {
  const auto d = static_cast<int64_t>(x.size()), columns = format ? d / 2 : d;
  const int64_t micro = group < FOVEA_SCALE_GROUP_MICRO16 ? d : group % 2 ? 16 : 32;
  const int64_t scales = (d + micro - 1) / micro;
  const int scale_dtype = group < FOVEA_SCALE_GROUP_MICRO16 ? FOVEA_F32
                          : group % 2                       ? FOVEA_E4M3
                                                            : FOVEA_U8;
  Made out{std::vector<uint8_t>(columns), std::vector<uint8_t>(scales * 4), std::vector<float>(d)};
  fovea_quant_quantize_params p = {};
  p.struct_size = sizeof p;
  p.x = view(x.data(), FOVEA_F32, {1, 1, 1, d});
  p.code = view(out.code.data(), dtype, {1, 1, 1, columns});
  p.scale = view(out.scale.data(), scale_dtype, {1, 1, scales});
  p.group = group, p.code_format = format, p.hadamard = hadamard, p.seed = seed;
  fovea_quant_dequantize_params back = {};
  back.struct_size = sizeof back;
  back.y = view(out.back.data(), FOVEA_F32, {1, 1, 1, d});
  back.code = p.code, back.scale = p.scale;
  back.group = group, back.code_format = format, back.hadamard = hadamard, back.seed = seed;
  fovea_context* ctx = nullptr;
  EXPECT_EQ(fovea_context_create(FOVEA_HOST, 0, &ctx), FOVEA_OK) << fovea_last_error();
  EXPECT_EQ(fovea_quant_quantize(ctx, &p), FOVEA_OK) << fovea_last_error();
  EXPECT_EQ(fovea_quant_dequantize(ctx, &back), FOVEA_OK) << fovea_last_error();
  fovea_context_destroy(ctx);
  return out;
}

using Bytes = std::vector<uint8_t>;

TEST(quant_vectors, i8) {
  const Made x =
      made({.5f, -1.25f, 2.54f, .01f, -.02f, 1.27f}, FOVEA_I8, 0, FOVEA_SCALE_GROUP_TOKEN);
  EXPECT_EQ(x.code, (Bytes{25, 256 - 62, 127, 0, 255, 64}));
  EXPECT_EQ(x.scale_f32(), 2.54f / 127);
}

TEST(quant_vectors, i4) {
  const Made x =
      made({1, -1, 7, -7, 0, 3}, FOVEA_U8, FOVEA_CODE_FORMAT_I4, FOVEA_SCALE_GROUP_TOKEN);
  EXPECT_EQ(x.code, (Bytes{0xf1, 0x97, 0x30}));
  EXPECT_EQ(x.scale_f32(), 1);
}

TEST(quant_vectors, micro16) {
  const Made x = made({.1f, -.7f, 1.3f, 2.9f, -3.3f, 0, .45f, 5.2f, -.9f, 1.1f, .3f, -2.2f, 4.1f,
                       .05f, -1.6f, 3.7f},
                      FOVEA_U8, FOVEA_CODE_FORMAT_E2M1, FOVEA_SCALE_GROUP_MICRO16);
  EXPECT_EQ(x.scale[0], 0x36);  // 0.875
  EXPECT_EQ(x.code, (Bytes{0xa0, 0x53, 0x0e, 0x71, 0x3a, 0xd1, 0x06, 0x6c}));
  EXPECT_EQ(x.back, (std::vector<float>{0, -.875f, 1.3125f, 2.625f, -3.5f, 0, .4375f, 5.25f, -.875f,
                                        1.3125f, .4375f, -2.625f, 3.5f, 0, -1.75f, 3.5f}));
}

// Every tie of e2m1 goes to the even code; 6 is the scale's own.
TEST(quant_vectors, micro32) {
  const Made x = made({6, .25f, .75f, 1.25f, 1.75f, 2.5f, 3.5f, 5, -.5f, -6, 2.6f, .3f}, FOVEA_U8,
                      FOVEA_CODE_FORMAT_E2M1, FOVEA_SCALE_GROUP_MICRO32);
  EXPECT_EQ(x.scale[0], 127);  // 2^(floor(log2 6) - 2)
  EXPECT_EQ(x.code, (Bytes{0x07, 0x22, 0x44, 0x66, 0xf9, 0x15}));
}

TEST(quant_vectors, micro_scales_at_the_edges) {
  std::vector<float> x(32);
  x[3] = -0.0f;
  Made of = made(x, FOVEA_U8, FOVEA_CODE_FORMAT_E2M1, FOVEA_SCALE_GROUP_MICRO32);
  EXPECT_EQ(of.scale[0], 0);
  EXPECT_EQ(of.code, Bytes(16));
  x[3] = 3e38f;
  of = made(x, FOVEA_U8, FOVEA_CODE_FORMAT_E2M1, FOVEA_SCALE_GROUP_MICRO32);
  EXPECT_EQ(of.scale[0], 252);
  x[3] = HUGE_VALF;
  of = made(x, FOVEA_U8, FOVEA_CODE_FORMAT_E2M1, FOVEA_SCALE_GROUP_MICRO32);
  EXPECT_EQ(of.scale[0], 255);
  EXPECT_EQ(of.code, Bytes(16));
  of = made(x, FOVEA_U8, FOVEA_CODE_FORMAT_E2M1, FOVEA_SCALE_GROUP_MICRO16);
  EXPECT_EQ(of.scale[0], 0x7f);
  EXPECT_EQ(of.scale[1], 0);
}

// A rotated unit vector has the signs of its row of the Hadamard matrix, times its own.
TEST(quant_vectors, signs) {
  const char* signs[] = {"-++-+++-+-+-----+-+----+--++---+", "---++---+-+-+-++----++++++--+---"};
  for (int64_t seed = 0; seed < 2; ++seed)
    for (int c = 0; c < 32; ++c) {
      std::vector<float> x(32);
      x[c] = 1;
      const Made of = made(x, FOVEA_I8, 0, FOVEA_SCALE_GROUP_TOKEN, 1, seed);
      EXPECT_EQ(of.code[0], signs[seed][c] == '-' ? 256 - 127 : 127) << c;
      EXPECT_NEAR(of.back[c], 1, 1e-6);
    }
}

}  // namespace
