# SPDX-License-Identifier: Apache-2.0
"""torch tensors, where torch is installed: as they are, without fovea importing it."""

import fovea
import numpy as np
import pytest
import reference

torch = pytest.importorskip("torch")
CUDA = torch.cuda.is_available() and fovea.device_count("cuda") > 0
NEEDS_CUDA = pytest.mark.skipif(not CUDA, reason="needs a CUDA device")


def inputs(dtype=torch.float32, device="cpu"):
    generator = torch.Generator().manual_seed(3)
    return [
        torch.randn(s, generator=generator).to(device, dtype)
        for s in ((2, 5, 4, 16), (2, 9, 2, 16), (2, 9, 2, 16))
    ]


def want(q, k, v, **options):
    return reference.attention(*(x.double().cpu().numpy() for x in (q, k, v)), **options)


def test_cpu_tensors(ctx):
    for dtype, limit in ((torch.float32, 5e-6), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)):
        q, k, v = inputs(dtype)
        o, lse = fovea.attention_forward(ctx, q, k, v, causal=True, lse=True)
        assert type(o) is torch.Tensor and o.dtype == dtype and lse.dtype == torch.float32
        o_want, lse_want = want(q, k, v, causal=True)
        np.testing.assert_allclose(o.double(), o_want, atol=limit)
        np.testing.assert_allclose(lse, lse_want, atol=2e-3)


def test_head_major_memory_and_parameters(ctx):
    q, k, v = (torch.nn.Parameter(x.transpose(1, 2).contiguous()) for x in inputs())
    with torch.no_grad():
        o = fovea.attention_forward(ctx, *(x.transpose(1, 2) for x in (q, k, v)))
    np.testing.assert_allclose(
        o, want(*(x.detach().transpose(1, 2) for x in (q, k, v)))[0], atol=5e-6
    )


def test_agrees_with_torch_attention_and_autograd(ctx):
    q, k, v = (x.transpose(1, 2).detach().requires_grad_() for x in inputs())
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    dout = torch.randn_like(theirs)
    grads = torch.autograd.grad(theirs, (q, k, v), dout)
    q, k, v = (x.detach().transpose(1, 2) for x in (q, k, v))
    ours, lse = fovea.attention_forward(ctx, q, k, v, lse=True)
    np.testing.assert_allclose(ours.transpose(1, 2), theirs.detach(), atol=1e-5)
    mine = fovea.attention_backward(ctx, q, k, v, ours, lse, dout.transpose(1, 2))
    for a, b in zip(mine, grads, strict=True):
        np.testing.assert_allclose(a.transpose(1, 2), b, atol=2e-5)


def test_dtypes_and_empty_tensors(ctx):
    q, k, v = inputs()
    with pytest.raises(TypeError, match="q has dtype float64"):
        fovea.attention_forward(ctx, q.double(), k, v)
    with pytest.raises(fovea.InvalidArgument, match="q is a torch tensor"):
        fovea.attention_forward(ctx, q.to("meta"), k, v)
    assert fovea.attention_forward(ctx, q[:0], k[:0], v[:0]).shape == (0, 5, 4, 16)


LOST = r"{}: {} requires grad, .* lost: fovea\.torch .* x\.detach\(\) or .*no_grad\(\), .* \*_backward op"


@pytest.mark.parametrize("name", ["q", "v", "sink_logit", "o"])
def test_gradients_are_not_dropped_without_a_word(ctx, name):
    tensors = dict(zip("qkv", inputs(), strict=True), sink_logit=torch.zeros(4))
    tensors["o"] = torch.empty_like(tensors["q"])
    tensors[name].requires_grad_()
    run = lambda: fovea.attention_forward(ctx, **tensors)
    for call in (run, lambda: fovea.attention_forward_workspace(ctx, **tensors)):
        with pytest.raises(fovea.InvalidArgument, match=LOST.format("attention_forward", name)):
            call()
    with torch.no_grad():
        o = run().clone()
    with torch.inference_mode():
        assert torch.equal(run(), o)
    tensors[name] = tensors[name].detach()
    assert torch.equal(run(), o)


def test_tensors_without_an_address_have_a_sentence(ctx):
    x = torch.randn(2, 4, 2, 8)
    nested = torch.nested.nested_tensor([torch.randn(3, 2, 8), torch.randn(4, 2, 8)])
    for q, text in [
        (x.to_sparse(), "q is a torch tensor of layout torch.sparse_coo, wanted a dense one"),
        (nested, "q is a nested torch tensor, wanted a dense one: pad it, or pack it with query_st"),
    ]:
        with pytest.raises(fovea.InvalidArgument, match=f"^attention_forward: {text}"):
            fovea.attention_forward(ctx, q, x, x)
    with pytest.raises(fovea.InvalidArgument, match="q is a torch tensor without memory of its own"):
        torch.vmap(lambda q: fovea.attention_forward(ctx, q[None], x, x))(x)


