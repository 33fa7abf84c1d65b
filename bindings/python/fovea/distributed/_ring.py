# SPDX-License-Identifier: Apache-2.0
"""ring_attention: rows stay, keys and values go round the ranks.

At hop n a rank's rows meet the keys of rank r - n, which come while the hop before is computed.
The states (o, lse) of all hops are merged in the order of the hops.  In the backward dk and dv of a
hop go home while the next one is computed, and are added there in the order of the hops too.
Gradients are f32 from the library to the last sum, and are rounded once.

Keys come straight from their own rank: a hop in which no row of a rank sees them is left out."""

from __future__ import annotations

import functools

import torch

from .. import ops
from .._errors import InvalidArgument
from ..torch._arguments import autocast, flag, number, scaling, single
from ..torch._place import place_of
from . import _order, _peers
from ._piece import Seen, pieces


@functools.lru_cache(maxsize=64)
def plan(rank, size, tokens, layout, seen):
    """[(hop, pieces of this rank's rows, whether rank + hop sees this rank's keys)] of the hops in
    which any rank has work.  The first hop is the rank's own."""
    of = [tuple(_order.chunks(r, size, tokens, layout)) for r in range(size)]
    everywhere = not (seen.left or len(seen.starts) > 2) and (layout == "zigzag" or not seen.right)
    out = []
    for hop in range(size):
        mine = pieces(of[rank], of[(rank - hop) % size], seen)
        theirs = bool(pieces(of[(rank + hop) % size], of[rank], seen)) if hop else True
        if mine or theirs or everywhere or hop == 0:
            out.append((hop, mine, theirs))
    return out


def begins(op, starts, total):
    """The starts of packed texts as a tuple of integers; one text where there are none."""
    if starts is None:
        return (0, total)
    if isinstance(starts, torch.Tensor):
        starts = starts.tolist()
    starts = tuple([int(number(op, "query_start", x)) for x in starts])
    if len(starts) < 2 or starts[0] != 0 or any(a > b for a, b in zip(starts, starts[1:])):
        raise InvalidArgument(f"{op}: query_start does not ascend from 0")
    if starts[-1] > total:
        raise InvalidArgument(
            f"{op}: query_start ends at {starts[-1]}, wanted at most {total}, the tokens of all "
            "ranks"
        )
    return starts


def seen_by(op, peers, tokens, causal, left, right, sinks, starts, chunk=0, batch=1):
    """Seen, from the numbers of a call.  Chunks are texts behind one another."""
    left, right = _peers.count(op, "window_left", left), _peers.count(op, "window_right", right)
    sinks = _peers.count(op, "sink_keys", sinks)
    right = 1 if flag(op, "causal", causal) else right
    total = sum(tokens) if isinstance(tokens, tuple) else tokens * peers.size
    starts, chunk = begins(op, starts, total), _peers.count(op, "local_chunk", chunk)
    if chunk:
        if sinks:
            raise InvalidArgument(f"{op}: sink_keys is {sinks}, wanted 0 with local_chunk")
        firsts = [x for a, b in zip(starts, starts[1:]) for x in range(a, b, chunk)]
        starts = (*firsts, starts[-1])
    return Seen(left, right, sinks, starts, batch == 1)


class Hops:
    """The hops of a plan, with the tensors of the rank whose keys are seen: those of the next hop
    come while this one is computed."""

    def __init__(self, peers, steps, tensors, tokens=None):
        self.peers, self.steps, self.tensors, self.tokens = peers, steps, tensors, tokens

    def room(self, x, rank):
        """For what a rank sends in the place of this rank's x."""
        if not isinstance(self.tokens, tuple):
            return torch.empty_like(x)
        return x.new_empty((x.shape[0], self.tokens[rank], *x.shape[2:]))

    def ask(self, i):
        if i >= len(self.steps):
            return None
        peers, (hop, mine, theirs) = self.peers, self.steps[i]
        source = (peers.rank - hop) % peers.size
        rooms = [self.room(x, source) for x in self.tensors] if mine else []
        return peers.exchange(
            (peers.rank + hop) % peers.size if theirs else None, self.tensors,
            source if mine else None, rooms, 2 * hop,
        )  # fmt: skip

    def __iter__(self):
        held = self.tensors
        for i, (hop, mine, _) in enumerate(self.steps):
            coming = self.ask(i + 1)
            yield hop, mine, held
            held = coming() if coming else None


def zeros(x):
    """Room for a sum of gradients of x."""
    return torch.zeros(x.shape, dtype=torch.float32, device=x.device)


