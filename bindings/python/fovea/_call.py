# SPDX-License-Identifier: Apache-2.0
"""Call: the parameters of one operation, which the functions in ops.py fill and run.

Call runs it, Ask tells the workspace it would use, Prepared keeps it for many runs.  Op.begin
(_op.py) makes the kind that is wanted."""

from __future__ import annotations

import ctypes as C
import math
import operator
import struct
from typing import Any

from ._abi import Dtype
from ._errors import FoveaError, InvalidArgument
from ._library import check, lib
from ._layout import BITS, Repeated, expanded, in_a_row, is_bool, layout
from ._views import DROPS_GRADIENT, empty_like, pack_bits, recording, viewer_of, viewers

_TENSOR = struct.Struct("<Q88s").pack_into
_SCALARS = {kind: struct.Struct("<" + kind).pack_into for kind in "qfi"}
_KINDS = {"q": "a 64-bit integer", "f": "a float", "i": "a 32-bit integer"}


def view(x, ctx, write):
    viewer = viewers.get(type(x)) or viewer_of(x)
    return viewer(x, ctx, write)


def member(kind, name, what):
    """The member of an enum by itself or by its name; `what` begins the sentence that refuses."""
    if isinstance(name, kind):
        return name
    if isinstance(name, str) and name.upper() in kind.__members__:
        return kind[name.upper()]
    names = ", ".join(m.lower() for m in kind.__members__)
    raise InvalidArgument(f"{what} is {name!r}, wanted one of {names}")


