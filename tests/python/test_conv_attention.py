# SPDX-License-Identifier: Apache-2.0
"""Convolutional attention from Python against float64 NumPy, and decoding with a history."""

import fovea
import numpy as np
import pytest


def reference(q, k, v, weight, *, causal=False, history=0, scale=0.0):
    """(o, lse) of one sequence a batch entry, every matrix whole."""
    q, k, v, weight = (np.asarray(x, np.float64) for x in (q, k, v, weight))
    b, s, h, d = q.shape
    t, g = k.shape[1:3]
    rows, columns = weight.shape[1:]
    left = (columns - 1) // 2
    seen = np.ones((s, t), bool)
    if causal:
        seen = np.arange(t)[None] <= np.arange(s)[:, None] + t - s
    o, lse = np.zeros((b, s, h, v.shape[3])), np.full((b, h, s), -np.inf)
    for n in range(b):
        for i in range(h):
            x = (scale or d**-0.5) * (q[n, :, i] @ k[n, :, i // (h // g)].T)
            x = np.pad(np.where(seen, x, 0), ((rows - 1, 0), (left, columns - 1 - left)))
            a = sum(
                weight[i, u, c] * x[u : u + s, c : c + t]
                for u in range(rows)
                for c in range(columns)
            )
            a = np.where(seen, a, -np.inf)
            m = a.max(1, initial=-np.inf)
            m = np.where(np.isfinite(m), m, 0)
            p = np.exp(a - m[:, None])
            total = p.sum(1)
            with np.errstate(divide="ignore"):
                lse[n, i] = np.log(total) + m
            o[n, :, i] = p @ v[n, :, i // (h // g)] / np.where(total > 0, total, 1)[:, None]
    return o[:, history:], lse[..., history:]


def inputs(b=2, s=40, t=70, h=4, g=2, d=24, e=16, rows=3, columns=5, dtype=np.float32):
    random = np.random.default_rng(5)
    q, k, v = (random.standard_normal(x) for x in ((b, s, h, d), (b, t, g, d), (b, t, g, e)))
    weight = random.standard_normal((h, rows, columns)) / np.sqrt(rows * columns)
    return [x.astype(dtype) for x in (q, k, v, weight)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rows,columns", [(1, 1), (3, 4), (6, 11), (16, 31)])
def test_forward(ctx, causal, rows, columns):
    arrays = inputs(rows=rows, columns=columns)
    o, lse = fovea.conv_attention_forward(ctx, *arrays, causal=causal, lse=True)
    want = reference(*arrays, causal=causal)
    np.testing.assert_allclose(o, want[0], atol=3e-6)
    np.testing.assert_allclose(lse, want[1], rtol=1e-5, atol=1e-5)


def test_few_keys_leave_empty_rows(ctx):
    arrays = inputs(s=9, t=4)
    o, lse = fovea.conv_attention_forward(ctx, *arrays, causal=True, lse=True)
    assert not o[:, :5].any() and np.all(lse[..., :5] == -np.inf)
    np.testing.assert_allclose(o, reference(*arrays, causal=True)[0], atol=3e-6)


def test_decode_is_the_forwards_last_row(ctx):
    q, k, v, weight = inputs(s=70)
    full = fovea.conv_attention_forward(ctx, q, k, v, weight, causal=True)
    step = fovea.conv_attention_forward(ctx, q[:, -3:], k, v, weight, causal=True, history=2)
    assert step.shape == (2, 1, 4, 16)
    np.testing.assert_allclose(step, full[:, -1:], atol=3e-6)


def test_packed_sequences(ctx):
    q, k, v, weight = inputs(b=1, s=30, t=50)
    rows, keys = (np.array(x, np.int32) for x in ([0, 12, 30], [0, 20, 50]))
    o = fovea.conv_attention_forward(
        ctx, q, k, v, weight, query_start=rows, key_start=keys, causal=True, history=2
    )
    assert o.shape == (1, 26, 4, 16)
    for i, out in ((0, slice(0, 10)), (1, slice(10, 26))):
        part = slice(rows[i], rows[i + 1]), slice(keys[i], keys[i + 1])
        want = reference(
            q[:, part[0]], k[:, part[1]], v[:, part[1]], weight, causal=True, history=2
        )
        np.testing.assert_allclose(o[:, out], want[0], atol=3e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_by_differences(ctx, causal):
    arrays = inputs(b=1, s=7, t=9, h=2, g=1, d=4, e=3, columns=4)
    fields = {"causal": causal, "history": 2}
    o, lse = fovea.conv_attention_forward(ctx, *arrays, lse=True, **fields)
    dout = np.random.default_rng(6).standard_normal(o.shape).astype(np.float32)
    gradients = fovea.conv_attention_backward(ctx, *arrays, o, lse, dout, **fields)
    for n, gradient in enumerate(gradients):
        assert gradient.shape == arrays[n].shape and gradient.dtype == np.float32
        wide = [x.astype(np.float64) for x in arrays]
        for at in np.ndindex(gradient.shape):
            sides = []
            for step in (1e-5, -1e-5):
                moved = [x.copy() for x in wide]
                moved[n][at] += step
                sides.append(np.sum(reference(*moved, **fields)[0] * dout))
            assert gradient[at] == pytest.approx((sides[0] - sides[1]) / 2e-5, abs=2e-5)


def test_wanted_gradients_only(ctx):
    arrays = inputs()
    o, lse = fovea.conv_attention_forward(ctx, *arrays, lse=True)
    dweight = fovea.conv_attention_backward(ctx, *arrays, o, lse, o, dq=False, dk=False, dv=False)
    assert dweight.shape == arrays[3].shape
    every = fovea.conv_attention_backward(ctx, *arrays, o, lse, o)
    assert np.array_equal(every[3], dweight)


def test_torch(ctx):
    torch = pytest.importorskip("torch")
    arrays = inputs()
    q, k, v, weight = (torch.from_numpy(x) for x in arrays)
    o = fovea.conv_attention_forward(ctx, q.bfloat16(), k.bfloat16(), v.bfloat16(), weight)
    assert o.dtype == torch.bfloat16
    want = reference(*arrays)[0]
    assert np.linalg.norm(o.float().numpy() - want) / np.linalg.norm(want) < 1e-2


def test_refusals(ctx):
    arrays = inputs()
    with pytest.raises(fovea.InvalidArgument, match="kernel_rows.* is 17, wanted 1 .. 16"):
        fovea.conv_attention_forward(ctx, *inputs(rows=17))
    with pytest.raises(fovea.InvalidArgument, match="rows_out"):
        fovea.conv_attention_forward(ctx, *arrays, o=np.empty((2, 39, 4, 16), np.float32))
