# SPDX-License-Identifier: Apache-2.0
"""Which tokens a rank has: contiguous shards, or two chunks from either end (zig-zag).

Causally the tokens of a shard see as many keys as stand before them.  Contiguous shards then leave
the first rank idle; with chunks r and 2 n - 1 - r of 2 n every rank has the same work."""

import torch

from .._errors import InvalidArgument
from ._peers import Peers, count

LAYOUTS = ("zigzag", "contiguous")


def layout_of(op, layout):
    if layout not in LAYOUTS:
        raise InvalidArgument(f"{op}: layout is {layout!r}, wanted one of {', '.join(LAYOUTS)}")
    return layout


def chunks(rank, size, tokens, layout):
    """[(first position, tokens)] of a rank's shard, in the order of its tokens.  `tokens` of each
    rank, or a tuple of every rank's."""
    if isinstance(tokens, tuple):
        return [(sum(tokens[:rank]), tokens[rank])]
    if layout == "contiguous" or size == 1:
        return [(rank * tokens, tokens)]
    half = tokens // 2
    return [(rank * half, half), ((2 * size - 1 - rank) * half, half)]


def counts(op, tokens, size, layout, own=None, total=None):
    """Every rank's number of tokens as a tuple, of ranks whose numbers differ."""
    made = tuple([count(op, "tokens", x) for x in tokens])
    if len(made) != size:
        raise InvalidArgument(f"{op}: tokens has {len(made)} entries, wanted {size}, the ranks")
    if layout != "contiguous":
        raise InvalidArgument(f"{op}: layout is {layout!r}, wanted 'contiguous' with tokens")
    if own is not None and made[own[0]] != own[1]:
        raise InvalidArgument(
            f"{op}: tokens is {made[own[0]]} for rank {own[0]}, wanted {own[1]}, those of its tensors"
        )
    if total is not None and sum(made) != total:
        raise InvalidArgument(f"{op}: tokens add up to {sum(made)}, wanted {total}, those of x")
    return made


def even(op, tokens, size, layout, name="q"):
    """Refuses a shard that zig-zag does not cut in two."""
    if layout == "zigzag" and size > 1 and tokens % 2:
        raise InvalidArgument(
            f"{op}: {name} has {tokens} tokens on this rank, wanted an even number with layout "
            "'zigzag'"
        )


class Axes:
    """The ranks over which a token axis is cut: one group, or the two axes of a mesh.  The first
    axis cuts by the layout, the second cuts each of its shards into contiguous parts."""

    def __init__(self, op, group):
        self.op = op
        groups = [group]
        if hasattr(group, "get_group") and getattr(group, "ndim", 1) == 2:
            groups = [group.get_group(0), group.get_group(1)]
        self.peers = [Peers(op, g) for g in groups]
        self.size = 1
        for peers in self.peers:
            self.size *= peers.size

    def counts(self, tokens, layout, own=None, total=None):
        if len(self.peers) > 1:
            raise InvalidArgument(f"{self.op}: tokens is given, wanted None with two axes")
        own = None if own is None else (self.peers[0].rank, own)
        return counts(self.op, tokens, self.size, layout, own, total)

    def spans(self, tokens, layout):
        """[(first, last + 1)] of this rank's tokens, of `tokens` a rank."""
        outer = self.peers[0]
        if isinstance(tokens, tuple):
            return [(a, a + n) for a, n in chunks(outer.rank, outer.size, tokens, layout)]
        inner = self.peers[1] if len(self.peers) > 1 else None
        parts = inner.size if inner else 1
        whole = chunks(outer.rank, outer.size, tokens * parts, layout)
        if inner is None:
            return [(a, a + n) for a, n in whole]
        first, last, out, at = inner.rank * tokens, (inner.rank + 1) * tokens, [], 0
        for a, n in whole:
            x, y = max(first, at), min(last, at + n)
            if x < y:
                out.append((a + x - at, a + y - at))
            at += n
        return out


