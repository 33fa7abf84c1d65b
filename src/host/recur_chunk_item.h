// SPDX-License-Identifier: Apache-2.0
// Tiles and products of a chunk of 64 tokens, which forward and backward share.
//
// One chunk of 64 tokens, H the state before it.  P_t is the sum of the gates up to token t, D_ts
// of those behind s up to t, S_s of those behind s; read_before leaves out the gate of t itself.
//
//   A_ts = sum_c q^_tc k^_sc e^(D_ts,c)  for s <= t; read_before: s < t
//   y = scale ((q^ e^P) H + A V)
//   corrected: M_ts = sum_c p_tc k^_sc e^(D_ts,c) for s < t, and in the place of V stands
//              U = (I + M)^-1 (beta V - (p e^P) H)
//   H <- e^(P_63) H + (k^ e^S)' V
//
// All exponents are sums of the gates that they cover, so none is above 0 and no factor above 1.
// Gates of a head: e^D is a matrix.  Gates of a key: blocks of 16 tokens.  Between blocks D is a
// sum of three, of the rest of the key's block, of the blocks between, and of the row's own block.
// The first two scale the keys, the last scales the rows.  Within a block decays are multiplied up.
//
// A chunk with a gate above 0, or with anything that is no finite number in keys, values or state,
// goes token by token: so a reset clears what is not a number, too.
#pragma once
#include "host/recur_chunk.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace fovea::host {

constexpr int64_t kBlock = 16, kBlocks = kChunk / kBlock;

// Products of decays run into subnormal results, which cost a hundred cycles each: 0 in a chunk.
// Operands stay as they are: f16 is widened by way of subnormal numbers.
class NoSubnormals {
 public:
#if defined(__SSE__)
  NoSubnormals() : before_(_mm_getcsr()) {
    _mm_setcsr(before_ | 0x8000);
  }
  ~NoSubnormals() {
    _mm_setcsr(before_);
  }
  NoSubnormals(const NoSubnormals&) = delete;
  NoSubnormals& operator=(const NoSubnormals&) = delete;

 private:
  unsigned before_;
#endif
};

enum class Gates { none, head, key };

class ChunkItem : public Item {
 public:
  ChunkItem(const Recur& a, const Room& room, const ChunkRoom& chunk, void* base, int64_t item)
      : Item(a, room, base, item, kChunkSlice),
        gates_(a.gate_key    ? Gates::key
               : a.gate_head ? Gates::head
                             : Gates::none),
        corrected_(a.form == Recurrence::corrected),
        depth_(padded(a.d)),
        pitch_(padded(columns)),
        query_(chunk.query.at(base)),
        key_(chunk.key.at(base)),
        p_(chunk.p.at(base)),
        gate_(chunk.gate.at(base)),
        decay_(chunk.decay.at(base)),
        within_(chunk.within.at(base)),
        total_(chunk.total.at(base)),
        keys_late_(chunk.keys_late.at(base)),
        keys_now_(chunk.keys_now.at(base)),
        kept_(chunk.kept.at(base)),
        value_(chunk.value.at(base)),
        y_(chunk.y.at(base)),
        u_(chunk.u.at(base)),
        between_(chunk.between.at(base)),
        scores_(chunk.scores.at(base)),
        correction_(chunk.correction.at(base)),
        inverse_(chunk.inverse.at(base)),
        h_(chunk.h.at(base)) {
    float* vectors = chunk.vectors.at(base);
    for (float** x : {&log_, &so_far_, &left_, &beta_, &row_}) *x = vectors, vectors += kChunk;
  }

