// SPDX-License-Identifier: Apache-2.0
// One chunk of 64 tokens backwards, in the letters of host/recur_chunk_item.h: H is the state
// before it, W the gradient of the state behind it, dO = scale dout / den, U the corrected rows or
// V.
//
//   dU = A' dO + (k^ e^S) W,   X = tril(dO U')
//   dq^ = e^P (dO H') + sum_s X_ts e^(D_ts) k^_s
//   dk^ = e^S (U W') + sum_t X_ts e^(D_ts) q^_t
//   corrected: dY = (I + M)^-T dU, dv = beta dY, dbeta = <dY, v>, and p is to M what q^ is to A,
//              with dO = -dY: so its terms are those of an output more
//   W <- e^(P_63) W + (q^ e^P)' dO
//
// The gradient of the log of a decay sums over what lies on both of its sides:
//   dg_r = <e^(P_63) H, W> + sum_(t >= r) q^_t e^P (dO H')_t + sum_(s < r) k^_s e^S (U W')_s
//          + sum_(s < r <= t) A_ts X_ts
// Gates of a head sum the last term as it stands, and so do pairs within 16 tokens with gates of a
// key.  Its other pairs are sum_(t >= r) q^ dq^ - sum_(s >= r) k^ dk^, of what they give to both.
//
// States before chunks are kept on the way forwards, one of `every`; those between are made again.
#include "host/recur_chunk_backward.h"

#include "host/recur_chunk_item.h"
#include "host/recur_item_backward.h"

namespace fovea::host {
namespace {

class ChunkBackward : public ChunkItem {
 public:
  ChunkBackward(const RecurBackward& b, const Room& room, const ChunkRoom& chunk,
                const ChunkBackwardRoom& own, void* base, int64_t item, int64_t plane)
      : ChunkItem(b.forward, room, chunk, base, item),
        b_(b),
        tokens_(b, room, base, item, kChunkStep, plane, kChunkSlice),
        every_(own.every),
        plane_(plane + slice),
        states_(own.kept.at(base)),
        inner_(own.inner.at(base)),
        w_(own.w.at(base)),
        turned_(own.turned.at(base)),
        dout_(own.dout.at(base)),
        du_(own.du.at(base)),
        turned_u_(own.turned_u.at(base)),
        dx_(own.dx.at(base)),
        dkey_(own.dkey.at(base)),
        part_(own.part.at(base)),
        scaled_(own.scaled.at(base)),
        late_(own.late.at(base)),
        rest_(own.rest.at(base)),
        now_(own.now.at(base)),
        gates_of_(own.gates.at(base)),
        sums_(own.sums.at(base)),
        before_(own.outer.at(base)),
        after_(before_ + kBlocks * depth_),
        dscores_(own.dscores.at(base)),
        ends_(own.vectors.at(base)),
        starts_(ends_ + kChunk),
        pairs_(starts_ + kChunk) {}

  void run() const {
    load_state(state), tokens_.load_gradient();
    const int64_t chunks = q.count / kChunk, end = chunks * kChunk, size = a_.d * pitch_;
    to_tile();
    for (int64_t i = 0; i < chunks; ++i) {
      if (i % every_ == 0) std::copy_n(h_, size, states_ + i / every_ * size);
      if (i + 1 < chunks || end < q.count) advance(i * kChunk);
    }
    if (end < q.count) to_item(), tokens_.walk(end, q.count);
    to_tile(tokens_.gradient(), w_);
    std::fill_n(turned_, pitch_ * depth_, 0.f);
    for (int64_t first_chunk = (chunks - 1) / every_ * every_; first_chunk >= 0;
         first_chunk -= every_) {
      const int64_t last = std::min(chunks, first_chunk + every_);
      std::copy_n(states_ + first_chunk / every_ * size, size, h_);
      for (int64_t i = first_chunk; every_ > 1 && i < last; ++i) {
        std::copy_n(h_, size, inner_ + (i - first_chunk) * size);
        if (i + 1 < last) advance(i * kChunk);
      }
      for (int64_t i = last; i-- > first_chunk;) {
        if (every_ > 1) std::copy_n(inner_ + (i - first_chunk) * size, size, h_);
        if (!chunk(i * kChunk)) token_by_token(i * kChunk);
      }
    }
    to_item(w_, tokens_.gradient()), tokens_.store_gradient();
  }