def test_torch_compile_leaves_plain_calls_as_they_are(ctx):
    """And with fullgraph=True says what to take instead."""
    x = torch.randn(1, 4, 2, 8)
    call = fovea.prepare(fovea.attention_forward, ctx, x, x, x)
    for use in (lambda q: fovea.attention_forward(ctx, q, x, x) * 2, lambda q: call(q=q) * 2):
        compiled = torch.compile(use, backend="eager")
        assert torch.equal(compiled(x), use(x))
        torch._dynamo.reset()  # it remembers what it left alone
        with pytest.raises(Exception, match="fovea.torch has those that torch.compile knows"):
            torch.compile(use, backend="eager", fullgraph=True)(x)


def test_gradients_of_modules_prepared_calls_and_traces(ctx):
    q, k, v = inputs()
    projected = torch.nn.Linear(16, 16)(q)  # no leaf, but of a graph
    with pytest.raises(fovea.InvalidArgument, match=LOST.format("attention_forward", "q")):
        fovea.attention_forward(ctx, projected, k, v)
    with torch.no_grad():
        call = fovea.prepare(fovea.attention_forward, ctx, projected, k, v)
        call()
    with pytest.raises(fovea.InvalidArgument, match=LOST.format("attention_forward", "q")):
        call()
    assert call(q=projected.detach()) is call()
    with pytest.raises(fovea.InvalidArgument, match=LOST.format("attention_forward", "k")):
        call(k=k.requires_grad_())
    with fovea.TraceSession(ctx, keep=2).begin(lambda records: None) as session:
        with pytest.raises(fovea.InvalidArgument, match=LOST.format("trace_forward", "q")):
            session.trace(projected, v)
    ctx.array(projected)  # a copy is no operation


def masked(x, dtype=torch.bool):
    return torch.rand(x, generator=torch.Generator().manual_seed(1)).lt(0.6).to(dtype)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_CUDA)])
@pytest.mark.parametrize("shape", [(2, 4, 5, 9), (2, 1, 1, 9), (5, 9), (9,), (2, 4, 5, 1), (4, 1, 1)])
def test_bool_masks_and_biases_as_in_torch(shape, device):
    with fovea.Context("host" if device == "cpu" else "cuda") as ctx:
        q, k, v = inputs(device=device)
        mask = masked(shape).to(device)
        bias = torch.randn(shape, generator=torch.Generator().manual_seed(2)).to(device)
        x, y, z = (x.transpose(1, 2).detach().requires_grad_() for x in (q, k, v))
        bias.requires_grad_()
        sdpa = torch.nn.functional.scaled_dot_product_attention
        for field, value, ours in (("mask", mask, mask), ("bias", bias, bias.detach())):
            theirs = sdpa(x, y, z, attn_mask=value.expand(2, 4, 5, 9), enable_gqa=True)
            o, lse = fovea.attention_forward(ctx, q, k, v, lse=True, **{field: ours})
            assert o.device.type == device
            seen = torch.isfinite(theirs).all(-1)  # torch: NaN where no key is seen
            np.testing.assert_allclose(
                o.transpose(1, 2)[seen].cpu(), theirs[seen].detach().cpu(), atol=1e-5
            )
        dout = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(3)).to(device)
        wanted = torch.autograd.grad(theirs, (x, y, z, bias), dout)
        got = fovea.attention_backward(
            ctx, q, k, v, o, lse, dout.transpose(1, 2), bias=bias.detach(), dbias=True
        )
        assert got[3].shape == bias.shape
        for a, b in zip((*(x.transpose(1, 2) for x in got[:3]), got[3]), wanted, strict=True):
            np.testing.assert_allclose(a.cpu(), b.cpu(), atol=2e-5)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_CUDA)])
def test_bits_are_numpys(device):
    for keys in (1, 8, 13, 64):
        mask = masked((2, 3, 1, keys))
        packed, _ = fovea._views.pack_bits(mask.to(device), keys, None)
        want = np.packbits(mask.numpy(), axis=-1, bitorder="little")
        assert packed.device.type == device and np.array_equal(packed.cpu(), want)
        one = mask[..., :1]
        packed, _ = fovea._views.pack_bits(one.to(device), keys, None)
        want = np.packbits(one.expand(2, 3, 1, keys).numpy(), axis=-1, bitorder="little")
        assert np.array_equal(packed.cpu(), want)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_CUDA)])
