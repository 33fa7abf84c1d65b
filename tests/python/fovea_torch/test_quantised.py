# SPDX-License-Identifier: Apache-2.0
"""quantised_attention is the method of its name, compiles, packs, and refuses in sentences."""

import fovea
import fovea.experimental
import fovea.torch
import pytest
import torch
from fovea.torch import _quantised

METHODS = [r.name for r in fovea.recipes() if r.operation == "x_quantised_forward"]
# Relative error of normal numbers, each method's own (spec: D1 at 1024 x 128 and the same at 64).
LIMITS = {
    "fa3_fp8": 7e-2, "sageattention": 2e-2, "sageattention2": 5.5e-2, "sageattention2pp": 5.5e-2,
    "sageattention2_int4": 2.8e-1, "sageattention3": 2.6e-1, "sagebwd": 3e-2,
}  # fmt: skip
SHORT = {"sage": "sageattention", "sage2": "sageattention2", "sage2pp": "sageattention2pp",
         "sage2_int4": "sageattention2_int4", "sage3": "sageattention3"}  # fmt: skip


def operands(device, rows=70, keys=150, dtype=torch.bfloat16):
    make = torch.Generator().manual_seed(3)
    shapes = ((2, rows, 4, 64), (2, keys, 2, 64), (2, keys, 2, 64))
    return [torch.randn(n, generator=make).to(device, dtype) for n in shapes]


def test_every_method_has_a_limit_here():
    assert sorted(METHODS) == sorted(LIMITS)
    assert sorted(_quantised.NAMES) == sorted([*METHODS, *SHORT])


@pytest.mark.parametrize("name", METHODS)
def test_it_is_the_method(name, device):
    q, k, v = operands(device)
    o, lse = fovea.torch.quantised_attention(q, k, v, name, causal=True, return_lse=True)
    assert o.dtype == q.dtype and lse.dtype == torch.float32
    want, want_lse = fovea.recipe(name)(q, k, v, lse=True, causal=1)
    assert torch.equal(o, want) and torch.equal(lse, want_lse)
    exact, exact_lse = fovea.torch.attention(
        *(x.float() for x in (q, k, v)), causal=True, return_lse=True
    )
    assert 0 < (o.float() - exact).norm() / exact.norm() < LIMITS[name]
    assert (lse - exact_lse).abs().mean() < 0.2


@pytest.mark.parametrize("packed", [False, True])
def test_sagebwd_trains(packed, device):
    """Its gradient is x_quant_backward of its own o and lse, and near that of exact attention."""
    q, k, v = (x[:1] for x in operands(device))
    starts, more = {}, {"causal": True, "window_left": 90}
    if packed:
        starts = {f"{n}_start": torch.tensor([0, *ends], dtype=torch.int32, device=device)
                  for n, ends in (("query", (20, 70)), ("key", (30, 150)))}  # fmt: skip
    parts = [x[0] if packed else x for x in (q, k, v)]
    leaves = [x.clone().requires_grad_() for x in parts]
    o, lse = fovea.torch.quantised_attention(
        *leaves, "sagebwd", return_lse=True, query_max=50 * packed, key_max=120 * packed, **starts,
        **more,
    )  # fmt: skip
    dout = torch.randn(o.shape, generator=torch.Generator().manual_seed(4)).to(o)
    got = torch.autograd.grad(o, leaves, dout)
    made = fovea.recipe("sagebwd")(q, k, v, lse=True, **starts, **more)
    wanted = fovea.experimental.quant_backward(
        q, k, v, *made, dout[None] if packed else dout, k_smooth=fovea.Smooth.SEQUENCE, **starts, **more
    )
    assert all(torch.equal(x, y.view_as(x)) for x, y in zip(got, wanted))
    assert torch.equal(lse, made[1].view_as(lse))
    if not packed:
        exact = [x.double().transpose(1, 2).requires_grad_() for x in (q, k, v)]
        away = torch.arange(70)[:, None] + 80 - torch.arange(150)
        seen = ((away >= 0) & (away < 90)).to(device)
        y = torch.nn.functional.scaled_dot_product_attention(
            *exact, attn_mask=seen, enable_gqa=True
        )
        for x, y in zip(got, torch.autograd.grad(y, exact, dout.double().transpose(1, 2))):
            assert 0 < (x.double() - y.transpose(1, 2)).norm() / y.norm() < 5e-2
    for other in ({"softcap": 2.0}, {"hadamard": True}):
        with pytest.raises(fovea.InvalidArgument, match="quantised_attention: q requires grad, but"):
            fovea.torch.quantised_attention(*leaves, "sagebwd", **other)