 protected:
  // The state moves between the rows of a token's loop and whole vectors.
  void to_tile() const { to_tile(state, h_); }
  void to_item() const { to_item(h_, state); }
  void to_tile(const float* rows, float* tile) const {
    for (int64_t c = 0; c < a_.d; ++c) {
      std::copy_n(rows + c * columns, columns, tile + c * pitch_);
      std::fill(tile + c * pitch_ + columns, tile + (c + 1) * pitch_, 0.f);
    }
  }
  void to_item(const float* tile, float* rows) const {
    for (int64_t c = 0; c < a_.d; ++c) std::copy_n(tile + c * pitch_, columns, rows + c * columns);
  }

  // ---- tiles of rows

  // Rows [at, at + rows) of one head, from column `from` on, in rows of `pitch`.
  void load_rows(const Floats<4>& x, int64_t at, int64_t of, int64_t from, int64_t rows,
                 int64_t width, int64_t pitch, float* to) const {
    for (int64_t t = 0; t < rows; ++t, to += pitch) {
      load_row(simd_, x.view.data, x.dtype, x.offset(q.batch, at + t, of, from), x.view.stride[3],
               width, to);
      std::fill(to + width, to + pitch, 0.f);
    }
  }
  void load_features(const Floats<4>& x, int64_t at, int64_t of, int32_t map, int64_t rows,
                     float* to) const {
    load_rows(x, at, of, 0, rows, a_.d, depth_, to);
    if (a_.l2_norm)
      for (int64_t t = 0; t < rows; ++t) {
        float* row = to + t * depth_;
        simd_.scale(a_.d, row, 1 / std::sqrt(simd_.dot(a_.d, row, row) + a_.eps), row);
      }
    for (int64_t t = 0; map && t < rows; ++t) features(map, to + t * depth_);
  }
  void features(int32_t map, float* x) const {
    float* part = row_;
    for (int64_t begin = 0; begin < a_.d; begin += kChunk, x += kChunk) {
      const int64_t n = std::min(kChunk, a_.d - begin);
      if (map == FOVEA_X_FEATURE_MAP_RELU) {
        for (int64_t c = 0; c < n; ++c) x[c] = std::max(x[c], 0.f);
      } else if (map == FOVEA_X_FEATURE_MAP_ELU_PLUS_ONE) {
        // max(x, 0) + e^min(x, 0), which needs no branch.
        for (int64_t c = 0; c < n; ++c) part[c] = std::min(x[c], 0.f);
        simd_.exponential(n, part);
        for (int64_t c = 0; c < n; ++c) x[c] = std::max(x[c], 0.f) + part[c];
      } else {
        std::copy_n(x, n, part);
        simd_.logistic(n, part);
        for (int64_t c = 0; c < n; ++c) x[c] *= part[c];
      }
    }
  }
  void load_values(int64_t at, int64_t rows) const {
    if (a_.v) return load_rows(a_.v, at, a_.value_head(head), first, rows, columns, pitch_, value_);
    for (int64_t t = 0; t < rows; ++t)
      for (int64_t j = 0; j < pitch_; ++j) value_[t * pitch_ + j] = j < columns ? 1.f : 0.f;
  }
  void load_keys(int64_t at, int64_t rows) const {
    load_features(a_.k, at, a_.key_head(head), a_.map_k, rows, key_);
    for (int64_t t = 0; a_.select && t < rows; ++t) {
      const float factor = a_.select(q.batch, at + t, head);
      for (int64_t c = 0; c < a_.d; ++c) key_[t * depth_ + c] *= factor;
    }
  }
  void load_corrections(int64_t at) const {
    for (int64_t t = 0; t < kChunk; ++t) beta_[t] = a_.beta_at(q.batch, at + t, head).value;
    if (a_.erase) return load_rows(a_.erase, at, head, 0, kChunk, a_.d, depth_, p_);
    for (int64_t t = 0; t < kChunk; ++t)
      for (int64_t c = 0; c < depth_; ++c) p_[t * depth_ + c] = beta_[t] * key_[t * depth_ + c];
  }

  // ---- gates

