# SPDX-License-Identifier: Apache-2.0
"""Linear attention beside fla's Triton kernels, and its companions beside PyTorch: the short causal
convolution, the norm with its gate."""

import dataclasses
import importlib

import fovea
import torch
from torch.nn import functional

from .base import DTYPES, Case, PeerFailed, gradient, pairs, size, unrecorded


def convolved(x, weight):
    """silu of the grouped convolution of (b, s, f), zeros before the first token."""
    taps = weight.shape[1]
    channels = functional.pad(x.transpose(1, 2), (taps - 1, 0))
    z = functional.conv1d(channels, weight[:, None], groups=weight.shape[0])
    return functional.silu(z).transpose(1, 2)


def fla(module):
    """fla.ops.<module>, of which nothing else is loaded."""
    try:
        return importlib.import_module(f"fla.ops.{module}")
    except ImportError as error:
        raise PeerFailed(f"fla is not installed: {error}") from error


@dataclasses.dataclass(frozen=True)
class Conv1d(Case):
    """Forward, or with `backward` the gradient alone.  Its rate is that of the bytes that must
    move: x and y, or x, dy and dx."""

    b: int
    n: int
    f: int
    taps: int = 4
    dtype: str = "bf16"
    backward: bool = False
    family = "x_conv1d"
    peer = "torch conv1d, silu"
    mask = ""
    unit, scale = "TB/s", 1e-12

    def words(self):
        yield "conv1d_backward" if self.backward else "conv1d_forward"
        yield f"f{self.f}"
        yield f"taps{self.taps}" if self.taps != 4 else None
        yield f"n{size(self.n)}"
        yield None if self.b == 1 else f"b{self.b}"
        yield self.unusual_dtype

    @property
    def work(self):
        return (3 if self.backward else 2) * self.b * self.n * self.f * self.itemsize

    bytes = work

    @property
    def limit(self):
        # The peer rounds the sum before silu; its dweight is a sum of rounded products.
        return {"f32": 1e-5, "bf16": 2e-2}[self.dtype]

    def setup(self, ctx, device, seed):
        normal = self.draw(device, seed)
        x, weight = normal(self.b, self.n, self.f), normal(self.f, self.taps) / 2
        dy = normal(self.b, self.n, self.f)
        silu = fovea.experimental.Conv1dActivation.SILU
        theirs = x.clone(), weight.clone()

        def own():
            if self.backward:
                return fovea.experimental.conv1d_backward(
                    ctx, x, weight, dy, dx=True, dweight=True, activation=silu
                )
            return [fovea.experimental.conv1d_forward(ctx, x, weight, y=True, activation=silu)]

        own.workspace = 0
        if self.backward:
            return own, gradient(lambda: convolved(*theirs), theirs, dy)
        return own, unrecorded(lambda: convolved(*theirs))


@dataclasses.dataclass(frozen=True)
class Conv1dBesideCuda(Conv1d):
    """The same calls beside causal-conv1d's own kernels."""

    peer = "causal-conv1d"

    def words(self):
        yield from super().words()
        yield "causal_conv1d"

    def setup(self, ctx, device, seed):
        own, _ = super().setup(ctx, device, seed)
        try:
            convolve = importlib.import_module("causal_conv1d").causal_conv1d_fn
        except ImportError as error:
            raise PeerFailed(f"causal-conv1d is not installed: {error}") from error
        normal = self.draw(device, seed)
        x, weight = normal(self.b, self.n, self.f), normal(self.f, self.taps) / 2
        dy = normal(self.b, self.n, self.f)

        def theirs():
            return convolve(x.mT, weight, activation="silu").mT

        if self.backward:
            return own, gradient(theirs, (x, weight), dy)
        return own, unrecorded(theirs)


@dataclasses.dataclass(frozen=True)
class NormGate(Case):
    """RMS norm of each head's columns, times silu of a gate."""

    b: int
    n: int
    h: int
    e: int = 128
    dtype: str = "bf16"
    backward: bool = False
    family = "x_norm_gate"
    peer = "torch rms_norm, silu"
    mask = ""
    unit, scale = "TB/s", 1e-12
    limit = 2e-2  # the peer rounds the norm before the gate

    def words(self):
        yield "norm_gate_backward" if self.backward else "norm_gate_forward"
        yield f"n{size(self.n)}_b{self.b}_h{self.h}_e{self.e}"
        yield self.unusual_dtype

    @property
    def work(self):
        return (5 if self.backward else 3) * self.b * self.n * self.h * self.e * self.itemsize

    bytes = work

    def setup(self, ctx, device, seed):
        normal = self.draw(device, seed)
        x, gate, dy = (normal(self.b, self.n, self.h, self.e) for _ in range(3))
        silu = fovea.experimental.NormGateAct.SILU
        theirs = x.clone(), gate.clone()

        def normed():
            x, gate = theirs
            return functional.rms_norm(x, (self.e,), eps=1e-6) * functional.silu(gate)

        def own():
            if self.backward:
                return fovea.experimental.norm_gate_backward(
                    ctx, x, dy, gate=gate, dx=True, dgate=True, act=silu, eps=1e-6
                )
            return [fovea.experimental.norm_gate_forward(ctx, x, gate=gate, act=silu, eps=1e-6)]

        own.workspace = 0
        if self.backward:
            return own, gradient(normed, theirs, dy)
        return own, unrecorded(normed)


