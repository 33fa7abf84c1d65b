# SPDX-License-Identifier: Apache-2.0
"""scaled_dot_product_attention beside torch's: signature, masks, gradients.

Bound: an error against torch in float64 is at most twice torch's own in the same dtype, plus 8 units
of the dtype's precision of the largest value.  f32: 16, and twice the largest logit: p = exp(logit -
lse) is off by the rounding of both, where torch may divide by a sum."""

import random

import fovea
import fovea.torch as ft
import pytest
import torch

sdpa = torch.nn.functional.scaled_dot_product_attention
DTYPES = {"cpu": (torch.float32, torch.bfloat16), "cuda": (torch.float16, torch.bfloat16)}


def compare(inputs, mask=None, **options):
    """ours and torch's, forward and gradients, against torch in float64."""
    grad = mask is not None and mask.requires_grad
    leaves = [*inputs, mask] if grad else list(inputs)

    def run(attend, convert):
        xs = [convert(x.detach()).requires_grad_() for x in leaves]
        m = xs[-1] if grad else mask
        if m is not None and m.dtype != torch.bool:
            m = m if grad else convert(m)
        o = attend(*xs[:3], attn_mask=m, **options)
        dout = torch.randn(o.shape, generator=torch.Generator().manual_seed(5)).to(o)
        return o, *torch.autograd.grad(o, xs, dout)

    same = run(ft.scaled_dot_product_attention, lambda x: x.clone())
    theirs = run(sdpa, lambda x: x.clone())
    exact = run(sdpa, lambda x: x.double())
    dtype = inputs[0].dtype
    units = 8 if dtype != torch.float32 else 16 + 2 * largest_logit(*inputs[:2], options.get("scale"))
    unit = torch.finfo(dtype).eps * units
    for name, a, b, c in zip(("o", "dq", "dk", "dv", "dmask"), same, theirs, exact):
        assert a.shape == b.shape and a.dtype == b.dtype, name
        if not c.numel():
            continue
        size = c.abs().max().clamp(min=1).item()
        mine, its = ((x.double() - c).abs().max().item() for x in (a, b))
        assert mine <= 2 * its + unit * size, f"{name}: off by {mine:.2e}, torch by {its:.2e}"


def largest_logit(q, k, scale):
    k = k.double()
    if k.ndim > 2 and q.shape[-3] != k.shape[-3]:  # heads that share keys
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
    logits = (q.double() @ k.mT).abs() * (scale or q.shape[-1] ** -0.5)
    return logits.max().item() if logits.numel() else 0


def draw(seed, device):
    """A call that torch takes, by chance."""
    r = random.Random(seed)
    torch.manual_seed(seed)
    dtype = r.choice(DTYPES[device])
    b, g, d = r.randint(1, 3), r.choice((1, 2, 3)), r.choice((8, 16, 24, 40, 64))
    h = g * r.choice((1, 1, 2, 4))
    s, t = r.choice((1, 2, 7, 16, 33, 64)), r.choice((1, 3, 16, 31, 64, 70))
    e = r.choice((d, d, 16))
    make = lambda *shape: torch.randn(shape, device=device, dtype=dtype)  # noqa: E731
    q, k, v = make(b, h, s, d), make(b, g, t, d), make(b, g, t, e)
    if r.random() < 0.4:  # the memory of (b, s, h, d)
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    options, mask = {"enable_gqa": h != g}, None
    kind = r.choice(("none", "none", "causal", "bool", "float", "learned"))
    shape = r.choice(((b, h, s, t), (b, 1, s, t), (1, h, s, t), (s, t), (b, 1, 1, t), (1, t)))
    if kind == "causal":
        options["is_causal"] = True
    elif kind == "bool":
        mask = torch.rand(shape, device=device) > 0.3
    elif kind in ("float", "learned"):
        mask = torch.randn(shape, device=device, dtype=dtype)
        mask.requires_grad_(kind == "learned")
    if r.random() < 0.3:
        options["scale"] = r.choice((0.1, 0.5))
    return (q, k, v), mask, options


@pytest.mark.parametrize("first", range(0, 200, 25))
def test_random_calls(first, device):
    for seed in range(first, first + 25):
        inputs, mask, options = draw(seed, device)
        try:
            compare(inputs, mask, **options)
        except AssertionError as why:
            shapes = [tuple(x.shape) for x in inputs]
            raise AssertionError(f"seed {seed}, {shapes}, {options}: {why}") from None


@pytest.mark.parametrize("s, t", [(5, 5), (5, 9), (9, 5), (1, 4)])
def test_causal_is_top_left(s, t, device):
    q, k, v = (torch.randn(2, 2, n, 8, device=device) for n in (s, t, t))
    compare((q, k, v), is_causal=True)


@pytest.mark.parametrize(
    "q, k, mask",
    [
        ((6, 8), (9, 8), None),
        ((3, 6, 8), (3, 9, 8), (6, 9)),
        ((3, 6, 8), (3, 9, 8), (3, 6, 9)),
        ((2, 3, 4, 6, 8), (2, 3, 4, 9, 8), (3, 4, 6, 9)),
        ((2, 3, 4, 6, 8), (2, 3, 4, 9, 8), (2, 1, 1, 6, 9)),
        ((2, 3, 4, 6, 8), (1, 3, 4, 9, 8), (6, 9)),
        ((2, 4, 6, 8), (1, 4, 9, 8), None),
        ((2, 4, 6, 8), (2, 1, 9, 8), None),
    ],
)
def test_batch_dimensions(q, k, mask, device):
    inputs = [torch.randn(x, device=device) for x in (q, k, k)]
    compare(inputs, None if mask is None else torch.rand(mask, device=device) > 0.3)


