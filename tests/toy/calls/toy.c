/* SPDX-License-Identifier: Apache-2.0 */
/* A filter of two taps over four rows of two columns, with bias and activation. */
#include <fovea/fovea.h>
#include <stdio.h>

int main(void) {
  float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, weight[2] = {0.5f, 1}, bias[1] = {-4}, y[8];
  const int64_t rows[4] = {1, 4, 1, 2}, taps[2] = {1, 2}, heads[1] = {1};
  fovea_toy_forward_params p = {0};
  fovea_context* ctx = NULL;
  fovea_status status = fovea_context_create(FOVEA_HOST, 0, &ctx);
  int i;
  p.struct_size = sizeof p;
  p.x = fovea_contiguous(x, FOVEA_F32, 4, rows);
  p.weight = fovea_contiguous(weight, FOVEA_F32, 2, taps);
  p.bias = fovea_contiguous(bias, FOVEA_F32, 1, heads);
  p.y = fovea_contiguous(y, FOVEA_F32, 4, rows);
  p.activation = FOVEA_TOY_ACTIVATION_RELU;
  if (status == FOVEA_OK) status = fovea_toy_forward(ctx, &p);
  if (status == FOVEA_OK) status = fovea_context_synchronize(ctx);
  if (status != FOVEA_OK) {
    puts(fovea_last_error());
    return 1;
  }
  for (i = 0; i < 8; ++i) printf("%.1f%c", y[i], i < 7 ? ' ' : '\n');
  fovea_context_destroy(ctx);
  return 0;
}
