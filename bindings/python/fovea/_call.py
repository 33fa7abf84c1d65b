# SPDX-License-Identifier: Apache-2.0
"""Call: the parameters of one operation, which the functions in ops.py fill and run.

A context makes the kind of call: Call runs it, Ask tells the workspace it would use (through
Context.asking), Prepared keeps it for many runs (through Context.preparing)."""

import ctypes as C
import struct

from ._errors import FoveaError, InvalidArgument
from ._library import check, lib
from ._layout import layout
from ._views import empty_like, viewer_of, viewers

_TENSOR = struct.Struct("<Q88s").pack_into
_SCALARS = {kind: struct.Struct("<" + kind).pack_into for kind in "qfi"}
_KINDS = {"q": "a 64-bit integer", "f": "a float", "i": "a 32-bit integer"}


def view(x, ctx, write):
    viewer = viewers.get(type(x)) or viewer_of(x)
    return viewer(x, ctx, write)


class Op:
    """An operation of the library: its name, params struct and two functions."""

    def __init__(self, name, params):
        self.name, self.size, self.params = name, C.sizeof(params), params
        self.run = getattr(lib, f"fovea_{name}")
        self.workspace = getattr(lib, f"fovea_{name}_workspace")


class Call:
    __slots__ = ("ctx", "op", "params", "like", "keep")

    def __init__(self, ctx, op):
        self.ctx, self.op, self.params, self.like, self.keep = (
            ctx,
            op,
            op.params(op.size),
            None,
            None,
        )

    def put(self, name, offset, x, rank=None, write=False):
        """Fills one tensor field; gives the view (_views.py)."""
        try:
            viewer = viewers.get(type(x)) or viewer_of(x)
            v = viewer(x, self.ctx, write)
            if rank is not None and len(v[2]) != rank:
                raise InvalidArgument(f"has {len(v[2])} dimensions {tuple(v[2])}, wanted {rank}")
            _TENSOR(self.params, offset, v[0], v[3])
        except (TypeError, FoveaError) as why:
            raise type(why)(f"{self.op.name}: {name} {why}") from None
        if len(v) > 4:  # the view owns something that must outlive the call
            self.keep = self.keep or {}
            self.keep[name] = v[4]
        if self.like is None:
            self.like = x
        return v

    def out(self, name, offset, x, shape, code):
        """Fills an output field with x, or with a new array when x is None or True."""
        if x is None or x is True:
            x = empty_like(self.like, shape() if callable(shape) else shape, code, self.ctx)
        self.put(name, offset, x, None, True)
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
        except struct.error:
            raise TypeError(f"{self.op.name}: {name} is {value!r}, wanted {_KINDS[kind]}") from None
        except OverflowError:
            raise TypeError(
                f"{self.op.name}: {name} is {value!r}, which is no 32-bit float"
            ) from None

    def enum(self, offset, value, name, kind):
        """An enum field by number, member or name: "yarn" or Scaling.YARN."""
        if isinstance(value, str):
            if value.upper() not in kind.__members__:
                raise InvalidArgument(
                    f"{self.op.name}: {name} is {value!r}, wanted one of "
                    + ", ".join(m.lower() for m in kind.__members__)
                )
            value = kind[value.upper()]
        self.scalar("i", offset, value, name)

    def run(self, *outputs):
        """Runs; gives the outputs that were wanted, one by itself, several as a tuple."""
        ctx = self.ctx
        with ctx._lock:
            status = self.op.run(ctx._handle, self.params)
            if status:
                check(status)
        if len(outputs) == 1:
            return outputs[0]
        wanted = tuple([o for o in outputs if o is not None])
        return wanted if len(wanted) > 1 else wanted[0] if wanted else None


class Ask(Call):
    """Asks for the bytes of workspace, so whether the call can run.  Allocates nothing."""

    __slots__ = ()

    def out(self, name, offset, x, shape, code):
        if x is not None and x is not True:
            return Call.out(self, name, offset, x, shape, code)
        shape = tuple(shape() if callable(shape) else shape)
        # An address that no other output has.
        _TENSOR(self.params, offset, 256 * offset, layout(code, shape, None))
        return True

    def run(self, *_):
        size = C.c_size_t()
        with self.ctx._lock:
            check(self.op.workspace(self.ctx._handle, self.params, C.byref(size)))
        return size.value


class Prepared(Call):
    """A call to run many times: call() on the same arrays, call(q=other) on others from now on."""

    __slots__ = ("arrays", "fields", "wanted")

    def __init__(self, ctx, op):
        Call.__init__(self, ctx, op)
        self.arrays, self.fields, self.wanted = {}, {}, ()

    def put(self, name, offset, x, rank=None, write=False):
        v = Call.put(self, name, offset, x, rank, write)
        self.fields[name], self.arrays[name] = (offset, rank, write), x
        return v

    def run(self, *outputs):
        named = {name: x for name, x in self.arrays.items() if self.fields[name][2]}
        self.wanted = [
            next(name for name, x in named.items() if x is o) for o in outputs if o is not None
        ]
        return self

    def __call__(self, **arrays):
        for name, x in arrays.items():
            if name not in self.fields:
                raise TypeError(f"{self.op.name}: {name} was not given when the call was prepared")
            Call.put(self, name, self.fields[name][0], x, *self.fields[name][1:])
            self.arrays[name] = x
        if self.ctx._follows and self.like is not None:
            view(self.like, self.ctx, False)  # moves to the stream its library works on by now
        with self.ctx._lock:
            status = self.op.run(self.ctx._handle, self.params)
            if status:
                check(status)
        outputs = tuple([self.arrays[name] for name in self.wanted])
        return outputs if len(outputs) > 1 else outputs[0] if outputs else None
