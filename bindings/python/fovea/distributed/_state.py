# SPDX-License-Identifier: Apache-2.0
"""gla and delta: rank r starts from the state that rank r - 1 ends with, and all work at once.

A rank's tokens move a state as H -> phi H + psi.  Each rank finds psi from a state of zeros, and
phi from one of ones (gla, whose phi is a factor of each element) or of the unit matrix (delta).  A
scan of log2(ranks) exchanges joins the maps of the ranks before; then each rank computes from its own
state.  The backward does the same from the last rank on, with phi transposed."""

from __future__ import annotations

import torch

from .. import experimental
from .._errors import InvalidArgument
from ..torch._arguments import flag, number, scaling
from ..torch._place import place_of
from . import _peers


class Method:
    """An operation with a state: its two functions, its tensors, and the gradients in their order."""

    def __init__(self, name, inputs, matrix):
        self.name, self.matrix = name, matrix
        self.forward = getattr(experimental, f"{name}_forward")
        self.backward = getattr(experimental, f"{name}_backward")
        self.inputs = inputs.split()
        self.outputs = [f"d{n}" for n in self.inputs] + ["dstate_in"]

    def state(self, context, given, numbers, start):
        """The last state alone."""
        tensors = {n: x for n, x in given.items() if n != "skip"}
        return self.forward(
            context, tensors.pop("q"), tensors.pop("k"), tensors.pop("v"), state_in=start,
            state_out=True, **tensors, **numbers,
        )  # fmt: skip

    def phi(self, context, given, numbers):
        """What a rank's tokens do to the state that they find."""
        q, v = given["q"], given["v"]
        (b, heads, d, width), key = self.shape(given), {"dtype": torch.float32, "device": q.device}
        if self.matrix:
            start = torch.eye(d, **key).expand(b, heads, d, d).contiguous()
        elif not any(n in given for n in ("gate_head", "gate_key", "gate_value")):
            return torch.ones((b, heads, d, 1), **key)
        else:  # tensor cores take 64 columns, a processor's loop takes one
            columns = 64 if q.is_cuda and width == 1 else width
            start = torch.ones((b, heads, d, columns), **key)
        zeros = v.new_zeros((*v.shape[:3], start.shape[3]))
        made = self.state(context, {**given, "v": zeros}, numbers, start)
        return made[..., :width].contiguous()

    def shape(self, given):
        """Of phi: (b, heads, d, d), or factors of rows, (.., d, 1), or of elements, (.., d, e)."""
        (b, _, _, d), (_, _, x, e) = given["q"].shape, given["v"].shape
        width = d if self.matrix else e if "gate_value" in given else 1
        return b, max(given["k"].shape[2], x), d, width

    def zeros(self, given):
        """phi and psi that send every state to 0."""
        q, shape = given["q"], self.shape(given)
        of = {"dtype": torch.float32, "device": q.device}
        return torch.zeros(shape, **of), torch.zeros((*shape[:3], given["v"].shape[3]), **of)

    def apply(self, phi, state):
        return torch.matmul(phi, state) if self.matrix else phi * state

    def turned(self, phi):
        return phi.transpose(-1, -2).contiguous() if self.matrix else phi

    def gradients(self, context, given, numbers, dout, state, dstate, wanted):
        """Named gradients of the tensors in `wanted`."""
        tensors = {n: x for n, x in given.items()}
        asked = {n: True for n in wanted}
        asked.update({n: False for n in ("dq", "dk", "dv") if n not in wanted})
        made = self.backward(
            context, tensors.pop("q"), tensors.pop("k"), tensors.pop("v"), dout, state_in=state,
            dstate_out=dstate, **tensors, **asked,
            **{n: x for n, x in numbers.items() if n != "splits"},
        )  # fmt: skip
        made = made if isinstance(made, tuple) else (made,)
        return dict(zip([n for n in self.outputs if n in wanted], made, strict=True))


GLA = Method(
    "gla", "q k v gate_head gate_key gate_value gate_rate gate_bias select bonus skip", False
)
DELTA = Method("delta", "q k v beta erase gate_head gate_key gate_rate gate_bias low_a low_b", True)


