// SPDX-License-Identifier: Apache-2.0
// Every case of every operation.
#pragma once
#include "cases/attention_edges.h"
#include "cases/cache.h"
#include "cases/conv_attention.h"
#include "cases/group_norm.h"
#include "cases/kl.h"
#include "cases/kl_gather.h"
#include "cases/kl_indexer.h"
#include "cases/kl_jensen_shannon.h"
#include "cases/kl_pool.h"
#include "cases/merge.h"
#include "cases/multi_token.h"
#include "cases/quant.h"
#include "cases/rope.h"
#include "cases/trace.h"

namespace cases {

inline std::vector<harness::Case> all() {
  std::vector<harness::Case> out;
  for (auto& more : {attention_forward_sweep(), attention_backward_sweep(), Edges().cases,
                     merge_cases(), rope_cases(), cache_cases(), quant_cases(), kl_cases(),
                     conv_cases(), jensen_shannon_cases(), indexer_cases(), gather_cases(),
                     pool_cases(), multi_token_cases(), group_norm_cases(), trace_cases()})
    out.insert(out.end(), more.begin(), more.end());
  return out;
}

}  // namespace cases