 private:
  // h_ moves on over a chunk.
  void advance(int64_t t) const {
    [[maybe_unused]] const NoSubnormals scope;
    if (prepare(t)) return update(false);
    to_item();
    for (int64_t i = t; i < t + kChunk; ++i) load_token(q.begin + i), Item::update(state);
    to_tile();
  }
  void token_by_token(int64_t t) const {
    to_item(), to_item(w_, tokens_.gradient());
    tokens_.walk(t, t + kChunk);
    to_tile(tokens_.gradient(), w_);
  }

  // false: nothing has been written but terms, which going token by token writes all.
  bool chunk(int64_t t) const {
    [[maybe_unused]] const NoSubnormals scope;
    if (!prepare(t) || !simd_.finite(a_.d, columns, w_, pitch_)) return false;
    const int64_t begin = head * a_.outputs(), outputs = a_.outputs();
    for (int64_t j = begin; j < begin + outputs; ++j) {
      load_output(t, j);
      if (!simd_.finite(kChunk, a_.d, query_, depth_) ||
          !simd_.finite(kChunk, columns, dout_, pitch_))
        return false;
    }
    state_parts();
    simd_.transpose(kChunk, columns, update_rows(), pitch_, turned_u_, kChunk);
    for (int64_t j = begin; j < begin + outputs; ++j) {
      if (outputs > 1) load_output(t, j);
      output(t, j);
    }
    if (corrected_)
      correction(t);
    else
      store_values(t, du_);
    store_keys(t);
    return true;
  }

  void load_output(int64_t t, int64_t j) const {
    load_features(a_.q, q.begin + t, a_.query_head(j), a_.map_q, kChunk, query_);
    const int64_t none = std::clamp<int64_t>(q.from - t, 0, kChunk);
    std::fill_n(dout_, none * pitch_, 0.f);
    load_rows(a_.o, q.begin + t + none, j, first, kChunk - none, columns, pitch_,
              dout_ + none * pitch_);
  }

  // ---- terms of W and H