class Sum:
    """The f32 sum of gradients of spans of a tensor's tokens; 0 where no span is."""

    def __init__(self, x):
        self.of, self.spans, self.fresh = zeros(x), [], False

    def room(self, a, b):
        """Where the part of a span is made: in the sum itself where nothing else is yet."""
        self.fresh = all(b <= x or a >= y for x, y in self.spans)
        part = self.of[:, a:b]
        return part if self.fresh else torch.empty_like(part)

    def close(self):
        """From here on others add to it: no room is in it."""
        self.spans.append((0, self.of.shape[1]))

    def add(self, a, b, part):
        """The part, made in the last room."""
        self.spans.append((a, b))
        if not self.fresh:
            self.of[:, a:b] += part


class Home:
    """Sums of gradients, f32, that other ranks send for this rank's own keys."""

    def __init__(self, peers, sums):
        self.peers, self.sums, self.coming = peers, sums, None

    def send(self, hop, parts, theirs):
        """parts, or None, go to the rank whose keys they are of; what came for the hop before is
        added."""
        self.add()
        peers = self.peers
        if hop == 0:
            if parts is not None:
                for total, part in zip(self.sums, parts):
                    total += part
            return
        rooms = [torch.empty_like(x) for x in self.sums] if theirs else []
        self.coming = peers.exchange(
            (peers.rank - hop) % peers.size if parts is not None else None, parts or [],
            (peers.rank + hop) % peers.size if theirs else None, rooms, 2 * hop + 1,
        )  # fmt: skip

    def add(self):
        if self.coming:
            for total, part in zip(self.sums, self.coming()):
                total += part
        self.coming = None


def packing(piece, device, cache):
    """Fields of a call for packed texts."""
    if piece.starts is None:
        return {}
    made = cache.get(piece.starts)
    if made is None:
        made = cache[piece.starts] = torch.tensor(piece.starts, dtype=torch.int32, device=device)
    longest = max(b - a for a, b in zip(piece.starts, piece.starts[1:]))
    return {"query_start": made, "key_start": made, "query_max": longest, "key_max": longest}


def windows(piece):
    causal = piece.right == 1
    return {
        "window_left": piece.left, "window_right": 0 if causal else piece.right,
        "causal": int(causal),
    }  # fmt: skip


class Fields:
    """What the call of a piece has beside its tensors.  With ALiBi those are positions in the whole
    text, whose distances count; windows are then those of the whole text too."""

    def __init__(self, peers, layout, tokens, seen, numbers):
        self.peers, self.layout, self.tokens, self.made = peers, layout, tokens, {}
        self.seen, self.numbers = seen, numbers

    def of(self, piece, hop, q, k, alibi):
        fields = {**self.numbers, **windows(piece), **packing(piece, q.device, self.made)}
        if alibi is not None:
            seen, rank, (b, _, h, _) = self.seen, self.peers.rank, q.shape
            fields.update(
                window_left=seen.left if piece.left else 0, causal=0,
                window_right=seen.right if piece.right else 0,
                alibi=alibi.expand(b, h).contiguous(),
                query_position=self.places(rank, q)[slice(*piece.rows)].expand(b, h, -1),
                key_position=self.places((rank - hop) % self.peers.size, q)[
                    slice(*piece.keys)
                ].expand(b, k.shape[2], -1),
            )  # fmt: skip
        return fields

    def places(self, rank, q):
        """Positions of a rank's tokens."""
        if rank not in self.made:
            spans = _order.chunks(rank, self.peers.size, self.tokens, self.layout)
            of = [torch.arange(a, a + n, dtype=torch.int32, device=q.device) for a, n in spans]
            self.made[rank] = torch.cat(of)
        return self.made[rank]


