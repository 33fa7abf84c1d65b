# SPDX-License-Identifier: Apache-2.0
"""gla and delta: rank r starts from the state that rank r - 1 ends with.

A rank's tokens move a state as H -> phi H + psi.  Psi is found from a state of zeros, and phi from
one of ones (gla, whose phi is a factor of each element) or of the unit matrix (delta).  Of three ways
a call takes the one that is fastest:

  in turn    The ranks are a pipeline: a rank computes a part of its heads, sends their states on, and
             computes the next part while the rank behind it starts.  Every token is walked over once.
             Where a part of the heads fills a device.
  in parts   Few heads: a rank's tokens are cut into parts, which walk at once as packed sequences.
             Maps of parts are joined in a rank, then those of ranks, by scans.
  together   Each rank finds its map, a scan of log2(ranks) exchanges joins those of the ranks before,
             and each rank computes from its own state.

The backward does the same from the last rank on, with phi transposed and gradients of states."""

from __future__ import annotations

import torch

from .. import experimental
from .._errors import InvalidArgument
from ..torch._arguments import flag, number, scaling
from ..torch._place import place_of
from . import _peers
from ._cost import parts_of_heads


CHUNK = 64  # tokens that the kernels take at once
LEAST_TOKENS = 4096  # of a part: each has two walks more
MOST_TOKEN_PARTS = 64


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

    def phi(self, context, given, numbers, sequences=None):
        """What the tokens of each sequence do to the state that they find."""
        q, v = given["q"], given["v"]
        (b, heads, d, width), key = self.shape(given), {"dtype": torch.float32, "device": q.device}
        b = sequences or b
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


