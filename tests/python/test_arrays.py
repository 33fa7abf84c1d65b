# SPDX-License-Identifier: Apache-2.0
"""Whose arrays the binding takes and gives, what it keeps alive, and how contexts behave."""

import gc
import os
import subprocess
import sys
import threading
import weakref

import fovea
import ml_dtypes
import numpy as np
import pytest
import reference

RNG = np.random.default_rng(1)
Q, K, V = (
    RNG.standard_normal(s).astype(np.float32) for s in ((2, 5, 4, 16), (2, 9, 2, 16), (2, 9, 2, 8))
)
O, LSE = reference.attention(Q, K, V, causal=True)


class Wrapped:
    """Shows one protocol of an array and hides the others."""

    def __init__(self, x, *names):
        self.x, self.names = x, names

    def __getattr__(self, name):
        if name in self.names:
            return getattr(self.x, name)
        raise AttributeError(name)


class DLPack(Wrapped):
    def __init__(self, x):
        super().__init__(x, "__dlpack__", "__dlpack_device__")


class OldDLPack(DLPack):
    def __dlpack__(self, stream=None):
        return self.x.__dlpack__()


class ArrayInterface(Wrapped):
    def __init__(self, x):
        super().__init__(x, "__array_interface__")


def close(got, want=O, atol=5e-6):
    np.testing.assert_allclose(np.asarray(got, np.float64), want, atol=atol)


@pytest.mark.parametrize("wrap", [lambda x: x, DLPack, ArrayInterface, memoryview])
def test_inputs_of_every_protocol(ctx, wrap):
    o, lse = fovea.attention_forward(ctx, wrap(Q), wrap(K), wrap(V), causal=True, lse=True)
    close(o)
    close(lse, LSE)


def test_a_producer_older_than_dlpack_1(ctx):
    close(fovea.attention_forward(ctx, OldDLPack(Q), OldDLPack(K), OldDLPack(V), causal=True))


def test_outputs_through_every_protocol(ctx):
    for wrap in (lambda x: x, DLPack, OldDLPack, ArrayInterface, memoryview):
        out = np.zeros_like(O, dtype=np.float32)
        given = wrap(out)
        assert fovea.attention_forward(ctx, Q, K, V, causal=True, o=given) is given
        close(out)


def test_read_only_inputs_are_fine_and_read_only_outputs_are_not(ctx):
    inputs = [x.copy() for x in (Q, K, V)]
    for x in inputs:
        x.flags.writeable = False
    close(fovea.attention_forward(ctx, *inputs, causal=True))
    out = np.zeros(O.shape, np.float32)
    out.flags.writeable = False
    for wrap in (lambda x: x, DLPack, ArrayInterface, memoryview):
        with pytest.raises(fovea.InvalidArgument, match="o is read-only"):
            fovea.attention_forward(ctx, Q, K, V, o=wrap(out))
    assert not out.any()


@pytest.mark.parametrize("dtype, limit", [(np.float16, 2e-3), (ml_dtypes.bfloat16, 2e-2)])
def test_half_precision_types(ctx, dtype, limit):
    q, k, v = (x.astype(dtype) for x in (Q, K, V))
    o = fovea.attention_forward(ctx, q, k, v, causal=True)
    assert o.dtype == dtype
    close(o.astype(np.float64), reference.attention(q, k, v, causal=True)[0], limit)
    wide = np.zeros(O.shape, np.float32)
    fovea.attention_forward(ctx, q, k, v, causal=True, o=wide)
    close(wide, reference.attention(q, k, v, causal=True)[0], limit)


def test_fp8_caches(ctx):
    for dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, np.int8):
        cache = np.zeros((2, 12, 2, 16), dtype)
        scale = np.array([0.5, 0.25], np.float32)
        assert fovea.cache_append(ctx, k_new=K, k=cache, k_scale=scale) is None
        back = fovea.cache_get(
            ctx,
            cache,
            key_len=np.array([9, 9], np.int32),
            u=9,
            k_scale=scale,
            k_out=np.zeros(K.shape, np.float32),
        )
        held = np.clip(K / scale[:, None], -127, 127)
        want = (
            np.rint(held) if dtype is np.int8 else held.astype(dtype).astype(np.float32)
        ) * scale[:, None]
        np.testing.assert_array_equal(back, want)


def test_strided_offset_and_broadcast_views(ctx):
    room = np.full((2, 11, 6, 40), np.nan, np.float32)
    q = room[:, 3:8, 1:5, 7:23]
    q[:] = Q
    close(fovea.attention_forward(ctx, q, K, V, causal=True))
    wide = np.full((*K.shape[:3], 32), np.nan, np.float32)
    wide[..., ::2] = K
    close(fovea.attention_forward(ctx, Q, wide[..., ::2], V, causal=True))
    one = np.broadcast_to(K[:, :, :1], K.shape)
    close(fovea.attention_forward(ctx, Q, one, V), reference.attention(Q, one, V)[0])


def test_plain_buffers_without_numpy():
    """NumPy made unimportable: array.array in, Buffer out."""
    code = """
import sys, array, struct
sys.modules["numpy"] = None
import fovea
ctx = fovea.Context()
q = memoryview(array.array("f", [1, 0, 0, 2, 1, -1])).cast("B").cast("f", (1, 3, 1, 2))
k = memoryview(array.array("f", [1, 1, 0, 1, -1, .5, 2, 0])).cast("B").cast("f", (1, 4, 1, 2))
o, lse = fovea.attention_forward(ctx, q, k, k, causal=True, lse=True)
assert type(o) is fovea.Buffer and o.shape == (1, 3, 1, 2), o
got = struct.unpack("3f", lse.memory())
assert max(abs(a - b) for a, b in zip(got, (1.107940, 2.327728, 1.783819))) < 2e-6, got
assert not any(name.startswith(("torch", "numpy.")) for name in sys.modules)
"""
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "FOVEA_LIBRARY": fovea.library_path,
    }
    subprocess.run([sys.executable, "-c", code], check=True, env=env)


