# SPDX-License-Identifier: Apache-2.0
"""Masks of bool and of bits, what broadcasts to scores, and arrays that repeat one element."""

import re

import fovea
import numpy as np
import pytest
import reference

RNG = np.random.default_rng(5)
B, S, T, H, G, D = 2, 5, 19, 4, 2, 16
Q, K, V = (
    RNG.standard_normal(n).astype(np.float32) for n in ((B, S, H, D), (B, T, G, D), (B, T, G, D))
)
WHOLE = (B, H, S, T)
SHAPES = [
    WHOLE,
    (B, 1, S, T),
    (B, H, 1, T),
    (1, H, S, T),
    (1, 1, S, T),
    (B, 1, 1, T),
    (H, S, T),
    (H, 1, T),
    (S, T),
    (1, T),
    (T,),
    (B, H, S, 1),
    (H, 1, 1),
    (S, 1),
    (1,),
    (1, 1, 1, 1),
]


def close(got, want, atol=5e-6):
    np.testing.assert_allclose(np.asarray(got, np.float64), want, atol=atol)


def random_mask(shape):
    return RNG.random(shape) < 0.6


def pack(mask):
    return np.packbits(mask, axis=-1, bitorder="little")


def masked(mask, **options):
    hidden = np.where(np.broadcast_to(mask, WHOLE), 0.0, -np.inf)
    return reference.attention(Q, K, V, bias=hidden, **options)


@pytest.mark.parametrize("shape", SHAPES)
def test_bool_masks_broadcast_as_in_sdpa(ctx, shape):
    mask = random_mask(shape)
    o, lse = fovea.attention_forward(ctx, Q, K, V, mask=mask, lse=True)
    o_want, lse_want = masked(mask)
    close(o, o_want)
    close(lse, lse_want)
    full = pack(np.broadcast_to(mask, WHOLE))
    assert np.array_equal(o, fovea.attention_forward(ctx, Q, K, V, mask=full))
    dout = RNG.standard_normal(Q.shape).astype(np.float32)
    gradients = [
        fovea.attention_backward(ctx, Q, K, V, o, lse, dout, mask=m) for m in (mask, full)
    ]
    assert all(np.array_equal(x, y) for x, y in zip(*gradients, strict=True))