class Parts:
    """A rank's tokens cut into parts, as packed sequences."""

    def __init__(self, given, count):
        q = given["q"]
        self.b, self.s = q.shape[:2]
        self.each = -(-self.s // (count * CHUNK)) * CHUNK
        self.count = -(-self.s // self.each)
        of = {"dtype": torch.int32, "device": q.device}
        if self.s % self.each == 0:  # one kernel: a call of few heads waits for the host
            start = torch.arange(0, self.b * self.s + 1, self.each, **of)
        else:
            first = torch.arange(self.count, **of) * self.each
            rows = torch.arange(self.b, **of)[:, None] * self.s
            end = torch.full((1,), self.b * self.s, **of)
            start = torch.cat([(rows + first).flatten(), end])
        self.given = {n: self.flat(x) if x.dim() > 2 else x for n, x in given.items()}
        self.fields = {"start": start, "token_max": self.each}

    @property
    def sequences(self):
        return self.b * self.count

    def flat(self, x):
        return x.reshape(1, self.b * self.s, *x.shape[2:])

    def whole(self, x):
        return x.reshape(self.b, self.s, *x.shape[2:])

    def apart(self, x):
        """(b, parts, ..) of a tensor by sequences."""
        return x.unflatten(0, (self.b, self.count))


def maps_up_to(method, phi, psi):
    """The maps of parts 0 .. i for each i, of (b, parts, heads, ..), in f64: TF32, where PyTorch is
    allowed it, would be far from f32."""
    phi, psi = phi.double(), psi.double()
    distance = 1
    while distance < phi.shape[1]:
        late, early = (slice(distance, None), slice(0, -distance))
        joined = method.apply(phi[:, late], psi[:, early]) + psi[:, late]
        psi = torch.cat([psi[:, :distance], joined], 1)
        phi = torch.cat([phi[:, :distance], method.apply(phi[:, late], phi[:, early])], 1)
        distance *= 2
    return phi, psi


def states_before(method, maps, state):
    """Of each part, (b, parts, heads, d, e) f32, from the state before the first; and behind all."""
    phi, psi = maps
    state = torch.zeros_like(psi[:, :1]) if state is None else state[:, None].double()
    behind = (method.apply(phi, state) + psi).float()
    return torch.cat([state.float(), behind[:, :-1]], 1), behind[:, -1]


def join(method, peers, maps, state, back=False):
    """The states before each part, those of all ranks joined; `state`: of the first rank, or added
    to what comes."""
    first = peers.rank == (peers.size - 1 if back else 0)
    if peers.size > 1:
        phi, psi = (x[:, -1].float().contiguous() for x in maps)
        if state is not None:
            psi = states_before(method, maps, state)[1].contiguous()
        came = before(peers, method, torch.zeros_like(phi) if first else phi, psi, back)
        if not first:
            state = came if state is None else state + came
    return states_before(method, maps, state)[0]


def walk_in_parts(method, peers, context, given, numbers, state, count):
    """As walk_together; the states and phi are those of the parts."""
    parts = Parts(given, count)
    numbers = {**numbers, **parts.fields, "splits": 1}
    psi = method.state(context, parts.given, numbers, None)
    phi = parts.apart(method.phi(context, parts.given, numbers, parts.sequences))
    starts = join(method, peers, maps_up_to(method, phi, parts.apart(psi)), state)
    o, out = walk(method, context, parts.given, numbers, starts.flatten(0, 1))
    return starts, phi, parts.whole(o), parts.apart(out)[:, -1].contiguous()


def gradients_in_parts(method, peers, context, given, numbers, dout, states, phi, dstate, wanted):
    """Named gradients, of the parts that walk_in_parts made."""
    parts = Parts(given, states.shape[1])
    numbers, dout = {**numbers, **parts.fields}, parts.flat(dout)

    def gradients(dstate, wanted):
        asked = dict.fromkeys(wanted, True)
        return method.gradients(
            context, parts.given, numbers, dout, states.flatten(0, 1), dstate, asked
        )

    psi = parts.apart(gradients(None, ["dstate_in"])["dstate_in"])
    maps = maps_up_to(method, method.turned(phi).flip(1), psi.flip(1))
    ends = join(method, peers, maps, dstate, True).flip(1)
    made = gradients(ends.flatten(0, 1), wanted) if wanted else {}
    made = {n: parts.whole(x) if x.dim() > 2 and n != "dstate_in" else x for n, x in made.items()}
    if "dstate_in" in made:
        made["dstate_in"] = parts.apart(made["dstate_in"])[:, 0].contiguous()
    return made


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


def way_of(given, ranks, splits, trains):
    """How a call goes, see above, and into how many parts of heads or of tokens.

    On CUDA a walk has a block for each head and 64 columns of values: it fills a device with as many
    as there are multiprocessors.  `splits` asks for parts of tokens."""
    q, v = given["q"], given["v"]
    b, s = q.shape[:2]
    heads = [x.shape[head_axis(x)] for x in given.values()]
    chains = max(1, b * max(heads) * -(-v.shape[3] // 64))
    least, most = 1, 1
    if q.is_cuda:
        least = torch.cuda.get_device_properties(q.device).multi_processor_count
        most = min(least // chains, s // LEAST_TOKENS, MOST_TOKEN_PARTS)
    if splits or most > 1:
        count = min(splits or most, -(-s // CHUNK))
        if count > 1 and (ranks > 1 or trains):
            return "in parts", count
    count = parts_of_heads(heads, ranks, chains // least)
    return ("in turn", count) if count and ranks > 1 else ("together", None)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, method, peers, numbers, names, state_in, *tensors):
        place = place_of(tensors[0].device)
        place.follow()
        context, given = place.context, dict(zip(names, tensors))
        state, phi = state_in if peers.rank == 0 else None, None
        trains = any(ctx.needs_input_grad)
        ctx.way, count = way_of(given, peers.size, numbers["splits"], trains)
        call = method, peers, context, given, numbers, state
        if ctx.way == "in turn":
            state, o, out = walk_in_turn(*call, count)
        elif ctx.way == "in parts":
            state, phi, o, out = walk_in_parts(*call, count)
        else:
            state, phi, o, out = walk_together(*call)
        ctx.count = count
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

        call = method, peers, place.context, given, ctx.numbers, dout, state
        if ctx.way == "in turn":
            made = gradients_in_turn(*call, dstate, wanted, ctx.count)
        elif ctx.way == "in parts":
            made = gradients_in_parts(*call, phi, dstate, wanted)
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

    splits         parts of this rank's tokens, which walk at once; 0: on CUDA enough to fill the
                   device, where heads are few; 1: none

    Gradients of gate_rate, gate_bias, bonus and skip are those of this rank's tokens.  In parts a rank
    walks over its tokens three times, each a part's length.  Else, where the heads can be cut into as
    many parts as there are ranks (8 at most; on CUDA each must fill the device), the ranks are a
    pipeline and walk once; or they walk two or three times, and log2(ranks) exchanges move a state and its factors.  Bits are the same every
    run for a fixed number of ranks and device.  Experimental, as the operation is."""
    tensors = {
        "q": q, "k": k, "v": v, "gate_head": gate_head, "gate_key": gate_key,
        "gate_value": gate_value, "gate_rate": gate_rate, "gate_bias": gate_bias, "select": select,
        "bonus": bonus, "skip": skip,
    }  # fmt: skip
    numbers = _plain(
        "gla", scale=scaling("gla", scale), gate_bound=gate_bound, gate_tau=gate_tau,
        gate_map=gate_map, map_q=map_q, map_k=map_k,
        read_before=int(flag("gla", "read_before", read_before)),
        bonus_sigmoid=int(flag("gla", "bonus_sigmoid", bonus_sigmoid)),
        splits=_peers.count("gla", "splits", splits),
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
        splits=_peers.count("delta", "splits", splits),
    )  # fmt: skip
    return _run("delta", DELTA, group, tensors, numbers, state_in, return_state, check)