def before(peers, method, phi, psi, back=False):
    """The state that the ranks before this one leave, or with `back` those behind; None on the
    first, whose phi is 0."""
    n, rank = peers.size, peers.size - 1 - peers.rank if back else peers.rank

    def moved(distance, tensors, sends, gets, step):
        def place(i):
            return (n - 1 - i if back else i) if 0 <= i < n else None

        rooms = [torch.empty_like(x) for x in (phi, psi)] if gets else []
        return peers.exchange(
            place(rank + distance) if sends else None, tensors,
            place(rank - distance) if gets else None, rooms, step,
        )()  # fmt: skip

    held = moved(1, [phi, psi], rank + 1 < n, rank > 0, 0)
    distance, step = 1, 1
    while distance < n - 1:  # maps of ranks rank - 2 distance .. rank - 1, of 1 .. at most
        gets = rank - distance > 0
        came = moved(distance, held, rank > 0 and rank + distance < n, gets, step)
        if gets:
            held = [method.apply(held[0], came[0]), method.apply(held[0], came[1]) + held[1]]
        distance, step = 2 * distance, step + 1
    return held[1] if held else None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, method, peers, numbers, names, state_in, *tensors):
        place = place_of(tensors[0].device)
        place.follow()
        context, given = place.context, dict(zip(names, tensors))
        first, last = peers.rank == 0, peers.rank == peers.size - 1
        state, phi = state_in if first else None, None
        if peers.size > 1:
            phi, psi = method.zeros(given)
            if not last:
                psi = method.state(context, given, numbers, state)
            if not (first or last):
                phi = method.phi(context, given, numbers)
            came = before(peers, method, phi, psi)
            state = state if first else came
        fields = dict(given)
        o, out = method.forward(
            context, fields.pop("q"), fields.pop("k"), fields.pop("v"), o=True, state_out=True,
            state_in=state, **fields, **numbers,
        )  # fmt: skip
        ctx.method, ctx.peers, ctx.numbers, ctx.names = method, peers, numbers, names
        ctx.save_for_backward(*tensors, state, phi, o)
        ctx.set_materialize_grads(False)
        return o, out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dout, dstate):
        *tensors, state, phi, o = ctx.saved_tensors
        method, peers, given = ctx.method, ctx.peers, dict(zip(ctx.names, tensors))
        place = place_of(o.device)
        place.follow()
        dout = torch.zeros_like(o) if dout is None else dout.contiguous()
        dstate = None if dstate is None else dstate.contiguous()
        first, last = peers.rank == 0, peers.rank == peers.size - 1

        def gradients(wanted):
            return method.gradients(
                place.context, given, ctx.numbers, dout, state, dstate, wanted
            )

        if peers.size > 1:
            _, psi = method.zeros(given)
            if not first:
                psi = gradients(["dstate_in"])["dstate_in"]
            came = before(peers, method, method.turned(phi), psi, True)
            if not last:
                dstate = came if dstate is None else dstate + came
        needs = ctx.needs_input_grad
        wanted = [f"d{n}" for n, need in zip(ctx.names, needs[5:]) if need]
        if needs[4] and first:
            wanted.append("dstate_in")
        made = gradients(wanted) if wanted else {}
        out = [made.get(f"d{n}") for n in ctx.names]
        out = [None if dx is None else dx.to(x.dtype) for dx, x in zip(out, tensors)]
        return (None, None, None, None, made.get("dstate_in"), *out)


def _run(op, method, group, tensors, numbers, state_in, return_state, check):
    peers = _peers.Peers(op, group)
    given = {n: x for n, x in tensors.items() if x is not None}

    def describe():
        words = _peers.tensors(op, {"q": 4, "k": 4, "v": 4}, **tensors)
        q, k, v = given["q"], given["k"], given["v"]
        for name, x in (("k", k), ("v", v)):
            if x.shape[:2] != q.shape[:2]:
                raise InvalidArgument(
                    f"{op}: {name} is {tuple(x.shape)}, wanted {tuple(q.shape[:2])} first as q"
                )
        if not q.shape[1]:
            raise InvalidArgument(f"{op}: q has no tokens on this rank, wanted some on every rank")
        heads = max(k.shape[2], v.shape[2])
        shape = (q.shape[0], heads, q.shape[3], v.shape[3])
        if state_in is not None and tuple(state_in.shape) != shape:
            raise InvalidArgument(
                f"{op}: state_in is {tuple(state_in.shape)}, wanted {shape}"
            )
        words = [w for w in words if not w.endswith(" None")]
        return words + [f"{name} is {value}" for name, value in numbers.items()]

    peers.agree(check, describe)
    start = state_in if state_in is None else state_in.float()
    o, state = _Linear.apply(method, peers, numbers, list(given), start, *given.values())
    return (o, state) if return_state else o


