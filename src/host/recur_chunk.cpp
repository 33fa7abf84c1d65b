// SPDX-License-Identifier: Apache-2.0
#include "host/recur_chunk_item.h"

namespace fovea::host {
namespace {

class ChunkForward : public ChunkItem {
 public:
  using ChunkItem::ChunkItem;

  void run() const {
    load_state(state);
    if (a_.full) {
      to_tile(), all(), to_item();
    } else {
      const int64_t end = q.count / kChunk * kChunk;
      if (end) to_tile();
      for (int64_t t = 0; t < end; t += kChunk)
        if (!chunk(t)) to_item(), walk(t, t + kChunk), to_tile();
      if (end) to_item();
      walk(end, q.count);
    }
    store_last();
  }

 private:
  // ---- a chunk

  // false: it goes token by token, and nothing has been written.
  bool chunk(int64_t t) const {
    [[maybe_unused]] const NoSubnormals scope;
    if (!prepare(t)) return false;
    const bool written = a_.o && t + kChunk > q.from;
    if (written)
      for (int64_t j = head * a_.outputs(); j < (head + 1) * a_.outputs(); ++j) output(t, j);
    update(written);
    if (a_.snapshot && (t + kChunk) % a_.run.every == 0) to_item(), keep(t + kChunk);
    return true;
  }

  void output(int64_t t, int64_t j) const {
    load_features(a_.q, q.begin + t, a_.query_head(j), a_.map_q, kChunk, query_);
    make_scores(query_, a_.read_before, scores_);
    read(query_, y_);
    constexpr int64_t half = kChunk / 2;
    for (const int64_t at : {int64_t{0}, half})
      simd_.gemm({half, pitch_, at + half, scores_ + at * kChunk, kChunk, update_rows(), pitch_,
                  y_ + at * pitch_, pitch_, row_decays() ? row_decays() + at : nullptr, false,
                  true});
    for (int64_t i = std::max<int64_t>(q.from - t, 0); i < kChunk; ++i)
      finish(q.begin + t + i, j, i);
  }
  // Row i of y becomes o.
  void finish(int64_t at, int64_t output, int64_t i) const {
    float *y = y_ + i * pitch_, *value = value_ + i * pitch_;
    const bool plain = !a_.den && a_.added == 0 && !a_.bonus && !a_.skip;
    if (!plain) {
      const float over = den(at, output);
      for (int64_t j = 0; j < columns; ++j) y[j] = (a_.scale * y[j] + a_.added) / over;
    }
    if (a_.bonus) {
      for (int64_t c = 0; c < a_.d; ++c) p[c] = *a_.bonus.at(head, c) * key_[i * depth_ + c];
      const float own = a_.scale * simd_.dot(a_.d, query_ + i * depth_, p);
      for (int64_t j = 0; j < columns; ++j) y[j] += a_.bonus_of(own * value[j]);
    }
    for (int64_t j = 0; a_.skip && !a_.full && j < columns; ++j)
      y[j] += *a_.skip.at(head, first + j) * value[j];
    store_row(a_.o.view.data, a_.o.dtype, a_.o.offset(q.batch, at, output, first),
              a_.o.view.stride[3], columns, y, plain ? a_.scale : 1);
  }

  // full: the sum over all keys, then every row.
  void all() const {
    const Recur::Keys keys = a_.keys(q);
    for (int64_t t = 0; t < keys.count; t += kChunk) {
      const int64_t rows = std::min(kChunk, keys.count - t);
      load_keys(keys.begin + t, rows), load_values(keys.begin + t, rows);
      simd_.gemm(
          {a_.d, pitch_, rows, key_, depth_, value_, pitch_, h_, pitch_, nullptr, true, true});
    }
    for (int64_t t = q.from; a_.o && t < q.count; t += kChunk) {
      const int64_t rows = std::min(kChunk, q.count - t);
      for (int64_t j = head * a_.outputs(); j < (head + 1) * a_.outputs(); ++j) {
        load_features(a_.q, q.begin + t, a_.query_head(j), a_.map_q, rows, query_);
        simd_.gemm(
            {rows, pitch_, a_.d, query_, depth_, h_, pitch_, y_, pitch_, nullptr, false, false});
        for (int64_t i = 0; i < rows; ++i) finish(q.begin + t + i, j, i);
      }
    }
  }
};

}  // namespace

bool goes_in_chunks(const Recur& a) {
  if (a.full) return true;
  return a.run.token_max >= kChunk && !a.gate_value && a.form != Recurrence::low_rank &&
         !(a.snapshot && a.run.every % kChunk != 0);
}

ChunkRoom::ChunkRoom(const Recur& a, Layout& to) {
  const int64_t depth = padded(a.d), least = a.normalise ? 1 : 0;
  const int64_t pitch = padded(std::max(std::min(kChunkSlice, a.e), least));
  const bool gates = static_cast<bool>(a.gate_key), corrected = a.form == Recurrence::corrected;
  for (Slot<float>* x : {&query, &key}) *x = to.add<float>(kChunk, depth);
  if (corrected) p = to.add<float>(kChunk, depth), u = to.add<float>(kChunk, pitch);
  if (gates) {
    for (Slot<float>* x : {&gate, &decay, &within}) *x = to.add<float>(kChunk, depth);
    total = to.add<float>(kBlocks + 1, depth);
    keys_late = to.add<float>(a.d, kChunk);
  }
  keys_now = to.add<float>(a.d, kChunk);
  kept = to.add<float>(depth);
  for (Slot<float>* x : {&value, &y}) *x = to.add<float>(kChunk, pitch);
  for (Slot<float>* x : {&between, &scores}) *x = to.add<float>(kChunk, kChunk);
  if (corrected) {
    correction = to.add<float>(kChunk, kChunk);
    inverse = to.add<float>(kBlock, kBlock);
  }
  vectors = to.add<float>(kVectors, kChunk);
  h = to.add<float>(a.d, pitch);
}

void run_chunks(const Recur& a, const Room& room, const ChunkRoom& chunk, void* base,
                int64_t item) {
  ChunkForward(a, room, chunk, base, item).run();
}

}  // namespace fovea::host
