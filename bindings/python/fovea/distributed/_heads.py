# SPDX-License-Identifier: Apache-2.0
"""head_attention: an all-to-all gives each rank all tokens of some heads; attention: both ways."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist

from .._errors import InvalidArgument
from ..torch._attention import attention as _attention, varlen_attention as _varlen_attention
from . import _dtensor, _order, _peers, _ring


class _Turn(torch.autograd.Function):
    """(b, s, heads, d) of all heads to (b, size * s, heads / size, d) of all tokens, or back."""

    @staticmethod
    def forward(ctx, x, peers, to_heads):
        ctx.peers, ctx.to_heads = peers, to_heads
        return _turned(x, peers, to_heads)

    @staticmethod
    def backward(ctx, grad):
        return _turned(grad, ctx.peers, not ctx.to_heads), None, None


def _turned(x, peers, to_heads):
    n, (b, s, h, d) = peers.size, x.shape
    if to_heads:
        sent = x.view(b, s, n, h // n, d) if x.is_contiguous() else x.reshape(b, s, n, h // n, d)
        sent = sent.permute(2, 0, 1, 3, 4).contiguous()
    else:
        sent = x.reshape(b, n, s // n, h, d).permute(1, 0, 2, 3, 4).contiguous()
    made = torch.empty_like(sent)
    with peers.naming("an all-to-all"):
        dist.all_to_all_single(made, sent, group=peers.group)
    if to_heads:
        return made.permute(1, 0, 2, 3, 4).reshape(b, n * s, h // n, d)
    return made.permute(1, 2, 0, 3, 4).reshape(b, s // n, n * h, d)


def _ordered(x, peers, layout, back=False):
    """Tokens from the order of ranks into that of the text, or back."""
    if layout == "contiguous" or peers.size == 1:
        return x
    tokens, dim = x.shape[1] // peers.size, 1
    spans = [c for r in range(peers.size) for c in _order.chunks(r, peers.size, tokens, layout)]
    if back:  # the text's order is by position
        return torch.cat([x.narrow(dim, a, n) for a, n in spans], dim)
    places, at = [], 0
    for a, n in spans:
        places.append((a, at, n))
        at += n
    return torch.cat([x.narrow(dim, at, n) for _, at, n in sorted(places)], dim)


def _spread(x, heads, size):
    """Key heads for `size` ranks: copies where there are fewer than divide."""
    g = x.shape[2]
    copies = math.lcm(g, size) // g
    return x if copies == 1 else x.repeat_interleave(copies, 2)


def _check_heads(op, q, k, size, name="ranks"):
    if q.shape[2] % size:
        raise InvalidArgument(
            f"{op}: q has {q.shape[2]} heads, wanted a multiple of {size}, the {name}"
        )


def _own(x, peers):
    """The slice of a tensor by heads, (.., h), that this rank computes."""
    return None if x is None else x.chunk(peers.size, -1)[peers.rank]


@_peers.eager
def head_attention(q, k, v, group=None, *, causal=False, scale=None, window_left=0, window_right=0,
                   sink_keys=0, local_chunk=0, softcap=0.0, alibi=None, sink_logit=None,
                   query_start=None, layout="contiguous", return_lse=False,
                   check=True):  # fmt: skip
    """Attention of a text that is cut over the ranks of a group, each rank computing some heads of
    the whole text (Ulysses), with gradients.

    q (b, s, h, d), k (b, s, g, d), v (b, s, g, e): this rank's tokens; the number of ranks divides
    h.  Where it does not divide g, key heads are copied: to lcm(g, ranks).  Gives this rank's rows
    of o, and with return_lse (o, lse), lse (b, h, s) f32.

    alibi, sink_logit   (h), the same on every rank; gradients are those of the rank's own heads
    layout              how shards lie: "contiguous" or "zigzag"; the work is the same

    The rest is ring_attention's.  A rank has the whole text of h / ranks heads in memory."""
    op = "head_attention"
    peers = _peers.Peers(op, group)

    def describe():
        words = _peers.tensors(op, {"q": 4, "k": 4, "v": 4, "alibi": 1, "sink_logit": 1}, q=q, k=k,
                               v=v, alibi=alibi, sink_logit=sink_logit)  # fmt: skip
        _peers.attend_shapes(op, q, k, v)
        _order.layout_of(op, layout)
        _order.even(op, q.shape[1], peers.size, layout)
        _check_heads(op, q, k, peers.size)
        _ring.of_heads(op, q, alibi=alibi, sink_logit=sink_logit)
        _ring.seen_by(op, peers, q.shape[1], causal, window_left, window_right, sink_keys,
                      query_start, local_chunk)  # fmt: skip
        if query_start is not None and q.shape[0] != 1:
            raise InvalidArgument(f"{op}: q has batch {q.shape[0]}, wanted 1 with query_start")
        if query_start is not None and alibi is not None and (sink_keys or local_chunk):
            other = "sink_keys" if sink_keys else "local_chunk"
            raise InvalidArgument(f"{op}: alibi is given, wanted none with query_start and {other}")
        return words + [f"layout is {layout}"]

    peers.agree(check, describe)
    wide = [_Turn.apply(x, peers, True) for x in
            (q, _spread(k, q.shape[2], peers.size), _spread(v, q.shape[2], peers.size))]  # fmt: skip
    wide = [_ordered(x, peers, layout) for x in wide]
    options = {
        "causal": causal, "scale": scale, "window_left": window_left, "window_right": window_right,
        "softcap": softcap, "alibi": _own(alibi, peers), "sink_logit": _own(sink_logit, peers),
        "return_lse": True,
    }  # fmt: skip
    if query_start is None:
        o, lse = _attention(*wide, sink_keys=sink_keys, local_chunk=local_chunk, **options)
    elif sink_keys or local_chunk:  # which varlen_attention has not: pieces of one rank
        o, lse = _ring.ring_attention(
            *wide, _peers.Alone(op), sink_keys=sink_keys, local_chunk=local_chunk,
            query_start=query_start, layout="contiguous", **options,
        )  # fmt: skip
    else:
        starts = _ring.begins(op, query_start, q.shape[1] * peers.size)
        longest = max(b - a for a, b in zip(starts, starts[1:]))
        where = torch.tensor(starts, dtype=torch.int32, device=q.device)
        o, lse = _varlen_attention(*[x[0] for x in wide], where, query_max=longest, **options)
        o, lse = o[None], lse[None]
    o = _Turn.apply(_ordered(o, peers, layout, True), peers, False)
    if not return_lse:
        return o
    lse = _ordered(lse.transpose(1, 2)[..., None], peers, layout, True)
    return o, _Turn.apply(lse, peers, False)[..., 0].transpose(1, 2).contiguous()


