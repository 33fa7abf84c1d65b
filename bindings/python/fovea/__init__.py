# SPDX-License-Identifier: Apache-2.0
"""fovea: efficient attention.

    import fovea
    o, lse = fovea.attention_forward(q, k, v, causal=True, lse=True)

    with fovea.Context("host", threads=4) as ctx:          # or "cuda:1"
        o = fovea.attention_forward(ctx, q, k, v, causal=True)

Arrays are NumPy, torch, CuPy, or whatever speaks DLPack, the CUDA array interface or the buffer
protocol.  Outputs come from the library of the first input.  Shapes are (b, s, h, d).
help(fovea.attention_forward) shows the contract of every field.

A context is a device, a stream and a workspace.  It may be left out: default_context(device) is
then that of the first array's device.

    Context, default_context           where operations run
    Buffer                             memory of a context's device
    prepare                            a call to run many times
    workspace_bytes                    the bytes that a call would use, or why it cannot run
    TraceSession                       the edges of trace_forward, layer after layer, to a sink
    device_count, build, library_path  what is here
    collect_env                        a report of it for issues: python -m fovea
    InvalidArgument, Unsupported, OutOfMemory, DeviceError, InternalError
                                       a FoveaError, and the sentence that says why
    recipe, recipes                    methods by name: recipe("streamingllm")(q, k, v)
    experimental                       operations outside the ABI promise
    fovea.torch, fovea.transformers    gradients in PyTorch; attn_implementation="fovea".
    fovea.distributed                  texts that are cut over several devices.  None of the three
                                       is imported with fovea

"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import _abi, _call, experimental as experimental, levels as levels, ops as ops
from ._abi import (
    Backend as Backend,
    Build as Build,
    Dtype as Dtype,
    Memory as Memory,
    Property as Property,
    Status as Status,
)
from ._core import Buffer as Buffer, Context as Context
from ._default import default_context as default_context
from ._errors import (
    DeviceError as DeviceError,
    FoveaError as FoveaError,
    InternalError as InternalError,
    InvalidArgument as InvalidArgument,
    OutOfMemory as OutOfMemory,
    Unsupported as Unsupported,
)
from ._info import (
    build as build,
    collect_env as collect_env,
    device_count as device_count,
)
from ._library import library_path as library_path
from ._op import prepare as prepare, workspace_bytes as workspace_bytes
from ._recipe import Recipe as Recipe, recipe as recipe, recipes as recipes
from ._session import TraceSession as TraceSession
from .ops import *  # noqa: F403

__version__: str = _abi.VERSION

# No __all__: with one, help(fovea) would print the whole help of every name in it.
if not TYPE_CHECKING:
    del annotations, TYPE_CHECKING
    _SPECIAL = {"__doc__", "__file__", "__name__", "__path__", "__version__"}

    # What torch.compiler.disable marks, without its import: torch.compile leaves these calls as they
    # are, and with fullgraph=True says why.
    for _made in (*vars(ops).values(), *vars(experimental).values(), _call.Prepared.__call__):
        if getattr(_made, "__module__", "").startswith("fovea.") and hasattr(_made, "__code__"):
            _made._torchdynamo_disable = True
            _made._torchdynamo_disable_msg = (
                "it is no operation of torch: fovea.torch has those that torch.compile knows"
            )
    del _made

    def _line(name):
        """An operation and the first sentence of its help."""
        words = (getattr(ops, name).__doc__ or "").split("\n\n")[0].split()
        text = " ".join(words).partition(". ")[0].partition(": ")[0].partition("; ")[0].rstrip(".:")
        return f"    {name:<26} {text}"[:100]

    __doc__ += "Operations\n" + "\n".join(_line(n) for n in ops.__all__ if n[0].islower())

    def __dir__():
        return [name for name in globals() if name[0] != "_" or name in _SPECIAL]

    def __getattr__(name):
        """Former names: x_NAME of experimental.NAME, and NAME_workspace of workspace_bytes."""
        import functools

        of = name.removesuffix("_workspace")
        if of[:2] == "x_":
            found = getattr(experimental, of[2:], None)
        elif of[:1] == "X":  # an enum of theirs
            found = getattr(experimental, of[1:], None)
        else:
            found = getattr(ops, of, None) if of != name else None
        if found is None:
            raise AttributeError(f"module 'fovea' has no attribute {name!r}")
        return found if of == name else functools.partial(workspace_bytes, found)
