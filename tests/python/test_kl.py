# SPDX-License-Identifier: Apache-2.0
"""The divergence of two attention distributions against NumPy, and against torch's autograd."""

import fovea
import numpy as np
import pytest


def logits(q, k, seen, scale=0.0):
    """Scores in float64, -inf where a row does not see a key."""
    q, k = (np.asarray(x, np.float64) for x in (q, k))
    k = np.repeat(k, q.shape[2] // k.shape[2], axis=2)
    x = np.einsum("bshd,bthd->bhst", q, k) * (scale or q.shape[3] ** -0.5)
    return np.where(seen, x, -np.inf)


def log_softmax(x):
    m = x.max(-1, initial=-np.inf, keepdims=True)
    m = np.where(np.isfinite(m), m, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        lse = m + np.log(np.exp(x - m).sum(-1, keepdims=True))
        return x - lse, lse[..., 0]


def divergence(q_teacher, k_teacher, q_student, k_student, causal=False, reverse=False):
    """(kl, lse_teacher, lse_student), each (b, h, s)."""
    s, t = q_teacher.shape[1], k_teacher.shape[1]
    seen = np.arange(t)[None] <= np.arange(s)[:, None] + (t - s if causal else t)
    teacher, lse_teacher = log_softmax(logits(q_teacher, k_teacher, seen))
    student, lse_student = log_softmax(logits(q_student, k_student, seen))
    p, r = (student, teacher) if reverse else (teacher, student)
    with np.errstate(invalid="ignore"):
        kl = np.where(seen, np.exp(p) * (p - r), 0).sum(-1)
    return kl, lse_teacher, lse_student


def inputs(s=33, t=70, dtype=np.float32):
    random = np.random.default_rng(9)
    shapes = ((2, s, 4, 32), (2, t, 2, 32), (2, s, 4, 24), (2, t, 1, 24))
    return [random.standard_normal(x).astype(dtype) for x in shapes]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("direction", ["teacher_student", "student_teacher"])
def test_kl_and_its_statistics(ctx, causal, direction):
    for s, t in ((33, 70), (70, 33), (1, 1)):  # 70 rows on 33 keys: some see nothing
        x = inputs(s, t)
        got = fovea.kl_forward(
            ctx,
            *x,
            kl=True,
            lse_teacher=True,
            lse_student=True,
            causal=causal,
            direction=direction,
        )
        want = divergence(*x, causal=causal, reverse=direction == "student_teacher")
        for mine, truth in zip(got, want, strict=True):
            np.testing.assert_allclose(mine, truth, atol=2e-5, rtol=2e-5)


def test_total_and_weights(ctx):
    x = inputs(70, 33)
    kl = divergence(*x, causal=True)[0]
    weight = np.random.default_rng(1).random(kl.shape).astype(np.float32)
    seen = np.broadcast_to(np.arange(70) >= 70 - 33, kl.shape)
    total = lambda **fields: float(fovea.kl_forward(ctx, *x, total=True, causal=True, **fields)[0])
    assert total() == pytest.approx(kl.sum(), rel=1e-5)
    assert total(mean=1) == pytest.approx(kl[seen].mean(), rel=1e-5)
    assert total(row_weight=weight) == pytest.approx((weight * kl).sum(), rel=1e-5)
    weighed = (weight * kl).sum() / weight[seen].sum()
    assert total(row_weight=weight, mean=1) == pytest.approx(weighed, rel=1e-5)
    assert total(row_weight=weight * 0, mean=1) == 0
    # A row of weight 0 counts for nothing, whatever it holds.
    x[0][0, 60] = np.nan
    weight[0, :, 60] = 0
    assert np.isnan(total())
    assert np.isfinite(total(row_weight=weight))


def test_same_distribution(ctx):
    q, k = inputs(64, 300)[:2]
    kl = fovea.kl_forward(ctx, q * 50, k, q * 50, k, kl=True, causal=True)
    assert np.abs(kl).max() <= 1e-5


@pytest.mark.parametrize("teacher, student", [("bfloat16", "float32"), ("float32", "bfloat16")])
@pytest.mark.parametrize("direction", ["teacher_student", "student_teacher"])
def test_gradients_are_torchs(ctx, teacher, student, direction):
    torch = pytest.importorskip("torch")
    kinds = [getattr(torch, teacher)] * 2 + [getattr(torch, student)] * 2
    ours = [torch.from_numpy(x).to(kind) for x, kind in zip(inputs(), kinds, strict=True)]
    leaves = [x.double().requires_grad_() for x in ours]
    mask = torch.ones(33, 70, dtype=torch.bool).tril(70 - 33)

    def log_probability(q, k):
        k = k.repeat_interleave(q.shape[2] // k.shape[2], 2)
        x = torch.einsum("bshd,bthd->bhst", q, k) * q.shape[3] ** -0.5
        return x.masked_fill(~mask, -1e30).log_softmax(-1)

    p, r = log_probability(*leaves[:2]), log_probability(*leaves[2:])
    if direction == "student_teacher":
        p, r = r, p
    kl = (p.exp() * (p - r)).sum(-1)
    dkl = torch.randn(kl.shape, generator=torch.Generator().manual_seed(2))
    loss = (dkl.double() * kl).sum() + 3 * kl.mean()
    want = torch.autograd.grad(loss, leaves)
    fields = {"causal": True, "direction": direction, "mean": 1}
    *saved, total = fovea.kl_forward(
        ctx, *ours, kl=True, lse_teacher=True, lse_student=True, total=True, **fields
    )
    np.testing.assert_allclose(saved[0], kl.detach(), atol=2e-5, rtol=2e-5)
    assert float(total[0]) == pytest.approx(kl.mean().item(), rel=1e-5)
    dtotal = torch.full((1,), 3.0)
    got = fovea.kl_backward(ctx, *ours, *saved, dkl=dkl, dtotal=dtotal, **fields)
    order = (want[2], want[3], want[0], want[1])  # the student's come first
    for mine, truth in zip(got, order, strict=True):
        limit = 2e-5 if mine.dtype == torch.float32 else 6e-3
        assert (mine.double() - truth).norm() <= limit * truth.norm()
    student_only = fovea.kl_backward(
        ctx, *ours, *saved, dkl=dkl, dtotal=dtotal, dq_teacher=False, dk_teacher=False, **fields
    )
    for mine, before in zip(student_only, got, strict=False):
        assert torch.equal(mine, before)
