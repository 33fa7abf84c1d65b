# SPDX-License-Identifier: Apache-2.0
"""Op: an operation of the library, and which context and which kind of call run it."""

from __future__ import annotations

import ctypes as C
from typing import Any, Callable

from ._call import Ask, Call, Prepared
from ._core import Context, Stand
from ._default import context_of
from ._errors import InvalidArgument
from ._library import lib


class Op:
    """An operation: its name, params struct and two functions."""

    def __init__(self, name, params):
        self.name, self.size, self.params = name, C.sizeof(params), params
        self.run = getattr(lib, f"fovea_{name}")
        self.workspace = getattr(lib, f"fovea_{name}_workspace")

    def begin(self, first, ctx, *inputs):
        """(call, inputs) where `first` is not just a Context: what stands in for one, None, or, ctx
        being left out or given by name, the first of the inputs."""
        if isinstance(first, (Context, Stand)):
            if ctx is not None:
                raise TypeError(f"{self.name}: ctx was given twice, first and by name")
            ctx = first
        elif first is not None:
            inputs = self.shifted(first, inputs)
        return self.call(ctx, inputs[0]), inputs

    def call(self, ctx, array):
        """A call on ctx, on what stands in for it, or on the context that the array chooses."""
        kind = Call
        if ctx.__class__ is Stand:
            kind, ctx = ctx.kind, ctx.ctx
        if ctx is None:
            try:
                ctx = context_of(array)
            except InvalidArgument as why:
                raise InvalidArgument(f"{self.name}: {why}") from None
        elif not isinstance(ctx, Context):
            raise self.no_context(ctx)
        return kind(ctx, self)

    def begin_by(self, ctx, *arrays):
        """The call of an operation that requires no input: the first array that is given chooses."""
        array = next((x for x in arrays if not (x is None or x is True or x is False)), None)
        return self.call(ctx, array)

    def shifted(self, first, inputs):
        """The inputs by position, of which `first` came in the place of ctx."""
        for i, x in enumerate(inputs):
            if x is None and not isinstance(first, (str, int)):
                return (first, *inputs[:i], *inputs[i + 1 :])
        raise self.no_context(first)

    def no_context(self, x):
        what = repr(x) if isinstance(x, (str, int)) else f"a {type(x).__name__}"
        return TypeError(
            f"{self.name}: ctx is {what}, wanted a fovea.Context such as "
            'fovea.default_context("cuda:0"), or none'
        )


def _on(kind, operation, inputs, fields):
    """`operation` on a stand-in for its context, which may be left out as ever."""
    if not callable(operation):
        raise TypeError(
            f"the operation is {operation!r}, wanted a function such as fovea.attention_forward"
        )
    ctx = fields.pop("ctx", None)
    if ctx is None and inputs and isinstance(inputs[0], Context):
        ctx, *inputs = inputs
    if ctx is not None and not isinstance(ctx, Context):
        raise TypeError(f"ctx is a {type(ctx).__name__}, wanted a fovea.Context, or none")
    made = operation(Stand(ctx, kind), *inputs, **fields)
    if not isinstance(made, Prepared if kind is Prepared else int):
        raise TypeError(
            f"the operation is {operation!r}, wanted one of fovea's, such as fovea.attention_forward"
        )
    return made


def prepare(operation: Callable[..., Any], *inputs: Any, **fields: Any) -> Prepared:
    """operation(*inputs, **fields) as an object that runs it each time it is called.

        call = fovea.prepare(fovea.attention_forward, ctx, q, k, v)
        o = call()                  # the same arrays again
        o = call(q=q2)              # others from now on
    The arrays given last are kept alive."""
    return _on(Prepared, operation, inputs, fields)  # type: ignore[no-any-return]


def workspace_bytes(operation: Callable[..., Any], *inputs: Any, **fields: Any) -> int:
    """Bytes of workspace that operation(*inputs, **fields) would use; raises what it would raise.

        fovea.workspace_bytes(fovea.attention_forward, ctx, q, k, v, causal=True)
    Runs nothing, touches no data, and makes no output."""
    return _on(Ask, operation, inputs, fields)  # type: ignore[no-any-return]
