# SPDX-License-Identifier: Apache-2.0
"""The torch.library operations: opcheck, torch.compile, functorch, threads, and what is kept."""

import threading

import fovea
import fovea.torch as ft
import pytest
import torch


def leaves(*shapes, device="cpu"):
    return [torch.randn(x, device=device, requires_grad=True) for x in shapes]


def calls(device):
    """{operation: arguments} of torch.ops.fovea."""

    def make(*shapes):
        return leaves(*shapes, device=device)

    def ints(*values):
        return torch.tensor(values, dtype=torch.int32, device=device)

    qkv = make((2, 5, 4, 16), (2, 9, 2, 16), (2, 9, 2, 8))
    none = [None] * 5
    lengths = [None] * 4
    packed = make((12, 4, 16), (12, 2, 16), (12, 2, 8))
    starts = ints(0, 5, 12), ints(0, 5, 12)
    numbers = [0, 0, 0, 1, 0, 0, 0.0, 0.0, False]
    with torch.no_grad():
        fixed = [x.clone() for x in qkv]
    return {
        "attention": [*qkv, *[None] * 4, *none, *numbers, False],
        "attention with all": [
            *(x.transpose(1, 2) for x in qkv), None, *make((1, 4, 5, 1), (4,), (4,)), *lengths,
            ints(1, 0), *numbers, True,
        ],
        "attention, packed": [*packed, *[None] * 4, *starts, *[None] * 3, 7, 7, *numbers[2:], False],
        "decode": [
            fixed[0][:, :1], *fixed[1:], *[None] * 4, ints(4, 9), *[None] * 5, 0, 0, 0, 0, 0, 0, 0.0,
            0.0, True, 0, False, 0,
        ],
        "kl": [*make((2, 5, 4, 16), (2, 9, 2, 16), (2, 5, 4, 8), (2, 9, 4, 8)), *none, 0, 0, 0, 0, 0,
               0.0, 0.0, True, 0, True],
        "conv_attention": [*qkv, *make((4, 3, 5)), *lengths, 0, 0, 0, 0.0, True],
        "multi_token": [*qkv, *make((4, 3, 5), (4, 2)), None, *lengths, 0, 0, 0, 0.0, True],
        "group_norm": [*make((2, 5, 4, 16), (4, 16)), None, 0.0, 0.0],
        "trace": [*fixed, *none, 2, 0.0, 16, 16, False, True],
    }  # fmt: skip


@pytest.mark.parametrize("name", calls("cpu"))
def test_opcheck(name, device):
    operation = getattr(torch.ops.fovea, name.replace(",", " ").split()[0]).default
    torch.library.opcheck(operation, tuple(calls(device)[name]))


def test_opcheck_of_a_gradient(device):
    q, k, v = (x.detach() for x in leaves((2, 5, 4, 16), (2, 9, 2, 16), (2, 9, 2, 8), device=device))
    o, lse = ft.attention(q, k, v, return_lse=True)
    arguments = (q, k, v, *[None] * 9, o, lse, o, None, 0, 0, 0, 0, 0, 0, 0.0, 0.0, False, False,
                 [True, False, True] + [False] * 9)  # fmt: skip
    torch.library.opcheck(torch.ops.fovea.attention_backward.default, arguments)


def functions():
    generator = torch.Generator().manual_seed(1)
    mask = torch.rand(1, 4, 9, 9, generator=generator) > 0.4

    def masked(q, k, v):
        return ft.attention(q, k, v, mask=mask[..., : q.shape[1], : k.shape[1]].to(q.device))

    def taps(q, k, v):
        return ft.conv_attention(q, k, v, q.new_ones(4, 2, 3), causal=True)

    return {
        "attention": lambda q, k, v: ft.attention(q, k, v, causal=True, softcap=4.0) * 2,
        "masked": masked,
        "sdpa": lambda q, k, v: ft.scaled_dot_product_attention(
            *(x.transpose(1, 2) for x in (q, k, v)), is_causal=True, enable_gqa=True
        ),
        "kl": lambda q, k, v: ft.kl_loss(
            q.detach(), k.detach(), q, k, scale_student=0.2, causal=True
        ),
        "conv": taps,
    }  # fmt: skip


@pytest.mark.parametrize("name", functions())
def test_compile(name, device):
    function = functions()[name]
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)
    for b, s in ((2, 7), (3, 9)):
        inputs = leaves((b, s, 4, 16), (b, s, 2, 16), (b, s, 2, 16), device=device)
        a, b = compiled(*inputs), function(*inputs)
        assert torch.equal(a, b) and a.stride() == b.stride()
        dout = torch.randn_like(a)
        used = inputs[:2] if name == "kl" else inputs
        for x, y in zip(torch.autograd.grad(a, used, dout), torch.autograd.grad(b, used, dout)):
            assert torch.equal(x, y)


def test_compile_of_a_module_and_autocast(device):
    layer = ft.MultiTokenAttention(32, 4, kernel_rows=2, kernel_columns=3, group_heads=2).to(device)
    x = torch.randn(2, 6, 32, device=device)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x))
    with torch.autocast(device, dtype=torch.bfloat16):
        torch.testing.assert_close(compiled(x), layer(x))


