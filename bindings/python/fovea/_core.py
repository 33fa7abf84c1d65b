# SPDX-License-Identifier: Apache-2.0
"""Contexts and their memory."""

from __future__ import annotations

import ctypes as C
import operator
import sys
import threading
from typing import TYPE_CHECKING, Any, Iterable

from . import _layout
from ._abi import Backend, Dtype, Memory, Property
from ._call import Ask, Prepared, member, view
from ._errors import FoveaError, InvalidArgument, OutOfMemory
from ._library import check, lib

_FOLLOW, _OWN = object(), object()  # what a CUDA context's stream is when the caller gave no number
_NAMES = {"host": "host", "cpu": "host", "cuda": "cuda", "gpu": "cuda"}


def place_named(name, what):
    """(backend, device or None) of "host", "cuda:1", a torch.device, a Backend; `what` begins the
    sentence that refuses."""
    kind, _, number = str(name).lower().partition(":")
    if isinstance(name, Backend):
        kind = name.name.lower()
    elif not isinstance(name, str) and not _is_torch_device(name) or kind not in _NAMES:
        kind = None
    if kind is None or (number and not number.isdecimal()) or str(name).endswith(":"):
        raise InvalidArgument(
            f"{what} is {name!r}, wanted \"host\" or \"cpu\", \"cuda\", \"gpu\" or \"cuda:1\", or a "
            "torch.device"
        )
    return _NAMES[kind], int(number) if number else _current(name) if kind == "cuda" else 0


def whole(what, x, most=2**31 - 1, least=-(2**31)):
    """An integer that C's type can hold; `what` begins the sentence that refuses."""
    try:
        number = operator.index(x)
    except TypeError:
        raise TypeError(f"{what} is {x!r}, wanted an integer") from None
    if not least <= number <= most:
        limit = f"at least {least}" if number < least else f"at most {most}"
        raise InvalidArgument(f"{what} is {number}, wanted {limit}")
    return number


def _is_torch_device(x):
    return f"{type(x).__module__}.{type(x).__name__}" == "torch.device"


def _current(name):
    """The device of "cuda" without a number: 0, and for a torch.device torch's current one."""
    torch = sys.modules.get("torch")
    if _is_torch_device(name) and torch.cuda.is_available():
        return torch.cuda.current_device()
    return 0