  // Logs of decays, and whether a chunk may have them.  What stands behind d in a row does not
  // matter.
  bool load_chunk_gates(int64_t at) const {
    for (int64_t t = 0; t < kChunk; ++t)
      log_[t] = a_.gate_head ? a_.head_gate(q.batch, at + t, head).value : 0;
    bool below = true;
    for (int64_t t = 0; t < kChunk; ++t) below &= log_[t] <= 0;
    if (gates_ != Gates::key) return below;
    load_rows(a_.gate_key, at, head, 0, kChunk, a_.d, depth_, gate_);
    for (int64_t t = 0; a_.bias && t < kChunk; ++t)
      for (int64_t c = 0; c < a_.d; ++c) gate_[t * depth_ + c] += *a_.bias.at(head, c);
    map_gates(kChunk * depth_, gate_);
    for (int64_t t = 0; t < kChunk; ++t) {
      float* row = gate_ + t * depth_;
      std::fill(row + a_.d, row + depth_, 0.f);
      for (int64_t c = 0; c < a_.d; ++c) row[c] += log_[t];
    }
    int64_t above = 0;
    for (int64_t i = 0; i < kChunk * depth_; ++i) above += !(gate_[i] <= 0);
    return below && !above;
  }
  // so_far = e^P, left = e^S, between = e^D, kept = e^(P_63).
  void head_decays() const {
    float sum = 0;
    for (int64_t t = 0; t < kChunk; ++t) {
      if (a_.read_before) so_far_[t] = sum;
      sum += log_[t];
      if (!a_.read_before) so_far_[t] = sum;
    }
    std::fill_n(kept_, a_.d, exp_of(sum));
    sum = 0;
    for (int64_t t = kChunk; t-- > 0; sum += log_[t]) left_[t] = sum;
    simd_.exponential(kChunk, so_far_), simd_.exponential(kChunk, left_);
    for (int64_t t = 0; t < kChunk; ++t) {
      float* row = between_ + t * kChunk;
      if (t > 0) {
        const float gate = log_[a_.read_before ? t - 1 : t];
        for (int64_t s = 0; s < t; ++s) row[s] = row[s - kChunk] + gate;
      }
      if (a_.read_before && t > 0) row[t - 1] = 0;
      row[t] = 0;
    }
    for (int64_t t = 0; t < kChunk; ++t) simd_.exponential(t + 1, between_ + t * kChunk);
  }
  // decay = e^gate; of each block within = e^P, total; kept; keys_late = k^ e^S, as columns.
  void key_decays() const {
    std::copy_n(gate_, kChunk * depth_, decay_);
    simd_.exponential(kChunk * depth_, decay_);
    std::fill_n(kept_, depth_, 0.f);
    for (int64_t block = 0; block < kBlocks; ++block) {
      const int64_t begin = block * kBlock * depth_;
      float* sum = total_ + block * depth_;
      std::fill_n(sum, depth_, 0.f);
      for (int64_t t = 0; t < kBlock; ++t) {
        const float* gate = gate_ + begin + t * depth_;
        float* row = within_ + begin + t * depth_;
        if (a_.read_before) std::copy_n(sum, depth_, row);
        for (int64_t c = 0; c < depth_; ++c) sum[c] += gate[c];
        if (!a_.read_before) std::copy_n(sum, depth_, row);
      }
      for (int64_t c = 0; c < depth_; ++c) kept_[c] += sum[c];
      // Gates become the sums behind each of them.
      float* behind = gate_ + begin + (kBlock - 1) * depth_;
      std::copy_n(behind, depth_, sum);
      std::fill_n(behind, depth_, 0.f);
      for (int64_t t = kBlock - 1; t-- > 0;) {
        float* row = gate_ + begin + t * depth_;
        for (int64_t c = 0; c < depth_; ++c) {
          const float gate = row[c];
          row[c] = sum[c], sum[c] += gate;
        }
      }
    }
    simd_.exponential(kChunk * depth_, within_), simd_.exponential(kChunk * depth_, gate_);
    simd_.exponential(kBlocks * depth_, total_), simd_.exponential(depth_, kept_);
    for (int64_t i = 0; i < kChunk * depth_; ++i) gate_[i] *= key_[i];
    columns_of(gate_, keys_late_);
  }
  // Rows of a tile as columns of 64.
  void columns_of(const float* from, float* to) const {
    simd_.transpose(kChunk, a_.d, from, depth_, to, kChunk);
  }

