# SPDX-License-Identifier: Apache-2.0
"""trace: rows stay on their ranks, keys are gathered, and the selection is that of one process."""

from __future__ import annotations

import torch

from .._errors import InvalidArgument
from ..torch._attention import Trace, trace as _trace
from . import _order, _peers

PIECES, LEAST_ROWS = 4, 16384  # of a first chunk


def piece_of(tokens, block_rows):
    """Rows of a piece.  A selection's thread blocks stay on every multiprocessor to its end, and
    NCCL's next exchange begins between two."""
    rows = -(-max(tokens // PIECES, LEAST_ROWS) // block_rows) * block_rows
    return min(rows, tokens)


@_peers.eager
@torch.no_grad()
def trace(q, k, v, group=None, *, keep, block_rows=64, block_keys=64, causal=False, scale=None,
          exact=False, return_lse=False, return_dense=False, return_mass=False, layout="zigzag",
          check=True):  # fmt: skip
    """fovea.torch.trace of a text that is cut over the ranks of a group: each rank has the
    selection of its own rows over the keys of all.  Without gradients.

    q (b, s, h, d), k (b, s, g, d), v (b, s, g, e): this rank's tokens.  The Trace has this rank's
    rows; key blocks are counted in the whole text.  block_rows divides the tokens of a chunk: s, or
    s / 2 with layout "zigzag".

    Selected blocks and their order are those of one process: with exact the same bits on every
    backend, else those of its kernel.  A rank has memory for k and v of the whole text."""
    op = "trace"
    peers = _peers.Peers(op, group)

    def describe():
        words = _peers.tensors(op, {"q": 4, "k": 4, "v": 4}, q=q, k=k, v=v)
        _peers.attend_shapes(op, q, k, v)
        _order.layout_of(op, layout)
        _order.even(op, q.shape[1], peers.size, layout)
        for name, x in (("keep", keep), ("block_rows", block_rows), ("block_keys", block_keys)):
            if not _peers.count(op, name, x):
                raise InvalidArgument(f"{op}: {name} is 0, wanted more")
        _, tokens = _order.chunks(0, peers.size, q.shape[1], layout)[0]
        if peers.size > 1 and tokens % block_rows:
            raise InvalidArgument(
                f"{op}: block_rows is {block_rows}, wanted a divisor of {tokens}, the tokens of a "
                "chunk"
            )
        told = {"keep": keep, "block_rows": block_rows, "block_keys": block_keys, "layout": layout,
                "causal": causal, "scale": scale, "exact": exact}  # fmt: skip
        return words + [f"{name} is {x}" for name, x in told.items()]

    peers.agree(check, describe)
    spans = _order.chunks(peers.rank, peers.size, q.shape[1], layout)
    wait = None
    if q.shape[0] == 1:
        (keys, values), wait = _order.arriving(peers, [k, v], 1, layout, k.shape[1])
    else:
        keys, values = [_order.joined(peers, x, 1, layout, x.shape[1]) for x in (k, v)]
    # Causally the rows of a first chunk see first chunks of lower ranks alone: the others come
    # meanwhile.
    early = causal and len(spans) == 2 and sum(spans[0]) > block_keys
    parts, at = [], 0
    for i, (first, tokens) in enumerate(spans):
        each = tokens
        if wait and early and i == 0:
            wait(0, lower=True)
            each = piece_of(tokens, block_rows)
        elif wait:
            for n in range(len(spans)):
                wait(n)
        for begin in range(0, tokens, each):
            count = min(each, tokens - begin)
            rows, end = q[:, at + begin : at + begin + count], first + begin + count
            last = keys.shape[1]
            if causal:
                # With one block of keys no branch is halved, which changes the order of the places.
                last = min(max(end, block_keys + 1), last)
                more = last - end
                rows = torch.nn.functional.pad(rows, (0, 0, 0, 0, 0, more)) if more else rows
            made = _trace(
                rows, keys[:, :last], values[:, :last], keep=keep, block_rows=block_rows,
                block_keys=block_keys, causal=causal, scale=scale, exact=exact,
                return_lse=return_lse, return_dense=return_dense, return_mass=return_mass,
            )  # fmt: skip
            blocks = -(-count // block_rows)
            parts.append(Trace(
                made.selected[:, :, :blocks], made.score[:, :, :blocks], made.o[:, :count],
                *[None if x is None else x[:, :, :count] for x in (made.lse, made.lse_dense)],
                None if made.mass is None else made.mass[:, :, :blocks],
            ))  # fmt: skip
        at += tokens
    dims = Trace(2, 2, 1, 2, 2, 2)
    return Trace(*[
        None if xs[0] is None else torch.cat(xs, dim) for dim, *xs in zip(dims, *parts)
    ])  # fmt: skip
