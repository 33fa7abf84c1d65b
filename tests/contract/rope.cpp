// SPDX-License-Identifier: Apache-2.0
#include "contract/check.h"

namespace contract {
namespace {

// The rotated columns lie inside the width, also where there are none of them.
TEST(ContractRope, RotatedColumnsAreInside) {
  const Case cases[] = {{"rope_forward", "plain", "x", ""},
                        {"cache_append", "keys", "k_new", ""},
                        {"attention_forward", "rope", "q", ""}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.op);
    const Call call = valid(c.op.c_str(), c.name.c_str());
    const Params plain = call.params;
    refuses(with(plain, "rope_begin", -1), "rope_begin");
    refuses(with(plain, "rope_interleaved", 2), "rope_interleaved");
    Params none = plain;
    const int64_t width = none[c.given].shape[3];
    for (const char* name : {"cos", "sin"}) none[name].shape[1] = 0;
    accepts(with(none, "rope_begin", width));
    refuses(with(none, "rope_begin", width + 1), "rope_begin");
    Params one = plain;
    for (const char* name : {"cos", "sin"}) one[name].shape[1] = 1;
    accepts(with(one, "rope_begin", width - 2));
    refuses(with(one, "rope_begin", width - 1), "rope_begin");
  }
}

}  // namespace
}  // namespace contract
