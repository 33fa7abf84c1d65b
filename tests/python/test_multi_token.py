# SPDX-License-Identifier: Apache-2.0
"""Multi-token attention with mixed heads, and the norm of heads, against torch's autograd."""

import fovea
import numpy as np
import pytest

torch = pytest.importorskip("torch")


def random(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def close(mine, truth, limit=2e-5):
    mine, truth = (torch.as_tensor(np.asarray(x.detach())).double() for x in (mine, truth))
    assert mine.shape == truth.shape
    assert (mine - truth).norm() <= limit * truth.norm() + 1e-12


def mixed(x, mix):
    """(b, h, s, t) with the heads of each group of mix.shape[1] mixed."""
    if mix is None:
        return x
    group = mix.shape[1]
    weight = mix.unflatten(0, (-1, group))
    return torch.einsum("xan,bxnst->bxast", weight, x.unflatten(1, (-1, group))).flatten(1, 2)


def attend(q, k, v, weight, before, after, causal):
    h, rows, columns = weight.shape
    k, v = (x.repeat_interleave(h // x.shape[2], 2) for x in (k, v))
    seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool)
    if causal:
        seen = seen.tril(k.shape[1] - q.shape[1])
    a = torch.einsum("bshd,bthd->bhst", q, k) * q.shape[3] ** -0.5
    a = a.masked_fill(~seen, 0)
    left = (columns - 1) // 2
    a = torch.nn.functional.pad(a, (left, columns - 1 - left, rows - 1, 0))
    a = torch.nn.functional.conv2d(a, weight[:, None], groups=h)
    p = mixed(a, before).masked_fill(~seen, -torch.inf).softmax(-1)
    return torch.einsum("bhst,bthe->bshe", mixed(p, after), v)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("group", "where"), [(2, "both"), (4, "before"), (2, "after"), (1, "")])
def test_multi_token(ctx, causal, group, where):
    x = [random(2, 20, 4, 16, seed=0), random(2, 37, 2, 16, seed=1), random(2, 37, 2, 8, seed=2)]
    x.append(random(4, 3, 5, seed=3) / 4)
    names = [n for n in ("before", "after") if where in (n, "both")]
    mixing = {f"mix_{n}": random(4, group, seed=4 + i) for i, n in enumerate(names)}
    leaves = [y.double().requires_grad_() for y in (*x, *mixing.values())]
    mixes = dict(zip(mixing, leaves[4:], strict=True))
    o = attend(*leaves[:4], mixes.get("mix_before"), mixes.get("mix_after"), causal)
    mine, lse = fovea.x_multi_token_forward(ctx, *x, lse=True, causal=causal, **mixing)
    close(mine, o)
    dout = random(*o.shape, seed=9)
    want = torch.autograd.grad((dout * o).sum(), leaves)
    asked = {f"d{n}": True for n in mixing}
    got = fovea.x_multi_token_backward(ctx, *x, lse, dout, causal=causal, **mixing, **asked)
    for a, b in zip([y for y in got if y is not None], want, strict=True):
        close(a, b)


@pytest.mark.parametrize("factor", [0.0, 0.36])
def test_group_norm(ctx, factor):
    x, gain = random(2, 20, 4, 16, seed=0), random(4, 16, seed=1)
    leaves = [y.double().requires_grad_() for y in (x, gain)]
    inverse = (leaves[0].square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    y = (factor or 1) * leaves[1] * leaves[0] * inverse
    close(fovea.x_group_norm_forward(ctx, x, gain=gain, factor=factor), y)
    dy = random(*x.shape, seed=2)
    want = torch.autograd.grad((dy * y).sum(), leaves)
    got = fovea.x_group_norm_backward(ctx, x, dy, gain=gain, factor=factor, dx=True, dgain=True)
    for a, b in zip(got, want, strict=True):
        close(a, b)


def test_workspace_is_linear(ctx):
    def calls(n):
        q = np.empty((1, n, 4, 8), np.float32)
        weight, mix = np.empty((4, 3, 5), np.float32), np.empty((4, 2), np.float32)
        mixing = {"mix_before": mix, "mix_after": mix}
        lse = np.empty((1, 4, n), np.float32)
        yield fovea.x_multi_token_forward_workspace(ctx, q, q, q, weight, **mixing)
        yield fovea.x_multi_token_backward_workspace(ctx, q, q, q, weight, lse, q, **mixing)

    for small, large in zip(calls(1 << 14), calls(1 << 18), strict=True):
        assert large <= 17 * small
