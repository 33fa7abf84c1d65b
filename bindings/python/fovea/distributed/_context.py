# SPDX-License-Identifier: Apache-2.0
"""context_parallel: a context in which a model's attention goes round the ranks."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, NamedTuple, Optional

import torch

from .._errors import InvalidArgument
from . import _heads, _order, _peers

OP = "context_parallel"


class Text(NamedTuple):
    """How the text of the calls within a context lies over the ranks."""

    group: Any
    layout: str
    query_start: Any = None
    check: bool = True


_entered: list[Text] = []  # of the process: gradients are computed on threads of autograd's own


@contextlib.contextmanager
def context_parallel(mesh=None, *, buffers=None, buffer_seq_dims=None, no_restore_buffers=None,
                     layout="zigzag", query_start=None, check=True):  # fmt: skip
    """Within it the attention of a transformers model with attn_implementation="fovea" is attention
    over the ranks, and the buffers hold this rank's tokens.

    mesh                None, a ProcessGroup, or a DeviceMesh of one or two axes, as in attention
    buffers             tensors that every rank has whole: inputs, labels that are shifted already,
                        position_ids.  They are cut in place, and whole again behind the context
    buffer_seq_dims     their dimensions of tokens; None: 1 of each
    no_restore_buffers  those of them that stay cut
    layout, query_start, check   as in ring_attention

    The arguments are those of torch.distributed.tensor.experimental.context_parallel, and so are
    the shards of layout "zigzag".  Within PyTorch's own context attn_implementation="fovea" does
    the same.  Give position_ids: a model counts from 0 otherwise.  The gradients of parameters are
    those of this rank's tokens: sum them over the ranks."""
    buffers = list(buffers or ())
    dims = [1] * len(buffers) if buffer_seq_dims is None else list(buffer_seq_dims)
    if len(dims) != len(buffers):
        raise InvalidArgument(
            f"{OP}: buffer_seq_dims has {len(dims)} entries, wanted {len(buffers)} as buffers"
        )
    kept = [id(x) for x in no_restore_buffers or ()]
    if not set(kept) <= {id(x) for x in buffers}:
        raise InvalidArgument(f"{OP}: no_restore_buffers has a tensor that is not among buffers")
    _order.layout_of(OP, layout)
    with torch.no_grad():
        parts = [_order.shard(x, mesh, dim=dim, layout=layout) for x, dim in zip(buffers, dims)]
        whole = [None if id(x) in kept else x.clone() for x in buffers]
        for x, part in zip(buffers, parts):
            _put(x, part)
    _entered.append(Text(mesh, layout, query_start, check))
    try:
        yield
    finally:
        _entered.pop()
        with torch.no_grad():
            for x, before in zip(buffers, whole):
                if before is not None:
                    _put(x, before)


def _put(x, part):
    x.resize_(part.shape)
    x.copy_(part)


def current() -> Optional[Text]:
    """The Text of the innermost context_parallel, of fovea or of PyTorch; None outside."""
    return _entered[-1] if _entered else of_pytorch()


def of_pytorch():
    """The Text of PyTorch's context_parallel, which replaces scaled_dot_product_attention by a
    function that holds its mesh."""
    function = torch.nn.functional.scaled_dot_product_attention
    module = getattr(function, "__module__", None) or ""
    if not module.startswith("torch.distributed.tensor.experimental"):
        return None
    names = function.__code__.co_freevars
    held = dict(zip(names, [cell.cell_contents for cell in function.__closure__ or ()]))
    options = getattr(sys.modules[module], "_cp_options", None)
    if "device_mesh" not in held or not hasattr(options, "enable_load_balance"):
        raise InvalidArgument(
            f"{OP}: the context of PyTorch {torch.__version__} does not say its mesh and order: use "
            "fovea.distributed.context_parallel, which takes the same arguments"
        )
    layout = "zigzag" if options.enable_load_balance else "contiguous"
    return Text(held["device_mesh"], layout)


# What fovea.transformers asks.


def agree(text, shape, fields, refusal):
    """One exchange before the layers of a model: what a rank cannot serve every rank refuses."""
    axes = _order.Axes(OP, text.group)

    def describe():
        if refusal:
            raise InvalidArgument(f"{OP}: {refusal}")
        return [f"the text is {tuple(shape)} on a rank", f"the mask is {sorted(fields.items())}"]

    for peers in axes.peers:
        peers.agree(text.check, describe)


def attention(text, q, k, v, fields, shared, *, check):
    """attention of a layer within a context."""
    return _heads.attention(
        q, k, v, text.group, layout=text.layout, query_start=text.query_start,
        check=check and text.check, **fields, **shared,
    )  # fmt: skip
