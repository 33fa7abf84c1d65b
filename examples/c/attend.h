/* SPDX-License-Identifier: Apache-2.0 */
/* The problem the attend examples of every language solve, so that their output can be compared
 * letter for letter: causal attention of 4 queries over 6 keys, 4 query heads on 2 key heads. */
#ifndef ATTEND_H
#define ATTEND_H

#include <stdint.h>
#include <stdio.h>

enum { BATCH = 1, QUERIES = 4, KEYS = 6, HEADS = 4, KEY_HEADS = 2, WIDTH = 8 };

static const int64_t q_shape[] = {BATCH, QUERIES, HEADS, WIDTH};
static const int64_t kv_shape[] = {BATCH, KEYS, KEY_HEADS, WIDTH};
static const int64_t lse_shape[] = {BATCH, HEADS, QUERIES};

static void fill(float* x, int64_t count, int64_t salt) {
  int64_t i;
  for (i = 0; i < count; i++) x[i] = (float)((double)((i * 37 + 11 * salt) % 101) / 50.0 - 1.0);
}

static void print_rows(const float* o, const float* lse) {
  int row, head, column;
  for (row = 0; row < QUERIES; row++) {
    for (head = 0; head < HEADS; head++) {
      printf("row %d head %d:", row, head);
      for (column = 0; column < WIDTH; column++)
        printf(" % .6f", o[(row * HEADS + head) * WIDTH + column]);
      printf(" lse % .6f\n", lse[head * QUERIES + row]);
    }
  }
}

#endif
