# SPDX-License-Identifier: Apache-2.0
"""Attention in float64 NumPy, from the formula in attention.h; one sequence a batch entry."""

import numpy as np


def attention(
    q,
    k,
    v,
    *,
    causal=False,
    window_left=0,
    window_right=0,
    sink_keys=0,
    softcap=0.0,
    scale=0.0,
    alibi=None,
    sink_logit=None,
    bias=None,
    key_len=None,
):
    """(o, lse) for q (b, s, h, d), k (b, t, g, d), v (b, t, g, e)."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    b, s, h, d = q.shape
    g, e = k.shape[2], v.shape[3]
    o, lse = np.zeros((b, s, h, e)), np.full((b, h, s), -np.inf)
    right = 1 if causal else window_right
    for n in range(b):
        keys = k.shape[1] if key_len is None else int(key_len[n])
        p_i, p_j = np.arange(s)[:, None] + keys - s, np.arange(keys)[None]
        seen = np.ones((s, keys), bool)
        if right:
            seen &= p_j < p_i + right
        if window_left:
            seen &= (p_j > p_i - window_left) | (p_j < sink_keys)
        for i in range(h):
            x = (scale or d**-0.5) * (q[n, :, i] @ k[n, :keys, i // (h // g)].T)
            if softcap:
                x = softcap * np.tanh(x / softcap)
            if alibi is not None:
                x = x - alibi[n, i] * abs(p_i - p_j)
            if bias is not None:
                x = x + np.asarray(bias[n, i, :, :keys], np.float64)
            x = np.where(seen, x, -np.inf)
            if sink_logit is not None:
                x = np.concatenate([x, np.full((s, 1), float(sink_logit[i]))], 1)
            m = x.max(1, initial=-np.inf)
            p = np.exp(x - np.where(np.isfinite(m), m, 0)[:, None])
            total = p.sum(1)
            with np.errstate(divide="ignore"):
                lse[n, i] = np.log(total) + np.where(np.isfinite(m), m, 0)
            o[n, :, i] = (p[:, :keys] @ v[n, :keys, i // (h // g)]) / np.where(total > 0, total, 1)[
                :, None
            ]
    return o, lse
