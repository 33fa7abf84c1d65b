# SPDX-License-Identifier: Apache-2.0
"""Calls without a context: which one they use, when it is made and closed, and how one is named."""

import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import types
import weakref

import fovea
import numpy as np
import pytest
from fovea import _core, _default, _views

X = np.random.default_rng(3).standard_normal((1, 6, 2, 8)).astype(np.float32)


def run(code):
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "FOVEA_LIBRARY": fovea.library_path,
    }
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120
    )


def test_every_way_to_give_or_leave_out_ctx(ctx):
    want = fovea.attention_forward(ctx, X, 2 * X, 3 * X, causal=True)
    for call in (
        lambda k, v: fovea.attention_forward(X, k, v, causal=True),
        lambda k, v: fovea.attention_forward(X, k, v=v, causal=True),
        lambda k, v: fovea.attention_forward(X, k=k, v=v, causal=True),
        lambda k, v: fovea.attention_forward(X, v=v, k=k, causal=True),
        lambda k, v: fovea.attention_forward(q=X, k=k, v=v, causal=True),
        lambda k, v: fovea.attention_forward(None, X, k, v, causal=True),
        lambda k, v: fovea.attention_forward(X, k, v, ctx=None, causal=True),
        lambda k, v: fovea.attention_forward(X, k, v, ctx=ctx, causal=True),
        lambda k, v: fovea.attention_forward(q=X, k=k, v=v, ctx=ctx, causal=True),
        lambda k, v: fovea.attention_forward(ctx, X, k=k, v=v, causal=True),
        lambda k, v: fovea.prepare(fovea.attention_forward, X, k, v, causal=True)(),
        lambda k, v: fovea.prepare(fovea.attention_forward, ctx, X, k, v, causal=True)(),
        lambda k, v: fovea.prepare(fovea.attention_forward, q=X, k=k, v=v, causal=True, ctx=ctx)(),
    ):
        assert np.array_equal(call(2 * X, 3 * X), want)
    with pytest.raises(TypeError, match="attention_forward: ctx was given twice"):
        fovea.attention_forward(ctx, X, X, X, ctx=ctx)
    with pytest.raises(TypeError, match="ctx is a ndarray, wanted a fovea.Context"):
        fovea.attention_forward(X, X, X, X)


def test_an_explicit_context_is_the_one_that_runs(ctx):
    other = fovea.default_context()
    fovea.attention_forward(X, X, X)
    assert other.last_kernel.startswith("attention_forward.host") and ctx.last_kernel == ""
    fovea.rope_forward(X, np.ones((6, 2), np.float32), np.ones((6, 2), np.float32), ctx=ctx)
    assert ctx.last_kernel.startswith("rope_forward")
    assert other.last_kernel.startswith("attention_forward.host")


def test_operations_without_required_inputs(ctx):
    cos, sin = fovea.rope_table_get(positions=4, half=2)
    want = fovea.rope_table_get(ctx, positions=4, half=2)
    assert np.array_equal(cos, want[0]) and np.array_equal(sin, want[1])
    cache = np.zeros((1, 8, 2, 8), np.float32)
    assert fovea.cache_append(k_new=X, k=cache, key_len_out=True).tolist() == [6]
    assert np.array_equal(cache[:, :6], X) and not cache[:, 6:].any()
    assert fovea.workspace_bytes(fovea.rope_table_get, positions=4, half=2) >= 0


def test_workspace_bytes_and_its_former_name(ctx):
    ask = fovea.workspace_bytes
    need = ask(fovea.attention_backward, ctx, X, X, X, X, X[..., 0].swapaxes(1, 2), X)
    assert need > 0
    assert need == ask(fovea.attention_backward, X, X, X, X, X[..., 0].swapaxes(1, 2), X)
    former = fovea.attention_backward_workspace
    assert need == former(ctx, X, X, X, X, X[..., 0].swapaxes(1, 2), X)
    with pytest.raises(fovea.InvalidArgument, match="attention_forward: window_left"):
        ask(fovea.attention_forward, X, X, X, window_left=-1)
    with pytest.raises(AttributeError, match="has no attribute 'tention_workspace'"):
        fovea.tention_workspace
    with pytest.raises(AttributeError, match="has no attribute 'x_tention'"):
        fovea.x_tention


def test_one_a_thread_closed_with_it():
    mine, theirs = fovea.default_context(), []
    assert fovea.default_context("cpu") is mine

    def work():
        fovea.attention_forward(X, X, X)
        ctx = fovea.default_context("host")
        theirs.extend([weakref.ref(ctx), ctx is mine, ctx.last_kernel != ""])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    gc.collect()
    ref, same, ran = theirs
    assert ref() is None and not same and ran
    assert fovea.default_context() is mine


def test_a_closed_one_is_made_anew():
    with fovea.default_context() as ctx:
        ctx.set_threads(1)
        assert fovea.default_context() is ctx
    assert fovea.default_context() is not ctx
    fovea.attention_forward(X, X, X)