@dataclasses.dataclass(frozen=True)
class Form:
    """How fla calls a form, whose operation it is here, what both are given beside q, k and v, and
    numbers of the operation alone."""

    module: str
    op: str
    given: tuple
    numbers: dict = dataclasses.field(default_factory=dict)


FORMS = {
    "linear": Form("linear_attn", "gla", ()),
    "retention": Form("simple_gla", "gla", ("const",)),
    "simplegla": Form("simple_gla", "gla", ("gate_head",)),
    "gla": Form("gla", "gla", ("gate_key",)),
    "rwkv6": Form("rwkv6", "gla", ("gate_key", "bonus"), {"read_before": True}),
    "delta": Form("delta_rule", "delta", ("beta",)),
    "gdn": Form("gated_delta_rule", "delta", ("beta", "gate_head")),
    "kda": Form("kda", "delta", ("beta", "gate_key")),
    "rwkv7": Form("rwkv7", "delta", ("gate_key", "low_a", "low_b")),
}
# fla's names of what both are given.
THEIRS = {"gate_head": "g", "gate_key": "g", "low_a": "a", "low_b": "b", "bonus": "u"}
VERIFIED = 16  # tokens of a draft, at most


@dataclasses.dataclass(frozen=True)
class Recurrence(Case):
    """A form of linear attention: forward, or both directions with `backward`.  With n = 1 the
    decode of b sequences on states in f32; with few tokens the check of a draft, which
    writes no state.  `values` heads of v on h of q and k, as many where it is 0."""

    form: str
    b: int
    n: int
    h: int = 16
    values: int = 0
    d: int = 128
    dtype: str = "bf16"
    backward: bool = False
    mask = ""
    peer = "fla"
    unit, scale = "TB/s", 1e-12
    limit = 3e-2  # both round products to 16 bits, at different places

    def words(self):
        yield self.form
        yield (
            "backward" if self.backward
            else "decode" if self.n == 1
            else "verify" if self.n <= VERIFIED
            else "forward"
        )
        yield f"n{size(self.n)}_b{self.b}_h{self.h}"
        yield f"on{self.values}" if self.values else None
        yield None if self.d == 128 else f"d{self.d}"
        yield self.unusual_dtype

    @property
    def family(self):
        return "x_" + FORMS[self.form].op

    @property
    def heads(self):
        return self.values or self.h

    @property
    def work(self):
        if self.n <= VERIFIED:
            return (8 if self.n == 1 else 4) * self.b * self.heads * self.d * self.d
        keys = sum(name in ("gate_key", "low_a", "low_b") for name in FORMS[self.form].given)
        wide = 2 * self.h + (2 + keys) * self.heads
        return (3 if self.backward else 1) * wide * self.b * self.n * self.d * self.itemsize

    bytes = work

    def inputs(self, device, seed):
        normal = self.draw(device, seed)
        q, k = (normal(self.b, self.n, self.h, self.d) for _ in range(2))
        v, dout = (normal(self.b, self.n, self.heads, self.d) for _ in range(2))
        k = functional.normalize(k.float(), dim=-1).to(k.dtype)
        given = {}
        for name in FORMS[self.form].given:
            wide = [self.d] if name in ("gate_key", "low_a", "low_b") else []
            raw = normal(self.b, self.n, self.heads, *wide).float()
            if name == "beta":
                given[name] = raw.sigmoid().to(DTYPES[self.dtype])
            elif name == "const":
                rate = torch.log1p(-torch.exp2(-5.0 - torch.arange(self.heads, device=device)))
                given["gate_head"] = rate.expand(self.b, self.n, self.heads)
            elif name == "bonus":
                given[name] = normal(self.heads, self.d).float()
            elif name == "low_a":
                given[name] = -functional.normalize(raw, dim=-1).to(DTYPES[self.dtype])
            elif name == "low_b":
                given[name] = (-given["low_a"].float() * raw.sigmoid()).to(DTYPES[self.dtype])
            else:
                given[name] = functional.logsigmoid(raw) / 16
        return q, k, v, dout, given

    def theirs(self, q, k, v, given, state):
        module = FORMS[self.form].module
        recurrent = self.n <= VERIFIED
        call = getattr(fla(module), f"{'fused_recurrent' if recurrent else 'chunk'}_{module}")
        names = dict(THEIRS)
        if self.form == "gla" and recurrent:
            names["gate_key"] = "gk"
        if self.form.startswith("rwkv"):
            names["gate_key"] = "w"
        fields = {"r" if self.form.startswith("rwkv") else "q": q, "k": k, "v": v}
        fields |= {names.get(name, name): x.contiguous() for name, x in given.items()}
        fields |= {"scale": self.d**-0.5, "output_final_state": self.n == 1}
        if state is not None:
            fields["initial_state"] = state
        return lambda: call(**fields)[0]

    def setup(self, ctx, device, seed):
        form = FORMS[self.form]
        q, k, v, dout, given = self.inputs(device, seed)
        ours = getattr(fovea.experimental, f"{form.op}_forward")
        state = None
        if self.n <= VERIFIED:
            state = self.draw(device, seed + 1)(self.b, self.heads, self.d, self.d, dtype=torch.float32)
        states = {} if state is None else {"state_in": state}
        if self.n == 1:  # beside it, or each call would start from the last one's state
            states["state_out"] = torch.empty_like(state)

        def forward():
            out = ours(ctx, q, k, v, o=True, **given, **form.numbers, **states)
            return [out[0] if isinstance(out, tuple | list) else out]

        if not self.backward:
            forward.workspace = 0
            return forward, unrecorded(self.theirs(q, k, v, given, state))
        back = getattr(fovea.experimental, f"{form.op}_backward")
        asked = {f"d{name}": True for name in given if self.form != "retention"}

        def both():
            forward()
            wanted = {"dq": True, "dk": True, "dv": True, **asked}
            return back(ctx, q, k, v, dout, **wanted, **given, **form.numbers)[:3]

        both.workspace = 0
        leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
        theirs = {
            name: x.detach().clone().requires_grad_(self.form != "retention")
            for name, x in given.items()
        }
        call = self.theirs(*leaves, theirs, None)
        of = [*leaves, *(x for x in theirs.values() if x.requires_grad)]
        return both, lambda: torch.autograd.grad(call(), of, dout)[:3]


