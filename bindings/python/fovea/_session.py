# SPDX-License-Identifier: Apache-2.0
"""TraceSession: the edges of trace_forward, layer after layer, streamed to a sink.

The operation writes each layer's records straight into one of a ring of buffers in host memory
(pinned, and mapped into the device, on CUDA); a thread hands them to the sink while the next layer
runs.  On CUDA that thread waits for its own layer only: each buffer has a context of its own that
waits for what was enqueued when the layer was."""

from __future__ import annotations

import ctypes as C
import gc
import queue
import struct
import threading
import weakref
from typing import Any, Callable

from ._abi import Dtype
from ._call import view
from ._core import Context, whole
from ._errors import FoveaError, InvalidArgument
from ._layout import layout
from ._views import viewers
from .ops import trace_forward

RECORD = struct.Struct("<4if")  # layer, head, row block, key block, weight
_COUNT = 16  # bytes before a slot's records: their number, and nothing
_OURS = ("edge", "edge_weight", "edge_count", "edge_offset", "cap", "layer")


class _Words:
    """Part of a Buffer as a strided tensor."""

    def __init__(self, address, code, shape, strides):
        self.view = address, code, shape, layout(code, shape, strides)


viewers[_Words] = lambda words, ctx, write: words.view


class _Slot:
    """One buffer of the ring, and the context that knows when its layer is done."""

    def __init__(self, ctx):
        self.ctx, self.done = ctx, Context(ctx.backend, ctx.device, threads=1)
        self.buffer, self.capacity = None, -1

    def reserve(self, capacity):
        if capacity > self.capacity:
            self.free()
            self.buffer = self.ctx.empty((_COUNT + RECORD.size * capacity,), "u8", host=True)
            self.capacity = capacity

    def outputs(self):
        at, n = self.buffer.address, self.capacity
        first, weight = at + _COUNT, at + _COUNT + 16
        return {
            "edge": _Words(first, Dtype.I32, (n, 4), (5, 1)),
            "edge_weight": _Words(weight, Dtype.F32, (n,), (5,)),
            "edge_count": _Words(at, Dtype.I64, (1,), (1,)),
        }

    def wait(self):
        """The number of records, once the layer is done."""
        self.done.synchronize()
        return C.c_int64.from_address(self.buffer.address).value

    def lend(self, count, sink):
        """Has the sink take the records; True if it kept a view of them that outlives the loan."""
        memory = (C.c_ubyte * (RECORD.size * count)).from_address(self.buffer.address + _COUNT)
        kept = weakref.ref(memory)
        records = memoryview(memory).cast("B")
        del memory
        sink(records)
        try:
            records.release()  # a sink that kept it cannot read the next layer through it
        except BufferError:
            return True
        del records
        if kept() is not None:
            gc.collect()  # a cycle of the sink's that nobody holds
        return kept() is not None

    def free(self):
        if self.buffer is not None:
            self.buffer.free()
            self.buffer, self.capacity = None, -1

    def close(self):
        self.free()
        self.done.close()


