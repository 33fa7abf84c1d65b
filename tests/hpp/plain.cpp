// SPDX-License-Identifier: Apache-2.0
// fovea.hpp with -fno-exceptions -fno-rtti, as the second unit of the program.
#include <fovea/fovea.hpp>

#include "check.h"

#if defined(__cpp_exceptions) || defined(__cpp_rtti)
#error "plain.cpp is compiled with -fno-exceptions -fno-rtti"
#endif

void check_plain() {
  auto ctx = fovea::Context::try_create(FOVEA_HOST);
  EXPECT(ctx && ctx.status() == FOVEA_OK && !*ctx.error());
  auto none = fovea::Context::try_create(FOVEA_HOST, 7);
  EXPECT(!none && none.status() == FOVEA_INVALID_ARGUMENT && !*none);
  EXPECT_TEXT(none.error(), "device");

  float x[2][3][4], o[24];
  for (auto& rows : x)
    for (auto& row : rows)
      for (float& value : row) value = 1;
  auto view = fovea::try_tensor(o, {1, 6, 1, 4});
  EXPECT(view && view->data == o && view->ndim == 4);
  const auto& constant = x[0][0];
  auto read = fovea::try_input(constant, {2, 2});
  EXPECT(read && read->data == &x[0][0][0] && read->stride[0] == 2);
  auto wrong = fovea::try_tensor(o, {1, 5, 1, 4});
  EXPECT(!wrong && wrong.status() == FOVEA_INVALID_ARGUMENT && !wrong->data);
  EXPECT_TEXT(wrong.error(), "tensor: the number of elements is 24, wanted as shape says 20");

  auto p = fovea::params<fovea_attention_forward_params>();
  EXPECT(fovea::try_run(*ctx, p) == FOVEA_INVALID_ARGUMENT);
  EXPECT_TEXT(fovea_last_error(), "attention_forward: q");
  p.q = p.k = p.v = fovea::tensor(&x[0][0][0], {1, 6, 1, 4});
  p.o = *view;
  std::size_t bytes = 1;
  EXPECT(fovea::try_workspace_bytes(*ctx, p, bytes) == FOVEA_OK);
  EXPECT(fovea::try_run(*ctx, p) == FOVEA_OK);
  EXPECT(o[0] > 0.999F && o[23] < 1.001F);

  auto buffer = fovea::Buffer<float>::try_alloc(*ctx, 24);
  EXPECT(buffer && buffer->size() == 24);
  EXPECT(fovea_copy(*ctx, buffer->data(), o, buffer->bytes()) == FOVEA_OK);
  EXPECT(std::memcmp(buffer->data(), o, sizeof o) == 0);
  auto huge = fovea::Buffer<float>::try_alloc(*ctx, static_cast<std::size_t>(-1));
  EXPECT(huge.status() == FOVEA_OUT_OF_MEMORY && huge->size() == 0);
  EXPECT(*huge.error());
}