def shard(x, group=None, *, dim=1, layout="zigzag", tokens=None):
    """This rank's tokens of x, which every rank has whole; dim is the axis of tokens.

    group    None, a ProcessGroup, or a DeviceMesh; of two axes, the second cuts the first's shards
    layout   "zigzag": chunks r and 2 n - 1 - r of 2 n; "contiguous": the r-th part

    tokens   every rank's number of tokens, where they differ; then "contiguous"

    A number of tokens that does not divide is refused: pad the text, or give tokens."""
    axes = Axes("shard", group)
    layout_of("shard", layout)
    total = x.shape[dim]
    if tokens is not None:
        ((a, b),) = axes.spans(axes.counts(tokens, layout, total=total), layout)
        return x.narrow(dim, a, b - a).contiguous()
    cut = axes.size * (2 if layout == "zigzag" and axes.peers[0].size > 1 else 1)
    if total % cut:
        raise InvalidArgument(
            f"shard: x has {total} tokens in dimension {dim}, wanted a multiple of {cut} for "
            f"{axes.size} ranks with layout {layout!r}"
        )
    spans = axes.spans(total // axes.size, layout)
    return torch.cat([x.narrow(dim, a, b - a) for a, b in spans], dim).contiguous()


def positions(tokens, group=None, *, layout="zigzag", device=None):
    """(tokens) int64: the positions in the whole text of this rank's tokens, for rope.

    tokens   those of a rank; or a sequence, every rank's: then layout is "contiguous"."""
    axes = Axes("positions", group)
    layout_of("positions", layout)
    if isinstance(tokens, (list, tuple)):
        ((a, b),) = axes.spans(axes.counts(tokens, layout), layout)
        return torch.arange(a, b, device=device)
    even("positions", tokens, axes.peers[0].size, layout, "x")
    return torch.cat([torch.arange(a, b, device=device) for a, b in axes.spans(tokens, layout)])


def unshard(x, group=None, *, dim=1, layout="zigzag", tokens=None):
    """The whole tensor of every rank's shard, in the order of the text; what shard undoes.

    The gradient is that of a loss which every rank computes alike: the own shard of it."""
    axes = Axes("unshard", group)
    layout_of("unshard", layout)
    if tokens is not None:
        made = axes.counts(tokens, layout, own=x.shape[dim])
    else:
        made = x.shape[dim]
        even("unshard", made, axes.peers[0].size, layout, "x")
    return _Whole.apply(x, axes, dim % x.dim(), layout, made)


def arriving(peers, xs, dim, layout, tokens):
    """joined() of tensors whose chunks are contiguous in the whole text: they come to their places.

    The wholes, and wait(n, lower): until the n-th chunks are there, of all ranks, or with `lower` of
    those below this one.  Chunks of lower n come first, all tensors' together."""
    rank, size = peers.rank, peers.size
    of = [chunks(r, size, tokens, layout) for r in range(size)]
    wholes, rooms, mine = [], [], []
    for x in xs:
        shape = list(x.shape)
        shape[dim] = sum(n for spans in of for _, n in spans)
        wholes.append(x.new_empty(shape))
        rooms.append([[wholes[-1].narrow(dim, a, n) for a, n in spans] for spans in of])
        mine.append(x.contiguous().split([n for _, n in of[rank]], dim))
    coming = [
        [
            peers.exchange((rank + d) % size, [parts[n] for parts in mine], (rank - d) % size,
                           [room[rank - d][n] for room in rooms], n * size + d)
            for d in range(1, size)
        ]
        for n in range(len(of[rank]))
    ]  # fmt: skip
    for room, parts in zip(rooms, mine):
        for place, part in zip(room[rank], parts):
            place.copy_(part)

    def wait(n, lower=False):
        now = rank if lower else len(coming[n])  # the d-th came from rank - d, or from above
        for one in coming[n][:now]:
            one()
        coming[n][:now] = [lambda: None] * now

    return wholes, wait


def joined(peers, x, dim, layout, tokens):
    """All shards of one group, in the order of the text."""
    if x.shape[:dim].numel() == 1:
        (whole,), wait = arriving(peers, [x], dim, layout, tokens)
        for n, _ in enumerate(chunks(peers.rank, peers.size, tokens, layout)):
            wait(n)
        return whole
    if isinstance(tokens, tuple) and x.shape[dim] < max(tokens):  # all-gather wants equal shapes
        more = list(x.shape)
        more[dim] = max(tokens) - x.shape[dim]
        x = torch.cat([x, x.new_zeros(more)], dim)
    made = peers.gather(x).unbind(0)
    parts = []
    for rank in range(peers.size):
        at = 0
        for a, n in chunks(rank, peers.size, tokens, layout):
            parts.append((a, rank, made[rank].narrow(dim, at, n)))
            at += n
    return torch.cat([y for *_, y in sorted(parts, key=lambda part: part[:2])], dim)


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, axes, dim, layout, tokens):
        ctx.spans, ctx.dim = axes.spans(tokens, layout), dim
        for i, peers in reversed(list(enumerate(axes.peers))):
            of = tokens if isinstance(tokens, tuple) else x.shape[dim]
            x = joined(peers, x, dim, layout if i == 0 else "contiguous", of)
        return x

    @staticmethod
    def backward(ctx, grad):
        own = torch.cat([grad.narrow(ctx.dim, a, b - a) for a, b in ctx.spans], ctx.dim)
        return own, None, None, None, None