@pytest.mark.parametrize("keys", [1, 7, 8, 9, 64, 65])
def test_the_first_key_is_bit_0(ctx, keys):
    k, v = (RNG.standard_normal((1, keys, 1, 8)).astype(np.float32) for _ in "kv")
    q = np.zeros((1, 1, 1, 8), np.float32)
    for j in {0, keys // 2, keys - 1}:
        only = np.arange(keys) == j
        close(fovea.attention_forward(ctx, q, k, v, mask=only)[0, 0, 0], v[0, j, 0], 1e-6)


def test_bool_masks_of_any_strides(ctx):
    wide = random_mask((S, 2 * T, 2))
    mask = wide[::-1, ::2, 1]
    want = fovea.attention_forward(ctx, Q, K, V, mask=mask.copy())
    assert np.array_equal(fovea.attention_forward(ctx, Q, K, V, mask=mask), want)
    mask = np.broadcast_to(np.True_, (S, T))
    close(
        fovea.attention_forward(ctx, Q, K, V, mask=mask), fovea.attention_forward(ctx, Q, K, V), 0
    )


def test_packed_bits_broadcast_and_pad_with_the_stride(ctx):
    bits = pack(random_mask((1, 1, S, T)))
    want = fovea.attention_forward(ctx, Q, K, V, mask=np.broadcast_to(bits, (B, H, S, 3)))
    room = np.full((S, 16), 255, np.uint8)
    room[:, :3] = bits
    for mask in (bits, bits[0, 0], room[:, :3]):
        assert np.array_equal(fovea.attention_forward(ctx, Q, K, V, mask=mask), want)


@pytest.mark.parametrize("call", ["run", "ask"])
def test_what_is_no_mask_is_told_how_to_become_one(ctx, call):
    run = fovea.attention_forward if call == "run" else fovea.attention_forward_workspace
    advice = "give a bool mask or pack with numpy.packbits(mask, axis=-1, bitorder='little')"
    for mask, kind, text in [
        (np.ones(WHOLE, np.uint8), fovea.InvalidArgument, f"mask has shape {WHOLE}.*{advice}"),
        (np.ones((B, H, S, 4), np.uint8), fovea.InvalidArgument, "a bit for each of 19: " + advice),
        (np.ones((3, S, 3), np.uint8), fovea.InvalidArgument, advice),
        (np.ones((S, T - 1), bool), fovea.InvalidArgument, "mask has shape (5, 18), wanted"),
        (np.ones((1, *WHOLE), bool), fovea.InvalidArgument, "or one that broadcasts to it"),
        (np.ones((), bool), fovea.InvalidArgument, "mask has shape (), wanted"),
        (np.ones(WHOLE, np.float32), fovea.InvalidArgument, "mask has dtype f32, wanted bool"),
    ]:
        with pytest.raises(kind) as why:
            run(ctx, Q, K, V, mask=mask)
        text = ".*".join(map(re.escape, text.split(".*")))
        assert re.match("attention_forward: ", str(why.value)) and re.search(text, str(why.value))
    with pytest.raises(TypeError, match="attention_forward: bias has dtype bool: give it as mask"):
        run(ctx, Q, K, V, bias=np.ones((S, T), bool))
    with pytest.raises(TypeError, match="attention_forward: key_max is 'x', wanted a 64-bit"):
        run(ctx, Q, K, V, mask=np.ones((S, T), bool), key_max="x")


def test_masks_of_paged_and_packed_keys(ctx):
    page, pages = 4, 6
    pool = [RNG.standard_normal((B * pages, page, G, D)).astype(np.float32) for _ in "kv"]
    table = RNG.permutation(B * pages).astype(np.int32).reshape(B, pages)
    plain = [x[table].reshape(B, pages * page, G, D) for x in pool]
    mask = random_mask((B, 1, S, pages * page))
    want = fovea.attention_forward(ctx, Q, *plain, mask=mask)
    got = fovea.attention_forward(ctx, Q, *pool, page_table=table, mask=mask)
    close(got, want)
    lengths = np.array([21, 13], np.int32)
    got = fovea.attention_forward(
        ctx, Q, *pool, page_table=table, key_len=lengths, key_max=21, mask=mask[..., :21]
    )
    close(got, fovea.attention_forward(ctx, Q, *plain, key_len=lengths, mask=mask))

    start = np.array([0, 11, 30], np.int32)
    k, v = (RNG.standard_normal((1, 30, G, D)).astype(np.float32) for _ in "kv")
    for fields, keys in (({}, 30), ({"key_max": 19}, 19)):
        mask = random_mask((B, 1, 1, keys))
        got = fovea.attention_forward(ctx, Q, k, v, key_start=start, mask=mask, **fields)
        for n in range(B):
            one = slice(start[n], start[n + 1])
            seen = mask[n : n + 1, ..., : start[n + 1] - start[n]]
            want = fovea.attention_forward(ctx, Q[n : n + 1], k[:, one], v[:, one], mask=seen)
            close(got[n], want[0])
    # Rows packed as well: b is 1.
    rows, query = Q.reshape(1, B * S, H, D), np.array([0, S, 2 * S], np.int32)
    mask = random_mask((B * S, 19))
    got = fovea.attention_forward(
        ctx, rows, k, v, query_start=query, key_start=start, key_max=19, mask=mask
    )
    split = np.zeros((B, 1, S, 19), bool)
    split[:, 0] = mask.reshape(B, S, 19)
    want = fovea.attention_forward(ctx, Q, k, v, key_start=start, key_max=19, mask=split)
    close(got.reshape(Q.shape), want)


def test_block_masks_of_traces(ctx):
    q = RNG.standard_normal((B, 70, H, D)).astype(np.float32)
    k = RNG.standard_normal((B, 300, G, D)).astype(np.float32)
    fields = dict(keep=3, block_rows=32, block_keys=16, selected=True)
    blocks = 19
    for shape in ((B, H, 3, blocks), (3, blocks), (H, 1, blocks), (blocks,), (B, 1, 1, 1)):
        mask = random_mask(shape)
        full = np.broadcast_to(mask, (B, H, 3, blocks))
        got = fovea.trace_forward(ctx, q, k, block_mask=mask, **fields)
        want = fovea.trace_forward(ctx, q, k, block_mask=pack(full), **fields)
        assert np.array_equal(got, want)
        seen = got >= 0
        assert np.take_along_axis(full, np.where(seen, got, 0), 3)[seen].all()
    with pytest.raises(fovea.InvalidArgument, match="block_mask has shape .*a bit for each of 19"):
        fovea.trace_forward(ctx, q, k, block_mask=np.ones((B, H, 3, 4), np.uint8), **fields)
    table = np.arange(B * blocks, dtype=np.int32).reshape(B, blocks)
    pool = np.zeros((B * blocks, 16, G, D), np.float32)
    pool.reshape(B, blocks * 16, G, D)[:, :300] = k
    mask = random_mask((3, blocks))
    length = np.full(B, 300, np.int32)
    got = fovea.trace_forward(
        ctx, q, pool, page_table=table, key_len=length, block_mask=mask, **fields
    )
    assert np.array_equal(got, fovea.trace_forward(ctx, q, k, block_mask=mask, **fields))


def gradient_of_bias(bias, sink, dout):
    """d(sum(o * dout)) / d(score + bias), in float64 from the formula."""
    group = np.arange(H) // (H // G)
    q, k, v, dout = (
        x.astype(np.float64) for x in (Q, K[:, :, group], V[:, :, group], dout)
    )
    x = np.einsum("bshd,bthd->bhst", q, k) * D**-0.5 + bias
    top = np.maximum(x.max(-1, keepdims=True), sink[:, None, None])
    e = np.exp(x - top)
    p = e / (e.sum(-1, keepdims=True) + np.exp(sink[:, None, None] - top))
    dp = np.einsum("bshd,bthd->bhst", dout, v)
    return p * (dp - (p * dp).sum(-1, keepdims=True))


def summed(x, shape):
    """The sum of x over what `shape` broadcasts."""
    whole = (1,) * (x.ndim - len(shape)) + shape
    axes = tuple(i for i, n in enumerate(whole) if n == 1)
    return x.sum(axes, keepdims=True).reshape(shape)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("shape", SHAPES)
def test_bias_broadcasts_and_its_gradient_sums(ctx, shape, dtype):
    bias = RNG.standard_normal(shape).astype(dtype)
    sink = RNG.standard_normal(H).astype(np.float32)
    full = np.ascontiguousarray(np.broadcast_to(bias, WHOLE))
    o, lse = fovea.attention_forward(ctx, Q, K, V, bias=bias, sink_logit=sink, lse=True)
    close(o, reference.attention(Q, K, V, bias=full, sink_logit=sink)[0])
    assert np.array_equal(
        o, fovea.attention_forward(ctx, Q, K, V, bias=full, sink_logit=sink)
    )
    dout = RNG.standard_normal(Q.shape).astype(np.float32)
    want = gradient_of_bias(full.astype(np.float64), sink.astype(np.float64), dout)
    run = lambda **more: fovea.attention_backward(
        ctx, Q, K, V, o, lse, dout, bias=bias, sink_logit=sink, dq=False, dk=False, dv=False, **more
    )
    dbias = run(dbias=True)
    assert dbias.shape == shape and dbias.dtype == np.float32
    close(dbias, summed(want, shape), 2e-5)
    mine = np.full(shape, np.nan, np.float32)
    assert run(dbias=mine) is mine and np.array_equal(mine, dbias)
    # An array of another shape that broadcasts sums over other axes; a whole one over none.
    close(run(dbias=np.empty(WHOLE, np.float32)), want, 2e-5)
    close(run(dbias=np.empty((H, 1, T), np.float32)), summed(want, (H, 1, T)), 2e-5)


def test_a_bias_that_does_not_fit_is_told_so(ctx):
    with pytest.raises(fovea.InvalidArgument, match=r"bias.shape\[3\] \(keys\) is 18, wanted 19"):
        fovea.attention_forward(ctx, Q, K, V, bias=np.zeros((B, H, S, 18), np.float32))
    with pytest.raises(fovea.InvalidArgument, match=r"bias.shape\[1\] \(h\) is 3, wanted 4"):
        fovea.attention_forward(ctx, Q, K, V, bias=np.zeros((B, 3, S, T), np.float32))
    with pytest.raises(fovea.InvalidArgument, match=r"bias has shape \(4, 18\), wanted \(2, 4, 5,"):
        fovea.attention_forward(ctx, Q, K, V, bias=np.zeros((4, 18), np.float32))


def test_asking_packs_and_copies_nothing(ctx):
    rows = 1 << 36  # of which a mask or a copy would fill any memory
    q = np.broadcast_to(np.float32(0), (1, rows, 1, 8))
    k = np.broadcast_to(np.float32(0), (1, 24, 1, 8))
    o = np.broadcast_to(np.float32(0), (1, rows, 1, 8))
    lse = np.broadcast_to(np.float32(0), (1, 1, rows))
    mask = np.broadcast_to(np.True_, (1, 1, rows, 24))
    bias = np.zeros(1, np.float32)
    ask = fovea.attention_backward_workspace
    assert isinstance(ask(ctx, q, k, k, o, lse, o, mask=mask, bias=bias, dbias=True), int)
    assert ctx.last_kernel == ""


@pytest.mark.parametrize("wrap", ["numpy", "dlpack", "interface"])
def test_arrays_that_repeat_one_element(ctx, wrap):
    class Interface:
        def __init__(self, x):
            self.__array_interface__ = x.__array_interface__

    class DLPack:
        def __init__(self, x):
            x = np.lib.stride_tricks.as_strided(np.full(1, x.flat[0]), x.shape, x.strides)
            self.__dlpack__, self.__dlpack_device__ = x.__dlpack__, x.__dlpack_device__

    kinds = {"numpy": lambda x: x, "dlpack": DLPack, "interface": Interface}
    seen = kinds[wrap]
    whole = np.ascontiguousarray
    ones = np.broadcast_to(np.float32(0.5), Q.shape)
    lengths = np.broadcast_to(np.int32(7), (B,))
    zeros = np.broadcast_to(np.float32(-1), (H,))
    o, lse = fovea.attention_forward(
        ctx, Q, K, V, key_len=seen(lengths), sink_logit=seen(zeros), lse=True
    )
    o_want, lse_want = reference.attention(
        Q, K, V, key_len=np.full(B, 7), sink_logit=np.full(H, -1.0)
    )
    close(o, o_want)
    close(lse, lse_want)
    got = fovea.attention_backward(ctx, Q, K, V, o, lse, seen(ones), key_len=seen(lengths))
    want = fovea.attention_backward(ctx, Q, K, V, o, lse, whole(ones), key_len=whole(lengths))
    assert all(np.array_equal(x, y) for x, y in zip(got, want, strict=True))
    q = np.broadcast_to(np.float32(0.25), Q.shape)
    assert np.array_equal(
        fovea.attention_forward(ctx, seen(q), K, V), fovea.attention_forward(ctx, whole(q), K, V)
    )


def test_an_output_that_repeats_one_element_is_refused(ctx):
    o = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), Q.shape, (0, 0, 0, 0))
    with pytest.raises(fovea.InvalidArgument, match="o.stride is 0 on every axis over 640 elements"):
        fovea.attention_forward(ctx, Q, K, V, o=o)
    rows = np.lib.stride_tricks.as_strided(np.zeros(4096, np.float32), Q.shape, (2560, 512, 4, 4))
    with pytest.raises(fovea.InvalidArgument, match=r"o.stride\[2\] is 1, wanted more than 15"):
        fovea.attention_forward(ctx, Q, K, V, o=rows)


