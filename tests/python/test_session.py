# SPDX-License-Identifier: Apache-2.0
"""Trace sessions: every layer's edges reach the sink, in order, and misuse is told what to do."""

import threading
import time

import fovea
import numpy as np
import pytest

LAYERS, KEEP, BLOCK = 5, 3, 16
RECORD = np.dtype(
    [("layer", "<i4"), ("head", "<i4"), ("q", "<i4"), ("k", "<i4"), ("weight", "<f4")]
)


def layers(count=LAYERS):
    """Layers of different lengths, so that buffers must grow on the way."""
    random = np.random.default_rng(5)
    for i in range(count):
        s = 40 + 30 * i
        q = random.standard_normal((2, s, 4, 8), dtype=np.float32)
        k = random.standard_normal((2, s, 2, 8), dtype=np.float32)
        yield q, k, k + 1


def session(ctx, **fields):
    given = dict(keep=KEEP, block_rows=BLOCK, block_keys=BLOCK, edge_kind="mass", causal=True)
    return fovea.TraceSession(ctx, **{**given, **fields})


def expected(ctx, q, k, layer):
    n = -(-q.shape[1] // BLOCK)
    cap = q.shape[0] * q.shape[2] * n * KEEP
    edge, weight, count = fovea.trace_forward(
        ctx, q, k, keep=KEEP, block_rows=BLOCK, block_keys=BLOCK, edge_kind="mass", causal=True,
        layer=layer, cap=cap, edge=True, edge_weight=True, edge_count=True,
    )  # fmt: skip
    out = np.empty(int(count[0]), RECORD)
    for i, name in enumerate(("layer", "head", "q", "k")):
        out[name] = edge[: count[0], i]
    out["weight"] = weight[: count[0]]
    return out


@pytest.mark.parametrize("buffers", [1, 2, 7])
def test_every_record_in_order(ctx, buffers):
    got, want = bytearray(), []
    running = session(ctx, buffers=buffers)
    for _ in range(2):  # a session can begin again
        got.clear()
        want.clear()
        with running.begin(got.extend):
            for layer, (q, k, v) in enumerate(layers()):
                selected, o = running.trace(q, k, v=v, selected=True, o=True)
                want.append(expected(ctx, q, k, layer))
                assert (selected >= 0).sum() == len(want[-1]) and o.shape == q.shape
        assert bytes(got) == np.concatenate(want).tobytes()
        assert running.edges == sum(map(len, want)) and running.layer == LAYERS


def test_outputs_are_those_asked_for(ctx):
    q, k, v = next(layers())
    with session(ctx).begin(bytearray().extend) as running:
        assert running.trace(q, k) is None
        assert running.trace(q, k, lse=True).shape == (2, 4, 40)
        o, lse = running.trace(q, k, v=v, o=True, lse=True, layer=9)
        assert o.shape == q.shape and running.layer == 10


def test_without_numpy_arrays(ctx):
    q, k, _ = next(layers())
    got = bytearray()
    with session(ctx).begin(got.extend) as running:
        running.trace(ctx.array(q), ctx.array(k))
    assert bytes(got) == expected(ctx, q, k, 0).tobytes()


def test_the_next_layer_runs_while_the_sink_works(ctx):
    q, k, _ = next(layers())
    release, seen = threading.Event(), []

    def sink(records):
        seen.append(len(records))
        assert release.wait(30)

    with session(ctx, buffers=2).begin(sink) as running:
        running.trace(q, k)
        running.trace(q, k)  # the first is still with the sink
        assert len(seen) <= 1
        # With both buffers taken a third layer waits for the sink, and loses nothing.
        threading.Timer(0.2, release.set).start()
        started = time.perf_counter()
        running.trace(q, k)
        assert time.perf_counter() - started > 0.1
    assert len(seen) == 3


def test_a_capacity_that_is_too_small_tells_the_true_count(ctx):
    q, k, _ = next(layers())
    count = len(expected(ctx, q, k, 0))
    got = bytearray()
    with session(ctx, capacity=count).begin(got.extend) as running:
        running.trace(q, k)
    assert len(got) == RECORD.itemsize * count
    got.clear()
    with pytest.raises(fovea.InvalidArgument, match=f"layer 0 has {count} edges, capacity is 7"):
        with session(ctx, capacity=7).begin(got.extend) as running:
            running.trace(q, k)
    assert not got


def test_what_the_sink_raises_comes_out(ctx):
    q, k, _ = next(layers())

    def sink(records):
        raise OSError("disk full")

    running = session(ctx, buffers=1).begin(sink)
    with pytest.raises(OSError, match="disk full"):
        for _ in range(3):
            running.trace(q, k)
    with pytest.raises(OSError, match="disk full"):  # no layer is traced for nothing
        running.trace(q, k)
    running.end()
    running.begin(bytearray().extend)  # and it can start again
    running.trace(q, k)
    running.end()
    with pytest.raises(ZeroDivisionError):  # the body's own error is the one to see
        with running.begin(sink):
            running.trace(q, k)
            raise ZeroDivisionError


def test_a_sink_cannot_keep_the_memory(ctx):
    q, k, _ = next(layers())
    kept = []
    with session(ctx).begin(kept.append) as running:
        running.trace(q, k)
    with pytest.raises(ValueError, match="released"):
        bytes(kept[0])
    with pytest.raises(fovea.FoveaError, match=r"keep a copy, such as bytes\(records\)"):
        with session(ctx).begin(
            lambda records: kept.append(np.frombuffer(records, RECORD))
        ) as running:
            running.trace(q, k)
    kept.clear()
    with session(ctx).begin(lambda records: kept.append(records[0])) as running:
        running.trace(q, k, layer=7)
    assert kept == [7]


def test_a_refused_layer_leaves_the_session_usable(ctx):
    q, k, _ = next(layers())
    got = bytearray()
    with session(ctx, buffers=1).begin(got.extend) as running:
        for _ in range(3):
            with pytest.raises(fovea.InvalidArgument, match="trace_forward"):
                running.trace(q, k[..., :4])
        running.trace(q, k)
    assert bytes(got) == expected(ctx, q, k, 0).tobytes()


def test_misuse(ctx):
    q, k, _ = next(layers())
    sink = bytearray().extend
    running = session(ctx)
    with pytest.raises(fovea.FoveaError, match="outside of begin"):
        running.trace(q, k)
    with pytest.raises(fovea.FoveaError, match=r"begin\(sink\) first"):
        running.end()
    with pytest.raises(fovea.FoveaError, match=r"with session.begin\(sink\)"):
        with running:
            pass
    with pytest.raises(TypeError, match="the sink is a list, wanted a function"):
        running.begin([])
    with running.begin(sink):
        with pytest.raises(fovea.FoveaError, match=r"end\(\) it first"):
            running.begin(sink)
        running.trace(q, k, layer=3)
        with pytest.raises(fovea.InvalidArgument, match="layer is 3, wanted 4 or more"):
            running.trace(q, k, layer=3)
        with pytest.raises(TypeError, match="edge_count is the session's own"):
            running.trace(q, k, edge_count=True)
        with pytest.raises(TypeError, match="keep is the session's"):
            running.trace(q, k, keep=5)
    with pytest.raises(fovea.FoveaError, match="outside of begin"):
        running.trace(q, k)
    with pytest.raises(TypeError, match="cap is the session's own"):
        session(ctx, cap=5)
    with pytest.raises(TypeError, match="layer is counted by trace"):
        session(ctx, layer=5)
    with pytest.raises(fovea.InvalidArgument, match="capacity is 0, wanted at least 1"):
        session(ctx, capacity=0)
    for name in ("keep", "buffers", "capacity"):
        with pytest.raises(TypeError, match=f"^TraceSession: {name} is 'x', wanted an integer"):
            fovea.TraceSession(ctx, **{"keep": 2, name: "x"})
    with pytest.raises(fovea.InvalidArgument, match="buffers is 0, wanted at least 1"):
        session(ctx, buffers=0)