def test_inductor(device):
    import shutil

    if device == "cpu" and not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("inductor needs a compiler")
    function = functions()["attention"]
    compiled = torch.compile(function, fullgraph=True)
    inputs = leaves((2, 7, 4, 16), (2, 7, 2, 16), (2, 7, 2, 16), device=device)
    a, b = compiled(*inputs), function(*inputs)
    torch.testing.assert_close(a, b)
    for x, y in zip(torch.autograd.grad(a.sum(), inputs), torch.autograd.grad(b.sum(), inputs)):
        torch.testing.assert_close(x, y)


def test_fake_tensors_have_the_strides_of_real_ones():
    from torch._subclasses.fake_tensor import FakeTensorMode

    q, k, v = (torch.randn(2, h, 6, 8) for h in (4, 2, 2))
    real = ft.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    with FakeTensorMode() as mode:
        fake = ft.scaled_dot_product_attention(
            *(mode.from_tensor(x) for x in (q, k, v)), enable_gqa=True
        )
    assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype)


def test_functorch(device):
    shapes = (3, 2, 5, 4, 8), (3, 2, 6, 2, 8), (3, 2, 6, 2, 8)
    q, k, v = (x.detach() for x in leaves(*shapes, device=device))

    def loss(q, k, v):
        return ft.attention(q, k, v, causal=True).square().sum()

    together = torch.vmap(torch.func.grad(loss, (0, 1, 2)))(q, k, v)
    for i in range(3):
        one = [x[i].clone().requires_grad_() for x in (q, k, v)]
        for a, b in zip(together, torch.autograd.grad(loss(*one), one)):
            torch.testing.assert_close(a[i], b)
    shared = torch.vmap(ft.attention, in_dims=(0, None, None))(q, k[0], v[0])
    torch.testing.assert_close(shared[2], ft.attention(q[2], k[0], v[0]))
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.func.grad(lambda q: torch.func.grad(loss)(q, k[0], v[0]).sum())(q[0])


def test_forward_mode_has_a_sentence():
    x, text = torch.randn(1, 4, 2, 8), "^attention: it has no forward-mode derivative .jvp."
    with pytest.raises(RuntimeError, match=text):
        torch.func.jvp(lambda q: ft.attention(q, x, x), (x,), (x,))
    with torch.autograd.forward_ad.dual_level(), pytest.raises(RuntimeError, match=text):
        ft.attention(torch.autograd.forward_ad.make_dual(x, x), x, x)
    assert ft.attention(x, x, x).shape == x.shape


def test_dispatch_modes_and_hooks_see_the_operation():
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    q = torch.randn(1, 3, 2, 8)
    with Watch():
        ft.attention(q, q, q)
    assert "fovea.attention.default" in seen


def test_checkpoint_and_saved_tensor_hooks(device):
    from torch.utils.checkpoint import checkpoint

    inputs = leaves((2, 7, 4, 16), (2, 7, 2, 16), (2, 7, 2, 16), device=device)
    want = torch.autograd.grad(ft.attention(*inputs).square().sum(), inputs)
    o = checkpoint(ft.attention, *inputs, use_reentrant=False)
    for a, b in zip(torch.autograd.grad(o.square().sum(), inputs), want):
        assert torch.equal(a, b)


def test_a_tensor_changed_before_backward_is_noticed(device):
    q, k, v = leaves((1, 3, 2, 8), (1, 3, 2, 8), (1, 3, 2, 8), device=device)
    k = k * 1
    o = ft.attention(q, k, v)
    k.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()


def test_threads_have_contexts_of_their_own(device):
    q = torch.randn(2, 9, 4, 16, device=device)
    want, found = ft.attention(q, q, q), []

    def work():
        for _ in range(20):
            ok = torch.equal(ft.attention(q, q, q), want)
        found.append((ok, ft.context(device if device == "cpu" else q.device)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert all(ok for ok, _ in found) and len({id(c) for _, c in found}) == 4


def test_torch_says_how_many_threads():
    q = torch.randn(1, 3, 2, 8)
    before = torch.get_num_threads()
    try:
        for n in (1, 2):
            torch.set_num_threads(n)
            ft.attention(q, q, q)
            assert ft.context().get("threads") == n
    finally:
        torch.set_num_threads(before)


def test_plans_are_bounded(monkeypatch):
    monkeypatch.setattr(ft._place, "PLANS", 8)
    for s in range(1, 30):
        q = torch.randn(1, s, 2, 8)
        assert ft.attention(q, q, q).shape == q.shape
    assert len(ft._place.place_of(torch.device("cpu")).plans) <= 8


def test_import_fovea_does_not_import_torch():
    import subprocess
    import sys

    code = f"import sys; sys.path[:0] = {sys.path}; import fovea; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_inference_mode(device):
    q = torch.randn(1, 3, 2, 8, device=device)
    with torch.inference_mode():
        o = ft.attention(q, q, q)
    assert torch.equal(o, ft.attention(q, q, q))


def test_the_library_s_sentence_comes_through_the_operation():
    q = torch.randn(1, 3, 2, 8)
    with pytest.raises(fovea.InvalidArgument, match=r"k.shape\[3\]"):
        torch.ops.fovea.attention(q, q[..., :4], q, *[None] * 9, *[0] * 6, 0.0, 0.0, False, False)