def test_buffers(ctx):
    buffer = ctx.array(Q)
    assert buffer.nbytes == Q.nbytes and buffer.address % 256 == 0
    assert np.array_equal(np.asarray(buffer), Q) and np.array_equal(buffer.numpy(), Q)
    o = fovea.attention_forward(ctx, buffer, ctx.array(K), ctx.array(V), causal=True)
    assert isinstance(o, fovea.Buffer)
    close(o.numpy())
    with pytest.raises(fovea.InvalidArgument, match="copy: to holds"):
        ctx.copy(buffer, K)
    buffer.free()
    buffer.free()
    with pytest.raises(fovea.InvalidArgument, match="q is a freed Buffer"):
        fovea.attention_forward(ctx, buffer, K, V)
    assert ctx.empty((0, 3)).address == 0


def test_a_buffer_may_outlive_its_context():
    with fovea.Context() as ctx:
        buffer = ctx.array(Q)
    assert np.array_equal(np.asarray(buffer), Q)
    del buffer
    gc.collect()


def test_temporaries_live_as_long_as_the_call_and_no_longer(ctx):
    class Array(np.ndarray):
        pass

    seen = []

    def temporary(x):
        x = x.copy().view(Array)
        seen.append(weakref.ref(x))
        return x

    close(
        fovea.attention_forward(ctx, temporary(Q), temporary(K), DLPack(temporary(V)), causal=True)
    )
    gc.collect()
    assert [ref() for ref in seen] == [None] * 3


def test_prepared_calls(ctx):
    q = Q.copy()
    call = fovea.prepare(fovea.attention_forward, ctx, q, K.copy(), V.copy(), causal=True, lse=True)
    gc.collect()
    o, lse = call()
    close(o)
    q *= 2
    assert call()[0] is o
    close(o, reference.attention(2 * Q, K, V, causal=True)[0])
    other = np.zeros(O.shape, np.float32)
    o2, _ = call(q=Q, o=other)
    assert o2 is other
    close(other)
    with pytest.raises(TypeError, match="bias was not given"):
        call(bias=Q)
    with pytest.raises(fovea.InvalidArgument, match="q has 3 dimensions"):
        call(q=Q[0])


def test_optional_outputs(ctx):
    o, lse = fovea.attention_forward(ctx, Q, K, V, lse=True)
    dout = np.ones_like(o)
    dq, dk, dv = fovea.attention_backward(ctx, Q, K, V, o, lse, dout)
    assert dq.shape == Q.shape and dk.shape == K.shape and dv.shape == V.shape
    only = fovea.attention_backward(ctx, Q, K, V, o, lse, dout, dq=False, dv=False)
    assert np.array_equal(only, dk)
    bias = np.zeros((2, 4, 5, 9), np.float32)
    *_, dbias = fovea.attention_backward(ctx, Q, K, V, o, lse, dout, bias=bias, dbias=True)
    assert dbias.shape == bias.shape
    length = fovea.cache_append(
        ctx, k_new=K, k=np.zeros((2, 12, 2, 16), np.float32), key_len_out=True
    )
    assert length.tolist() == [9, 9] and length.dtype == np.int32


def test_two_contexts_on_two_threads_and_one_shared():
    want = fovea.attention_forward(fovea.Context(threads=1), Q, K, V, causal=True)
    shared, wrong = fovea.Context(threads=2), []

    def work(ctx):
        for _ in range(200):
            if not np.array_equal(fovea.attention_forward(ctx, Q, K, V, causal=True), want):
                wrong.append(1)

    threads = [
        threading.Thread(target=work, args=(c,))
        for c in (shared, shared, fovea.Context(threads=2), fovea.Context(threads=1))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_errors_belong_to_their_thread(ctx):
    texts = {}

    def fail(name, change):
        with fovea.Context() as mine:
            for _ in range(100):
                with pytest.raises(fovea.InvalidArgument) as caught:
                    fovea.attention_forward(mine, Q, K, V, **change)
                texts.setdefault(name, set()).add(str(caught.value))

    changes = {"scale": dict(scale=-1.0), "window_left": dict(window_left=-1)}
    threads = [threading.Thread(target=fail, args=item) for item in changes.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: len(t) for name, t in texts.items()} == {"scale": 1, "window_left": 1}
    assert all(name in next(iter(t)) for name, t in texts.items())


def test_context_facts(ctx):
    fovea.attention_forward(ctx, Q, K, V)
    assert ctx.last_kernel.startswith("attention_forward.host")
    assert (
        ctx.get("threads") == 2
        and ctx.get("backend") == fovea.Backend.HOST
        and ctx.get("total_bytes") > 0
    )
    ctx.synchronize()
    assert fovea.build("version") == fovea.__version__
    stable = {n for n in fovea.ops.__all__ if n[0].islower()}
    unstable = {f"x_{n}" for n in fovea.experimental.__all__ if n[0].islower()}
    assert set(fovea.build("operations").split(",")) == stable | unstable
    assert repr(ctx) == "host"