  // ---- products

  // A of rows x, or M.  Gates of a key: keys_now becomes k^ e^S.
  void make_scores(const float* x, bool strict, float* to) const {
    if (gates_ == Gates::key) {
      key_scores(x, to);
    } else {
      constexpr int64_t half = kChunk / 2;
      for (const int64_t at : {int64_t{0}, half})
        simd_.gemm({half, at + half, a_.d, x + at * depth_, depth_, keys_now_, kChunk,
                    to + at * kChunk, kChunk, nullptr, false, false});
      if (gates_ == Gates::head)
        for (int64_t t = 0; t < kChunk; ++t)
          for (int64_t s = 0; s <= t; ++s) to[t * kChunk + s] *= between_[t * kChunk + s];
    }
    for (int64_t t = 0; t < kChunk; ++t)
      std::fill(to + t * kChunk + t + (strict ? 0 : 1), to + (t + 1) * kChunk, 0.f);
  }
  void key_scores(const float* x, float* to) const {
    float* rows = scaled();
    for (int64_t i = 0; i < kChunk * depth_; ++i) rows[i] = x[i] * within_[i];
    for (int64_t at = 0; at < kChunk; at += kBlock) {
      float* block = to + at * kChunk;
      if (at)
        simd_.gemm({kBlock, at, a_.d, rows + at * depth_, depth_, keys_now_, kChunk, block, kChunk,
                    nullptr, false, false});
      const int64_t own = at * depth_;
      simd_.decayed_dots(
          {depth_, x + own, key_ + own, decay_ + own, depth_, block + at, kChunk, a_.read_before});
      for (int64_t c = 0; c < a_.d; ++c) {
        float* now = keys_now_ + c * kChunk;
        const float factor = total_[at / kBlock * depth_ + c];
        for (int64_t s = 0; s < at; ++s) now[s] *= factor;
        std::copy_n(keys_late_ + c * kChunk + at, kBlock, now + at);
      }
    }
  }
  // Rows times e^P of their blocks: the gates' tile, whose numbers are then in keys_late.
  float* scaled() const { return gate_; }

  // to = (x e^P) H; gates of a head: without e^P.  Behind make_scores of the same rows.
  void read(const float* x, float* to) const {
    if (gates_ == Gates::key) {
      float* factor = decay_before();
      for (int64_t block = 1; block < kBlocks; ++block) {
        const float* total = total_ + (block - 1) * depth_;
        for (int64_t c = 0; c < depth_; ++c) factor[c] *= total[c];
        for (int64_t t = block * kBlock; t < (block + 1) * kBlock; ++t)
          for (int64_t c = 0; c < depth_; ++c) scaled()[t * depth_ + c] *= factor[c];
      }
      x = scaled();
    }
    simd_.gemm({kChunk, pitch_, a_.d, x, depth_, h_, pitch_, to, pitch_, nullptr, false, false});
  }
  float* decay_before() const {
    float* factor = total_ + kBlocks * depth_;
    std::fill_n(factor, depth_, 1.f);
    return factor;
  }
  const float* row_decays() const { return gates_ == Gates::head ? so_far_ : nullptr; }