def test_the_gradient_of_a_sum(device):
    with fovea.Context("host" if device == "cpu" else "cuda") as ctx:
        q, k, v = inputs(device=device)
        o, lse = fovea.attention_forward(ctx, q, k, v, lse=True)
        probe, kept = o.clone().requires_grad_(), []
        probe.register_hook(kept.append)
        probe.sum().backward()
        (dout,) = kept
        assert set(dout.stride()) == {0}
        got = fovea.attention_backward(ctx, q, k, v, o, lse, dout)
        want = fovea.attention_backward(ctx, q, k, v, o, lse, torch.ones_like(o))
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@NEEDS_CUDA
def test_masks_and_repeated_arrays_on_a_stream_of_the_contexts_own():
    for stream in (None, torch.cuda.Stream()):
        with fovea.Context("cuda") as ctx:
            ctx.set_stream(stream)
            q, k, v = inputs(device="cuda")
            mask = masked((5, 9)).cuda()
            torch.cuda.synchronize()
            want = fovea.attention_forward(ctx, q, k, v, mask=mask)
            ctx.synchronize()
            late = torch.zeros_like(mask)
            torch.cuda.synchronize()
            torch.cuda._sleep(20_000_000)
            late.copy_(mask)
            got = fovea.attention_forward(ctx, q, k, v, mask=late)
            for _ in range(4):  # memory of the packed bits, had it been given back too early
                torch.full((1, 1, 5, 2), 0, dtype=torch.uint8, device="cuda")
            ctx.synchronize()
            assert torch.equal(got, want)