@dataclasses.dataclass(frozen=True)
class Mamba2(Case):
    """Mamba-2's scan: raw steps, one group of B and C for all heads; n = 128 columns of a state,
    `h` heads of 64."""

    b: int
    n: int
    h: int = 64
    dtype: str = "bf16"
    backward: bool = False
    family = "x_gla"
    peer = "mamba-ssm"
    mask = ""
    unit, scale = "TB/s", 1e-12
    limit = 3e-2
    p, d = 64, 128

    def words(self):
        yield "mamba2"
        yield "backward" if self.backward else "forward"
        yield f"n{size(self.n)}_b{self.b}_h{self.h}"
        yield self.unusual_dtype

    @property
    def work(self):
        wide = 2 * self.h * self.p + 2 * self.d + self.h
        return (3 if self.backward else 1) * self.b * self.n * wide * self.itemsize

    bytes = work

    def setup(self, ctx, device, seed):
        normal = self.draw(device, seed)
        x, dout = (normal(self.b, self.n, self.h, self.p) for _ in range(2))
        b_in, c_out = (normal(self.b, self.n, 1, self.d) / self.d**0.25 for _ in range(2))
        step, bias = normal(self.b, self.n, self.h), normal(self.h).float() - 4
        rate, skip = torch.rand(self.h, device=device), normal(self.h).float()
        try:
            scan = importlib.import_module("mamba_ssm.ops.triton.ssd_combined")
        except ImportError as error:
            raise PeerFailed(f"mamba-ssm is not installed: {error}") from error
        maps = fovea.experimental.GateMap
        wide_bias, wide_skip = (
            x[:, None].expand(self.h, n).contiguous() for x, n in ((bias, self.d), (skip, self.p))
        )
        given = {"gate_rate": rate, "gate_bias": wide_bias, "skip": wide_skip, "scale": 1.0}

        def forward():
            select = functional.softplus(step.float() + bias)
            out = fovea.experimental.gla_forward(
                ctx, c_out, b_in, x, o=True, gate_head=step, select=select,
                gate_map=maps.SOFTPLUS, **given,
            )
            return [out], select

        def theirs(x, step, b_in, c_out):
            return scan.mamba_chunk_scan_combined(
                x, step, -rate.exp(), b_in, c_out, chunk_size=256, D=skip, dt_bias=bias,
                dt_softplus=True,
            )

        def own():
            return forward()[0]

        if not self.backward:
            own.workspace = 0
            return own, unrecorded(lambda: theirs(x, step, b_in, c_out))

        def both():
            _, select = forward()
            return fovea.experimental.gla_backward(
                ctx, c_out, b_in, x, dout, dq=True, dk=True, dv=True, dgate_head=True,
                dselect=True, gate_head=step, select=select, gate_map=maps.SOFTPLUS, **given,
            )[:3]

        both.workspace = 0
        leaves = [x.clone().requires_grad_() for x in (c_out, b_in, x, step)]
        return both, lambda: torch.autograd.grad(
            theirs(leaves[2], leaves[3], leaves[1], leaves[0]), leaves, dout
        )[:3]


