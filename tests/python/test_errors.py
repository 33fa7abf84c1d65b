# SPDX-License-Identifier: Apache-2.0
"""Every failure is an exception of the right class whose text names the operation and the field."""

import re

import fovea
import numpy as np
import pytest

X = np.ones((1, 3, 2, 8), np.float32)


def forward(ctx, **change):
    fields = {"q": X, "k": X, "v": X, **change}
    return fovea.attention_forward(ctx, fields.pop("q"), fields.pop("k"), fields.pop("v"), **fields)


@pytest.mark.parametrize(
    "change, kind, text",
    [
        (dict(q=X[0]), fovea.InvalidArgument, "attention_forward: q has 3 dimensions"),
        (dict(k=X[..., :4]), fovea.InvalidArgument, "attention_forward: k.*d.*is 4, wanted 8"),
        (
            dict(k=X[:, ::-1]),
            fovea.InvalidArgument,
            "attention_forward: k has a negative stride in dimension 1",
        ),
        (dict(k=X.view(np.uint8)), fovea.InvalidArgument, "attention_forward: k"),
        (
            dict(o=np.lib.stride_tricks.as_strided(np.ones(8, np.float32), X.shape, (0, 0, 0, 4))),
            fovea.InvalidArgument,
            "attention_forward: o.stride",
        ),
        (dict(v=X.astype(np.float64)), TypeError, "attention_forward: v has dtype float64"),
        (dict(q=X.astype(">f4")), TypeError, "attention_forward: q .*byte order"),
        (dict(v=X.astype(np.float16)), fovea.InvalidArgument, "attention_forward: v"),
        (dict(key_len=np.ones(1, bool)), TypeError, "attention_forward: key_len has dtype bool"),
        (dict(key_len=np.ones(1, np.int64)), fovea.InvalidArgument, "attention_forward: key_len"),
        (dict(key_len=[3]), TypeError, "attention_forward: key_len is a list, wanted an array"),
        (dict(q=np.ma.array(X, mask=X > 0)), TypeError, "attention_forward: q is a masked array"),
        (dict(scale="big"), TypeError, "attention_forward: scale is 'big'"),
        (dict(scale=-1.0), fovea.InvalidArgument, "attention_forward: scale"),
        (dict(scale=1e60), TypeError, "attention_forward: scale"),
        (dict(causal=2**40), TypeError, "attention_forward: causal"),
        (dict(window_left=-2), fovea.InvalidArgument, "attention_forward: window_left"),
        (dict(dropout=0.1), TypeError, "dropout"),
        (
            dict(o=np.ones((1, 3, 2, 9), np.float32)),
            fovea.InvalidArgument,
            "attention_forward: o.*is 9, wanted 8",
        ),
        (
            dict(o=np.broadcast_to(np.float32(0), X.shape)),
            fovea.InvalidArgument,
            "attention_forward: o is read-only",
        ),
        (dict(lse=np.ones((1, 2, 3), np.float16)), fovea.InvalidArgument, "attention_forward: lse"),
    ],
)
def test_text_and_class(ctx, change, kind, text):
    with pytest.raises(kind, match=re.compile(text, re.S)):
        forward(ctx, **change)


def test_missing_inputs_and_extents(ctx):
    for call in (
        lambda: fovea.attention_forward(ctx, X, X),
        lambda: fovea.attention_forward(X, X),
        lambda: fovea.attention_forward(q=X, k=X),
        lambda: fovea.attention_forward(X, k=X),
    ):
        with pytest.raises(TypeError, match="attention_forward: v was not given"):
            call()
    with pytest.raises(TypeError, match="rope_table_get: the extent positions .* pass positions="):
        fovea.rope_table_get(ctx, half=4)
    with pytest.raises(fovea.InvalidArgument, match="dbias needs bias"):
        fovea.attention_backward(ctx, X, X, X, X, np.ones((1, 2, 3), np.float32), X, dbias=True)
    with pytest.raises(fovea.InvalidArgument, match="scaling is 'ntk', wanted one of none, linear"):
        fovea.rope_table_get(ctx, positions=2, half=2, scaling="ntk")


def test_classes():
    assert issubclass(fovea.InvalidArgument, ValueError) and issubclass(
        fovea.OutOfMemory, MemoryError
    )
    for kind in (
        fovea.InvalidArgument,
        fovea.Unsupported,
        fovea.OutOfMemory,
        fovea.DeviceError,
        fovea.InternalError,
    ):
        assert issubclass(kind, fovea.FoveaError)