  // Sums over a tile's row, or over two.
  float row_dot(const float* x, const float* y, int64_t t) const {
    return simd_.dot(a_.d, x + t * depth_, y + t * depth_);
  }
  // What W gives dk^ and dU, what H and W give the gates; then turned is H', and W has decayed.
  void state_parts() const {
    if (gates_ == Gates::key) block_decays();
    simd_.transpose(a_.d, columns, w_, pitch_, turned_, depth_);
    simd_.gemm({kChunk, depth_, columns, update_rows(), pitch_, turned_, depth_, dkey_, depth_,
                nullptr, false, false});
    if (gates_ == Gates::key && !corrected_) late_keys();
    simd_.gemm(
        {kChunk, pitch_, a_.d, keys_now_, kChunk, w_, pitch_, du_, pitch_, nullptr, true, false});
    simd_.transpose(a_.d, columns, h_, pitch_, turned_, depth_);
    if (gates_ == Gates::head) {
      float sum = 0;
      for (int64_t c = 0; c < a_.d; ++c)
        sum += simd_.dot(columns, h_ + c * pitch_, w_ + c * pitch_);
      sum *= kept_[0];
      for (int64_t t = 0; t < kChunk; ++t) {
        simd_.scale(depth_, dkey_ + t * depth_, left_[t], dkey_ + t * depth_);
        simd_.scale(pitch_, du_ + t * pitch_, left_[t], du_ + t * pitch_);
        starts_[t] = sum, sum += row_dot(key_, dkey_, t);
        ends_[t] = pairs_[t] = 0;
      }
    } else if (gates_ == Gates::key) {
      float* sum = gates_of_ + kChunk * depth_;
      for (int64_t c = 0; c < a_.d; ++c)
        sum[c] = kept_[c] * simd_.dot(columns, h_ + c * pitch_, w_ + c * pitch_);
      std::fill(sum + a_.d, sum + depth_, 0.f);
      for (int64_t t = 0; t < kChunk; ++t) {
        const float *rest = rest_ + t * depth_, *key = key_ + t * depth_;
        const float* after = after_ + t / kBlock * depth_;
        float *dkey = dkey_ + t * depth_, *gate = gates_of_ + t * depth_;
        for (int64_t c = 0; c < depth_; ++c) {
          dkey[c] *= rest[c] * after[c];
          gate[c] = sum[c], sum[c] += key[c] * dkey[c];
        }
      }
      std::fill_n(sums_, kChunk * depth_, 0.f), std::fill_n(part_, kChunk * depth_, 0.f);
    }
    for (int64_t c = 0; gates_ != Gates::none && c < a_.d; ++c)
      simd_.scale(pitch_, w_ + c * pitch_, kept_[c], w_ + c * pitch_);
  }
  // rest: the decays behind a token in its block; late = k^ rest; before and after: those of the
  // blocks before and behind one.
  void block_decays() const {
    for (int64_t block = kBlocks; block-- > 0;) {
      float* after = after_ + block * depth_;
      const bool last = block + 1 == kBlocks;
      for (int64_t c = 0; c < depth_; ++c)
        after[c] = last ? 1 : after[depth_ + c] * total_[(block + 1) * depth_ + c];
      for (int64_t t = (block + 1) * kBlock; t-- > block * kBlock;) {
        float *rest = rest_ + t * depth_, *late = late_ + t * depth_;
        const float *decay = decay_ + (t + 1) * depth_, *key = key_ + t * depth_;
        const bool end = t % kBlock == kBlock - 1;
        for (int64_t c = 0; c < depth_; ++c) {
          rest[c] = end ? 1 : rest[depth_ + c] * decay[c];
          late[c] = key[c] * rest[c];
        }
      }
    }
    for (int64_t block = 0; block < kBlocks; ++block)
      for (int64_t c = 0; c < depth_; ++c)
        before_[block * depth_ + c] =
            block ? before_[(block - 1) * depth_ + c] * total_[(block - 1) * depth_ + c] : 1;
  }

  // ---- an output, or the correction