class TraceSession:
    """Traces the layers of a model and streams their edges.

        session = fovea.TraceSession(ctx, keep=16, edge_kind="mass", causal=True)
        with session.begin(sink):                    # or begin(sink) ... end()
            for layer in range(layers):
                o = session.trace(q, k, v=v, o=True)

    `fields` are trace_forward's, for every layer.  A sink is called with a memoryview of bytes,
    whole records of 20 bytes {layer, head, row block, key block: i32, weight: f32}, once for each
    layer that has edges, in their order, on a thread of the session; the memory is the sink's until
    it returns.  `bytearray().extend` and `open(path, "wb").write` are sinks.

    No edge is lost.  Buffers grow before a layer to the b * h * n * keep records it can have.  With
    `capacity`, which bounds a buffer's records and so its pinned memory, a layer that has more is
    an error that tells how many; the sink gets nothing of that layer.  What a sink raises comes out
    of every later trace(), or of end() if there was none."""

    def __init__(
        self, ctx: Context, *, keep: int, buffers: int = 2, capacity: int | None = None,
        **fields: Any,
    ) -> None:
        if not isinstance(ctx, Context):
            raise TypeError(
                f"TraceSession: ctx is a {type(ctx).__name__}, wanted a fovea.Context such as "
                'fovea.default_context("cuda:0")'
            )
        given = [name for name in _OURS if name in fields]
        if given:
            raise TypeError(
                f"TraceSession: {given[0]} is the session's own: edges go to the sink of begin()"
                if given[0] != "layer"
                else "TraceSession: layer is counted by trace(), or given to it"
            )
        keep = whole("TraceSession: keep", keep)
        buffers = whole("TraceSession: buffers", buffers)
        if capacity is not None:
            capacity = whole("TraceSession: capacity", capacity, 2**63 - 1)
        if buffers < 1:
            raise InvalidArgument(f"TraceSession: buffers is {buffers}, wanted at least 1")
        if capacity is not None and capacity < 1:
            raise InvalidArgument(
                f"TraceSession: capacity is {capacity}, wanted at least 1 record, or None to let "
                "the buffers grow"
            )
        self.ctx, self.keep, self.buffers, self.capacity = ctx, keep, buffers, capacity
        self.fields, self.layer, self.edges = dict(fields, keep=keep), 0, 0
        self._running, self._failure, self._told = False, None, False
        self._turn = threading.Lock()

    def begin(self, sink: Callable[[memoryview], object]) -> TraceSession:
        """Starts a trace whose records go to `sink`."""
        if self._running:
            raise FoveaError("TraceSession: begin() while a trace is running: end() it first")
        if not callable(sink):
            raise TypeError(
                f"TraceSession: the sink is a {type(sink).__name__}, wanted a function of one "
                "memoryview: bytearray().extend, an open file's write"
            )
        self.layer, self.edges, self._failure, self._told = 0, 0, None, False
        self._running = True
        self._slots = [_Slot(self.ctx) for _ in range(self.buffers)]
        self._free, self._full = queue.Queue(), queue.Queue()
        for slot in self._slots:
            self._free.put(slot)
        self._thread = threading.Thread(
            target=self._drain, args=(sink,), name="fovea trace sink", daemon=True
        )
        self._thread.start()
        return self

    def trace(self, q: Any, k: Any, *, layer: int | None = None, **fields: Any) -> Any:
        """trace_forward on one layer; gives the outputs that `fields` asks for.  Layers count from
        0, or are given, ascending.  Waits only when every buffer is still with the sink."""
        with self._turn:
            self._check(layer, fields)
            fields = {**self.fields, **fields, "layer": self.layer if layer is None else layer}
            slot = self._free.get()
            try:
                self._raise()
                slot.reserve(self._bound(q, fields))
                results = trace_forward(self.ctx, q, k, **fields, **slot.outputs())
                slot.done.wait(self.ctx)
            except BaseException:
                self._free.put(slot)
                raise
            self._full.put((fields["layer"], slot))
            self.layer = fields["layer"] + 1
        wanted = results[:-3]
        return wanted if len(wanted) > 1 else wanted[0] if wanted else None

    def end(self) -> None:
        """Waits until the sink has had every record; raises what went wrong, if anything did."""
        if not self._running:
            raise FoveaError("TraceSession: end() without a trace running: begin(sink) first")
        with self._turn:
            self._running = False
            self._full.put(None)
            self._thread.join()
            self._close()
            if not self._told:
                self._raise()

    def __enter__(self) -> TraceSession:
        if not self._running:
            raise FoveaError("TraceSession: nothing is running: with session.begin(sink): ...")
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        try:
            if self._running:
                self.end()
        except Exception:
            if kind is None:  # else the body's own error is the one to see
                raise

    def _check(self, layer, fields):
        if not self._running:
            raise FoveaError("TraceSession: trace() outside of begin(sink) and end()")
        for name in _OURS:
            if name in fields:
                raise TypeError(f"TraceSession: {name} is the session's own: edges go to the sink")
        if "keep" in fields:
            raise TypeError("TraceSession: keep is the session's; keep_row= may keep fewer")
        if layer is not None and layer < self.layer:
            raise InvalidArgument(
                f"TraceSession: layer is {layer}, wanted {self.layer} or more: records go out in "
                "the order of the layers, each once"
            )
        self._raise()

    def _bound(self, q, fields):
        """Records that the layer can have, or that the caller allows."""
        try:
            shape = view(q, self.ctx, False)[2]
        except (TypeError, FoveaError):
            shape = ()
        rows = fields.get("block_rows") or 64
        if len(shape) != 4 or not hasattr(rows, "__index__"):
            return 0  # trace_forward says what is wrong
        b, s, h = shape[:3]
        most = b * h * -(-s // rows) * max(self.keep, 0)
        return most if self.capacity is None else min(most, self.capacity)

    def _raise(self):
        if self._failure is not None:
            self._told = True
            raise self._failure

    def _drain(self, sink):
        failed = False
        while (item := self._full.get()) is not None:
            layer, slot = item
            try:
                if not failed:
                    self._hand_over(sink, layer, slot)
            except BaseException as why:
                self._failure, failed = why, True
            finally:
                self._free.put(slot)

    def _hand_over(self, sink, layer, slot):
        count = slot.wait()
        if count > slot.capacity:
            raise InvalidArgument(
                f"TraceSession: layer {layer} has {count} edges, capacity is {slot.capacity}: give "
                f"at least {count}, or None to let the buffers grow; neither this layer nor one "
                "after it went to the sink"
            )
        self.edges += count
        if not count:
            return
        if slot.lend(count, sink):
            raise FoveaError(
                "TraceSession: the sink kept an array of the records' memory, which the next layer "
                "overwrites: keep a copy, such as bytes(records)"
            )

    def _close(self):
        for slot in self._slots:
            slot.close()
        self._slots = []
