// SPDX-License-Identifier: Apache-2.0
// Chains of x_gla_backward on Hopper: those of the forward, with operands in other roles.
#pragma once
#include "ops/gla/forward_sm90.cuh"
