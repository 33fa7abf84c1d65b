// SPDX-License-Identifier: Apache-2.0
// x_select_heads on the CPU: an item is a batch.
#include <algorithm>
#include <cmath>

#include "host/sweep.h"
#include "ops/select/heads.h"

namespace fovea {
namespace {

struct HeadsRoom {
  Slot<float> q, k, feature, distance;
  Slot<int32_t> first, size;
};

struct HeadsPlan {
  SelectHeads a;
  HeadsRoom room;
  host::WorkerScratch scratch;
};

class Batch {
 public:
  Batch(const HeadsPlan& plan, void* room, int64_t batch)
      : a_(plan.a),
        batch_(batch),
        tokens_(a_.tokens(batch)),
        q_(plan.room.q.at(room)),
        k_(plan.room.k.at(room)),
        feature_(plan.room.feature.at(room)),
        distance_(plan.room.distance.at(room)),
        first_(plan.room.first.at(room)),
        size_(plan.room.size.at(room)) {}

  void run() {
    features();
    for (int64_t i = 0; i < a_.h; ++i) {
      first_[i] = int32_t(i), size_[i] = 1;
      for (int64_t j = 0; j < a_.h; ++j) at(i, j) = a_.distance(dot(i, j), dot(i, i), dot(j, j));
    }
    for (int64_t left = a_.h; left > a_.wanted(batch_); --left) merge();
    store();
  }

 private:
  float& at(int64_t i, int64_t j) const { return distance_[i * a_.h + j]; }
  // In the order of heads, so that it is symmetric to the bit.
  float dot(int64_t i, int64_t j) const {
    const int64_t each = a_.s * a_.s;
    return a_.product(feature_ + std::min(i, j) * each, feature_ + std::max(i, j) * each, tokens_);
  }

  void features() const {
    const auto load = [&](const View<4>& x, int32_t dtype, int64_t token, int64_t head, float* to) {
      host::load_row(host::simd(), x.data, dtype,
                     batch_ * x.stride[0] + token * x.stride[1] + head * x.stride[2], x.stride[3],
                     a_.d, to);
    };
    for (int64_t head = 0; head < a_.h; ++head) {
      float* x = feature_ + head * a_.s * a_.s;
      for (int64_t i = 0; i < tokens_; ++i) {
        load(a_.q, a_.q_dtype, i, head, q_);
        for (int64_t j = 0; j < tokens_; ++j) {
          load(a_.k, a_.k_dtype, j, head / (a_.h / a_.g), k_);
          float sum = 0;
          for (int64_t c = 0; c < a_.d; ++c) sum = std::fma(q_[c], k_[c], sum);
          x[i * a_.s + j] = a_.scale * sum;
        }
        a_.soften(x, i, tokens_);
      }
    }
  }
  void merge() const {
    ClusterPair best{host::kInf, INT32_MAX, INT32_MAX};
    for (int64_t i = 0; i < a_.h; ++i)
      for (int64_t j = i + 1; size_[i] && j < a_.h; ++j) {
        if (!size_[j]) continue;
        const ClusterPair pair{at(i, j) / static_cast<float>(size_[i] * size_[j]), int32_t(i),
                               int32_t(j)};
        if (pair.before(best)) best = pair;
      }
    for (int64_t c = 0; c < a_.h; ++c) {
      if (first_[c] == best.j) first_[c] = best.i;
      at(best.i, c) += at(best.j, c);
      at(c, best.i) = at(best.i, c);
    }
    size_[best.i] += size_[best.j], size_[best.j] = 0;
  }
  void store() const {
    int32_t count = 0;
    for (int64_t i = 0; i < a_.h; ++i) {
      *a_.head_map.at<int32_t>(batch_, i) = first_[i];
      // size_ of a cluster becomes its label.
      if (first_[i] == i) size_[i] = count++;
      if (a_.label) *a_.label.at<int32_t>(batch_, i) = size_[first_[i]];
    }
    if (a_.count) *a_.count.at<int32_t>(batch_) = count;
  }

  const SelectHeads& a_;
  const int64_t batch_, tokens_;
  float *q_, *k_, *feature_, *distance_;
  int32_t *first_, *size_;
};

class Run {
 public:
  Run(const HeadsPlan& plan, void* base) : plan_(plan), base_(base) {}
  void run(Context& ctx) const {
    const SelectHeads& a = plan_.a;
    const auto h = static_cast<double>(a.h), s = static_cast<double>(a.s);
    const double cost =
        static_cast<double>(a.b) * h * (s * s * (static_cast<double>(a.d) + h) + h * h);
    host::pool(ctx).run(a.h ? a.b : 0, cost, [&](int64_t batch, int32_t worker) {
      Batch(plan_, plan_.scratch.at(base_, worker), batch).run();
    });
  }

 private:
  const HeadsPlan& plan_;
  void* base_;
};

}  // namespace

extern const Kernel<SelectHeads> x_select_heads_host = {
    "", [](const Context& ctx, const SelectHeads& a, Plan& plan) {
      HeadsPlan p{a, {}, {}};
      Layout worker;
      HeadsRoom& room = p.room;
      room.q = worker.add<float>(a.d), room.k = worker.add<float>(a.d);
      room.feature = worker.add<float>(a.h, a.s, a.s);
      room.distance = worker.add<float>(a.h, a.h);
      room.first = worker.add<int32_t>(a.h), room.size = worker.add<int32_t>(a.h);
      p.scratch = host::WorkerScratch(ctx, static_cast<double>(a.b), worker, plan.workspace);
      host::host_plan<Run>(plan, p, host::shape_name(a.q_dtype, a.d));
      return Text();
    }};

}  // namespace fovea