  void output(int64_t t, int64_t j) const {
    if (a_.bonus) bonus_terms(t, j);
    // Rows before `from` have no den.
    for (int64_t i = std::clamp<int64_t>(q.from - t, 0, kChunk); i < kChunk; ++i)
      simd_.scale(pitch_, dout_ + i * pitch_, a_.scale / den(q.begin + t + i, j),
                  dout_ + i * pitch_);
    make_scores(query_, a_.read_before, scores_);
    constexpr int64_t half = kChunk / 2;
    for (const int64_t at : {int64_t{0}, half})
      simd_.gemm({half, pitch_, kChunk - at, scores_ + at * kChunk + at, kChunk,
                  dout_ + at * pitch_, pitch_, du_ + at * pitch_, pitch_, nullptr, true, true});
    adjoint(query_);
    float* to = b_.terms.dq + (row(a_.s, q.begin + t) * a_.heads_out + j) * a_.d;
    for (int64_t i = 0; i < kChunk; ++i)
      std::copy_n(dx_ + i * depth_, a_.d, to + i * a_.heads_out * a_.d);
  }
  // Of scale q^ . (bonus . k^), before dout is scaled; dv takes the rest.
  void bonus_terms(int64_t t, int64_t j) const {
    for (int64_t i = 0; i < kChunk; ++i) {
      for (int64_t c = 0; c < a_.d; ++c) p[c] = *a_.bonus.at(head, c) * key_[i * depth_ + c];
      const float own = a_.scale * simd_.dot(a_.d, query_ + i * depth_, p);
      const float *dy = dout_ + i * pitch_, *of = value_ + i * pitch_;
      float sum = 0;
      for (int64_t n = 0; n < columns; ++n) {
        const float slope = dy[n] * a_.bonus_slope(own * of[n]);
        sum += slope * of[n], du_[i * pitch_ + n] += own * slope;
      }
      b_.terms.de[row(a_.s, q.begin + t + i) * a_.heads_out + j] = sum;
    }
  }
  // From dU to what v, beta and p get, and p's share of dk^, the gates and W.
  void correction(int64_t t) const {
    for (int64_t at = kChunk - kBlock; at >= 0; at -= kBlock) {
      const int64_t behind = at + kBlock;
      float* rows = du_ + at * pitch_;
      if (behind < kChunk)
        simd_.gemm({kBlock, pitch_, kChunk - behind, correction_ + behind * kChunk + at, kChunk,
                    y_ + behind * pitch_, pitch_, rows, pitch_, nullptr, true, true});
      invert(correction_ + at * kChunk + at);
      simd_.gemm({kBlock, pitch_, kBlock, inverse_, kBlock, rows, pitch_, y_ + at * pitch_, pitch_,
                  nullptr, true, false});
    }
    for (int64_t i = 0; i < kChunk; ++i) {
      const int64_t at = row(a_.s, q.begin + t + i) * a_.heads + head;
      b_.terms.dbeta[at] = simd_.dot(columns, y_ + i * pitch_, value_ + i * pitch_);
      simd_.scale(pitch_, y_ + i * pitch_, -1, dout_ + i * pitch_);
      simd_.scale(pitch_, y_ + i * pitch_, beta_[i], y_ + i * pitch_);
    }
    store_values(t, y_);
    simd_.scale(kChunk * kChunk, correction_, -1, scores_);
    adjoint(p_);
    float* to = b_.terms.dp + (row(a_.t, q.begin + t) * a_.heads + head) * a_.d;
    for (int64_t i = 0; i < kChunk; ++i)
      std::copy_n(dx_ + i * depth_, a_.d, to + i * a_.heads * a_.d);
  }

