// SPDX-License-Identifier: Apache-2.0
// FOVEA_CHECK=1: the values of lengths, starts, pages, rows and indices are read on the host before
// a call.
#pragma once
#include "core/context.h"
#include "core/contract.h"

namespace fovea {

// Whether the environment asks for it; read once a process.
bool inspecting() noexcept;

// Throws INVALID_ARGUMENT naming op, field, index, got and wanted.  Waits for the stream's work,
// and does nothing while the stream is being captured.
void inspect(Context& ctx, const Contract& contract, const void* params);

}  // namespace fovea
