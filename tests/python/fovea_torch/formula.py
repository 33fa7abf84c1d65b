# SPDX-License-Identifier: Apache-2.0
"""The formulas of attention.h, kl.h and conv_attention.h in float64, for autograd to differentiate."""

import torch


def twins(*tensors):
    """Float64 leaves with the values of the tensors; None stays None."""
    return [None if x is None else x.detach().double().requires_grad_() for x in tensors]


def seen(s, t, *, causal=False, window_left=0, window_right=0, sink_keys=0, local_chunk=0,
         rows=None, first=0, last=None):  # fmt: skip
    """Which of t keys each of s rows sees, where keys first .. last are there and rows are in use."""
    last, rows = t if last is None else last, s if rows is None else rows
    i = torch.arange(s)[:, None] + (last - first) - rows
    j = torch.arange(t)[None] - first
    right = 1 if causal else window_right
    out = (j >= 0) & (j < last - first) & (torch.arange(s)[:, None] < rows)
    if right:
        out = out & (j < i + right)
    if window_left:
        out = out & ((j > i - window_left) | (j < sink_keys))
    if local_chunk:
        out = out & (i.div(local_chunk, rounding_mode="floor") == j // local_chunk)
    return out, (i - j).abs()


def attention(q, k, v, *, scale=None, softcap=0.0, mask=None, bias=None, alibi=None,
              sink_logit=None, query_len=None, key_len=None, key_first=None, **windows):  # fmt: skip
    """(o, lse) for q (b, s, h, d), k (b, t, g, d), v (b, t, g, e), all float64."""
    b, s, h, d = q.shape
    t, g = k.shape[1], k.shape[2]
    k, v = (x.repeat_interleave(h // g, 2) for x in (k, v))
    x = torch.einsum("bshd,bthd->bhst", q, k) * (scale or d**-0.5)
    if softcap:
        x = softcap * torch.tanh(x / softcap)
    rules = []
    for n in range(b):
        limits = {"rows": query_len, "last": key_len, "first": key_first}
        limits = {name: int(y[n]) for name, y in limits.items() if y is not None}
        rules.append(seen(s, t, **windows, **limits))
    allowed = torch.stack([r[0] for r in rules])[:, None]
    if alibi is not None:
        distance = torch.stack([r[1] for r in rules])[:, None].double()
        x = x - alibi.expand(b, h)[:, :, None, None] * distance
    if bias is not None:
        x = x + bias
    if mask is not None:
        allowed = allowed & mask
    return softmax(x.masked_fill(~allowed, float("-inf")), v, sink_logit)


def softmax(x, v, sink_logit=None):
    """(o, lse) from scores with -inf where a row does not see a key."""
    empty = torch.isneginf(x).all(-1, keepdim=True)
    x = x.masked_fill(empty, 0)
    if sink_logit is not None:
        sink = sink_logit[None, :, None, None].expand(*x.shape[:3], 1)
        lse = torch.cat([x.masked_fill(empty, float("-inf")), sink], -1).logsumexp(-1, keepdim=True)
    else:
        lse = x.logsumexp(-1, keepdim=True)
    p = torch.exp(x - lse).masked_fill(empty, 0)
    if sink_logit is None:
        lse = lse.masked_fill(empty, float("-inf"))
    return torch.einsum("bhst,bthe->bshe", p, v), lse[..., 0]


def kl(q_teacher, k_teacher, q_student, k_student, *, reverse=False, **windows):
    """(b, h, s): the divergence of each row."""

    def logits(q, k):
        k = k.repeat_interleave(q.shape[2] // k.shape[2], 2)
        return torch.einsum("bshd,bthd->bhst", q, k) * q.shape[3] ** -0.5

    allowed, _ = seen(q_teacher.shape[1], k_teacher.shape[1], **windows)
    low = torch.finfo(torch.float64).min / 4
    p, r = (
        logits(*x).masked_fill(~allowed, low).log_softmax(-1)
        for x in ((q_teacher, k_teacher), (q_student, k_student))
    )
    if reverse:
        p, r = r, p
    rows = (p.exp() * (p - r)).masked_fill(~allowed, 0).sum(-1)
    return rows.masked_fill(~allowed.any(-1), 0)


def convolved(q, k, v, weight, *, causal=True, mix_before=None, mix_after=None):
    """(o, lse) of multi-token attention."""
    (s, h, d), (t, g) = q.shape[1:], k.shape[1:3]
    rows, columns = weight.shape[1:]
    k, v = (x.repeat_interleave(h // g, 2) for x in (k, v))
    allowed, _ = seen(s, t, causal=causal)
    x = (torch.einsum("bshd,bthd->bhst", q, k) * d**-0.5).masked_fill(~allowed, 0)
    left = (columns - 1) // 2
    x = torch.nn.functional.pad(x, (left, columns - 1 - left, rows - 1, 0))
    x = torch.nn.functional.conv2d(x, weight[:, None], groups=h)
    x = mixed(x, mix_before).masked_fill(~allowed, float("-inf"))
    lse = x.logsumexp(-1)
    p = mixed(torch.exp(x - lse[..., None]), mix_after)
    return torch.einsum("bhst,bthe->bshe", p, v), lse


def mixed(x, mix):
    if mix is None:
        return x
    h, n = mix.shape
    groups = x.unflatten(1, (h // n, n))
    return torch.einsum("gan,bgnst->bgast", mix.view(h // n, n, n), groups).flatten(1, 2)


def close(got, want, limit, what=""):
    """The largest error is at most limit, times the size of what is wanted where that is above 1."""
    want = want.detach().to(got.device, torch.float64)
    got = got.detach().double()
    same = got == want  # infinities
    error = (got - want).masked_fill(same, 0).abs().max().item() if got.numel() else 0.0
    size = max(1.0, want.masked_fill(same, 0).abs().max().item() if got.numel() else 1.0)
    assert error <= limit * size, f"{what}: off by {error:.2e} of {size:.2e}, allowed {limit:.0e}"