  // From dO, dout_, and the scores of rows x: dx, and shares of dk^, the gates and W.
  void adjoint(const float* x) const {
    constexpr int64_t half = kChunk / 2;
    for (const int64_t at : {int64_t{0}, half})
      simd_.gemm({half, at + half, columns, dout_ + at * pitch_, pitch_, turned_u_, kChunk,
                  dscores_ + at * kChunk, kChunk, nullptr, false, false});
    simd_.gemm({kChunk, depth_, columns, dout_, pitch_, turned_, depth_, dx_, depth_, nullptr,
                false, false});
    const bool strict = a_.read_before || x == p_;
    for (int64_t t = 0; t < kChunk; ++t)
      std::fill(dscores_ + t * kChunk + t + (strict ? 0 : 1), dscores_ + (t + 1) * kChunk, 0.f);
    if (gates_ == Gates::key) return key_adjoint(x);
    if (gates_ == Gates::head) head_gates(x);
    for (const int64_t at : {int64_t{0}, half}) {
      simd_.gemm({half, depth_, at + half, dscores_ + at * kChunk, kChunk, key_, depth_,
                  dx_ + at * depth_, depth_, nullptr, false, true});
      simd_.gemm({half, depth_, kChunk - at, dscores_ + at * kChunk + at, kChunk, x + at * depth_,
                  depth_, dkey_ + at * depth_, depth_, nullptr, true, true});
    }
    simd_.gemm({a_.d, pitch_, kChunk, x, depth_, dout_, pitch_, w_, pitch_, nullptr, true, true});
  }
  // Decays of the tiles, and what the gates take from them.
  void head_gates(const float* x) const {
    for (int64_t t = 0; t < kChunk; ++t) {
      float* of = dscores_ + t * kChunk;
      const float *score = scores_ + t * kChunk, *between = between_ + t * kChunk;
      float sum = 0;
      for (int64_t r = 1; r <= t - a_.read_before; ++r)
        sum += of[r - 1] * score[r - 1], pairs_[r] += sum;
      for (int64_t s = 0; s <= t; ++s) of[s] *= between[s];
      simd_.scale(depth_, dx_ + t * depth_, so_far_[t], dx_ + t * depth_);
      simd_.scale(pitch_, dout_ + t * pitch_, so_far_[t], dout_ + t * pitch_);
      ends_[t] += row_dot(x, dx_, t);
    }
  }
  void key_adjoint(const float* x) const {
    for (int64_t t = kBlock; t < kChunk; ++t)
      times(before_ + t / kBlock * depth_, dx_ + t * depth_);
    for (int64_t at = 0; at < kChunk; at += kBlock) {
      if (at)
        simd_.gemm({kBlock, depth_, at, dscores_ + at * kChunk, kChunk, now_, depth_,
                    dx_ + at * depth_, depth_, nullptr, false, true});
      for (int64_t s = 0; s < at; ++s) times(total_ + at / kBlock * depth_, now_ + s * depth_);
      std::copy_n(late_ + at * depth_, kBlock * depth_, now_ + at * depth_);
    }
    for (int64_t i = 0; i < kChunk * depth_; ++i) {
      dx_[i] *= within_[i], scaled_[i] = x[i] * within_[i];
      sums_[i] += x[i] * dx_[i];
    }
    for (int64_t at = 0; at < kChunk; at += kBlock) {
      const int64_t own = at * depth_;
      simd_.decayed_grads({{depth_, x + own, key_ + own, decay_ + own, depth_,
                            dscores_ + at * kChunk + at, kChunk, a_.read_before},
                           dx_ + own,
                           dkey_ + own,
                           gates_of_ + own});
    }
    std::fill_n(now_, kChunk * depth_, 0.f);
    for (int64_t at = kChunk - kBlock; at >= 0; at -= kBlock) {
      for (int64_t i = at * depth_; i < (at + kBlock) * depth_; ++i) part_[i] += rest_[i] * now_[i];
      for (int64_t s = 0; s < at; ++s) times(total_ + at / kBlock * depth_, now_ + s * depth_);
      if (at)
        simd_.gemm({at, depth_, kBlock, dscores_ + at * kChunk, kChunk, scaled_ + at * depth_,
                    depth_, now_, depth_, nullptr, true, true});
    }
    for (int64_t t = kBlock; t < kChunk; ++t)
      times(before_ + t / kBlock * depth_, scaled_ + t * depth_);
    simd_.gemm(
        {a_.d, pitch_, kChunk, scaled_, depth_, dout_, pitch_, w_, pitch_, nullptr, true, true});
  }
  void times(const float* factor, float* x) const {
    for (int64_t c = 0; c < depth_; ++c) x[c] *= factor[c];
  }

  // ---- terms

  int64_t row(int64_t rows, int64_t at) const { return (plane_ * a_.b + q.batch) * rows + at; }

