// SPDX-License-Identifier: Apache-2.0
#include "contract_call.h"

namespace contract {
namespace {

const Calls kCalls = {
    {"x_project_forward", "plain", "y", "inner=4 f=4"},
    {"x_project_forward", "all",
     "bias weight2 bias2 weight3 bias3 norm_weight position cos sin y code",
     "x:bf16 f=6 inner3=6 act=1 bits=3"},
    {"x_project_forward", "sums", "code y", "g=4 h=2 inner=33 f=33"},
    {"x_project_forward", "large", "weight2 y", "s=4096 g=4 inner=64 inner2=8 f=8 act=2"},
    {"x_project_backward", "plain", "dx dweight", "inner=4 f=4"},
    {"x_project_backward", "all",
     "bias weight2 bias2 weight3 bias3 norm_weight position cos sin dx dweight dbias dweight2 "
     "dbias2 dweight3 dbias3 dnorm_weight",
     "x:f16 f=6 inner3=6 act=2"},
    {"x_project_backward", "sums", "dx dweight", "g=4 h=2"},
    {"x_project_backward", "large", "weight2 dx dweight", "s=4096 g=4 inner=64 inner2=8 f=8"},
};

}  // namespace
}  // namespace contract