def chunks(q, k, v, scale, beta=None, gate_head=None, gate_key=None):
    """The chunk form of (b, s, h, d), 64 tokens each: all chunks at once but for the walk of the
    state.  Gates of a key as two-sided products, which gates near 0 allow."""

    def split(x):
        return x.unflatten(1, (-1, 64)).movedim(3, 1)

    q, k, v = split(q) * scale, split(k), split(v)
    logs = gate_key if gate_key is not None else None if gate_head is None else gate_head[..., None]
    so_far = torch.zeros(1, 1) if logs is None else split(logs).cumsum(-2)
    last = so_far[..., -1:, :] if logs is not None else so_far
    reads, late = q * so_far.exp(), k * (last - so_far).exp()
    if gate_head is None:
        inverse = k * (-so_far).exp()
        scores = (reads @ inverse.mT).tril()
    else:
        between = (so_far - so_far.mT).tril().exp().tril()
        scores = (q @ k.mT) * between
    if beta is not None:
        beta = split(beta[..., None])
        erases = beta * k
        own = (erases * so_far.exp()) @ inverse.mT if gate_head is None else (erases @ k.mT) * between
        solve = own.tril(-1) + torch.eye(64)
        both = torch.cat([beta * v, erases * so_far.exp()], -1)
        both = torch.linalg.solve_triangular(solve, both, upper=False, unitriangular=True)
        v, reading = both.split([v.shape[-1], k.shape[-1]], -1)
    state = torch.zeros(*k.shape[:2], k.shape[-1], v.shape[-1])
    kept, out = last.exp().mT, []
    for i in range(k.shape[2]):
        u = v[:, :, i] if beta is None else v[:, :, i] - reading[:, :, i] @ state
        out.append(reads[:, :, i] @ state + scores[:, :, i] @ u)
        state = (kept if logs is None else kept[:, :, i]) * state + late[:, :, i].mT @ u
    return torch.stack(out, 2).movedim(1, 3).flatten(1, 2)


@dataclasses.dataclass(frozen=True)
class HostRecurrence(Recurrence):
    """Beside PyTorch's form of the same chunks."""

    dtype: str = "f32"
    peer = "torch, chunks"
    limit = 1e-4

    def theirs(self, q, k, v, gates, state):
        return lambda: chunks(q, k, v, self.d**-0.5, **gates)


@dataclasses.dataclass(frozen=True)
class Forgetting(Case):
    """FoX: causal attention whose scores lose the log forget gates between a key and a row.  Ours
    is attention_forward with minus their running sum as a bias of keys, summed in the same call."""

    b: int
    h: int
    n: int
    d: int
    causal = True
    family = "attention"
    peer = "fla"
    limit = 2e-2  # the peer rounds weights and gates at other places

    def words(self):
        yield f"fox_d{self.d}"
        yield "causal"
        yield f"n{size(self.n)}"
        yield None if self.b == 1 else f"b{self.b}"
        yield None if self.h * self.d == 2048 else f"h{self.h}"

    @property
    def work(self):
        return 4 * self.b * self.h * pairs(self.n, self.n, True) * self.d

    @property
    def bytes(self):
        return self.b * self.h * self.n * (8 * self.d + 4)

    def setup(self, ctx, device, seed):
        normal = self.draw(device, seed)
        q, k, v = (normal(self.b, self.n, self.h, self.d) for _ in "qkv")
        gate = functional.logsigmoid(normal(self.b, self.n, self.h).float() + 4)
        peer = fla("forgetting_attn").parallel_forgetting_attn

        def own():
            bias = -gate.mT.contiguous().cumsum(-1)[:, :, None]
            out = fovea.attention_forward(ctx, q, k, v, causal=1, bias=bias)
            return [out[0] if isinstance(out, tuple | list) else out]

        own.workspace = 0
        return own, unrecorded(lambda: peer(q, k, v, gate))