  void store_values(int64_t t, const float* rows) const {
    float* to = b_.terms.dv + ((q.batch * a_.t + q.begin + t) * a_.heads + head) * a_.e + first;
    for (int64_t i = 0; a_.v && i < kChunk; ++i)
      std::copy_n(rows + i * pitch_, columns, to + i * a_.heads * a_.e);
  }
  void store_keys(int64_t t) const {
    const int64_t at = (row(a_.t, q.begin + t) * a_.heads + head) * a_.d, step = a_.heads * a_.d;
    if (gates_ == Gates::key) key_gates(b_.terms.dg + at, step);
    for (int64_t i = 0; i < kChunk; ++i)
      std::copy_n(dkey_ + i * depth_, a_.d, b_.terms.dk + at + i * step);
    if (gates_ != Gates::head) return;
    // A head's gate sums over the row.
    float sum = 0;
    for (int64_t i = kChunk; i-- > 0;) {
      float* to = b_.terms.dg + at + i * step;
      std::fill_n(to, a_.d, 0.f);
      if (!a_.read_before) sum += ends_[i];
      *to = exp_of(log_[i]) == 0 ? 0 : starts_[i] + sum + pairs_[i];
      if (a_.read_before) sum += ends_[i];
    }
  }
  // dg, and what pairs of two blocks give to dk^.
  void key_gates(float* to, int64_t step) const {
    float* sum = gates_of_ + kChunk * depth_;
    std::fill_n(sum, depth_, 0.f);
    for (int64_t i = kChunk; i-- > 0;) {
      const float *key = key_ + i * depth_, *part = part_ + i * depth_, *row = sums_ + i * depth_;
      const float *decay = decay_ + i * depth_, *gate = gates_of_ + i * depth_;
      float *dkey = dkey_ + i * depth_, *dg = to + i * step;
      for (int64_t c = 0; c < a_.d; ++c) {
        const float own = sum[c] - key[c] * part[c], all = own + row[c];
        dg[c] = decay[c] == 0 ? 0 : gate[c] + (a_.read_before ? own : all);
        sum[c] = all;
        dkey[c] += part[c];
      }
    }
  }

  const RecurBackward& b_;
  const BackwardItem tokens_;
  const int64_t every_, plane_;
  float *states_, *inner_, *w_, *turned_, *dout_, *du_, *turned_u_, *dx_, *dkey_, *part_;
  // Gates of a key.
  float *scaled_, *late_, *rest_, *now_, *gates_of_, *sums_, *before_, *after_;
  float* dscores_;
  // Of each token, gates of a head: sums of the state's and W's parts, and of pairs.
  float *ends_, *starts_, *pairs_;
};

}  // namespace

bool backward_in_chunks(const RecurBackward& b) {
  return !b.forward.full && goes_in_chunks(b.forward);
}

ChunkBackwardRoom::ChunkBackwardRoom(const Recur& a, Layout& to) {
  const int64_t depth = padded(a.d), least = a.normalise ? 1 : 0;
  const int64_t pitch = padded(std::max(std::min(kChunkSlice, a.e), least));
  // No more states than a walk over tokens in slices of 64 columns keeps.
  const int64_t chunks = a.run.token_max / kChunk;
  int64_t step = 8;
  while (step * step < a.run.token_max) step *= 2;
  const int64_t most = (ceil_div(a.run.token_max, step) + step) / 2;
  const auto states = [&] { return ceil_div(chunks, every) + (every > 1 ? every : 0); };
  for (every = 1; states() > most && every * every < chunks;) every *= 2;
  kept = to.add<float>(ceil_div(chunks, every), a.d, pitch);
  if (every > 1) inner = to.add<float>(every, a.d, pitch);
  w = to.add<float>(a.d, pitch);
  turned = to.add<float>(pitch, depth);
  for (Slot<float>* x : {&dout, &du, &turned_u}) *x = to.add<float>(kChunk, pitch);
  for (Slot<float>* x : {&dx, &dkey, &part}) *x = to.add<float>(kChunk, depth);
  if (a.gate_key) {
    for (Slot<float>* x : {&scaled, &late, &rest, &now, &sums}) *x = to.add<float>(kChunk, depth);
    gates = to.add<float>(kChunk + 1, depth);
    outer = to.add<float>(2 * kBlocks, depth);
  }
  dscores = to.add<float>(kChunk, kChunk);
  vectors = to.add<float>(3, kChunk);
}

void run_chunks_backward(const RecurBackward& b, const Room& room, const ChunkRoom& chunk,
                         const ChunkBackwardRoom& own, void* base, int64_t item, int64_t plane) {
  ChunkBackward(b, room, chunk, own, base, item, plane).run();
}

}  // namespace fovea::host
