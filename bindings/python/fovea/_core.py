# SPDX-License-Identifier: Apache-2.0
"""Contexts and their memory."""

import ctypes as C
import threading

from . import _layout
from ._abi import Backend, Dtype, Memory, Property
from ._call import Ask, Call, Prepared, view
from ._errors import FoveaError, InvalidArgument
from ._library import check, lib

_FOLLOW, _OWN = object(), object()  # what a CUDA context's stream is when the caller gave no number


class Context:
    """One backend, one device, one stream, one workspace.  Calls from several threads take turns.

    On CUDA a context follows torch's or CuPy's current stream when it is given their arrays, until
    set_stream chooses one."""

    def __init__(self, backend="host", device=0, *, threads=0, stream=None):
        self._handle = None
        handle = C.c_void_p()
        check(lib.fovea_context_create(Backend[backend.upper()], device, C.byref(handle)))
        self._handle = handle.value
        self.backend, self.device = backend.lower(), device
        self._place = device if self.backend == "cuda" else -1
        self._stream, self._follows, self._helper = _FOLLOW, self.backend == "cuda", None
        self._lock = threading.RLock()
        if threads:
            self.set_threads(threads)
        if stream is not None:
            self.set_stream(stream)

    def __repr__(self):
        return self.backend if self._place < 0 else f"{self.backend}:{self.device}"

    def close(self):
        """Waits for the context's work and frees it; a second close does nothing."""
        if self._handle:
            handle, self._handle = self._handle, None
            if self._helper:
                self._helper.close()
            lib.fovea_context_destroy(handle)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if getattr(self, "_handle", None):
            self.close()

    def set_threads(self, threads):
        check(lib.fovea_context_set_threads(self._handle, threads))

    def set_stream(self, stream):
        """A cudaStream_t as int, or a torch or CuPy stream; 0 is CUDA's default stream.  None: the
        context's own again."""
        number = getattr(stream, "cuda_stream", getattr(stream, "ptr", stream))
        # NULL means the context's own to fovea; 1 (cudaStreamLegacy) is CUDA's default stream
        check(lib.fovea_context_set_stream(self._handle, None if number is None else number or 1))
        self._stream, self._follows = _OWN if number is None else number or 1, False

    def _follow(self, number):
        """Moves to the stream an array's library works on; the old one's work comes first."""
        number = number or 1
        if number != self._stream:
            check(lib.fovea_context_set_stream(self._handle, number))
            self._stream = number

    def _after(self, number):
        """Later work of this context waits for a stream that is not its own."""
        if number != self._stream:
            helper = self._assistant()
            helper.set_stream(number)
            self.wait(helper)
            helper.set_stream(None)

    def _before(self, number):
        """Later work of a stream that is not this context's own waits for this context."""
        if number != self._stream:
            helper = self._assistant()
            helper.set_stream(number)
            helper.wait(self)
            helper.set_stream(None)

    def _dlpack_stream(self):
        """The stream a DLPack producer makes wait; the context's own has no number, so another
        stands in, and _after it."""
        return self._stream if isinstance(self._stream, int) else 1

    def _assistant(self):
        if self._helper is None:
            self._helper = Context(self.backend, self.device)
        return self._helper

    def set_workspace(self, buffer):
        """A fixed workspace (a Buffer, kept alive here); None: its own, grown on demand."""
        address, size = (buffer.address, buffer.nbytes) if buffer is not None else (None, 0)
        check(lib.fovea_context_set_workspace(self._handle, address, size))
        self._workspace = buffer

    def get(self, key):
        """A property by name: "threads", "workspace_bytes", "free_bytes", "architecture", ..."""
        value = C.c_int64()
        check(lib.fovea_context_get(self._handle, Property[key.upper()], C.byref(value)))
        return value.value

    def synchronize(self):
        check(lib.fovea_context_synchronize(self._handle))

    def wait(self, other):
        """Later work here waits for what `other` has enqueued so far."""
        check(lib.fovea_context_wait(self._handle, other._handle))

    @property
    def last_kernel(self):
        """The kernel the last operation ran."""
        return lib.fovea_context_last_kernel(self._handle).decode()

    def empty(self, shape, dtype="f32", *, host=False):
        """An uninitialised Buffer on this device; host=True: pinned memory the device reads."""
        return Buffer(
            self,
            tuple(shape),
            _layout.dtype_code(dtype) if not isinstance(dtype, int) else dtype,
            host,
        )

    def array(self, source):
        """A Buffer on this device holding a copy of an array."""
        _, code, shape, *_ = view(source, _AnyPlace, False)
        buffer = self.empty(shape, code)
        self.copy(buffer, source)
        return buffer

    def copy(self, to, source):
        """Copies between contiguous arrays or Buffers of equal bytes, in stream order."""
        ends = view(to, _AnyPlace, True), view(source, _AnyPlace, False)
        sizes = []
        for _, code, shape, layout, *_ in ends:
            if layout != _layout.layout(code, shape, None):
                raise InvalidArgument("copy: both arrays must be contiguous")
            sizes.append(_nbytes(code, shape))
        if sizes[0] != sizes[1]:
            raise InvalidArgument(f"copy: to holds {sizes[0]} bytes, source {sizes[1]}")
        check(lib.fovea_copy(self._handle, ends[0][0], ends[1][0], sizes[0]))

    def _call(self, op):
        return Call(self, op)

    @property
    def asking(self):
        """Operations called on this answer their bytes of workspace instead of running."""
        return _Stand(self, Ask)

    @property
    def preparing(self):
        """Operations called on this give an object that runs them when called."""
        return _Stand(self, Prepared)