def test_closed_at_exit():
    done = run(
        "import atexit, fovea\n"
        "ctx = fovea.default_context()\n"
        "print('made', bool(ctx._handle))\n"
        "import fovea._default as d\n"
        "atexit.unregister(d._mine.close)\n"
        "atexit.register(lambda: print('closed', not ctx._handle))\n"
        "atexit.register(d._mine.close)\n"
    )
    assert done.stdout.split("\n")[:2] == ["made True", "closed True"] and not done.stderr
    done = run(
        "import array, threading, time, fovea\n"
        "x = memoryview(array.array('f', range(8))).cast('B').cast('f', (1, 2, 1, 4))\n"
        "def work():\n"
        "    while True: fovea.attention_forward(x, x, x, o=memoryview(array.array('f', range(8)))"
        ".cast('B').cast('f', (1, 2, 1, 4)))\n"
        "threading.Thread(target=work, daemon=True).start()\n"
        "fovea.attention_forward(x, x, x); time.sleep(0.1); print('done')\n"
    )
    assert done.returncode == 0 and done.stdout == "done\n" and not done.stderr


def _in_child(x):
    return fovea.attention_forward(x, x, x)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_goes_on():
    want = fovea.attention_forward(X, X, X)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for got in pool.map(_in_child, [X] * 4):
            assert np.array_equal(got, want)


def test_a_buffer_brings_its_context(ctx):
    buffer = ctx.array(X)
    o = fovea.attention_forward(buffer, buffer, buffer)
    assert o.ctx is ctx and ctx.last_kernel.startswith("attention_forward")
    with fovea.Context() as other:
        late = other.array(X)
    assert fovea.attention_forward(late, X, X).ctx is fovea.default_context()


def test_the_first_array_chooses_the_device(monkeypatch):
    """No GPU is needed to see where an array's context would be."""
    made = []

    def no_device(backend, device=None, **_):
        made.append((backend, device))
        raise fovea.Unsupported("no device here")

    monkeypatch.setattr(_default, "Context", no_device)
    monkeypatch.setattr(_default, "device_count", lambda _: 2)

    class There:
        def __dlpack_device__(self):
            return 2, 1

        def __dlpack__(self, **_):
            raise AssertionError("not before a context is there")

    class Interface:
        __cuda_array_interface__ = {}

    class Both(Interface, There):
        pass

    for x in (There(), Both()):
        with pytest.raises(fovea.Unsupported, match="no device here"):
            fovea.attention_forward(x, X, X)
    assert made == [("cuda", 1), ("cuda", 1)]
    with pytest.raises(fovea.InvalidArgument, match="attention_forward: a Interface does not tell its"):
        fovea.attention_forward(Interface(), X, X)
    monkeypatch.setattr(_default, "device_count", lambda _: 1)
    with pytest.raises(fovea.Unsupported, match="no device here"):
        fovea.attention_forward(Interface(), X, X)
    with pytest.raises(fovea.Unsupported, match="no device here"):
        fovea.default_context("cuda:3")
    assert made[2:] == [("cuda", 0), ("cuda", 3)]


def test_names_of_devices(monkeypatch):
    for name in ("host", "cpu", "CPU", "cpu:0", fovea.Backend.HOST):
        with fovea.Context(name) as ctx:
            assert (ctx.backend, ctx.device, repr(ctx)) == ("host", 0, "host")
    where = {"cuda": 0, "gpu": 0, "cuda:1": 1, "GPU:12": 12, fovea.Backend.CUDA: 0}
    for name, number in where.items():
        assert _core.place_named(name, "x") == ("cuda", number)


def test_torch_devices():
    torch = pytest.importorskip("torch")
    with fovea.Context(torch.device("cpu")) as ctx:
        assert ctx.backend == "host"
    assert _core.place_named(torch.device("cuda", 3), "x") == ("cuda", 3)
    assert _core.place_named(torch.device("cuda"), "x")[0] == "cuda"
    with pytest.raises(fovea.InvalidArgument, match="Context: backend is device"):
        fovea.Context(torch.device("meta"))
    x = torch.from_numpy(X)
    assert torch.equal(
        fovea.attention_forward(x, x, x), torch.from_numpy(fovea.attention_forward(X, X, X))
    )
    with pytest.raises(fovea.InvalidArgument, match=r"key_len.dtype is i64, wanted i32: pass x.int\(\)"):
        fovea.attention_forward(x, x, x, key_len=torch.tensor([3]))
    fovea.attention_forward(x, x, x, causal=torch.tensor(True))
    with pytest.raises(TypeError, match="attention_forward: ctx is a device, wanted a fovea.Context"):
        fovea.attention_forward(torch.device("cpu"), x, x, x)


def test_a_gpu_of_torch_is_found_without_asking_torch_for_more():
    """place_of reads what tensors tell; a stand-in tells it here."""
    tensor = types.SimpleNamespace(is_cuda=True, get_device=lambda: 1)
    assert _views.viewers.setdefault(types.SimpleNamespace, _views._torch) is _views._torch
    try:
        assert _views.place_of(tensor) == 1
    finally:
        del _views.viewers[types.SimpleNamespace]
