# SPDX-License-Identifier: Apache-2.0
"""gla and delta: rank r starts from the state that rank r - 1 ends with.

With enough heads the ranks are a pipeline: a rank computes a part of its heads, sends their states
on, and computes the next part while the rank behind it starts.  Every token is walked over once.
The backward comes from the last rank on, with gradients of states.

With few heads all ranks work at once, and walk two or three times.  A rank's tokens move a state as
H -> phi H + psi.  Each rank finds psi from a state of zeros, and phi from one of ones (gla, whose phi
is a factor of each element) or of the unit matrix (delta).  A scan of log2(ranks) exchanges joins the
maps of the ranks before; then each rank computes from its own state.  The backward does the same from
the last rank on, with phi transposed."""

from __future__ import annotations

import torch

from .. import experimental
from .._errors import InvalidArgument
from ..torch._arguments import flag, number, scaling
from ..torch._place import place_of
from . import _peers
from ._cost import parts_of_heads


class Method:
    """An operation with a state: its two functions, its tensors, and the gradients in their order."""

    def __init__(self, name, inputs, matrix):
        self.name, self.matrix = name, matrix
        self.forward = getattr(experimental, f"{name}_forward")
        self.backward = getattr(experimental, f"{name}_backward")
        self.inputs = inputs.split()
        self.outputs = [f"d{n}" for n in self.inputs] + ["dstate_in"]

    def parts(self, given, ranks):
        """Parts of the heads for the pipeline, or None: of all tensors alike."""
        return parts_of_heads([x.shape[head_axis(x)] for x in given.values()], ranks)

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
        """Named gradients of the tensors in `wanted`, whose values are True or where they go."""
        tensors = {n: x for n, x in given.items()}
        asked = {n: False for n in ("dq", "dk", "dv")} | wanted
        made = self.backward(
            context, tensors.pop("q"), tensors.pop("k"), tensors.pop("v"), dout, state_in=state,
            dstate_out=dstate, **tensors, **asked,
            **{n: x for n, x in numbers.items() if n != "splits"},
        )  # fmt: skip
        made = made if isinstance(made, tuple) else (made,)
        return dict(zip([n for n in self.outputs if n in wanted], made, strict=True))


def head_axis(x):
    """Of a tensor by tokens (b, s, heads, ..), or a parameter (heads, ..)."""
    return 2 if x.dim() > 2 else 0


def part_of(x, i, n):
    """Part i of n of the heads of a tensor by tokens, or of a parameter."""
    axis = head_axis(x)
    size = x.shape[axis] // n
    return x.narrow(axis, i * size, size)


