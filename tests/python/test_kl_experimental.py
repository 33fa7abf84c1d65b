# SPDX-License-Identifier: Apache-2.0
"""The experimental divergences of attention and their gradients, against torch's autograd."""

import fovea
import numpy as np
import pytest

torch = pytest.importorskip("torch")


def random(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def inputs(s=20, t=37, student=None):
    shapes = [(2, s, 4, 16), (2, t, 2, 16), *(student or ((2, s, 4, 8), (2, t, 1, 8)))]
    return [random(*shape, seed=i) for i, shape in enumerate(shapes)]


def leaves_of(x):
    return [y.double().requires_grad_() for y in x]


def logits(q, k, scale=0.0):
    k = k.repeat_interleave(q.shape[2] // k.shape[2], 2)
    return torch.einsum("bshd,bthd->bhst", q, k) * (scale or q.shape[3] ** -0.5)


def causal(s, t):
    return torch.ones(s, t, dtype=torch.bool).tril(t - s)


def log_softmax(x, seen):
    return x.masked_fill(~seen, -1e30).log_softmax(-1)


def divergence(p, r):
    """sum p (p.log - r), p = 0 where it is tiny; p and r are logarithms."""
    return (p.exp() * (p - r)).sum(-1)


def close(mine, truth, limit=2e-5):
    mine, truth = (torch.as_tensor(np.asarray(x.detach())).double() for x in (mine, truth))
    assert mine.shape == truth.shape
    assert (mine - truth).norm() <= limit * truth.norm() + 1e-12


@pytest.mark.parametrize("weight", [0.0, 0.3])
def test_jensen_shannon(ctx, weight):
    x = inputs()
    leaves, seen, w = leaves_of(x), causal(20, 37), weight or 0.5
    p, r = (log_softmax(logits(*pair), seen) for pair in (leaves[:2], leaves[2:]))
    m = torch.logaddexp(p + np.log(w), r + np.log(1 - w))
    js = w * divergence(p, m) + (1 - w) * divergence(r, m)
    fields = {"weight": weight, "causal": True}
    names = ("js", "kl_teacher", "kl_student", "lse_teacher", "lse_student")
    asked = dict.fromkeys(names, True)
    mine, *saved = fovea.x_kl_jensen_shannon_forward(ctx, *x, **asked, **fields)
    close(mine, js)
    djs = random(*js.shape, seed=9)
    want = torch.autograd.grad((djs * js).sum(), leaves)
    got = fovea.x_kl_jensen_shannon_backward(ctx, *x, *saved, djs, **fields)
    for a, b in zip(got, (want[2], want[3], want[0], want[1]), strict=True):
        close(a, b)


def test_indexer(ctx):
    x = inputs(student=((2, 20, 6, 8), (2, 37, 1, 8)))
    weight = random(2, 20, 6, seed=4)
    leaves, seen = leaves_of([*x[2:], weight]), causal(20, 37)
    p = log_softmax(logits(x[0].double(), x[1].double()), seen).exp().mean(1).clamp_min(1e-300)
    z = torch.einsum("bsxf,btf->bsxt", leaves[0], leaves[1][:, :, 0]).relu()
    r = log_softmax(torch.einsum("bsx,bsxt->bst", leaves[2], z), seen)
    kl = divergence(p.log(), r)
    names = ("kl", "lse_teacher", "lse_student")
    mine, *saved = fovea.x_kl_indexer_forward(
        ctx, *x, weight, **dict.fromkeys(names, True), causal=True
    )
    close(mine, kl)
    dkl = random(*kl.shape, seed=9)
    want = torch.autograd.grad((dkl * kl).sum(), leaves)
    got = fovea.x_kl_indexer_backward(ctx, *x, weight, *saved, dkl, causal=True)
    for a, b in zip(got, want, strict=True):
        close(a, b)


@pytest.mark.parametrize("shared", [False, True])
def test_gather(ctx, shared):
    x = inputs()
    leaves = leaves_of(x)
    # Distinct keys in any order, some entries none.
    order = torch.rand(2, 4, 20, 37, generator=torch.Generator().manual_seed(5)).argsort(-1)
    index = order[..., :9].to(torch.int32)
    index[..., 4] = -1
    if shared:
        index = index[:, :1].expand(2, 4, 20, 9)
    seen = torch.zeros(2, 4, 20, 38, dtype=torch.bool)
    seen.scatter_(3, torch.where(index < 0, 37, index.long()), True)
    seen = seen[..., :37]
    p, r = (log_softmax(logits(*pair), seen) for pair in (leaves[:2], leaves[2:]))
    kl = divergence(p, r)
    names = ("kl", "lse_teacher", "lse_student")
    saved = fovea.x_kl_gather_forward(ctx, *x, index, **dict.fromkeys(names, True))
    close(saved[0], kl)
    dkl = random(*kl.shape, seed=9)
    want = torch.autograd.grad((dkl * kl).sum(), leaves)
    got = fovea.x_kl_gather_backward(ctx, *x, index, *saved, dkl)
    for a, b in zip(got, (want[2], want[3], want[0], want[1]), strict=True):
        close(a, b)


@pytest.mark.parametrize("pool", ["sum", "max"])
def test_pool(ctx, pool):
    x = inputs(student=((2, 20, 4, 8), (2, 5, 1, 8)))  # 37 keys in blocks of 8
    leaves, seen = leaves_of(x[2:]), causal(20, 37)
    p = log_softmax(logits(x[0].double(), x[1].double()), seen).exp()
    p = torch.nn.functional.pad(p, (0, 3)).unflatten(-1, (5, 8))
    p = p.sum(-1) if pool == "sum" else p.amax(-1)
    p = (p / p.sum(-1, keepdim=True)).clamp_min(1e-300).log()
    blocks = torch.nn.functional.pad(seen, (0, 3)).unflatten(-1, (5, 8)).any(-1)
    kl = divergence(p, log_softmax(logits(*leaves), blocks))
    names = ("kl", "lse_teacher", "lse_student")
    fields = {"causal": True, "block_keys": 8, "pool": pool}
    mine, *saved = fovea.x_kl_pool_forward(ctx, *x, **dict.fromkeys(names, True), **fields)
    close(mine, kl)
    dkl = random(*kl.shape, seed=9)
    want = torch.autograd.grad((dkl * kl).sum(), leaves)
    got = fovea.x_kl_pool_backward(ctx, *x, *saved, dkl, **fields)
    for a, b in zip(got, want, strict=True):
        close(a, b)


def calls(ctx, n):
    """Every operation's `_workspace` for n rows on n keys."""
    wide, one = np.empty((1, n, 2, 8), np.float32), np.empty((1, n, 1, 8), np.float32)
    rows = np.empty((1, 2, n), np.float32)
    line, weight = np.empty((1, n), np.float32), np.empty((1, n, 2), np.float32)
    index, blocks = np.empty((1, 2, n, 16), np.int32), np.empty((1, n // 64, 2, 8), np.float32)
    four = (wide, wide.copy(), wide.copy(), wide.copy())
    yield fovea.x_kl_jensen_shannon_forward_workspace(ctx, *four, js=True)
    yield fovea.x_kl_jensen_shannon_backward_workspace(ctx, *four, *[rows] * 5)
    indexer = (*four[:3], one, weight)
    yield fovea.x_kl_indexer_forward_workspace(ctx, *indexer, kl=True)
    yield fovea.x_kl_indexer_backward_workspace(ctx, *indexer, rows, line, line)
    yield fovea.x_kl_gather_forward_workspace(ctx, *four, index, kl=True)
    yield fovea.x_kl_gather_backward_workspace(ctx, *four, index, *[rows] * 4)
    pool = (*four[:3], blocks)
    yield fovea.x_kl_pool_forward_workspace(ctx, *pool, kl=True)
    yield fovea.x_kl_pool_backward_workspace(ctx, *pool, *[rows] * 3)


def test_workspace_is_linear(ctx):
    for small, large in zip(calls(ctx, 1 << 14), calls(ctx, 1 << 18), strict=True):
        assert large <= 16 * small
