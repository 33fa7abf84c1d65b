// SPDX-License-Identifier: Apache-2.0
#include "contract/check.h"

namespace contract {
namespace {

// What the comments of trace.h say of its numbers.
TEST(ContractTrace, NumbersAndWhatGoesTogether) {
  const Params plain = valid("trace_forward", "plain").params;
  says(with(plain, "keep", 0), "trace_forward: keep is 0, wanted 1 .. 256");
  says(with(plain, "keep", 257), "trace_forward: keep is 257, wanted 1 .. 256");
  says(with(plain, "keep", 3), "trace_forward: selected.shape[3] (keep) is 2, wanted 3: keep");
  says(with(plain, "block_rows", 8),
       "trace_forward: block_rows is 8, wanted 16, 32, 64 or 128, or 0 for 64");
  says(with(plain, "block_keys", -16),
       "trace_forward: block_keys is -16, wanted 16, 32, 64 or 128, or 0 for 64");
  for (const char* field : {"exact", "causal"}) refuses(with(plain, field, 2), field);
  refuses(with(plain, "layer", -1), "layer");
  says(with(plain, "edge_kind", 3), "trace_forward: edge_kind is 3, wanted a fovea_edge_kind");
  Params p = plain;
  for (const char* name : {"keep_row", "block_mask", "selected", "score"})
    resize(p[name], std::string(name) == "keep_row" ? 0 : 2, 2);
  says(p, "trace_forward: keep_row.shape[0] (n) is 2, wanted 1: blocks of q's rows");
  p = plain, p["block_mask"].shape[3] = 0;
  says(p,
       "trace_forward: block_mask.shape[3] (block_bytes) is 0, wanted 1: a bit for each of 1 key "
       "blocks; pad with the stride");
  p["block_mask"].shape[3] = 5;
  says(p,
       "trace_forward: block_mask.shape[3] (block_bytes) is 5, wanted 1: a bit for each of 1 key "
       "blocks; pad with the stride");
  p = plain, p["v"].data = nullptr;
  says(p, "trace_forward: v.data is NULL with o, wanted the values it is made of");
  // Without keys and v the width is that of o, or of edge_value.
  const Call bare = valid("trace_forward", "edges");
  p = bare.params, p["v"].data = nullptr, p["k"].shape[1] = 0;
  accepts(p);
  p["edge_value"].shape[4] = 0;
  says(p, "trace_forward: edge_value.shape[4] (e) is 0, wanted >= 1");
  p["edge_value"].shape[4] = 577;
  for (int i = 0; i < 4; ++i) p["edge_value"].stride[i] *= 577;
  refuses(p, "edge_value.shape[4]", FOVEA_UNSUPPORTED);
  p["o"] = Params(plain)["o"];
  refuses(p, "edge_value.shape[4]");
  p = plain, p.at<float>(p.op().find("scale")->offset) = -1;
  refuses(p, "scale");
  p = plain, p["k"].shape[2] = p["v"].shape[2] = 3;
  refuses(p, "k.shape");

  const Call whole = valid("trace_forward", "edges");
  const Params& edges = whole.params;
  p = edges, p["edge_count"].data = nullptr;
  says(p,
       "trace_forward: edge_count.data is NULL with edge: what does not fit would be lost unseen");
  p["edge"].data = p["edge_weight"].data = nullptr;
  says(p, "trace_forward: edge_offset is given without edge_count");
  p = edges, p["edge_count"].data = p["edge_offset"].data;
  accepts(p);
  says(with(valid("trace_forward", "paged").params, "block_keys", 32),
       "trace_forward: k.shape[1] (page) is 64, wanted 32: block_keys");
}

}  // namespace
}  // namespace contract