@dataclasses.dataclass(frozen=True)
class Slots(Case):
    """Gated slot attention on `m` slots a head, forward or both directions."""

    b: int
    n: int
    m: int = 64
    h: int = 16
    d: int = 128
    backward: bool = False
    mask = ""
    family = "x_gsa"
    peer = "fla"
    unit, scale = "TB/s", 1e-12
    limit = 3e-2  # both round 1 - a, p and products to 16 bits, at different places

    def words(self):
        yield "gsa"
        yield "backward" if self.backward else "forward"
        yield f"n{size(self.n)}_b{self.b}_h{self.h}_m{self.m}"

    @property
    def work(self):
        wide = 4 * self.d * self.itemsize + 4 * self.m  # the gate is f32
        return (3 if self.backward else 1) * wide * self.b * self.n * self.h

    bytes = work

    def inputs(self, device, seed):
        normal = self.draw(device, seed)
        q, k, v, dout = (normal(self.b, self.n, self.h, self.d) for _ in range(4))
        gate = functional.logsigmoid(normal(self.b, self.n, self.h, self.m).float()) / 8
        return q, k, v, gate, dout

    def setup(self, ctx, device, seed):
        q, k, v, gate, dout = self.inputs(device, seed)
        peer = fla("gsa").chunk_gsa

        def forward():
            out = fovea.experimental.gsa_forward(ctx, q, k, v, gate, o=True)
            return [out[0] if isinstance(out, tuple | list) else out]

        def theirs(q, k, v, gate):
            return peer(q, k, v, s=(1 - gate.exp()).to(q.dtype), g=gate, scale=self.d**-0.5)[0]

        forward.workspace = 0
        if not self.backward:
            return forward, unrecorded(lambda: theirs(q, k, v, gate))

        def both():
            forward()
            wanted = dict.fromkeys(("dq", "dk", "dv", "dgate"), True)
            return fovea.experimental.gsa_backward(ctx, q, k, v, gate, dout, **wanted)

        both.workspace = 0
        leaves = [x.detach().clone().requires_grad_() for x in (q, k, v, gate)]
        return both, lambda: torch.autograd.grad(theirs(*leaves), leaves, dout)


def host():
    for backward in (False, True):
        yield Conv1d(1, 2048, 1024, dtype="f32", backward=backward)
        yield NormGate(1, 2048, 8, dtype="f32", backward=backward)
        for form in ("linear", "retention", "simplegla", "gla", "delta", "gdn", "kda"):
            yield HostRecurrence(form, 1, 2048, h=8, backward=backward)


def cuda():
    for backward in (False, True):
        yield Conv1d(2, 16384, 2048, backward=backward)
        yield Conv1d(1, 65536, 2048, backward=backward)
        yield Conv1dBesideCuda(2, 16384, 2048, backward=backward)
        yield Conv1dBesideCuda(3, 4001, 1536, backward=backward)
    yield Conv1d(2, 16384, 2048, taps=3)
    yield Conv1d(2, 16384, 2048, dtype="f32")
    yield Conv1d(128, 1, 8192)
    for backward in (False, True):
        yield NormGate(2, 16384, 16, backward=backward)
    for form in [name for name in FORMS if name != "linear"]:  # fla's has a normaliser
        for backward in (False, True):
            yield Recurrence(form, 2, 16384, backward=backward)
        yield Recurrence(form, 1, 65536)
        for b in (128, 64, 16, 1):
            yield Recurrence(form, b, 1, h=32)
    for form in ("simplegla", "gdn", "kda"):
        for n in (4, 8):
            yield Recurrence(form, 128, n, h=32)
    for backward in (False, True):
        yield Mamba2(2, 16384, backward=backward)
        yield Slots(2, 16384, backward=backward)
    yield Slots(1, 3001, m=48, h=6)
    yield Recurrence("gdn", 4, 8192, values=32)
    yield Recurrence("gdn", 1, 8192, h=2, values=8)
    yield Recurrence("gdn", 1, 32768, h=2, values=8)
    yield Recurrence("kda", 8, 2048)
    yield Recurrence("rwkv7", 8, 4096, h=32, d=64)
    for d in (64, 128):
        yield Forgetting(1, 2048 // d, 16384, d)
    yield Forgetting(3, 12, 4001, 128)
    for backward in (False, True):
        yield Recurrence("gdn", 3, 4001, h=6, values=12, backward=backward)