def _plain(op, **numbers):
    return {n: x if isinstance(x, str) else number(op, n, x) for n, x in numbers.items()}


@_peers.eager
def gla(q, k, v, group=None, *, gate_head=None, gate_key=None, gate_value=None, gate_rate=None,
        gate_bias=None, select=None, bonus=None, skip=None, state_in=None, scale=None,
        gate_bound=0.0, gate_tau=0.0, gate_map=0, map_q=0, map_k=0, read_before=False,
        bonus_sigmoid=False, splits=0, return_state=False, check=True):  # fmt: skip
    """Gated linear attention of a text that is cut over the ranks of a group, with gradients.

    q (b, s, h, d), k (b, s, g, d), v (b, s, x, e) and gates: this rank's tokens, shards of
    shard(x, layout="contiguous").  The fields are those of fovea.experimental.gla_forward, without
    normalise, full and packed texts.

    state_in       (b, heads, d, e): where the text starts from, on rank 0; others do not read it
    return_state   (o, state) with the f32 state after this rank's tokens; the last rank's is the
                   text's

    Gradients of gate_rate, gate_bias, bonus and skip are those of this rank's tokens.  A rank walks
    over its tokens two or three times, and log2(ranks) exchanges move a state and its factors.  Bits
    are the same every run for a fixed number of ranks.  Experimental, as the operation is."""
    tensors = {
        "q": q, "k": k, "v": v, "gate_head": gate_head, "gate_key": gate_key,
        "gate_value": gate_value, "gate_rate": gate_rate, "gate_bias": gate_bias, "select": select,
        "bonus": bonus, "skip": skip,
    }  # fmt: skip
    numbers = _plain(
        "gla", scale=scaling("gla", scale), gate_bound=gate_bound, gate_tau=gate_tau,
        gate_map=gate_map, map_q=map_q, map_k=map_k,
        read_before=int(flag("gla", "read_before", read_before)),
        bonus_sigmoid=int(flag("gla", "bonus_sigmoid", bonus_sigmoid)), splits=splits,
    )  # fmt: skip
    return _run("gla", GLA, group, tensors, numbers, state_in, return_state, check)


@_peers.eager
def delta(q, k, v, group=None, *, beta=None, erase=None, gate_head=None, gate_key=None,
          gate_rate=None, gate_bias=None, low_a=None, low_b=None, state_in=None, scale=None,
          eps=0.0, gate_bound=0.0, gate_tau=0.0, gate_map=0, beta_map=0, l2_norm=False, splits=0,
          return_state=False, check=True):  # fmt: skip
    """The delta rule over a text that is cut over the ranks of a group, with gradients: as gla, with
    the fields of fovea.experimental.delta_forward.

    A rank's map of the state is a matrix (d, d) for each head, which a walk over v = 0 from the unit
    matrix gives."""
    tensors = {
        "q": q, "k": k, "v": v, "beta": beta, "erase": erase, "gate_head": gate_head,
        "gate_key": gate_key, "gate_rate": gate_rate, "gate_bias": gate_bias, "low_a": low_a,
        "low_b": low_b,
    }  # fmt: skip
    numbers = _plain(
        "delta", scale=scaling("delta", scale), eps=eps, gate_bound=gate_bound, gate_tau=gate_tau,
        gate_map=gate_map, beta_map=beta_map, l2_norm=int(flag("delta", "l2_norm", l2_norm)),
        splits=splits,
    )  # fmt: skip
    return _run("delta", DELTA, group, tensors, numbers, state_in, return_state, check)
