# SPDX-License-Identifier: Apache-2.0
"""Traces from Python against NumPy: the selection by its definition, attention over what it chose."""

import fovea
import numpy as np
import pytest
import reference

BLOCK = 16


def inputs(s=70, t=300, h=4, g=2, d=8, e=6):
    """Whole numbers, so that every order of sums gives the same scores, and many of them tie."""
    random = np.random.default_rng(11)
    q = random.integers(-3, 4, (2, s, h, d)).astype(np.float32)
    k = random.integers(-3, 4, (2, t, g, d)).astype(np.float32)
    return q, k, random.standard_normal((2, t, g, e)).astype(np.float32)


def seen(s, t, causal):
    return np.arange(t)[None] <= np.arange(s)[:, None] + t - s if causal else np.ones((s, t), bool)


def select(x, keep):
    """x: (rows, t) scores of one row block, -inf where a pair is not valid."""
    blocks = -(-x.shape[1] // BLOCK)
    score = [x[:, u * BLOCK : (u + 1) * BLOCK].max() for u in range(blocks)]
    reach = max((u + 1 for u in range(blocks) if score[u] > -np.inf), default=0)
    branches = [(b * reach // keep, (b + 1) * reach // keep) for b in range(keep)]
    size = 1
    while size < blocks:
        halves = []
        for begin, end in branches:
            middle = begin + (end - begin + 1) // 2
            halves += [r for r in ((begin, middle), (middle, end)) if r[0] < r[1]]
        branches = sorted(halves, key=lambda r: (-score[r[0]], r[0]))[:keep]
        branches += [(0, 0)] * (keep - len(branches))
        size *= 2
    return [begin if begin < end else -1 for begin, end in branches]


def expected(q, k, keep, causal):
    b, s, h, _ = q.shape
    t, group = k.shape[1], h // k.shape[2]
    out = np.empty((b, h, -(-s // BLOCK), keep), np.int32)
    for n, i, block in np.ndindex(out.shape[:3]):
        rows = slice(block * BLOCK, (block + 1) * BLOCK)
        x = q[n, rows, i] @ k[n, :, i // group].T
        out[n, i, block] = select(np.where(seen(s, t, causal)[rows], x, -np.inf), keep)
    return out


def trace(ctx, q, k, **fields):
    return fovea.trace_forward(ctx, q, k, block_rows=BLOCK, block_keys=BLOCK, **fields)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("keep", [1, 3, 7, 30])
@pytest.mark.parametrize("exact", [False, True])
def test_selection(ctx, causal, keep, exact):
    q, k, _ = inputs()
    selected, score = trace(
        ctx, q, k, keep=keep, causal=causal, exact=exact, selected=True, score=True
    )
    assert np.array_equal(selected, expected(q, k, keep, causal))
    assert np.array_equal(selected < 0, np.isneginf(score))


def test_attention_over_what_was_selected(ctx):
    q, k, v = inputs()
    names = ["selected", "o", "lse", "lse_dense", "edge_mass", "edge_value"]
    results = trace(ctx, q, k, v=v, keep=4, causal=True, **dict.fromkeys(names, True))
    selected, o, lse, lse_dense, mass, value = results
    b, s, h, _ = q.shape
    t = k.shape[1]
    bias = np.full((b, h, s, t), -np.inf, np.float32)
    for n, i, block, slot in np.ndindex(selected.shape):
        u = selected[n, i, block, slot] * BLOCK
        if u >= 0:
            bias[n, i, block * BLOCK : (block + 1) * BLOCK, u : u + BLOCK] = 0
    want_o, want_lse = reference.attention(q, k, v, causal=True, bias=bias)
    np.testing.assert_allclose(o, want_o, atol=3e-6)
    np.testing.assert_allclose(lse, want_lse, atol=3e-6)
    dense = reference.attention(q, k, v, causal=True)[1]
    np.testing.assert_allclose(lse_dense, dense, atol=3e-6)
    assert np.all(np.exp(lse - lse_dense) <= 1 + 1e-5)
    # What a row block's edges weigh: its rows; what they carry: the sum of its outputs.
    rows = np.add.reduceat(np.ones(s), np.arange(0, s, BLOCK))
    np.testing.assert_allclose(mass.sum(-1), np.broadcast_to(rows, mass.shape[:3]), rtol=1e-5)
    sums = np.add.reduceat(want_o, np.arange(0, s, BLOCK), 1).transpose(0, 2, 1, 3)
    np.testing.assert_allclose(value.sum(-2), sums, atol=2e-5)


@pytest.mark.parametrize("cap", [0, 10, 1000])
def test_edges(ctx, cap):
    q, k, _ = inputs()
    selected, mass, edge, weight, count = trace(
        ctx,
        q,
        k,
        keep=3,
        causal=True,
        layer=7,
        edge_kind="mass",
        cap=cap,
        **dict.fromkeys(["selected", "edge_mass", "edge", "edge_weight", "edge_count"], True),
    )
    found = np.argwhere(selected >= 0)
    heads = found[:, 0] * q.shape[2] + found[:, 1]
    places = tuple(found.T)
    want = np.stack([np.full(len(found), 7), heads, found[:, 2], selected[places]], 1)
    assert count.dtype == np.int64 and count[0] == len(found)
    fit = min(cap, len(found))
    assert np.array_equal(edge[:fit], want[:fit])
    assert np.array_equal(weight[:fit], mass[places][:fit])


def test_torch(ctx):
    torch = pytest.importorskip("torch")
    q, k, _ = inputs()
    selected = trace(
        ctx, torch.from_numpy(q).bfloat16(), torch.from_numpy(k).bfloat16(), keep=5, selected=True
    )
    assert selected.dtype == torch.int32
    assert np.array_equal(selected.numpy(), expected(q, k, 5, False))


def test_keep_is_asked_for(ctx):
    q, k, _ = inputs()
    with pytest.raises(fovea.InvalidArgument, match="keep is 0, wanted 1 .. 256"):
        trace(ctx, q, k, selected=np.empty((2, 4, 5, 0), np.int32))