def test_a_fixed_workspace_that_is_too_small_says_what_it_needs(ctx):
    need = fovea.attention_forward_workspace(ctx, X, X, X, lse=True)
    assert need > 0
    ctx.set_workspace(ctx.empty((need - 1,), "u8"))
    with pytest.raises(fovea.OutOfMemory, match=str(need)):
        forward(ctx)
    ctx.set_workspace(ctx.empty((need,), "u8"))
    forward(ctx)
    ctx.set_workspace(None)
    forward(ctx)


def test_workspace_asks_without_running_or_allocating(ctx):
    with pytest.raises(fovea.InvalidArgument, match="attention_forward: k"):
        fovea.attention_forward_workspace(ctx, X, X[..., :4], X)
    q = np.broadcast_to(np.float32(0), (1, 1 << 40, 1, 8))
    assert isinstance(
        fovea.rope_forward_workspace(
            ctx, q, np.ones((1, 4), np.float32), np.ones((1, 4), np.float32)
        ),
        int,
    )
    assert ctx.last_kernel == ""


def test_a_closed_context_refuses(ctx):
    other = fovea.Context()
    other.close()
    other.close()
    with pytest.raises(fovea.InvalidArgument, match="attention_forward: ctx is closed"):
        forward(other)
    for use in (
        lambda: other.get("threads"),
        lambda: other.set_threads(2),
        lambda: other.empty((2,)),
        other.synchronize,
        lambda: other.wait(ctx),
        lambda: other.set_stream(None),
        lambda: other.copy(X.copy(), X),
    ):
        with pytest.raises(fovea.InvalidArgument, match="the context is closed"):
            use()
    with pytest.raises(fovea.InvalidArgument, match="wait: the context to wait for is closed"):
        ctx.wait(other)
    assert other.last_kernel == ""
    call = fovea.prepare(fovea.attention_forward, third := fovea.Context(), X, X, X)
    third.close()
    with pytest.raises(fovea.InvalidArgument, match="attention_forward: ctx is closed"):
        call()


def test_unknown_backend_and_device():
    for name in ("tpu", "cuda:x", "cuda:", "", None, 3, "cuda:-1", "host:cuda"):
        with pytest.raises(fovea.InvalidArgument, match='Context: backend is .*, wanted "host"'):
            fovea.Context(name)
    with pytest.raises(fovea.FoveaError):
        fovea.Context("host", 1)
    with pytest.raises(fovea.InvalidArgument, match="Context: device is 2, but backend is 'cuda:1'"):
        fovea.Context("cuda:1", 2)
    if fovea.device_count("cuda") == 0:
        for name in ("cuda", "gpu", "cuda:1"):
            with pytest.raises(fovea.Unsupported):
                fovea.Context(name)


def test_unknown_names_list_the_known_ones(ctx):
    for use, text in [
        (lambda: ctx.get("x"), "Context.get: key is 'x', wanted one of backend, device, "),
        (lambda: ctx.get(4), "Context.get: key is 4, wanted one of backend"),
        (lambda: fovea.build("x"), "build: key is 'x', wanted one of version, git, toolkit, "),
        (lambda: fovea.device_count("x"), "device_count: backend is 'x', wanted one of host, cuda"),
        (lambda: fovea.default_context("x"), "default_context: device is 'x', wanted \"host\""),
    ]:
        with pytest.raises(fovea.InvalidArgument, match=re.escape(text)):
            use()
    assert fovea.build(fovea.Build.VERSION) == fovea.build("version")