  // u = (I + M)^-1 (beta v - (p e^P) H).
  void correct() const {
    make_scores(p_, true, correction_);
    read(p_, y_);
    for (int64_t t = 0; t < kChunk; ++t) {
      const float factor = row_decays() ? so_far_[t] : 1;
      for (int64_t j = 0; j < pitch_; ++j) {
        const int64_t i = t * pitch_ + j;
        y_[i] = beta_[t] * value_[i] - factor * y_[i];
      }
      for (int64_t s = 0; s < t; ++s) correction_[t * kChunk + s] *= -1;
    }
    for (int64_t at = 0; at < kChunk; at += kBlock) {
      const float* rows = correction_ + at * kChunk;
      float* y = y_ + at * pitch_;
      if (at)
        simd_.gemm({kBlock, pitch_, at, rows, kChunk, u_, pitch_, y, pitch_, nullptr, false, true});
      invert(rows + at);
      simd_.gemm({kBlock, pitch_, kBlock, inverse_, kBlock, y, pitch_, u_ + at * pitch_, pitch_,
                  nullptr, false, false});
    }
  }
  // inverse = (I - m)^-1 for the strict lower triangle m of a block, row by row.
  void invert(const float* m) const {
    std::fill_n(inverse_, kBlock * kBlock, 0.f);
    for (int64_t t = 0; t < kBlock; ++t) {
      float* row = inverse_ + t * kBlock;
      row[t] = 1;
      for (int64_t s = 0; s < t; ++s)
        add_row(kBlock, m[t * kChunk + s], inverse_ + s * kBlock, row);
    }
  }

  // ---- a chunk

  // Its tiles, and U.  false: it goes token by token, and the state is as it was.
  bool prepare(int64_t t) const {
    const int64_t at = q.begin + t;
    load_keys(at, kChunk), load_values(at, kChunk);
    if (corrected_) load_corrections(at);
    if (!load_chunk_gates(at) || !simd_.finite(kChunk, a_.d, key_, depth_) ||
        !simd_.finite(kChunk, columns, value_, pitch_) ||
        !simd_.finite(a_.d, columns, h_, pitch_) ||
        (corrected_ &&
         !(simd_.finite(kChunk, a_.d, p_, depth_) && simd_.finite(1, kChunk, beta_, kChunk))))
      return false;
    if (gates_ == Gates::key)
      key_decays();
    else
      columns_of(key_, keys_now_);
    if (gates_ == Gates::head) head_decays();
    if (corrected_) correct();
    return true;
  }
  float* update_rows() const { return corrected_ ? u_ : value_; }

  // The state behind the chunk.  Gates of a key: keys_now is k^ e^S once scores were made.
  void update(bool scored) const {
    if (gates_ == Gates::key && !scored && !corrected_) late_keys();
    float* rows = update_rows();
    if (gates_ == Gates::head)
      for (int64_t s = 0; s < kChunk; ++s)
        for (int64_t j = 0; j < pitch_; ++j) rows[s * pitch_ + j] *= left_[s];
    simd_.gemm({a_.d, pitch_, kChunk, keys_now_, kChunk, rows, pitch_, h_, pitch_,
                gates_ == Gates::none ? nullptr : kept_, false, true});
  }
  // keys_now without scores, by the same products.
  void late_keys() const {
    for (int64_t at = 0; at < kChunk; at += kBlock)
      for (int64_t c = 0; c < a_.d; ++c) {
        float* now = keys_now_ + c * kChunk;
        const float factor = total_[at / kBlock * depth_ + c];
        for (int64_t s = 0; s < at; ++s) now[s] *= factor;
        std::copy_n(keys_late_ + c * kChunk + at, kBlock, now + at);
      }
  }

  const Gates gates_;
  const bool corrected_;
  const int64_t depth_, pitch_;
  float *query_, *key_, *p_, *gate_, *decay_, *within_, *total_, *keys_late_, *keys_now_, *kept_;
  float *value_, *y_, *u_, *between_, *scores_, *correction_, *inverse_, *h_;
  // Of each token: the log of the head's decay, e^P, e^S, beta; and room of 64 numbers.
  float *log_, *so_far_, *left_, *beta_, *row_;
};

}  // namespace fovea::host
