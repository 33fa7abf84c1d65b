# SPDX-License-Identifier: Apache-2.0
"""attention, varlen_attention and decode against the formula in float64, gradients too.

Bounds: an output or gradient of f32 inputs, drawn from a normal distribution, is off by at most 1e-5
of the largest one (of 1 where that is smaller)."""

import fovea
import fovea.torch as ft
import pytest
import torch
from formula import attention, close, twins

LIMIT = 1e-5
NAMES = ("q", "k", "v", "bias", "alibi", "sink_logit")


def inputs(device="cpu", dtype=torch.float32, b=2, s=7, t=13, h=4, g=2, d=16, e=8):
    shapes = (b, s, h, d), (b, t, g, d), (b, t, g, e)
    return [torch.randn(x, device=device, dtype=dtype, requires_grad=True) for x in shapes]


def lengths(*values, device):
    return torch.tensor(values, dtype=torch.int32, device=device)


CASES = {
    "plain": lambda d: {},
    "causal": lambda d: {"causal": True},
    "scale": lambda d: {"scale": 0.3},
    "window": lambda d: {"window_left": 4, "window_right": 2},
    "sinks of a window": lambda d: {"window_left": 3, "sink_keys": 2, "causal": True},
    "chunks": lambda d: {"local_chunk": 5},
    "softcap": lambda d: {"softcap": 2.0, "causal": True},
    "mask": lambda d: {"mask": torch.rand(2, 1, 7, 13, device=d) > 0.4},
    "mask of keys": lambda d: {"mask": torch.rand(2, 1, 1, 13, device=d) > 0.4},
    "rows without keys": lambda d: {"mask": torch.arange(7, device=d)[:, None] > 2},
    "bias": lambda d: {"bias": torch.randn(2, 4, 7, 13, device=d, requires_grad=True)},
    "bias of a head": lambda d: {"bias": torch.randn(4, 1, 13, device=d, requires_grad=True)},
    "bias of one": lambda d: {"bias": torch.randn(1, 1, 1, 1, device=d, requires_grad=True)},
    "alibi": lambda d: {"alibi": torch.rand(2, 4, device=d, requires_grad=True), "causal": True},
    "alibi of heads": lambda d: {"alibi": torch.rand(4, device=d, requires_grad=True)},
    "sink_logit": lambda d: {"sink_logit": torch.randn(4, device=d, requires_grad=True)},
    "key_len": lambda d: {"key_len": lengths(5, 13, device=d), "causal": True},
    "query_len": lambda d: {"query_len": lengths(3, 7, device=d)},
    "left padding": lambda d: {
        "key_first": lengths(4, 0, device=d), "key_len": lengths(13, 11, device=d), "causal": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_against_float64(case, device):
    q, k, v = inputs(device)
    options = CASES[case](device)
    o, lse = ft.attention(q, k, v, return_lse=True, **options)
    tensors = [q, k, v, *[options.get(name) for name in NAMES[3:]]]
    theirs = twins(*[None if x is None else x.cpu() for x in tensors])
    rest = {n: y.cpu() if torch.is_tensor(y) else y for n, y in options.items() if n not in NAMES}
    o_want, lse_want = attention(*theirs[:3], **dict(zip(NAMES[3:], theirs[3:])), **rest)
    if "query_len" in options:  # rows past it say so, and get no gradient
        unused = torch.arange(7, device=device) >= options["query_len"][:, None]
        assert (o[unused] == 0).all() and (lse.transpose(1, 2)[unused] == -torch.inf).all()
    close(o, o_want, LIMIT, "o")
    close(lse, lse_want, LIMIT, "lse")
    do, dlse = torch.randn_like(o), torch.randn_like(lse).masked_fill(torch.isinf(lse), 0)
    names = [n for n, x in zip(NAMES, tensors) if x is not None]
    mine = torch.autograd.grad(
        (o, lse), [x for x in tensors if x is not None], (do, dlse), retain_graph=True
    )
    want = torch.autograd.grad(
        (o_want, lse_want.masked_fill(torch.isinf(lse_want), 0)),
        [x for x in theirs if x is not None],
        (do.cpu().double(), dlse.cpu().double()),
    )
    for name, a, b in zip(names, mine, want):
        assert a.shape == b.shape and a.dtype == torch.float32
        close(a, b, LIMIT, f"d{name}")
    (alone,) = torch.autograd.grad(lse.masked_fill(torch.isinf(lse), 0).sum(), q)
    assert torch.isfinite(alone).all()


def test_only_what_requires_grad_is_computed(device, monkeypatch):
    q, k, v = inputs(device)
    k, v = k.detach(), v.detach()
    wanted, kernel = [], ft._kernel.Kernel.__call__
    monkeypatch.setattr(
        ft._kernel.Kernel, "__call__", lambda *a: wanted.append(a[3]) or kernel(*a)
    )
    o = ft.attention(q, k, v)
    o.backward(torch.randn_like(o))
    assert wanted == [(True, True), (True, False, False, False, False, False)]
    assert q.grad is not None
    with torch.no_grad():
        assert not ft.attention(q, k, v).requires_grad


def test_strides_pass_and_expanded_gradients_too(device):
    q, k, v = (x.detach() for x in inputs(device))
    want = ft.attention(q, k, v)
    moved = [x.permute(2, 0, 3, 1).contiguous().permute(1, 3, 0, 2) for x in (q, k, v)]
    close(ft.attention(*moved), want, 1e-6)
    wide = torch.randn(1, 1, 1, 1, device=device).expand(2, 7, 4, 16).requires_grad_()
    o = ft.attention(wide, wide, wide)
    o.sum().backward()  # the gradient of o is one number, too
    close(o, wide, 1e-6)
    assert wide.grad.shape == wide.shape


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype, device):
    q, k, v = inputs(device, dtype, s=33, t=40, d=32, e=32)
    o, lse = ft.attention(q, k, v, causal=True, return_lse=True)
    assert o.dtype == dtype and lse.dtype == torch.float32
    theirs = twins(*[x.cpu() for x in (q, k, v)])
    want, _ = attention(*theirs, causal=True)
    do = torch.randn_like(o)
    limit = 4 * torch.finfo(dtype).eps
    close(o, want, limit, "o")
    grads = torch.autograd.grad(want, theirs, do.cpu().double())
    for a, b in zip(torch.autograd.grad(o, (q, k, v), do), grads):
        assert a.dtype == dtype
        close(a, b, limit)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window_left": 3, "softcap": 3.0}])
def test_varlen_is_attention_of_each_sequence(options, device):
    starts = [0, 3, 3, 12]  # an empty sequence in the middle
    q, k, v = (
        torch.randn(12, n, 16, device=device, requires_grad=True) for n in (4, 2, 2)
    )  # fmt: skip
    start = torch.tensor(starts, device=device)  # int64 is taken
    sinks = torch.randn(4, device=device, requires_grad=True)
    o, lse = ft.varlen_attention(
        q, k, v, start, query_max=9, sink_logit=sinks, return_lse=True, **options
    )
    parts = [
        ft.attention(*(x[None, a:b] for x in (q, k, v)), sink_logit=sinks, return_lse=True, **options)
        for a, b in zip(starts, starts[1:])
        if a < b
    ]
    close(o, torch.cat([x[0][0] for x in parts]), 1e-6)
    close(lse, torch.cat([x[1][0] for x in parts], 1), 1e-6)
    do = torch.randn_like(o)
    leaves = (q, k, v, sinks)
    mine = torch.autograd.grad(o, leaves, do)
    want = torch.autograd.grad(torch.cat([x[0][0] for x in parts]), leaves, do)
    for a, b in zip(mine, want):
        close(a, b, LIMIT)


def test_varlen_over_padded_keys(device):
    q = torch.randn(5, 4, 16, device=device)
    k, v = (torch.randn(2, 6, 2, 16, device=device) for _ in range(2))
    o = ft.varlen_attention(q, k, v, lengths(0, 2, 5, device=device), query_max=3)
    close(o[:2], ft.attention(q[None, :2], k[:1], v[:1])[0], 1e-6)
    close(o[2:], ft.attention(q[None, 2:], k[1:], v[1:])[0], 1e-6)


def test_decode_over_pages_and_rows(device):
    q = torch.randn(2, 1, 4, 16, device=device)
    pool = [torch.randn(6, 16, 2, 16, device=device) for _ in range(2)]
    table, used = torch.tensor([[4, 1], [0, 5]], device=device), lengths(20, 9, device=device)
    o, lse = ft.decode(q, *pool, page_table=table, key_len=used, return_lse=True)
    rows = [x[table].flatten(1, 2) for x in pool]
    want, lse_want = attention(q.cpu().double(), *(x.cpu().double() for x in rows), key_len=used,
                               causal=True)  # fmt: skip
    close(o, want, LIMIT)
    close(lse, lse_want, LIMIT)
    swapped = ft.decode(q, *rows, cache_row=torch.tensor([1, 0], device=device), key_len=used)
    close(swapped[:1], ft.attention(q[:1], *(x[1:, :20] for x in rows)), 1e-6)
    chunk = torch.randn(5, 4, 16, device=device)  # packed rows over the pages
    packed = ft.decode(chunk, *pool, page_table=table, key_len=used, query_max=3,
                       query_start=lengths(0, 2, 5, device=device))  # fmt: skip
    alone = ft.decode(chunk[None, :2], *pool, page_table=table[:1], key_len=used[:1])
    close(packed[:2], alone[0], 1e-6)


def test_decode_with_rotated_keys(device):
    q = torch.randn(1, 2, 4, 16, device=device)
    k, v = (torch.randn(1, 9, 2, 16, device=device) for _ in range(2))
    angle = torch.rand(9, 4, device=device)
    cos, sin = angle.cos(), angle.sin()
    turned = k.clone()  # 8 columns from the third on, in halves
    a, b = k[..., 2:6], k[..., 6:10]
    turned[..., 2:6] = a * cos[:, None] - b * sin[:, None]
    turned[..., 6:10] = b * cos[:, None] + a * sin[:, None]
    o = ft.decode(q, k, v, cos=cos, sin=sin, rope_begin=2)
    close(o, ft.attention(q, turned, v, causal=True), LIMIT)


def test_refusals_name_the_argument(device):
    q, k, v = (x.detach() for x in inputs(device))
    raises = pytest.raises
    with raises(TypeError, match="attention: q is a list"):
        ft.attention([1], k, v)
    with raises(TypeError, match="q has dtype float64"):
        ft.attention(*(x.double() for x in (q, k, v)))
    with raises(fovea.InvalidArgument, match="k.*dtype|dtype.*k"):
        ft.attention(q, k.half(), v)
    with raises(fovea.InvalidArgument, match="v has 3 dimensions"):
        ft.attention(q[:1], k[:1], v[0])
    with raises(fovea.InvalidArgument, match="scale is -1"):
        ft.attention(q, k, v, scale=-1)
    with raises(TypeError, match="mask has dtype torch.float32"):
        ft.attention(q, k, v, mask=torch.zeros(7, 13, device=device))
    with raises(fovea.InvalidArgument, match="mask has shape"):
        ft.attention(q, k, v, mask=torch.zeros(7, 12, dtype=torch.bool, device=device))
    with raises(fovea.InvalidArgument, match="bias has shape"):
        ft.attention(q, k, v, bias=torch.zeros(7, 12, device=device))
    with raises(TypeError, match="key_len has dtype torch.float32"):
        ft.attention(q, k, v, key_len=torch.ones(2, device=device))
    with raises(TypeError, match="window_left is 1.5"):
        ft.attention(q, k, v, window_left=1.5)
    with raises(fovea.InvalidArgument, match="k is on meta"):
        ft._table.attention.kernel.validate((q, k.to("meta"), v))
    with raises(fovea.InvalidArgument, match="q has 4 dimensions"):
        ft.varlen_attention(q, k, v, lengths(0, 1, device=device), query_max=1)
    with raises(fovea.InvalidArgument, match="decode: k requires grad"):
        ft.decode(q, k.clone().requires_grad_(), v)
    with torch.no_grad():
        ft.decode(q, k.clone().requires_grad_(), v)
    q.requires_grad_()
    (dq,) = torch.autograd.grad(ft.attention(q, k, v).square().sum(), q, create_graph=True)
    with raises(RuntimeError, match="attention: .* no second derivative"):
        dq.sum().backward()


@pytest.mark.parametrize(
    "change, text",
    [
        ({"causal": "yes"}, "attention: causal is 'yes', wanted True or False"),
        ({"causal": 2}, "attention: causal is 2, wanted True or False"),
        ({"scale": "1"}, "attention: scale is '1', wanted a number more than 0, or None"),
        ({"scale": [1]}, "attention: scale is \\[1\\], wanted a number"),
        ({"window_left": [1]}, "attention: window_left is a list, wanted a number"),
        ({"window_left": torch.ones(2)}, "attention: window_left is a Tensor, wanted a number"),
        ({"mask": 1}, "attention: mask is a int, wanted a torch.Tensor"),
        ({"alibi": [1.0]}, "attention: alibi is a list, wanted a torch.Tensor"),
        ({"key_len": [1, 2]}, "attention: key_len is a list, wanted a torch.Tensor"),
        ({"k": None}, "attention(_forward)?: k is None, wanted a torch.Tensor"),
        ({"q": None}, "attention: q is a NoneType, wanted a torch.Tensor"),
        ({"k": None, "mask": torch.ones(1, dtype=bool)}, "attention: k is a NoneType, wanted a torch"),
    ],
)
def test_arguments_of_other_kinds(change, text):
    x = torch.randn(2, 4, 2, 8)
    with pytest.raises(TypeError, match=f"^{text}"):
        ft.attention(**{"q": x, "k": x, "v": x, **change})


def test_numbers_in_tensors_are_read_at_the_call():
    """Not once for all calls of these shapes."""
    x, window = torch.randn(1, 6, 1, 8), torch.tensor(4)
    wide = ft.attention(x, x, x, window_left=window, causal=torch.tensor(True))
    assert torch.equal(wide, ft.attention(x, x, x, window_left=4, causal=True))
    window.fill_(1)
    narrow = ft.attention(x, x, x, window_left=window, causal=True)
    assert torch.equal(narrow, ft.attention(x, x, x, window_left=1, causal=1))
    scale = torch.nn.Parameter(torch.tensor(0.5))
    with pytest.raises(fovea.InvalidArgument, match="attention: scale requires grad, but has no gra"):
        ft.attention(x, x, x, scale=scale)
    assert torch.equal(ft.attention(x, x, x, scale=scale.detach()), ft.attention(x, x, x, scale=0.5))


def test_packed_rows_that_are_not_computed(device):
    """Those past query_max and behind the last sequence say so; no memory of others shows."""
    x = torch.randn(20, 2, 8, device=device, requires_grad=True)
    start, unused = lengths(0, 8, 16, device=device), [*range(3, 8), *range(11, 20)]
    junk = [torch.full_like(x, 7e7) for _ in range(8)]
    del junk
    o, lse = ft.varlen_attention(x, x, x, start, query_max=3, key_max=8, return_lse=True)
    assert (o[unused] == 0).all() and (lse[:, unused] == -torch.inf).all()
    whole = ft.varlen_attention(x, x, x, start, query_max=8)
    close(o[[0, 1, 2, 8, 9, 10]], whole[[0, 1, 2, 8, 9, 10]].detach().double(), LIMIT, "o")
    (dq,) = torch.autograd.grad(o.sum(), x)
    assert torch.isfinite(dq).all() and (dq[16:] == 0).all()
    kl = ft.kl_loss(x, x, x, 2 * x, reduction="none", query_start=start, query_max=3, key_max=8)
    assert (kl[:, unused] == 0).all()


def test_a_closed_context_is_made_anew(device):
    x = torch.randn(1, 2, 1, 8, device=device)
    want, ctx = ft.attention(x, x, x), ft.context(device)
    ctx.close()
    assert torch.equal(ft.attention(x, x, x), want)
    assert ft.context(device) is not ctx
    with pytest.raises(fovea.InvalidArgument, match="^context: device is on mps, wanted cpu or cuda"):
        ft.context("mps")


def test_a_device_that_fovea_does_not_know():
    q = torch.empty(1, 2, 3, 4, device="meta")
    assert ft.attention(q, q, q).shape == q.shape  # shapes alone
    with pytest.raises(fovea.InvalidArgument, match="q is on meta, wanted cpu or cuda"):
        ft._table.attention.kernel((q, q, q, *[None] * 9), (0,) * 10, (True, False))


def test_empty_tensors(device):
    q = torch.randn(0, 3, 2, 8, device=device, requires_grad=True)
    ft.attention(q, q, q).sum().backward()
    assert q.grad.shape == q.shape
    q, k = torch.randn(1, 3, 2, 8, device=device), torch.randn(1, 0, 2, 8, device=device)
    assert (ft.attention(q, k, k) == 0).all()
