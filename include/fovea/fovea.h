/* SPDX-License-Identifier: Apache-2.0 */
/** fovea: efficient attention behind one C ABI.  This header includes every stable family. */
#ifndef FOVEA_FOVEA_H
#define FOVEA_FOVEA_H

#include "attention.h"
#include "cache.h"
#include "conv_attention.h"
#include "core.h"
#include "kl.h"
#include "merge.h"
#include "quant.h"
#include "rope.h"
#include "trace.h"

#endif