def part_of_state(x, i, n):
    """Part i of n of the heads of a state (b, heads, d, e)."""
    return x[:, i * (x.shape[1] // n) : (i + 1) * (x.shape[1] // n)]


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


def walk(method, context, given, numbers, state, o=None, out=None):
    """(o, the last state) from a state, in tensors that are given or new ones."""
    fields = dict(given)
    return method.forward(
        context, fields.pop("q"), fields.pop("k"), fields.pop("v"), o=True if o is None else o,
        state_out=True if out is None else out, state_in=state, **fields, **numbers,
    )  # fmt: skip


def walk_together(method, peers, context, given, numbers, state):
    """(state before this rank's tokens, phi, o, state behind them), all ranks at once."""
    first, last, phi = peers.rank == 0, peers.rank == peers.size - 1, None
    if peers.size > 1:
        phi, psi = method.zeros(given)
        if not last:
            psi = method.state(context, given, numbers, state)
        if not (first or last):
            phi = method.phi(context, given, numbers)
        came = before(peers, method, phi, psi)
        state = state if first else came
    return state, phi, *walk(method, context, given, numbers, state)


def states_of(given, parts=1):
    """Room for the states of a call or of a part of its heads, (b, heads, d, e) f32."""
    q, k, v = given["q"], given["k"], given["v"]
    heads = max(k.shape[2], v.shape[2]) // parts
    return torch.empty(
        (q.shape[0], heads, q.shape[3], v.shape[3]), dtype=torch.float32, device=q.device
    )


class Coming:
    """The parts of states that another rank sends.  A part is asked for when the one before it is
    under way: NCCL's kernel would hold a multiprocessor while it waits."""

    def __init__(self, peers, source, given, n):
        self.peers, self.source, self.n = peers, source, n
        self.given, self.parts, self.wait = given, [], None
        self.ask(0)

    def ask(self, i):
        if self.source is not None and i < self.n:
            self.parts.append(states_of(self.given, self.n))
            self.wait = self.peers.exchange(None, [], self.source, self.parts[i:], i)

    def part(self, i):
        """Part i, None where no rank sends any."""
        if self.source is None:
            return None
        self.wait()
        return self.parts[i]


def walk_in_turn(method, peers, context, given, numbers, state, n):
    """As walk_together: the states of part i come, then it is computed and its states go on."""
    first, last = peers.rank == 0, peers.rank == peers.size - 1
    came = Coming(peers, None if first else peers.rank - 1, given, n)
    q, v, out, going = given["q"], given["v"], states_of(given), []
    heads = max(q.shape[2], out.shape[1])
    o = torch.empty((*q.shape[:2], heads, v.shape[3]), dtype=v.dtype, device=q.device)
    for i in range(n):
        start = came.part(i)
        if first and state is not None:
            start = part_of_state(state, i, n)
        part = {name: part_of(x, i, n) for name, x in given.items()}
        ended = part_of_state(out, i, n)
        walk(method, context, part, numbers, start, part_of(o, i, n), ended)
        if not last:
            going.append(peers.exchange(peers.rank + 1, [ended.contiguous()], None, [], i))
        came.ask(i + 1)
    for wait in going:
        wait()
    return state if first else torch.cat(came.parts, 1), o, out


def gradients_in_turn(method, peers, context, given, numbers, dout, state, dstate, wanted, n):
    """Named gradients; those of states come from the rank behind, and go to the one before."""
    first, last = peers.rank == 0, peers.rank == peers.size - 1
    came = Coming(peers, None if last else peers.rank + 1, given, n)
    made = {f"d{name}": torch.empty_like(x) for name, x in given.items() if f"d{name}" in wanted}
    if not first or "dstate_in" in wanted:
        made["dstate_in"] = states_of(given)
    going = []
    for i in range(n):
        end = came.part(i)
        if dstate is not None:
            own = part_of_state(dstate, i, n)
            end = own if end is None else own + end
        asked = {
            name: (part_of_state if name == "dstate_in" else part_of)(x, i, n)
            for name, x in made.items()
        }
        start = None if state is None else part_of_state(state, i, n)
        part = {name: part_of(x, i, n) for name, x in given.items()}
        if asked:
            method.gradients(context, part, numbers, part_of(dout, i, n), start, end, asked)
        if not first:
            sent = [asked["dstate_in"].contiguous()]
            going.append(peers.exchange(peers.rank - 1, sent, None, [], i))
        came.ask(i + 1)
    for wait in going:
        wait()
    return made


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, method, peers, numbers, names, state_in, *tensors):
        place = place_of(tensors[0].device)
        place.follow()
        context, given = place.context, dict(zip(names, tensors))
        state, phi = state_in if peers.rank == 0 else None, None
        ctx.parts = method.parts(given, peers.size) if peers.size > 1 else None
        if ctx.parts:
            state, o, out = walk_in_turn(
                method, peers, context, given, numbers, state, ctx.parts
            )
        else:
            state, phi, o, out = walk_together(method, peers, context, given, numbers, state)
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
        needs = ctx.needs_input_grad
        wanted = [f"d{n}" for n, need in zip(ctx.names, needs[5:]) if need]
        if needs[4] and first:
            wanted.append("dstate_in")

        def gradients(wanted):
            return method.gradients(
                place.context, given, ctx.numbers, dout, state, dstate, dict.fromkeys(wanted, True)
            )

        if ctx.parts:
            made = gradients_in_turn(
                method, peers, place.context, given, ctx.numbers, dout, state, dstate, wanted,
                ctx.parts,
            )  # fmt: skip
        else:
            if peers.size > 1:
                _, psi = method.zeros(given)
                if not first:
                    psi = gradients(["dstate_in"])["dstate_in"]
                came = before(peers, method, method.turned(phi), psi, True)
                if not last:
                    dstate = came if dstate is None else dstate + came
            made = gradients(wanted) if wanted else {}
        out = [made.get(f"d{n}") for n in ctx.names]
        out = [None if dx is None else dx.to(x.dtype) for dx, x in zip(out, tensors)]
        return (None, None, None, None, made.get("dstate_in") if first else None, *out)


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

    Gradients of gate_rate, gate_bias, bonus and skip are those of this rank's tokens.  Where the
    heads can be cut into as many parts as there are ranks (8 at most), the ranks are a pipeline and
    walk over their tokens once.  Else they walk two or three times, and log2(ranks) exchanges move a
    state and its factors.  Bits are the same every run for a fixed number of ranks.  Experimental, as the operation is."""
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