class States:
    """o and lse of rows over the keys seen so far: slot 0; slot 1 is where a new part is made."""

    def __init__(self, q, width):
        b, s, h, _ = q.shape
        self.o = torch.empty((2, b, s, h, width), dtype=torch.float32, device=q.device)
        self.lse = torch.empty((2, b, h, s), dtype=torch.float32, device=q.device)
        self.o[0].zero_()
        self.lse[0].fill_(float("-inf"))
        self.touched = []

    def add(self, rows, run, context):
        """run(o, lse) makes the part of these rows."""
        a, b = rows
        fresh = all(b <= x or a >= y for x, y in self.touched)
        slot = 0 if fresh else 1
        run(self.o[slot, :, a:b], self.lse[slot, :, :, a:b])
        self.touched.append(rows)
        if not fresh:
            o, lse = self.o[:, :, a:b], self.lse[:, :, :, a:b]
            ops.merge_forward(context, o, lse, o=o[0], lse=lse[0])


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, sink_logit, alibi, peers, steps, fields):
        place = place_of(q.device)
        place.follow()
        context, states = place.context, States(q, v.shape[3])
        k, v = k.contiguous(), v.contiguous()
        for hop, mine, held in Hops(peers, steps, [k, v], fields.tokens):
            for piece in mine:
                (a, b), (x, y) = piece.rows, piece.keys
                more = fields.of(piece, hop, q, k, alibi)

                def run(o, lse, a=a, b=b, x=x, y=y, more=more, held=held):
                    ops.attention_forward(
                        context, q[:, a:b], held[0][:, x:y], held[1][:, x:y], o=o, lse=lse, **more
                    )

                states.add(piece.rows, run, context)
        o, lse = states.o[0], states.lse[0].clone()
        if sink_logit is not None:
            total = torch.logaddexp(lse, sink_logit[:, None])
            o = o * (lse - total).exp().transpose(1, 2)[..., None]
            lse = total
        o = o.to(q.dtype) if q.dtype != torch.float32 or sink_logit is not None else o.clone()
        ctx.save_for_backward(q, k, v, sink_logit, alibi, o, lse)
        ctx.peers, ctx.steps, ctx.fields = peers, steps, fields
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dout, dlse):
        q, k, v, sink_logit, alibi, o, lse = ctx.saved_tensors
        place = place_of(q.device)
        place.follow()
        dout = torch.zeros_like(o) if dout is None else dout.contiguous()
        dlse = None if dlse is None else dlse.contiguous()
        dq, dk, dv = Sum(q), Sum(k), Sum(v)
        dalibi = None
        if alibi is not None and ctx.needs_input_grad[4]:
            dalibi = torch.zeros((q.shape[0], q.shape[2]), dtype=torch.float32, device=q.device)
        home = Home(ctx.peers, [dk.of, dv.of])
        of_rows = (q, o, lse, dout, dlse, alibi)
        # The first piece of a rank's own keys hides what comes, the others what goes home last.
        own = ctx.steps[0][1]
        early = own[:1] if len(ctx.steps) > 1 else own
        call = place.context, ctx.fields, of_rows, dq, dalibi
        hops = Hops(ctx.peers, ctx.steps, [k, v], ctx.fields.tokens)
        for (hop, mine, held), (_, _, theirs) in zip(hops, ctx.steps):
            sums = [Sum(x) for x in held] if hop and mine else [dk, dv]
            _gradients(*call, hop, mine if hop else early, held, *sums)
            if hop == 0:
                dk.close(), dv.close()
            home.send(hop, [x.of for x in sums] if hop and mine else None, theirs)
        _gradients(*call, 0, own[len(early) :], [k, v], dk, dv)
        home.add()
        dsink = None
        if sink_logit is not None and ctx.needs_input_grad[3]:
            delta = (dout.float() * o.float()).sum(-1).transpose(1, 2)
            delta = delta if dlse is None else delta - dlse
            dsink = -((sink_logit[:, None] - lse).exp() * delta).sum((0, 2))
        dalibi = None if dalibi is None else dalibi.sum(0)
        made = dq.of.to(q.dtype), dk.of.to(k.dtype), dv.of.to(v.dtype)
        return *made, dsink, dalibi, None, None, None


def _gradients(context, fields, of_rows, dq, dalibi, hop, mine, held, dk, dv):
    """Adds gradients of pieces of one hop."""
    q, o, lse, dout, dlse, alibi = of_rows
    for piece in mine:  # without pieces nothing is held
        k, v = held
        (a, b), (x, y) = piece.rows, piece.keys
        more = fields.of(piece, hop, q, k, alibi)
        if dalibi is not None:
            more["dalibi"] = torch.empty_like(dalibi)
        made = dq.room(a, b), dk.room(x, y), dv.room(x, y)
        ops.attention_backward(
            context, q[:, a:b], k[:, x:y], v[:, x:y], o[:, a:b], lse[:, :, a:b], dout[:, a:b],
            dlse=None if dlse is None else dlse[:, :, a:b], dq=made[0], dk=made[1], dv=made[2],
            **more,
        )  # fmt: skip
        dq.add(a, b, made[0])
        dk.add(x, y, made[1])
        dv.add(x, y, made[2])
        if dalibi is not None:
            dalibi += more["dalibi"]