class Context:
    """One backend, one device, one stream, one workspace.  Calls from several threads take turns.

    backend  "host" or "cpu", "cuda" or "gpu", "cuda:1", a torch.device
    device   the number of the CUDA device, where backend does not hold it; 0
    threads  that an operation may use on the host; 0: all hardware threads
    stream   as set_stream takes it

    On CUDA a context follows torch's or CuPy's current stream when it is given their arrays, until
    set_stream chooses one."""

    def __init__(
        self, backend: Any = "host", device: int | None = None, *, threads: int = 0,
        stream: Any = None,
    ) -> None:
        self._handle = None
        name, number = place_named(backend, "Context: backend")
        if device is not None:
            if ":" in str(backend) and device != number:
                raise InvalidArgument(f"Context: device is {device!r}, but backend is {backend!r}")
            number = device
        number = whole("Context: device", number)
        handle = C.c_void_p()
        check(lib.fovea_context_create(Backend[name.upper()], number, C.byref(handle)))
        self._handle = handle.value
        self.backend: str = name
        self.device: int = number
        self._place = number if name == "cuda" else -1
        self._stream, self._follows, self._helper = _FOLLOW, self.backend == "cuda", None
        self._lock = threading.RLock()
        if threads:
            self.set_threads(threads)
        if stream is not None:
            self.set_stream(stream)

    def __repr__(self) -> str:
        return self.backend if self._place < 0 else f"{self.backend}:{self.device}"

    def _check(self, status):
        if status:
            if not self._handle:
                raise InvalidArgument("the context is closed")
            check(status)

    def close(self) -> None:
        """Waits for the context's work and frees it; a second close does nothing."""
        if self._handle:
            handle, self._handle = self._handle, None
            if self._helper:
                self._helper.close()
            lib.fovea_context_destroy(handle)

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self):
        if getattr(self, "_handle", None):
            self.close()

    def set_threads(self, threads: int) -> None:
        """Threads that an operation may use on the host; 0: all hardware threads."""
        threads = whole("set_threads: threads", threads)
        self._check(lib.fovea_context_set_threads(self._handle, threads))

    def set_stream(self, stream: Any) -> None:
        """A cudaStream_t as int, or a torch or CuPy stream; 0 is CUDA's default stream.  None: the
        context's own again."""
        number = getattr(stream, "cuda_stream", getattr(stream, "ptr", stream))
        if number is not None and not isinstance(number, (int, C.c_void_p)):
            raise TypeError(
                f"set_stream: stream is a {type(stream).__name__}, wanted a torch or CuPy stream, "
                "a cudaStream_t as int, or None"
            )
        # NULL means the context's own to fovea; 1 (cudaStreamLegacy) is CUDA's default stream
        self._check(lib.fovea_context_set_stream(self._handle, None if number is None else number or 1))
        self._stream, self._follows = _OWN if number is None else number or 1, False

    def _follow(self, number):
        """Moves to the stream an array's library works on; the old one's work comes first."""
        number = number or 1
        if number != self._stream:
            self._check(lib.fovea_context_set_stream(self._handle, number))
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

    def set_workspace(self, buffer: Buffer | None) -> None:
        """A fixed workspace (a Buffer, kept alive here); None: its own, grown on demand."""
        if buffer is not None and not isinstance(buffer, Buffer):
            raise TypeError(
                f"set_workspace: buffer is a {type(buffer).__name__}, wanted a fovea.Buffer, such as "
                'ctx.empty((bytes,), "u8"), or None'
            )
        address, size = (buffer.address, buffer.nbytes) if buffer is not None else (None, 0)
        self._check(lib.fovea_context_set_workspace(self._handle, address, size))
        self._workspace = buffer

    def get(self, key: str | Property) -> int:
        """A property by name: "threads", "workspace_bytes", "free_bytes", "architecture", ..."""
        value, key = C.c_int64(), member(Property, key, "Context.get: key")
        self._check(lib.fovea_context_get(self._handle, key, C.byref(value)))
        return value.value

    def synchronize(self) -> None:
        """Waits until the context's work is done."""
        self._check(lib.fovea_context_synchronize(self._handle))

    def wait(self, other: Context) -> None:
        """Later work here waits for what `other` has enqueued so far."""
        if not isinstance(other, Context):
            raise TypeError(f"wait: other is a {type(other).__name__}, wanted a fovea.Context")
        if not other._handle:
            raise InvalidArgument("wait: the context to wait for is closed")
        self._check(lib.fovea_context_wait(self._handle, other._handle))

    @property
    def last_kernel(self) -> str:
        """The kernel the last operation ran, "attention_forward.cuda.sm80.bf16.d128.whole"; ""
        before any."""
        name: str = lib.fovea_context_last_kernel(self._handle).decode()
        return name

    @property
    def last_plan(self) -> str:
        """The kernel that the last operation or fovea.workspace_bytes chose; "" before any."""
        name: str = lib.fovea_context_last_plan(self._handle).decode()
        return name

    @property
    def last_reasons(self) -> str:
        """Why no better kernel serves the call of last_plan, best first: "sm90: bias is given,
        wanted none; sm80: ..."; "" where the best one serves."""
        reasons: str = lib.fovea_context_last_reasons(self._handle).decode(errors="replace")
        return reasons

    def empty(
        self, shape: int | Iterable[int], dtype: Any = "f32", *, host: bool = False
    ) -> Buffer:
        """An uninitialised Buffer on this device; host=True: pinned memory the device reads."""
        extents = tuple(shape) if isinstance(shape, Iterable) else (shape,)
        extents = tuple(
            whole(f"empty: shape[{i}]", n, 2**63 - 1, 0) for i, n in enumerate(extents)
        )
        return Buffer(self, extents, _dtype("empty", dtype), host)

    def array(self, source: Any) -> Buffer:
        """A Buffer on this device holding a copy of an array."""
        _, code, shape, *_ = _seen("array: source", source, False)
        buffer = self.empty(shape, code)
        self.copy(buffer, source)
        return buffer

    def copy(self, to: Any, source: Any) -> None:
        """Copies between contiguous arrays or Buffers of equal bytes, in stream order."""
        ends = _seen("copy: to", to, True), _seen("copy: source", source, False)
        sizes = []
        for _, code, shape, layout, *_ in ends:
            if layout != _layout.layout(code, shape, None):
                raise InvalidArgument("copy: both arrays must be contiguous")
            sizes.append(_nbytes(code, shape))
        if sizes[0] != sizes[1]:
            raise InvalidArgument(f"copy: to holds {sizes[0]} bytes, source {sizes[1]}")
        self._check(lib.fovea_copy(self._handle, ends[0][0], ends[1][0], sizes[0]))

    @property
    def asking(self) -> Any:
        """Operations called on this answer their bytes of workspace instead of running."""
        return Stand(self, Ask)

    @property
    def preparing(self) -> Any:
        """Operations called on this give an object that runs them when called."""
        return Stand(self, Prepared)