def test_what_contexts_and_buffers_are_given(ctx):
    """No ctypes error, no number cut to 32 bits, no AttributeError."""
    for use, kind, text in [
        (lambda: fovea.Context("host", "a"), TypeError, "Context: device is 'a', wanted an integer"),
        (lambda: fovea.Context(f"cuda:{2**32}"), ValueError, "Context: device is 4294967296, wanted"),
        (lambda: fovea.Context(threads="4"), TypeError, "set_threads: threads is '4', wanted an"),
        (lambda: ctx.set_threads(1.5), TypeError, "set_threads: threads is 1.5, wanted an integer"),
        (lambda: ctx.set_threads(2**32 + 2), ValueError, "set_threads: threads is 4294967298, wanted"),
        (lambda: ctx.set_stream("s"), TypeError, "set_stream: stream is a str, wanted a torch or"),
        (lambda: ctx.set_workspace(X), TypeError, "set_workspace: buffer is a ndarray, wanted a fov"),
        (lambda: ctx.wait(None), TypeError, "wait: other is a NoneType, wanted a fovea.Context"),
        (lambda: ctx.empty((2, -1)), ValueError, "empty: shape[1] is -1, wanted at least 0"),
        (lambda: ctx.empty((3.5,)), TypeError, "empty: shape[0] is 3.5, wanted an integer"),
        (lambda: ctx.empty((2**62, 2**62)), MemoryError, "bytes could not be had"),
        (lambda: ctx.empty((3,), "f33"), TypeError, "empty: dtype is 'f33', wanted one of f32, f16"),
        (lambda: ctx.empty((3,), 99), ValueError, "empty: dtype is 99, which is no fovea.Dtype"),
        (lambda: ctx.array([1]), TypeError, "array: source is a list, wanted an array"),
        (lambda: ctx.copy(None, X), TypeError, "copy: to was not given"),
        (lambda: ctx.copy(X.copy(), X.T), ValueError, "copy: both arrays must be contiguous"),
    ]:
        with pytest.raises(kind, match=re.escape(text)):
            use()
    threads = ctx.get("threads")
    assert ctx.empty(3, np.float32).shape == (3,) and ctx.get("threads") == threads
    with pytest.raises(AttributeError):  # no endless recursion where __init__ did not get that far
        fovea.Buffer.__new__(fovea.Buffer).address


@pytest.mark.parametrize(
    "wrong, what",
    [("cuda", "'cuda'"), (X, "a ndarray"), (0, "0"), ([X], "a list"), (np.float32(1), "a float32")],
)
def test_what_is_no_context(wrong, what):
    text = f"attention_forward: ctx is {what}, wanted a fovea.Context"
    for call in (
        lambda: fovea.attention_forward(wrong, X, X, X),
        lambda: fovea.attention_forward(X, X, X, ctx=wrong),
        lambda: fovea.attention_forward(q=X, k=X, v=X, ctx=wrong),
    ):
        with pytest.raises(TypeError, match=re.escape(text)):
            call()
    with pytest.raises(TypeError, match="cache_append: ctx is a ndarray, wanted a fovea.Context"):
        fovea.cache_append(X, k=X)
    with pytest.raises(TypeError, match="TraceSession: ctx is a ndarray, wanted a fovea.Context"):
        fovea.TraceSession(X, keep=2)
    with pytest.raises(TypeError, match="the operation is 'rope', wanted a function such as"):
        fovea.prepare("rope", X)
    for use in (fovea.prepare, fovea.workspace_bytes):
        with pytest.raises(TypeError, match="the operation is .*lambda.*, wanted one of fovea's"):
            use(lambda *_: None, X)
    with pytest.raises(TypeError, match="ctx is a str, wanted a fovea.Context"):
        fovea.workspace_bytes(fovea.attention_forward, X, X, X, ctx="host")


def test_numbers_of_other_kinds(ctx):
    """Integers are floats; NumPy's numbers and bools are numbers; floats are no integers."""
    want = forward(ctx, scale=2.0, causal=1, window_left=2)
    for scale, causal, left in [
        (2, True, np.int64(2)),
        (np.float32(2), np.True_, np.uint8(2)),
        (np.float64(2), np.bool_(True), 2),
        (np.int32(2), np.array(True), 2),
    ]:
        assert np.array_equal(forward(ctx, scale=scale, causal=causal, window_left=left), want)
    assert np.array_equal(forward(ctx, causal=np.False_), forward(ctx))
    for wrong in (1.0, np.float32(1), "yes"):
        with pytest.raises(TypeError, match="attention_forward: causal is .*, wanted a 32-bit int"):
            forward(ctx, causal=wrong)
        with pytest.raises(TypeError, match="attention_forward: window_left is .*, wanted a 64-bit"):
            forward(ctx, window_left=wrong)


def test_wide_lengths_are_told_the_cast(ctx):
    wide = np.ones(1, np.int64)
    text = "key_len.dtype is i64, wanted i32: pass x.int() in torch, x.astype('int32') in NumPy"
    for call in (forward, lambda c, **f: fovea.workspace_bytes(fovea.attention_forward, c, X, X, X, **f)):
        with pytest.raises(fovea.InvalidArgument, match=re.escape(text)):
            call(ctx, key_len=wide)
    prepared = fovea.prepare(fovea.attention_forward, ctx, X, X, X, key_len=wide)
    with pytest.raises(fovea.InvalidArgument, match=re.escape(text)):
        prepared()