class Call:
    # rooms: Buffers that stand in for an array during the call, by field
    # later: what is to be done once the operation has been enqueued
    __slots__ = ("ctx", "op", "params", "like", "keep", "rooms", "later")

    def __init__(self, ctx, op):
        if not ctx._handle:
            raise InvalidArgument(f"{op.name}: ctx is closed")
        self.ctx, self.op, self.params = ctx, op, op.params(op.size)
        self.like = self.keep = self.rooms = self.later = None

    def put(self, name, offset, x, rank=None, write=False, shape=None):
        """Fills one tensor field, broadcast to `shape` where one is given; gives the view
        (_views.py) of the array itself."""
        try:
            if shape is not None and is_bool(x):
                raise TypeError("has dtype bool: give it as mask")
            viewer = viewers.get(type(x)) or viewer_of(x)
            v = viewer(x, self.ctx, write)
            if rank is not None and len(v[2]) != rank:
                raise InvalidArgument(f"has {len(v[2])} dimensions {tuple(v[2])}, wanted {rank}")
            address, packed = v[0], v[3]
            if shape is not None:
                packed = self.spread(v, shape)
            if packed.__class__ is Repeated:
                address, packed = self.settle(name, offset, v, packed, write, shape is not None)
            _TENSOR(self.params, offset, address, packed)
        except (TypeError, FoveaError) as why:
            raise type(why)(f"{self.op.name}: {name} {why}") from None
        if len(v) > 4:  # the view owns something that must outlive the call
            self.keep = self.keep or {}
            self.keep[name] = v[4]
        if self.like is None:
            self.like = x
        return v

    def spread(self, v, shape):
        """The layout of a view broadcast to `shape`.  One of the full rank that does not fit goes
        to the library, whose sentence names the extent."""
        packed = expanded(v[3], shape)
        if packed is None and len(v[2]) != len(shape):
            raise InvalidArgument(
                f"has shape {tuple(v[2])}, wanted {shape} or one that broadcasts to it from the "
                "right"
            )
        return v[3] if packed is None else packed

    def settle(self, name, offset, v, packed, write, broadcast):
        """(address, layout) in place of one element with strides of 0 on every axis, which the
        library takes for strides forgotten.  An input is copied, an output is the sum of a row."""
        if write and not (broadcast and math.prod(v[2]) == 1):
            return v[0], packed  # refused
        shape = tuple(v[2])
        count, row = in_a_row(packed) if broadcast else (math.prod(shape), layout(v[1], shape, None))
        address = self.room(name, offset, count, v[1])
        if write:
            self.afterwards(lambda: self.total(address, count, v[0]))
        else:
            self.repeat(address, count, v)
        return address, row

    def room(self, name, offset, count, code):
        """Memory of the context for as long as the call."""
        self.rooms = self.rooms or {}
        with self.ctx._lock:
            self.rooms[name] = self.ctx.empty((count,), int(code))
        return self.rooms[name].address

    def repeat(self, to, count, v):
        """`count` times the element of a view, in stream order: each copy doubles what is there."""
        size, done = BITS[v[1]] // 8, 1
        with self.ctx._lock:
            check(lib.fovea_copy(self.ctx._handle, to, v[0], size))
            while done < count:
                more = min(done, count - done)
                check(lib.fovea_copy(self.ctx._handle, to + done * size, to, more * size))
                done += more

    def total(self, row, count, to):
        """The float64 sum of a row of f32 as one element.  Waits for the context."""
        handle, values = self.ctx._handle, (C.c_float * count)()
        check(lib.fovea_copy(handle, values, row, 4 * count))
        check(lib.fovea_context_synchronize(handle))
        check(lib.fovea_copy(handle, to, C.byref(C.c_float(sum(values))), 4))

    def afterwards(self, do):
        self.later = self.later or []
        self.later.append(do)

    def finish(self):
        """What is left once the operation has been enqueued; the caller has the context's lock."""
        later, self.later = self.later, None
        rooms, self.rooms = self.rooms, None
        for do in later or ():
            do()
        for room in (rooms or {}).values():
            room.free()

    def bits(self, name, offset, x, shape, keys):
        """Fills a field of bits with a bool array that broadcasts to (*shape, keys), or with bits
        that are packed already and broadcast over `shape`."""
        wanted = (*shape, -(-keys // 8))
        try:
            if is_bool(x):
                own = tuple(x.shape)
                fits = 0 < len(own) <= len(wanted) and all(
                    n in (1, most) for n, most in zip(reversed(own), (keys, *reversed(shape)))
                )
                if not fits:
                    raise InvalidArgument(
                        f"has shape {own}, wanted {(*shape, keys)} or one that broadcasts to it "
                        "from the right"
                    )
                x = self.pack(x, keys)
            else:
                v = view(x, self.ctx, False)
                if v[1] != Dtype.U8:
                    raise InvalidArgument(
                        f"has dtype {Dtype(v[1]).name.lower()}, wanted bool, or bits packed in "
                        "uint8; numbers added to scores are a bias"
                    )
                if not v[2] or v[2][-1] != wanted[-1] or expanded(v[3], wanted) is None:
                    raise InvalidArgument(
                        f"has shape {tuple(v[2])}, wanted {wanted}, a bit for each of {keys}: give "
                        "a bool mask or pack with numpy.packbits(mask, axis=-1, bitorder='little')"
                    )
        except (TypeError, FoveaError) as why:
            raise type(why)(f"{self.op.name}: {name} {why}") from None
        if x is not None:
            Call.put(self, name, offset, x, None, False, wanted)
            self.keep = self.keep or {}
            self.keep[f"{name} as bits"] = x
        else:
            _TENSOR(self.params, offset, 256 * offset, layout(Dtype.U8, wanted, None))

    def pack(self, x, keys):
        """A bool array as bits, ordered with the context's own stream before and after."""
        packed, stream = pack_bits(x, keys, self.ctx)
        if stream is not None and self.ctx._place >= 0 and not self.ctx._follows:
            self.ctx._after(stream)
            self.afterwards(lambda: self.ctx._before(stream))
        return packed

    def index(self, name, value):
        try:
            return operator.index(value)
        except TypeError:
            raise TypeError(f"{self.op.name}: {name} is {value!r}, wanted {_KINDS['q']}") from None

    def keys(self, k, page_table, key_start, key_max):
        """The key columns that a row can be asked about (`keys` of core.h)."""
        key_max = self.index("key_max", key_max)
        if (page_table is not None or key_start is not None) and key_max > 0:
            return key_max
        return k[2][1] if page_table is None else page_table[2][1] * k[2][1]

    def blocks(self, k, page_table, block_keys):
        """The key blocks that a row block can be asked about."""
        block = self.index("block_keys", block_keys)
        return -(-k[2][1] // (block if block > 0 else 64)) if page_table is None else page_table[2][1]

    def out(self, name, offset, x, shape, code, spread=None):
        """Fills an output field with x, or with a new array when x is None or True; `spread`: the
        shape that it stands for, with strides of 0 where it has an extent of 1."""
        if x is None or x is True:
            x = empty_like(self.like, shape() if callable(shape) else shape, code, self.ctx)
        self.put(name, offset, x, None, True, spread)
        return x

    def size(self, name, given, *sources):
        """An extent that only the caller or an optional tensor says: (view, index, less), ..."""
        if given is not None:
            return given
        for v, index, less in sources:
            if v is not None:
                return v[2][index] - less
        raise TypeError(
            f"{self.op.name}: the extent {name} of an output is not known from the inputs: "
            f"pass {name}= or the output itself"
        )

    def sequences(self, start):
        """How many sequences share a tensor's rows: those that the view of *_start bounds, or one."""
        return 1 if start is None else start[2][0] - 1

    def twin(self, name, of, v):
        """The shape of an output that is like an optional input."""
        if v is None:
            raise InvalidArgument(f"{self.op.name}: {name} needs {of}")
        return v[2]

    def scalar(self, kind, offset, value, name):
        try:
            _SCALARS[kind](self.params, offset, value)
        except (struct.error, TypeError):
            if is_bool(value) and not value.shape:  # NumPy's and torch's bool are no integers
                return self.scalar(kind, offset, bool(value), name)
            raise TypeError(f"{self.op.name}: {name} is {value!r}, wanted {_KINDS[kind]}") from None
        except OverflowError:
            raise TypeError(
                f"{self.op.name}: {name} is {value!r}, which is no 32-bit float"
            ) from None

    def enum(self, offset, value, name, kind):
        """An enum field by number, member or name: "yarn" or Scaling.YARN."""
        if isinstance(value, str):
            value = member(kind, value, f"{self.op.name}: {name}")
        self.scalar("i", offset, value, name)

    def failed(self, status):
        """Raises what the library said, with what Python knows of it."""
        if not self.ctx._handle:
            raise InvalidArgument(f"{self.op.name}: ctx is closed")
        try:
            check(status)
        except InvalidArgument as why:
            if "dtype is i64, wanted i32" not in str(why):
                raise
            raise InvalidArgument(
                f"{why}: pass x.int() in torch, x.astype('int32') in NumPy and CuPy"
            ) from None

    def run(self, *outputs):
        """Runs; gives the outputs that were wanted, one by itself, several as a tuple."""
        ctx = self.ctx
        with ctx._lock:
            status = self.op.run(ctx._handle, self.params)
            if status:
                self.failed(status)
            if self.rooms or self.later:
                self.finish()
        if len(outputs) == 1:
            return outputs[0]
        wanted = tuple([o for o in outputs if o is not None])
        return wanted if len(wanted) > 1 else wanted[0] if wanted else None


class Ask(Call):
    """Asks for the bytes of workspace, so whether the call can run.  Allocates nothing."""

    __slots__ = ()

    def out(self, name, offset, x, shape, code, spread=None):
        if x is not None and x is not True:
            return Call.out(self, name, offset, x, shape, code, spread)
        packed = layout(code, tuple(shape() if callable(shape) else shape), None)
        if spread is not None:
            packed = expanded(packed, spread) or packed
        if packed.__class__ is Repeated:
            packed = in_a_row(packed)[1]
        # An address that no other output has.
        _TENSOR(self.params, offset, 256 * offset, packed)
        return True

    def room(self, name, offset, count, code):
        return 256 * offset

    def repeat(self, to, count, v):
        pass

    def pack(self, x, keys):
        return None

    def run(self, *_):
        size = C.c_size_t()
        with self.ctx._lock:
            status = self.op.workspace(self.ctx._handle, self.params, C.byref(size))
            if status:
                self.failed(status)
        return size.value


class Prepared(Call):
    """A call to run many times: call() on the same arrays, call(q=other) on others from now on."""

    __slots__ = ("arrays", "fields", "made", "tensors", "wanted")

    def __init__(self, ctx, op):
        Call.__init__(self, ctx, op)
        self.arrays, self.fields, self.wanted = {}, {}, ()
        self.made, self.tensors = set(), {}  # copied or packed before each run; torch's

    def put(self, name, offset, x, rank=None, write=False, shape=None):
        self.fields[name] = Call.put, offset, (rank, write, shape)
        return self.again(name, x)

    def bits(self, name, offset, x, shape, keys):
        self.fields[name] = Call.bits, offset, (shape, keys)
        self.again(name, x)

    def again(self, name, x):
        fill, offset, rest = self.fields[name]
        v = fill(self, name, offset, x, *rest)
        self.arrays[name] = x
        (self.made.add if name in (self.rooms or ()) or is_bool(x) else self.made.discard)(name)
        if hasattr(x, "requires_grad"):
            self.tensors[name] = x
        else:
            self.tensors.pop(name, None)
        return v

    def run(self, *outputs):
        self.wanted = [
            next(name for name, x in self.arrays.items() if x is o and self.writes(name))
            for o in outputs
            if o is not None
        ]
        return self

    def writes(self, name):
        fill, _, rest = self.fields[name]
        return fill is Call.put and rest[1]

    def __call__(self, **arrays: Any) -> Any:
        for name in arrays:
            if name not in self.fields:
                raise TypeError(f"{self.op.name}: {name} was not given when the call was prepared")
        if self.made:
            self.later = None
            arrays = {**{name: self.arrays[name] for name in self.made}, **arrays}
        for name, x in arrays.items():
            self.again(name, x)
        for name, x in self.tensors.items():
            if x.requires_grad and recording():
                raise InvalidArgument(f"{self.op.name}: {name} {DROPS_GRADIENT}")
        if self.ctx._follows and self.like is not None:
            view(self.like, self.ctx, False)  # moves to the stream its library works on by now
        with self.ctx._lock:
            status = self.op.run(self.ctx._handle, self.params)
            if status:
                self.failed(status)
            if self.rooms or self.later:
                self.finish()
        outputs = tuple([self.arrays[name] for name in self.wanted])
        return outputs if len(outputs) > 1 else outputs[0] if outputs else None