@_peers.eager
def ring_attention(q, k, v, group=None, *, causal=False, scale=None, window_left=0, window_right=0,
                   sink_keys=0, local_chunk=0, softcap=0.0, alibi=None, sink_logit=None,
                   query_start=None, layout="zigzag", tokens=None, return_lse=False,
                   check=True):  # fmt: skip
    """Attention of a text that is cut over the ranks of a group, with gradients.

    q (b, s, h, d), k (b, s, g, d), v (b, s, g, e): this rank's tokens, as shard(x, layout=layout)
    gives them; s (without tokens), h, g, d, e are the same on every rank.  Gives this rank's rows of
    o, and with return_lse (o, lse), lse (b, h, s) f32.

    group         None (all ranks), a ProcessGroup, or a DeviceMesh of one axis
    causal, scale, window_left, window_right, sink_keys, local_chunk, softcap   as
                  fovea.torch.attention, of positions in the whole text; sink_keys without
                  local_chunk
    alibi         (h), the same on every rank: slope times distance in the whole text is subtracted;
                  without query_start and local_chunk
    sink_logit    (h), the same on every rank; gradients of both are those of this rank's rows
    query_start   packed texts: their first tokens in the whole, then the end of the last; integers,
                  or a tensor, which is read.  Then b = 1
    layout        "zigzag": the same causal work on every rank; "contiguous"
    tokens        every rank's number of tokens, where they differ; then "contiguous"
    check         arguments are compared over the ranks before a call.  False saves an exchange of
                  1 KiB, and ranks that differ then end in a timeout

    Each rank has memory for its own keys and for those of two others.  Gradients of hops are f32,
    summed and sent so, and rounded to q's dtype once.  Bits are the same every run for a fixed
    number of ranks."""
    op = "ring_attention"
    peers = _peers.peers_of(op, group)
    if torch.is_tensor(q):
        q, k, v = autocast(q, k, v)
    numbers, state = {}, {}

    def describe():
        words = _peers.tensors(op, {"q": 4, "k": 4, "v": 4, "alibi": 1, "sink_logit": 1}, q=q, k=k,
                               v=v, alibi=alibi, sink_logit=sink_logit)  # fmt: skip
        _peers.attend_shapes(op, q, k, v)
        _order.layout_of(op, layout)
        state["tokens"] = q.shape[1]
        if tokens is None:
            _order.even(op, q.shape[1], peers.size, layout)
        else:
            own = peers.rank, q.shape[1]
            state["tokens"] = _order.counts(op, tokens, peers.size, layout, own)
            words = [f"{n} has {x.shape[0]} x {tuple(x.shape[2:])} a token, {x.dtype}"
                     for n, x in (("q", q), ("k", k), ("v", v))]  # fmt: skip
            words.append(f"tokens is {state['tokens']}")
        of_heads(op, q, alibi=alibi, sink_logit=sink_logit)
        if query_start is not None and q.shape[0] != 1:
            raise InvalidArgument(f"{op}: q has batch {q.shape[0]}, wanted 1 with query_start")
        if alibi is not None and (query_start is not None or local_chunk):
            other = "local_chunk" if local_chunk else "query_start"
            raise InvalidArgument(f"{op}: alibi is given, wanted none with {other}")
        seen = seen_by(op, peers, state["tokens"], causal, window_left, window_right, sink_keys,
                       query_start, local_chunk, q.shape[0])  # fmt: skip
        numbers["scale"] = scaling(op, scale)
        numbers["softcap"] = float(number(op, "softcap", softcap))
        state["seen"] = seen
        starts = seen.starts if len(seen.starts) < 8 else hash(seen.starts)
        return words + [
            f"{name} is {value}"
            for name, value in {
                "layout": layout, "causal or window_right": seen.right, "window_left": seen.left,
                "sink_keys": seen.sinks, "scale": numbers["scale"], "softcap": numbers["softcap"],
                "query_start" if not local_chunk else "local_chunk's starts": starts,
            }.items()
        ]  # fmt: skip

    peers.agree(check, describe)
    seen, tokens = state["seen"], state["tokens"]
    steps = plan(peers.rank, peers.size, tokens, layout, seen)
    fields = Fields(peers, layout, tokens, seen, numbers)
    o, lse = _Ring.apply(q, k, v, single(sink_logit), single(alibi), peers, steps, fields)
    return (o, lse) if return_lse else o


def of_heads(op, q, **named):
    """Refuses what has not one number for each head."""
    for name, x in named.items():
        if x is not None and x.shape[0] != q.shape[2]:
            raise InvalidArgument(f"{op}: {name} has {x.shape[0]} elements, wanted {q.shape[2]}")
