// SPDX-License-Identifier: Apache-2.0
// Decoding on a paged cache with fovea.hpp; examples/c/decode.c is the whole engine.
//   c++ -std=c++17 decode.cpp $(pkg-config --cflags --libs fovea) -o decode && ./decode
//
// On a GPU it is `./decode cuda`.  Three sequences join the batch one after another.  A step
// appends a token to each and attends.  The params are filled once, because what changes lies in
// memory of the device.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fovea/fovea.hpp>
#include <vector>

constexpr int batch = 3, heads = 4, key_heads = 2, width = 32, page = 16, pages = 4, steps = 50;
enum Kind { query, key, value };

// What a model would give: column c of a token's q, k or v.
static float element(Kind kind, int sequence, int token, int c) {
  return static_cast<float>((kind * 17 + sequence * 29 + token * 31 + c * c * 7) % 97) / 24 - 2;
}

// The distance of a row from softmax(q k^T / sqrt(d)) v over tokens 0 .. last, in float64.
static double difference(int sequence, int last, const float* o) {
  double worst = 0;
  for (int c = 0; c < heads * width; c++) {
    const int head = c / width, from = head / (heads / key_heads) * width;
    double sum = 0, mean = 0;
    for (int token = 0; token <= last; token++) {
      double score = 0;
      for (int i = 0; i < width; i++)
        score += static_cast<double>(element(query, sequence, last, head * width + i)) *
                 static_cast<double>(element(key, sequence, token, from + i));
      const double weight = std::exp(score / std::sqrt(width));
      sum += weight;
      mean += weight * static_cast<double>(element(value, sequence, token, from + c % width));
    }
    worst = std::fmax(worst, std::fabs(mean / sum - static_cast<double>(o[c])));
  }
  return worst;
}

static double decode(fovea::Context ctx) {
  // Memory of the context's device.  Sequence i has every third page of the pool: any order will
  // do.
  const std::size_t q_size = batch * heads * width, k_size = batch * key_heads * width;
  std::vector<float> q(q_size), k(k_size), v(k_size), o(q_size);
  std::vector<std::int32_t> table(batch * pages), rows(batch), lengths(batch);
  for (int i = 0; i < batch * pages; i++)
    table[static_cast<std::size_t>(i)] = i % pages * batch + i / pages;
  fovea::Buffer<float> new_q(ctx, q_size), new_k(ctx, k_size), new_v(ctx, k_size), out(ctx, o);
  fovea::Buffer<float> pool_k(ctx, k_size * pages * page), pool_v(ctx, k_size * pages * page);
  fovea::Buffer<std::int32_t> page_table(ctx, table), query_len(ctx, rows), key_len(ctx, lengths);

  auto append = fovea::params<fovea_cache_append_params>();
  append.k_new = fovea::tensor(new_k, {batch, 1, key_heads, width});
  append.v_new = fovea::tensor(new_v, {batch, 1, key_heads, width});
  append.k = fovea::tensor(pool_k, {batch * pages, page, key_heads, width});
  append.v = fovea::tensor(pool_v, {batch * pages, page, key_heads, width});
  append.page_table = fovea::tensor(page_table, {batch, pages});
  append.query_len = fovea::tensor(query_len, {batch});
  append.key_len = append.key_len_out = fovea::tensor(key_len, {batch});
  auto attend = fovea::params<fovea_attention_forward_params>();
  attend.q = fovea::tensor(new_q, {batch, 1, heads, width});
  attend.k = append.k;
  attend.v = append.v;
  attend.o = fovea::tensor(out, {batch, 1, heads, width});
  attend.page_table = append.page_table;
  attend.query_len = append.query_len;
  attend.key_len = append.key_len;  // with the token that was just appended

  double worst = 0;
  for (int step = 0; step < steps; step++) {
    for (int i = 0; i < batch; i++) {
      const int token = step - 7 * i;  // sequence i joins at step 7 * i
      const auto at = static_cast<std::size_t>(i);
      rows[at] = token >= 0;
      for (int c = 0; c < heads * width; c++)
        q[at * heads * width + static_cast<std::size_t>(c)] = element(query, i, token, c);
      for (int c = 0; c < key_heads * width; c++) {
        k[at * key_heads * width + static_cast<std::size_t>(c)] = element(key, i, token, c);
        v[at * key_heads * width + static_cast<std::size_t>(c)] = element(value, i, token, c);
      }
    }
    new_q.copy_from(q);
    new_k.copy_from(k);
    new_v.copy_from(v);
    query_len.copy_from(rows);
    fovea::run(ctx, append);
    fovea::run(ctx, attend);
    out.copy_to(o);
    for (int i = 0; i < batch; i++)
      if (step >= 7 * i)
        worst = std::fmax(worst, difference(i, step - 7 * i, o.data() + i * heads * width));
  }
  std::printf("%d steps by %s, largest difference %.1e\n", steps, ctx.last_kernel(), worst);
  return worst;
}

int main(int argc, char** argv) try {
  const bool cuda = argc > 1 && std::strcmp(argv[1], "cuda") == 0;
  return !(decode(cuda ? fovea::Context::cuda() : fovea::Context::host()) < 1e-5);
} catch (const fovea::Error& error) {
  std::fprintf(stderr, "%s: %s\n", fovea_status_name(error.status()), error.what());
  return 1;
}
