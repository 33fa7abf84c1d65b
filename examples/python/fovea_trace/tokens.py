# SPDX-License-Identifier: Apache-2.0
"""Weights of single tokens.  trace_forward's blocks have 16 to 128 tokens; these are exact, for the
rows of one block:

    p_mt = exp(scale <q_m, k_t> - lse_m)     over every key t that row m sees, in float64"""
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]

TOP = 16  # tokens that are kept of each row, the heaviest


def token_weights(
        q: Floats, k: Floats, block: int, block_rows: int, scale: float, causal: bool = True,
        top: int = TOP) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """(key, weight), each (h, rows of the block, top), heaviest first; weight 0: no such token.
    q (s, h, d), k (t, g, d) after rope."""
    s, h, t = q.shape[0], q.shape[1], k.shape[0]
    rows = np.arange(block * block_rows, min((block + 1) * block_rows, s))
    top = min(top, t)
    key, weight = np.zeros((h, len(rows), top), np.int32), np.zeros((h, len(rows), top), np.float32)
    seen = np.arange(t) <= rows[:, None] + t - s if causal else np.ones((len(rows), t), bool)
    for head in range(h):
        x = q[rows, head].astype(np.float64) @ k[:, head * k.shape[1] // h].T.astype(np.float64)
        x = np.where(seen, scale * x, -np.inf)
        p = np.exp(x - x.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        key[head] = np.argsort(-p, axis=1, kind="stable")[:, :top]
        weight[head] = np.take_along_axis(p, key[head], axis=1)
    return key, weight