@_peers.eager
def attention(q, k, v, mesh=None, *, causal=False, scale=None, window_left=0, window_right=0,
              sink_keys=0, local_chunk=0, softcap=0.0, alibi=None, sink_logit=None,
              query_start=None, layout=None, return_lse=False, check=True):  # fmt: skip
    """ring_attention, and over a DeviceMesh of two axes both splits: the ring over its first axis,
    heads over its second.

    Shards are those of shard(x, mesh, layout=layout); None: "zigzag".  The size of the second axis
    divides h.  The rest is ring_attention's.

    q, k, v may be DTensors, without mesh: alike in mesh and placements, cut by batch (Shard(0)),
    tokens (Shard(1), over one axis of the mesh) and heads (Shard(2)), evenly, or replicated.  Only
    tokens are exchanged.  o and lse are DTensors that lie alike; alibi and sink_logit stay tensors
    of all heads, and their gradients are those of a rank's own rows and heads.  layout None is then
    "contiguous", the order of DTensor."""
    options = {
        "causal": causal, "scale": scale, "window_left": window_left, "window_right": window_right,
        "sink_keys": sink_keys, "local_chunk": local_chunk, "softcap": softcap,
        "query_start": query_start, "check": check,
    }  # fmt: skip
    if _dtensor.is_one(q) or _dtensor.is_one(k) or _dtensor.is_one(v):
        options["layout"] = layout or "contiguous"
        return _dtensor.attention((q, k, v), mesh, alibi, sink_logit, return_lse, options)
    options["layout"] = layout or "zigzag"
    if getattr(mesh, "ndim", 1) != 2 or not hasattr(mesh, "get_group"):
        return _ring.ring_attention(
            q, k, v, mesh, alibi=alibi, sink_logit=sink_logit, return_lse=return_lse, **options
        )
    op = "attention"
    outer, peers = mesh.get_group(0), _peers.Peers(op, mesh.get_group(1))

    def describe():
        words = _peers.tensors(op, {"q": 4, "k": 4, "v": 4, "alibi": 1, "sink_logit": 1}, q=q, k=k,
                               v=v, alibi=alibi, sink_logit=sink_logit)  # fmt: skip
        _peers.attend_shapes(op, q, k, v)
        _check_heads(op, q, k, peers.size, "ranks of the mesh's second axis")
        _ring.of_heads(op, q, alibi=alibi, sink_logit=sink_logit)
        return words

    peers.agree(check, describe)
    wide = [_Turn.apply(x, peers, True) for x in
            (q, _spread(k, q.shape[2], peers.size), _spread(v, q.shape[2], peers.size))]  # fmt: skip
    o, lse = _ring.ring_attention(
        *wide, outer, alibi=_own(alibi, peers), sink_logit=_own(sink_logit, peers), return_lse=True,
        **options,
    )  # fmt: skip
    o = _Turn.apply(o, peers, False)
    if not return_lse:
        return o
    lse = _Turn.apply(lse.transpose(1, 2)[..., None], peers, False)
    return o, lse[..., 0].transpose(1, 2).contiguous()
