# SPDX-License-Identifier: Apache-2.0
"""kl_loss, conv_attention, trace, the modules, and the functions beneath torch's flash attention.

Bound: errors in f32 against the formula in float64 are at most 2e-5 of the largest value."""

import fovea
import fovea.torch as ft
import formula
import pytest
import torch
from formula import close, twins

LIMIT = 2e-5


def leaves(*shapes, device):
    return [torch.randn(x, device=device, requires_grad=True) for x in shapes]


def compare(ours, inputs, theirs, limit=LIMIT):
    """An output and its gradients against the same of the formula on float64 twins."""
    doubles = twins(*[x.cpu() for x in inputs])
    a, b = ours(*inputs), theirs(*doubles)
    close(a, b, limit, "output")
    dout = torch.randn(b.shape)
    for i, (x, y) in enumerate(
        zip(
            torch.autograd.grad(a, inputs, dout.to(a)),
            torch.autograd.grad(b, doubles, dout.double()),
        )
    ):
        close(x, y, limit, f"gradient {i}")


PAIR = (2, 6, 4, 16), (2, 9, 2, 16), (2, 6, 4, 8), (2, 9, 4, 8)


@pytest.mark.parametrize("direction", ["teacher_student", "student_teacher"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("windows", [{"causal": True}, {"window_left": 3, "causal": True}])
def test_kl_loss(direction, reduction, windows, device):
    reduce = {"mean": torch.mean, "sum": torch.sum, "none": lambda x: x}[reduction]
    compare(
        lambda *x: ft.kl_loss(*x, direction=direction, reduction=reduction, **windows),
        leaves(*PAIR, device=device),
        lambda *x: reduce(formula.kl(*x, reverse=direction == "student_teacher", **windows)),
    )


def test_kl_of_weights_lengths_and_packed(device):
    teacher_q, teacher_k, q, k = leaves(*PAIR, device=device)
    weight = torch.rand(2, 4, 6, device=device)
    rows = ft.kl_loss(teacher_q, teacher_k, q, k, reduction="none")
    total = ft.kl_loss(teacher_q, teacher_k, q, k, row_weight=weight)
    close(total, (rows * weight).sum() / weight.sum(), LIMIT)
    used = torch.tensor([2, 6], device=device)
    rows = ft.kl_loss(teacher_q, teacher_k, q, k, reduction="none", query_len=used)
    assert (rows[0, :, 2:] == 0).all() and torch.isfinite(rows).all()
    start = torch.tensor([0, 2, 6], device=device)
    packed = [x[0, :6] for x in (teacher_q, teacher_k, q, k)]
    rows = ft.kl_loss(*packed, reduction="none", query_start=start, query_max=4, causal=True)
    alone = ft.kl_loss(*[x[None, :2] for x in packed], reduction="none", causal=True)
    close(rows[:, :2], alone[0], LIMIT)


def test_kl_distillation_loss(device):
    loss = ft.KLDistillationLoss(window_left=4)
    assert "window_left=4" in repr(loss)
    inputs = leaves(*PAIR, device=device)
    assert torch.equal(loss(*inputs), ft.kl_loss(*inputs, causal=True, window_left=4))
    teacher = [x.detach() for x in inputs[:2]]
    loss(*teacher, *inputs[2:]).backward()
    assert inputs[2].grad is not None and inputs[0].grad is None
    for options, name in (({"reduction": "max"}, "reduction"), ({"direction": "up"}, "direction")):
        with pytest.raises(fovea.InvalidArgument, match=name):
            ft.KLDistillationLoss(**options)
    with pytest.raises(fovea.InvalidArgument, match="row_weight"):
        ft.kl_loss(*inputs, reduction="none", row_weight=torch.ones(2, 4, 6, device=device))
    with pytest.raises(fovea.InvalidArgument, match="kl: row_weight requires grad"):
        ft.kl_loss(*inputs, row_weight=torch.ones(2, 4, 6, device=device, requires_grad=True))


MIXES = {"none": (), "before": ("mix_before",), "both": ("mix_before", "mix_after")}


@pytest.mark.parametrize("mixes", MIXES)
@pytest.mark.parametrize("causal", [True, False])
def test_conv_attention(mixes, causal, device):
    names = MIXES[mixes]
    inputs = leaves((2, 6, 4, 16), (2, 9, 2, 16), (2, 9, 2, 8), (4, 3, 4), *[(4, 2) for _ in names],
                    device=device)  # fmt: skip

    def ours(q, k, v, w, *mix):
        return ft.conv_attention(q, k, v, w, causal=causal, **dict(zip(names, mix)))

    def theirs(q, k, v, w, *mix):
        return formula.convolved(q, k, v, w, causal=causal, **dict(zip(names, mix)))[0]

    compare(ours, inputs, theirs)


def test_conv_attention_lse_and_history(device):
    q, k, v, w = leaves((1, 6, 4, 16), (1, 6, 2, 16), (1, 6, 2, 8), (4, 3, 5), device=device)
    o, lse = ft.conv_attention(q, k, v, w, causal=True, return_lse=True)
    assert not lse.requires_grad and o.requires_grad
    close(lse, formula.convolved(*twins(*[x.cpu() for x in (q, k, v, w)]))[1], LIMIT)
    last = ft.conv_attention(q[:, 3:], k, v, w, causal=True, history=2)
    close(last, o[:, 5:], LIMIT)


@pytest.mark.parametrize("mix", ["before", "after", "both"])
def test_multi_token_attention_starts_as_attention(mix, device):
    layer = ft.MultiTokenAttention(
        32, 4, num_kv_heads=2, kernel_rows=3, kernel_columns=4, group_heads=2, mix=mix, norm=False
    ).to(device)
    x = torch.randn(2, 7, 32, device=device)
    q, k, v = (p(x).unflatten(-1, (-1, 8)) for p in (layer.q_proj, layer.k_proj, layer.v_proj))
    close(layer(x), layer.out_proj(ft.attention(q, k, v, causal=True).flatten(2)), LIMIT)


def test_multi_token_attention_trains_and_pads(device):
    layer = ft.MultiTokenAttention(32, 4, group_heads=4, mix="both", layer=2).to(device)
    x = torch.randn(2, 7, 32, device=device)
    layer(x).square().sum().backward()
    for name, p in layer.named_parameters():
        assert p.grad is not None and p.grad.abs().sum() > 0, name
    used = torch.tensor([4, 7], device=device)
    padded = x.clone()
    padded[0, 4:] = 100.0
    close(layer(padded, query_len=used)[0, :4], layer(x[:1, :4])[0], LIMIT)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    turned = layer(x, rotate=lambda q, k: (q.flip(-1), k.flip(-1)))
    close(turned, layer(x), LIMIT)
    for bad in ({"num_heads": 5}, {"group_heads": 3}, {"num_kv_heads": 3}, {"mix": "around"}):
        with pytest.raises(fovea.InvalidArgument, match=next(iter(bad)).replace("num_heads", "emb")):
            ft.MultiTokenAttention(32, **{"num_heads": 4, **bad})


def test_norm_of_a_head_is_scaled_by_depth(device):
    layer = ft.MultiTokenAttention(32, 4, layer=0, kernel_rows=1, kernel_columns=1).to(device)
    with torch.no_grad():
        layer.out_proj.weight.copy_(torch.eye(32))
    y = layer(torch.randn(2, 7, 32, device=device)).unflatten(-1, (4, 8))
    close(y.square().mean(-1).sqrt(), torch.full((2, 7, 4), 0.8), 1e-3)  # 1 - lambda, lambda = 0.2


def test_trace(device):
    q, k, v = (torch.randn(1, 130, h, 16, device=device) for h in (4, 2, 2))
    found = ft.trace(q, k, v, keep=3, causal=True, return_lse=True, return_dense=True,
                     return_mass=True)  # fmt: skip
    assert found.selected.shape == (1, 4, 3, 3) and found.mass.shape == (1, 4, 3, 3)
    # three blocks are all of them: dense attention
    o, lse = ft.attention(q, k, v, causal=True, return_lse=True)
    close(found.o, o, LIMIT)
    close(found.lse, lse, LIMIT)
    close(found.lse_dense, lse, LIMIT)
    close(found.mass.sum((-1, -2)), torch.full((1, 4), 130.0), LIMIT)
    few = ft.trace(q, k, v, keep=1, causal=True)
    assert few.lse is None and (few.selected[:, :, 0] == 0).all()
    with pytest.raises(fovea.InvalidArgument, match="trace: v requires grad"):
        ft.trace(q, k, v.requires_grad_(), keep=1)


def test_what_stands_beneath_torch_s_flash_attention(device):
    from fovea.torch import _flash

    q, k, v = leaves((2, 4, 6, 16), (2, 4, 6, 16), (2, 4, 6, 16), device=device)
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    dout = torch.randn_like(want)
    with torch.no_grad():
        o, lse, _, _, max_q, max_k, seed, offset, _ = _flash.sdpa_forward(q, k, v, 0.0, True)
        made = _flash.sdpa_backward(dout, q, k, v, o, lse, None, None, max_q, max_k, 0.0, True, seed,
                                    offset)  # fmt: skip
    close(o, want, LIMIT)
    for a, b in zip(made, torch.autograd.grad(want, (q, k, v), dout)):
        close(a, b, LIMIT)
    # packed, and a window of 2 keys to the left
    a, b, c = (x.detach()[0].transpose(0, 1).contiguous() for x in (q, k, v))
    start = torch.tensor([0, 2, 6], dtype=torch.int32, device=device)
    packed, lse, *rest = _flash.flash_forward(
        a, b, c, start, start, 4, 4, 0.0, True, False, window_size_left=2, window_size_right=0
    )
    options = {"query_max": 4, "causal": True, "window_left": 3}
    assert torch.equal(packed, ft.varlen_attention(a, b, c, start, **options))
    out = torch.empty_like(packed)
    again = _flash.flash_forward_in_place(
        out, a, b, c, start, start, 4, 4, 0.0, True, False, window_size_left=2
    )
    assert torch.equal(out, packed) and torch.equal(again, lse)
    made = _flash.flash_backward(packed, a, b, c, packed, lse, start, start, 4, 4, 0.0, True, *rest[:2],
                                 window_size_left=2)  # fmt: skip
    xs = [x.clone().requires_grad_() for x in (a, b, c)]
    grads = torch.autograd.grad(ft.varlen_attention(*xs, start, **options), xs, packed)
    for x, y in zip(made, grads):
        assert torch.equal(x, y)
    pool = torch.randn(4, 16, 4, 16, device=device)
    table = torch.tensor([[2, 0]], dtype=torch.int32, device=device)
    used = torch.tensor([20], dtype=torch.int32, device=device)
    paged, *_ = _flash.flash_forward(a[None], pool, pool, None, None, 6, 32, 0.0, True, False,
                                     seqused_k=used, block_table=table)  # fmt: skip
    assert torch.equal(paged, ft.decode(a[None], pool, pool, page_table=table, key_len=used))
    with pytest.raises(fovea.Unsupported, match="dropout_p is 0.5"):
        _flash.sdpa_forward(q, k, v, 0.5)


def test_register():
    registry = torch.nn.attention
    if not hasattr(registry, "register_flash_attention_impl"):
        with pytest.raises(fovea.Unsupported, match="register_flash_attention_impl"):
            ft.register()
        return
    ft.activate()
    try:
        assert registry.current_flash_attention_impl() == "fovea"
        assert "fovea" in registry.list_flash_attention_impls()
    finally:
        registry.restore_flash_attention_impl()
    assert registry.current_flash_attention_impl() is None