def test_prepared_calls_see_what_masks_and_repeated_arrays_hold_now(ctx):
    mask, one, sink = random_mask((S, T)), np.ones(1, np.float32), np.zeros(H, np.float32)
    v = np.broadcast_to(one, V.shape)
    bias = np.zeros((1, 1, 1, 1), np.float32)
    call = fovea.prepare(
        fovea.attention_forward, ctx, Q, K, v, mask=mask, bias=bias, sink_logit=sink
    )
    for _ in range(3):
        mask[:] = random_mask((S, T))
        one += 1
        bias += 1
        want = reference.attention(
            Q, K, v, bias=np.where(np.broadcast_to(mask, WHOLE), bias, -np.inf), sink_logit=sink
        )[0]
        close(call(), want)
    other = random_mask((B, 1, 1, T))
    want = np.where(np.broadcast_to(other, WHOLE), bias, -np.inf)
    close(call(mask=other), reference.attention(Q, K, v, bias=want, sink_logit=sink)[0])
    close(call(mask=pack(np.broadcast_to(other, WHOLE))), call())

    o, lse = fovea.attention_forward(ctx, Q, K, V, bias=bias, sink_logit=sink, lse=True)
    dout = RNG.standard_normal(Q.shape).astype(np.float32)
    gradient = fovea.prepare(
        fovea.attention_backward, ctx, Q, K, V, o, lse, dout, bias=bias, sink_logit=sink,
        dbias=True, dq=False, dk=False, dv=False,
    )  # fmt: skip
    for _ in range(2):
        got = gradient()
        want = gradient_of_bias(float(bias.sum()), sink.astype(np.float64), dout).sum()
        assert got.shape == (1, 1, 1, 1) and abs(got.item() - want) < 2e-5
        got[:] = np.nan
        dout *= -2


def test_rooms_of_calls_are_given_back(ctx):
    v = np.broadcast_to(np.float32(1), (1, 1 << 20, 1, 8))
    k = np.zeros((1, 1 << 20, 1, 8), np.float32)
    q = np.zeros((1, 1, 1, 8), np.float32)
    import resource

    fovea.attention_forward(ctx, q, k, v)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(8):
        fovea.attention_forward(ctx, q, k, v)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB; a copy: 32 MiB