def test_grouped_heads_that_differ(device):
    q, k, v = (torch.randn(1, h, 5, 8, device=device) for h in (4, 2, 1))
    compare((q, k, v), enable_gqa=True)


def test_rows_without_keys_give_zero_as_torch(device):
    q, k, v = (torch.randn(1, 2, 4, 8, device=device) for _ in range(3))
    mask = torch.ones(4, 4, dtype=torch.bool, device=device)
    mask[2] = False
    o = ft.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    assert (o[:, :, 2] == 0).all()
    compare((q, k, v), mask)
    low = torch.zeros(4, 4, device=device).masked_fill(~mask, float("-inf"))
    assert torch.equal(ft.scaled_dot_product_attention(q, k, v, attn_mask=low), o)


def test_the_result_has_the_memory_of_tokens_before_heads(device):
    q = torch.randn(2, 3, 5, 8, device=device)
    o = ft.scaled_dot_product_attention(q, q, q)
    assert o.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype, device):
    q = torch.randn(1, 2, 5, 8, device=device, requires_grad=True)
    mask = torch.randn(5, 5, device=device)
    with torch.autocast(device, dtype=dtype):
        ours = ft.scaled_dot_product_attention(q, q, q, attn_mask=mask)
        theirs = sdpa(q, q, q, attn_mask=mask)
        mixed = ft.attention(q, q.to(dtype), q)  # autocast makes them one dtype
    assert ours.dtype == theirs.dtype == mixed.dtype == dtype
    torch.testing.assert_close(ours, theirs, atol=0.05, rtol=0.05)
    ours.float().sum().backward()
    assert q.grad.dtype == torch.float32


def test_refusals_name_the_argument(device):
    q = torch.randn(1, 2, 4, 8, device=device)
    attend, raises = ft.scaled_dot_product_attention, pytest.raises
    with raises(fovea.Unsupported, match="dropout_p is 0.1"):
        attend(q, q, q, dropout_p=0.1)
    with raises(fovea.InvalidArgument, match="attn_mask is given, wanted None with is_causal"):
        attend(q, q, q, attn_mask=torch.ones(4, 4, device=device), is_causal=True)
    with raises(fovea.InvalidArgument, match="scale is 0"):
        attend(q, q, q, scale=0.0)
    with raises(fovea.InvalidArgument, match="key has 2 heads, wanted 4 as query, or enable_gqa"):
        attend(torch.randn(1, 4, 4, 8, device=device), q, q)
    with raises(fovea.InvalidArgument, match="key has 2 heads, wanted a divisor of 3"):
        attend(torch.randn(1, 3, 4, 8, device=device), q, q, enable_gqa=True)
    with raises(fovea.InvalidArgument, match="key has 3 dimensions"):
        attend(q, q[0], q)
    with raises(fovea.InvalidArgument, match="attn_mask has dtype torch.float16"):
        attend(q, q, q, attn_mask=torch.ones(4, 4, device=device, dtype=torch.float16))
    with raises(TypeError, match="float64"):
        attend(q.double(), q.double(), q.double())
    for bad in ((q, q.half(), q), (q, q, q.half())):
        for call in (attend, sdpa):
            with raises(RuntimeError, match="dtype"):
                call(*bad)



@pytest.mark.parametrize(
    "change, text",
    [
        ({"is_causal": "yes"}, "is_causal is 'yes', wanted True or False"),
        ({"enable_gqa": 3}, "enable_gqa is 3, wanted True or False"),
        ({"attn_mask": 1.0}, "attn_mask is a float, wanted a torch.Tensor"),
        ({"query": None}, "query is a NoneType, wanted a torch.Tensor"),
        ({"query": torch.ones(8)}, "query has 1 dimensions .8,., wanted at least 2"),
        ({"value": "nested"}, "value is nested, wanted a dense tensor"),
    ],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_arguments_of_other_kinds(change, text):
    x = torch.randn(2, 2, 4, 8)
    if change.get("value") == "nested":
        change = {"value": torch.nested.nested_tensor([x[0], x[1, :, :3]])}
    arguments = {"query": x, "key": x, "value": x, **change}
    with pytest.raises((TypeError, fovea.InvalidArgument), match=f"^scaled_dot_.*: {text}"):
        ft.scaled_dot_product_attention(**arguments)


def test_shapes_that_do_not_agree(device):
    q, k = torch.randn(1, 2, 4, 8, device=device), torch.randn(1, 2, 4, 16, device=device)
    with pytest.raises(fovea.InvalidArgument, match=r"k.shape\[3\]"):
        ft.scaled_dot_product_attention(q, k, q)
    with pytest.raises(fovea.InvalidArgument, match=r"v.shape\[1\]"):
        ft.scaled_dot_product_attention(q, q, q[:, :, :3])