class _AnyPlace:
    """Stands for a context where a view's place does not matter."""

    _place, _follows = -2, False
    _after = _dlpack_stream = staticmethod(lambda number=None: 1)


class _Stand:
    """Stands in for a context: operations called on it build another kind of Call."""

    def __init__(self, ctx, kind):
        self._call = lambda op: kind(ctx, op)


def _nbytes(code, shape):
    count = 1
    for extent in shape:
        count *= extent
    return (count * _layout.BITS[code] + 7) // 8


class Buffer:
    """Contiguous memory of a context's device.  Reads as an array where CUDA's or NumPy's array
    interface can say its dtype; freed in stream order by free() or with the object."""

    def __init__(self, ctx, shape, dtype, host=False):
        self.ctx, self.shape, self.dtype, self.host = (
            ctx,
            shape,
            Dtype(dtype),
            host or ctx._place < 0,
        )
        self.place, self.nbytes, self.address = ctx._place, _nbytes(dtype, shape), None
        out = C.c_void_p()
        check(
            lib.fovea_alloc(
                ctx._handle, Memory.HOST if host else Memory.DEVICE, self.nbytes, C.byref(out)
            )
        )
        self.address = out.value or 0

    def __repr__(self):
        return f"fovea.Buffer({self.shape}, {self.dtype.name.lower()}, {self.ctx!r})"

    def free(self):
        address, self.address = self.address, None
        if address and self.ctx._handle:
            check(lib.fovea_free(self.ctx._handle, address))
        elif address:  # its context is closed; any of the device will do
            with Context(self.ctx.backend, self.ctx.device) as ctx:
                check(lib.fovea_free(ctx._handle, address))

    def __del__(self):
        if getattr(self, "address", None):
            self.free()

    def __getattr__(self, name):
        # Only the interface that is true of this memory exists, as consumers probe with hasattr.
        if name == ("__array_interface__" if self.host else "__cuda_array_interface__"):
            typestr = next((t for t, code in _layout.TYPESTRS.items() if code == self.dtype), None)
            if typestr and self.address is not None:
                out = {
                    "shape": self.shape,
                    "typestr": typestr,
                    "data": (self.address, False),
                    "strides": None,
                    "version": 3,
                }
                if not self.host and isinstance(self.ctx._stream, int):
                    out["stream"] = self.ctx._stream
                elif not self.host:
                    self.ctx.synchronize()  # the context's own stream has no number to give
                return out
        raise AttributeError(f"fovea.Buffer has no {name}")

    def memory(self):
        """The bytes of host memory as a memoryview; the Buffer must outlive it."""
        if not self.host or self.address is None:
            raise FoveaError("memory() needs an allocated Buffer in host memory: copy it there")
        return memoryview((C.c_ubyte * self.nbytes).from_address(self.address))

    def numpy(self):
        """A NumPy copy, once the context's work is done."""
        import numpy

        out = numpy.empty(self.shape, _layout.numpy_dtype(self.dtype))
        self.ctx.copy(out, self)
        self.ctx.synchronize()
        return out
