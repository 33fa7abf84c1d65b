# SPDX-License-Identifier: Apache-2.0
"""What the cases share: dtypes, limits, names, and how many pairs are seen."""

import torch

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
# Largest relative Frobenius distance between fovea and the peer: each may be off by the limits of
# the dense specification.
LIMITS = {"f32": 4e-6, "f16": 9e-4, "bf16": 7e-3}
BACKWARD_LIMITS = {"f32": 1e-5, "f16": 1.2e-3, "bf16": 1e-2}


def size(n):
    return f"{n // 1024}k" if n % 1024 == 0 else str(n)


def name_of(*parts):
    """What a case is, without the parts that are as usual (None)."""
    return "_".join(part for part in parts if part)


def pairs(s, t, causal):
    """(query, key) pairs that are seen, bottom-right aligned."""
    if not causal:
        return s * t
    return sum(min(max(i + t - s + 1, 0), t) for i in range(s))
