// SPDX-License-Identifier: Apache-2.0
// The sums of key_terms.cuh.  A thread owns four columns of a key and key head.
#include "cuda/loop/key_terms.cuh"

#include <algorithm>
#include <cmath>

#include "cuda/launch.h"
#include "cuda/loop/backward_tiles.cuh"
#include "cuda/tile/mma_sm80.cuh"

namespace fovea::cuda {
namespace {

constexpr int kThreads = 256;

template <int Dtype>
__global__ void __launch_bounds__(kThreads)
    sum_key_terms_kernel(const __grid_constant__ Attend a, const __grid_constant__ GradientView out,
                         const float* terms, int64_t heads, int64_t width, int64_t work) {
  int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= work) return;
  const int64_t each = a.g / heads, columns = width / 4;
  const int64_t column = i % columns * 4, g = (i /= columns) % heads,
                key = (i /= heads) % a.sequences.key_max;
  const Sequence seq = a.sequences[i / a.sequences.key_max];
  if (key >= seq.keys) return;
  const float* from =
      terms + ((seq.key_batch * a.t + seq.key_begin + key) * a.g + g * each) * width + column;
  float4 sum = {};
  for (int64_t n = 0; n < each; ++n) {
    const float4 x = *reinterpret_cast<const float4*>(from + n * width);
    sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
  }
  const int64_t to = seq.key_batch * out.stride[0] + (seq.key_begin + key) * out.stride[1] +
                     g * out.stride[2] + column;
  if (out.dtype == FOVEA_F32)
    *reinterpret_cast<float4*>(out.as() + to) = sum;
  else
    *reinterpret_cast<uint2*>(out.as<uint16_t>() + to) =
        make_uint2(pack<Dtype>(sum.x, sum.y), pack<Dtype>(sum.z, sum.w));
}

}  // namespace

// The least time, in steps of a block, n blocks in all, `longest` steps the longest of them:
//
//   | call      | time                                                     | why | | all keys  |
//   waves (longest + start)                                  | blocks are alike       | | causal |
//   max(all steps / multiprocessors, longest) + start n / m. | blocks of a head have  | | | + tail
//   longest                                           | any length up to it    |
//
// start: what a block costs beside its steps: its keys, and terms to store and sum.  tail: how far
// the longest blocks outlast the others.  Both are fitted to times of an H200
// (bench/notes/attention_backward.md, section 7).
int64_t key_shares(const Attend& a, int64_t rows, int64_t keys, bool fused,
                   const DeviceInfo& device) {
  const Sequences& q = a.sequences;
  const int64_t group = a.g ? a.h / a.g : 1, queries = q.query_max;
  const int64_t seen = a.mask.window.left ? std::min(queries, a.mask.window.left + keys) : queries;
  const bool causal = a.mask.window.right && seen == queries;
  const double blocks = static_cast<double>(q.count * a.g * ceil_div(q.key_max, keys)),
               processors = device.multiprocessors,
               start = !fused      ? 18
                       : a.d <= 64 ? 13
                                   : 6;
  const auto time = [&](int64_t shares) {
    const double longest = static_cast<double>(group / shares * ceil_div(seen, rows)),
                 n = blocks * static_cast<double>(shares);
    if (!causal) return std::ceil(n / processors) * (longest + start);
    const bool even = fused ? few_blocks(a, static_cast<int64_t>(n), device) : a.g * shares > 1;
    return std::max(n * longest / 2 / processors, longest) + n * start / processors +
           (even ? .15 : 1.) * longest;
  };
  int64_t best = 1;
  for (int64_t shares = 2; shares <= group; ++shares)
    if (group % shares == 0 && time(shares) < time(best)) best = shares;
  return best;
}

void sum_key_terms(Context& ctx, const char* op, const Attend& a, const GradientView& out,
                   const float* terms, int64_t heads, int64_t width) {
  const int64_t work = a.sequences.count * a.sequences.key_max * heads * (width / 4),
                blocks = ceil_div(work, kThreads);
  if (a.dtype == FOVEA_F16)
    launch<sum_key_terms_kernel<FOVEA_F16>>(ctx, op, blocks, kThreads, 0, a, out, terms, heads,
                                            width, work);
  else
    launch<sum_key_terms_kernel<FOVEA_BF16>>(ctx, op, blocks, kThreads, 0, a, out, terms, heads,
                                             width, work);
}

}  // namespace fovea::cuda
