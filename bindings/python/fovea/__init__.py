# SPDX-License-Identifier: Apache-2.0
"""fovea: efficient attention.

    import fovea
    with fovea.Context("host", threads=4) as ctx:          # or Context("cuda")
        o, lse = fovea.attention_forward(ctx, q, k, v, causal=True, lse=True)

Arrays are NumPy, torch, CuPy, or whatever speaks DLPack, the CUDA array interface or the buffer
protocol; outputs come from the library of the first input.  Every operation X has a twin
`X_workspace` that answers, without running, the bytes of workspace X would use or why it cannot.
`prepare(X, ctx, ...)` keeps a call for many runs."""

from . import _abi, ops
from ._abi import Backend, Build, Dtype, Memory, Property, Status
from ._core import Buffer, Context
from ._errors import (
    DeviceError,
    FoveaError,
    InternalError,
    InvalidArgument,
    OutOfMemory,
    Unsupported,
)
from ._library import build, device_count, library_path
from ._session import TraceSession
from .ops import *  # noqa: F401,F403

__version__ = _abi.VERSION
__all__ = [
    "Backend",
    "Buffer",
    "Build",
    "Context",
    "DeviceError",
    "Dtype",
    "FoveaError",
    "InternalError",
    "InvalidArgument",
    "Memory",
    "OutOfMemory",
    "Property",
    "Status",
    "TraceSession",
    "Unsupported",
    "build",
    "device_count",
    "library_path",
    "prepare",
    *ops.__all__,
]


def prepare(operation, ctx, *inputs, **fields):
    """operation(ctx, *inputs, **fields) as an object that runs it each time it is called.

        call = prepare(attention_forward, ctx, q, k, v)
        o = call()                  # the same arrays again
        o = call(q=q2)              # others from now on
    The arrays given last are kept alive."""
    return operation(ctx.preparing, *inputs, **fields)