@NEEDS_CUDA
def test_cuda_tensors_follow_torchs_stream():
    with fovea.Context("cuda") as ctx:
        q, k, v = inputs(torch.bfloat16, "cuda")
        for stream in (torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(20_000_000)
                late = q * 2
                o = fovea.attention_forward(ctx, late, k, v, causal=True)
                again = (o + 0).cpu()
            np.testing.assert_allclose(again.double(), want(q * 2, k, v, causal=True)[0], atol=2e-2)
        assert ".cuda." in ctx.last_kernel


@NEEDS_CUDA
def test_cuda_arrays_of_every_protocol_and_buffers():
    with fovea.Context("cuda") as ctx, fovea.Context("host") as host:
        q, k, v = inputs(torch.float32, "cuda")
        expected = want(q, k, v)[0]
        with pytest.raises(
            fovea.InvalidArgument,
            match="q is a torch tensor on cuda:0, but the context computes on host",
        ):
            fovea.attention_forward(host, q, k, v)
        with pytest.raises(fovea.InvalidArgument, match="k is a NumPy array in host memory"):
            fovea.attention_forward(ctx, q, k.cpu().numpy(), v)

        class DLPack:
            def __init__(self, x):
                self.__dlpack__, self.__dlpack_device__ = x.__dlpack__, x.__dlpack_device__

        class Interface:
            def __init__(self, x):
                self.__cuda_array_interface__ = x.__cuda_array_interface__

        for wrap in (lambda x: x, DLPack, Interface):
            o = fovea.attention_forward(ctx, *(wrap(x) for x in (q, k, v)))
            o = o if wrap(q) is q else torch.as_tensor(o, device="cuda")
            np.testing.assert_allclose(o.cpu(), expected, atol=1e-5)
        buffers = [ctx.array(x.cpu()) for x in (q, k, v)]
        np.testing.assert_allclose(
            fovea.attention_forward(ctx, *buffers).numpy(), expected, atol=1e-5
        )
        pinned = ctx.empty(q.shape, host=True)
        ctx.copy(pinned, q)
        ctx.synchronize()
        assert np.array_equal(np.asarray(pinned), q.cpu().numpy())


@NEEDS_CUDA
def test_cuda_graph_capture():
    with fovea.Context("cuda") as ctx:
        q, k, v = inputs(torch.bfloat16, "cuda")
        o = torch.empty_like(q)
        run = lambda: fovea.attention_forward(ctx, q, k, v, causal=True, o=o)
        run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        for factor in (1, 3):
            q.mul_(factor)
            o.zero_()
            graph.replay()
            np.testing.assert_allclose(o.double().cpu(), want(q, k, v, causal=True)[0], atol=2e-2)


RUNS = 100
BATCH = 5


def same_bits(ctx, call, sums=0):
    """What call() gives, after asserting that it gives it RUNS times and, but for the last `sums`
    outputs, which add over the batch, for each of BATCH equal sequences; by a tuned kernel."""
    first = [x.clone() for x in call()]
    if torch.cuda.get_device_capability() == (9, 0):
        assert ".sm90." in ctx.last_kernel
    assert all(torch.isfinite(x.float()).all() for x in first)
    for x in first[: len(first) - sums]:
        assert len(x) == BATCH and all(torch.equal(x[0], x[i]) for i in range(1, BATCH))
    for _ in range(RUNS - 1):
        assert all(torch.equal(a, b) for a, b in zip(first, call(), strict=True))
    return first


def sequences(s, heads, d, dtype=torch.bfloat16, seed=7):
    generator = torch.Generator("cuda").manual_seed(seed)
    one = torch.randn(1, s, heads, d, generator=generator, device="cuda")
    return one.to(dtype).repeat(BATCH, 1, 1, 1)


@NEEDS_CUDA
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d,e", [(64, 64), (96, 96), (128, 128), (192, 128), (256, 256)])
def test_same_bits_in_training(d, e, causal):
    with fovea.Context("cuda") as ctx:
        q, k, v = sequences(1000, 8, d), sequences(1000, 4, d), sequences(1000, 4, e)
        run = lambda: fovea.attention_forward(ctx, q, k, v, causal=causal, lse=True)
        o, lse = same_bits(ctx, run)
        dout = sequences(1000, 8, e)
        same_bits(ctx, lambda: fovea.attention_backward(ctx, q, k, v, o, lse, dout, causal=causal))


@NEEDS_CUDA
@pytest.mark.parametrize("page", [0, 16, 64, 256])
@pytest.mark.parametrize("s", [1, 7])
def test_same_bits_in_decode(s, page):
    with fovea.Context("cuda") as ctx:
        t = 8192
        q, k, v = sequences(s, 32, 128), sequences(t, 8, 128), sequences(t, 8, 128)
        fields = {"causal": True}
        if page:
            order = torch.randperm(BATCH * t // page, device="cuda")
            fields["page_table"] = torch.argsort(order).reshape(BATCH, -1).to(torch.int32)
            k, v = (x.reshape(-1, page, 8, 128)[order] for x in (k, v))
        (o,) = same_bits(ctx, lambda: (fovea.attention_forward(ctx, q, k, v, **fields),))
        # With splits given a sequence's bits do not depend on how many there are.
        fields["splits"] = 8
        (o,) = same_bits(ctx, lambda: (fovea.attention_forward(ctx, q, k, v, **fields),))
        if page:
            fields["page_table"] = fields["page_table"][:1]
        else:
            k, v = k[:1], v[:1]
        assert torch.equal(fovea.attention_forward(ctx, q[:1], k, v, **fields)[0], o[0])


@NEEDS_CUDA
@pytest.mark.parametrize("causal", [False, True])
def test_same_bits_in_8_bit(causal):
    with fovea.Context("cuda") as ctx:
        x = [sequences(1000, 8, 128) for _ in "qkv"]

        def run():
            (q, q_scale), (k, k_scale) = (
                fovea.quant_quantize(ctx, y, code=True, n=1) for y in x[:2]
            )
            order = {"code_order": "v_perm16"}
            v_t, v_scale = fovea.quant_quantize(ctx, x[2], code_t=True, n=1, padded=1024, **order)
            scales = {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale}
            o = torch.empty_like(x[0])
            fovea.quant_forward(ctx, q, k, v_t=v_t, **scales, o=o, causal=causal, **order)
            return (o,)

        same_bits(ctx, run)


@NEEDS_CUDA
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d,rows,columns", [(64, 7, 7), (128, 6, 11)])
def test_same_bits_in_convolution(d, rows, columns, causal):
    with fovea.Context("cuda") as ctx:
        q, k, v = sequences(500, 8, d), sequences(700, 4, d), sequences(700, 4, d, seed=8)
        weight = torch.randn(8, rows, columns, device="cuda") / rows
        run = lambda **more: fovea.conv_attention_forward(
            ctx, more.pop("q", q), k, v, weight, causal=causal, lse=True, **more
        )
        o, lse = same_bits(ctx, run)
        dout = sequences(500, 8, d, seed=9)
        outputs = {"dq": True, "dk": True, "dv": True, "dweight": True}
        same_bits(
            ctx,
            lambda: fovea.conv_attention_backward(
                ctx, q, k, v, weight, o, lse, dout, causal=causal, **outputs
            ),
            sums=1,
        )
        same_bits(ctx, lambda: run(q=q[:, -rows:], history=rows - 1))  # decode


@NEEDS_CUDA
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d", [64, 128])
def test_same_bits_in_divergences(d, causal):
    with fovea.Context("cuda") as ctx:
        x = [sequences(1000, heads, d, seed=seed) for seed, heads in enumerate((8, 4, 8, 4))]
        fields = {"causal": causal, "direction": "student_teacher"}
        statistics = {"kl": True, "lse_teacher": True, "lse_student": True}
        run = lambda: fovea.kl_forward(ctx, *x, **statistics, total=True, **fields)
        *given, _ = same_bits(ctx, run, sums=1)
        fields["dkl"] = sequences(8, 1000, 1, torch.float32)[..., 0]
        gradients = ("dq_student", "dk_student", "dq_teacher", "dk_teacher")
        same_bits(
            ctx,
            lambda: fovea.kl_backward(ctx, *x, *given, **dict.fromkeys(gradients, True), **fields),
        )