class _AnyPlace:
    """Stands for a context where a view's place does not matter."""

    _place, _follows = -2, False
    _after = _dlpack_stream = staticmethod(lambda number=None: 1)


class Stand:
    """Stands in for a context, None for the default one: operations build another kind of Call."""

    def __init__(self, ctx, kind):
        self.ctx, self.kind = ctx, kind


def _seen(what, x, write):
    """The view of an array anywhere; `what` begins the sentence that refuses."""
    try:
        return view(x, _AnyPlace, write)
    except (TypeError, FoveaError) as why:
        raise type(why)(f"{what} {why}") from None


def _dtype(what, dtype):
    """fovea_dtype of a dtype, its name or its number."""
    if isinstance(dtype, int) and dtype not in Dtype.__members__.values():
        raise InvalidArgument(f"{what}: dtype is {dtype}, which is no fovea.Dtype")
    try:
        if isinstance(dtype, int):
            return int(dtype)
        return _layout.dtype_code(dtype.__name__ if isinstance(dtype, type) else dtype)  # type: ignore[no-any-return]
    except TypeError:
        names = ", ".join(name.lower() for name in Dtype.__members__)
        raise TypeError(f"{what}: dtype is {dtype!r}, wanted one of {names}") from None


def _nbytes(code, shape):
    count = 1
    for extent in shape:
        count *= extent
    return (count * _layout.BITS[code] + 7) // 8


class Buffer:
    """Contiguous memory of a context's device.  Reads as an array where CUDA's or NumPy's array
    interface can say its dtype; freed in stream order by free() or with the object."""

    __array_interface__: dict[str, Any]
    __cuda_array_interface__: dict[str, Any]

    def __init__(
        self, ctx: Context, shape: tuple[int, ...], dtype: int, host: bool = False
    ) -> None:
        self.address: int | None = None
        self.ctx: Context = ctx
        self.shape: tuple[int, ...] = shape
        self.dtype: Dtype = Dtype(dtype)
        self.host: bool = host or ctx._place < 0
        self.nbytes: int = _nbytes(dtype, shape)
        if self.nbytes >= 2**64:  # C's size_t would hold the rest of it
            raise OutOfMemory(f"alloc: {self.nbytes} bytes could not be had")
        self.place = ctx._place
        out = C.c_void_p()
        ctx._check(
            lib.fovea_alloc(
                ctx._handle, Memory.HOST if host else Memory.DEVICE, self.nbytes, C.byref(out)
            )
        )
        self.address = out.value or 0

    def __repr__(self) -> str:
        return f"fovea.Buffer({self.shape}, {self.dtype.name.lower()}, {self.ctx!r})"

    def free(self) -> None:
        """Frees the memory in stream order; a second time does nothing."""
        address, self.address = self.address, None
        if address and self.ctx._handle:
            check(lib.fovea_free(self.ctx._handle, address))
        elif address:  # its context is closed; any of the device will do
            with Context(self.ctx.backend, self.ctx.device) as ctx:
                check(lib.fovea_free(ctx._handle, address))

    def __del__(self):
        if getattr(self, "address", None):
            self.free()

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            # Only the interface that is true of this memory exists, as consumers probe with hasattr.
            if "interface" not in name:  # `host` itself too, where __init__ did not get that far
                raise AttributeError(f"fovea.Buffer has no {name}")
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

    def memory(self) -> memoryview:
        """The bytes of host memory as a memoryview; the Buffer must outlive it."""
        if not self.host or self.address is None:
            raise FoveaError("memory() needs an allocated Buffer in host memory: copy it there")
        return memoryview((C.c_ubyte * self.nbytes).from_address(self.address))

    def numpy(self) -> Any:
        """A NumPy copy, once the context's work is done."""
        import numpy

        out = numpy.empty(self.shape, _layout.numpy_dtype(self.dtype))
        self.ctx.copy(out, self)
        self.ctx.synchronize()
        return out