@pytest.mark.parametrize("short", SHORT)
def test_short_names(short, device):
    q, k, v = operands(device)
    wanted = fovea.torch.quantised_attention(q, k, v, SHORT[short], window_left=40, causal=True)
    assert torch.equal(
        fovea.torch.quantised_attention(q, k, v, short, window_left=40, causal=True), wanted
    )


@pytest.mark.parametrize("name", METHODS)
def test_packed_sequences_are_those_alone(name, device):
    """Means and scales of one do not enter another."""
    first, second = operands(device, 61, 61), operands(device, 70, 150)
    parts = [[x[0] for x in first], [3 + x[1] for x in second]]
    packed = [torch.cat(pair) for pair in zip(*parts)]
    starts = [torch.tensor([0, 61, n], device=device) for n in (131, 211)]
    got = fovea.torch.quantised_attention(
        *packed, name, causal=True, query_start=starts[0], key_start=starts[1], query_max=70,
        key_max=150,
    )  # fmt: skip
    alone = [
        fovea.torch.quantised_attention(*(x[None] for x in part), name, causal=True)[0]
        for part in parts
    ]
    if device == "cpu":
        assert torch.equal(got, torch.cat(alone))
    else:  # packed rows have tiles of their own
        torch.testing.assert_close(got, torch.cat(alone), rtol=0, atol=0.05)


def test_softcap_sinks_scale_and_rotation_arrive(device):
    q, k, v = operands(device)
    call = lambda **more: fovea.torch.quantised_attention(q, k, v, "fa3_fp8", **more)
    plain = call()
    sink = torch.full((4,), 2.0, device=device, dtype=torch.float64)
    for more in ({"softcap": 1.0}, {"scale": 0.5}, {"hadamard": True}, {"sink_logit": sink}):
        given = {n: x.float() if torch.is_tensor(x) else x for n, x in more.items()}
        assert torch.equal(call(**more), fovea.recipe("fa3_fp8")(q, k, v, **given))
        assert not torch.equal(call(**more), plain)
    assert not torch.equal(call(hadamard=True, seed=3), call(hadamard=True))


@pytest.mark.parametrize("name", ["sage2", "sage3"])
def test_compiled_and_checked(name, device):
    q, k, v = operands(device)
    more = {"causal": True, "return_lse": True}  # lse counts the means, which may move last bits
    call = lambda q, k, v: fovea.torch.quantised_attention(q, k, v, name, **more)
    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    for n in (150, 140, 131):  # dynamic from the second on
        got, want = compiled(q, k[:, :n], v[:, :n]), call(q, k[:, :n], v[:, :n])
        assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])
    numbers = (0, 0, 0, 0, 0, 0.0, 0.0, True, False)
    method = _quantised._METHODS[_quantised.full_name(name)]
    torch.library.opcheck(
        _quantised.quantised.op, (q, k, v, None, None, None, *numbers, *method)
    )


def test_autocast(device):
    q, k, v = operands(device, dtype=torch.float32)
    with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
        o = fovea.torch.quantised_attention(q, k, v, "sage")
    wanted = fovea.torch.quantised_attention(*(x.bfloat16() for x in (q, k, v)), "sage")
    assert o.dtype == torch.bfloat16 and torch.equal(o, wanted)


def test_refusals(device):
    q, k, v = operands(device)
    with pytest.raises(fovea.InvalidArgument, match="recipe is 'sage9', wanted one of fa3_fp8, sage, "):
        fovea.torch.quantised_attention(q, k, v, "sage9")
    with pytest.raises(fovea.InvalidArgument, match="'streamingllm', wanted one of fa3_fp8"):
        fovea.torch.quantised_attention(q, k, v, "streamingllm")
    with pytest.raises(TypeError, match="recipe is 3, wanted a str"):
        fovea.torch.quantised_attention(q, k, v, 3)
    with pytest.raises(fovea.InvalidArgument, match="quantised_attention: v requires grad, but this"):
        fovea.torch.quantised_attention(q, k, v.clone().requires_grad_(), "sage2")
    with pytest.raises(fovea.InvalidArgument, match="v.dtype is f32, wanted f16 or bf16"):
        fovea.torch.quantised_attention(q.float(), k.float(), v.float(), "sage")
