# SPDX-License-Identifier: Apache-2.0
"""What is measured.  A case makes inputs, runs fovea and its peer on them, and counts the work.

fovea gets (b, s, h, d) memory and torch (b, h, s, d) memory, each its natural contiguous layout;
both allocate their outputs in every call, as their users do."""

import dataclasses
import itertools

import fovea
import torch
import trace_peer
from counts import BACKWARD_LIMITS, DTYPES, LIMITS, name_of, pairs, size
from divergences import Divergence
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa


@dataclasses.dataclass(frozen=True)
class Attention:
    """Forward, or with `backward` the gradient alone (the peer's graph is built beforehand)."""

    b: int
    h: int
    n: int
    d: int
    dtype: str
    causal: bool = False
    backward: bool = False
    g: int = 0
    unit = "TFLOP/s"
    scale = 1e-12

    @property
    def op(self):
        return f"attention_{'backward' if self.backward else 'forward'}"

    @property
    def name(self):
        usual = self.b * self.n == 16384 and self.h * self.d == 2048
        return name_of(
            f"prefill_d{self.d}",
            "causal" if self.causal else "full",
            f"n{size(self.n)}",
            None if usual else f"b{self.b}_h{self.h}",
            f"g{self.g}" if self.g else None,
            None if self.dtype == "bf16" else self.dtype,
        )

    @property
    def work(self):
        return (
            2
            * pairs(self.n, self.n, self.causal)
            * self.b
            * self.h
            * self.d
            * (5 if self.backward else 2)
        )

    @property
    def limit(self):
        return (BACKWARD_LIMITS if self.backward else LIMITS)[self.dtype]

    @property
    def bytes(self):
        return (
            self.b
            * self.n
            * (self.h + (self.g or self.h))
            * 2
            * self.d
            * DTYPES[self.dtype].itemsize
        )

    def setup(self, ctx, device, seed):
        """(run fovea, run the peer), both giving tensors in (b, h, s, d) order."""
        generator = torch.Generator(device).manual_seed(seed)
        g = self.g or self.h

        def normal(heads):
            x = torch.randn(self.b, heads, self.n, self.d, generator=generator, device=device)
            return x.to(DTYPES[self.dtype])

        theirs = [normal(self.h), normal(g), normal(g)]
        ours = [x.transpose(1, 2).contiguous() for x in theirs]
        call = lambda: sdpa(*theirs, is_causal=self.causal, enable_gqa=bool(self.g))
        if not self.backward:

            def forward():
                return [fovea.attention_forward(ctx, *ours, causal=self.causal).transpose(1, 2)]

            def peer():
                with torch.no_grad():
                    return [call()]

            return forward, peer
        o, lse = fovea.attention_forward(ctx, *ours, causal=self.causal, lse=True)
        dout = normal(self.h)
        mine = dout.transpose(1, 2).contiguous()
        for x in theirs:
            x.requires_grad_()
        result = call()

        def backward():
            grads = fovea.attention_backward(ctx, *ours, o, lse, mine, causal=self.causal)
            return [x.transpose(1, 2) for x in grads]

        return backward, lambda: torch.autograd.grad(result, theirs, dout, retain_graph=True)


class Ordered(Attention):
    """What the same bits in each run cost: the default backward beside `nondeterministic`."""

    peer = "fovea nondeterministic"

    @property
    def name(self):
        return super().name + "_order"

    def setup(self, ctx, device, seed):
        generator = torch.Generator(device).manual_seed(seed)
        q, k, v, dout = (
            torch.randn(self.b, self.n, self.h, self.d, generator=generator, device=device).to(
                DTYPES[self.dtype]
            )
            for _ in range(4)
        )
        o, lse = fovea.attention_forward(ctx, q, k, v, causal=self.causal, lse=True)

        def backward(flag):
            return fovea.attention_backward(
                ctx, q, k, v, o, lse, dout, causal=self.causal, nondeterministic=flag
            )

        return lambda: backward(0), lambda: backward(1)


@dataclasses.dataclass(frozen=True)
class Varlen:
    """Packed sequences of very different lengths beside what they would cost without a seam: a dense
    call of ours with as many rows and as many (query, key) pairs."""

    h: int
    d: int
    causal: bool = False
    lengths = (8192, 4096, 2048, 1024, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1, 1)
    op = "attention_forward"
    unit = "TFLOP/s"
    scale = 1e-12
    limit = 0  # nothing is compared: the peer computes something else
    peer = "fovea dense, equal work"

    @property
    def name(self):
        return f"varlen_d{self.d}_{'causal' if self.causal else 'full'}_skewed"

    @property
    def work(self):
        return 4 * sum(pairs(n, n, self.causal) for n in self.lengths) * self.h * self.d

    @property
    def bytes(self):
        return 8 * sum(self.lengths) * self.h * self.d

    def setup(self, ctx, device, seed):
        generator = torch.Generator(device).manual_seed(seed)
        total = sum(self.lengths)
        n = sum(length * length for length in self.lengths) // total  # a dense row sees n keys

        def normal(b, s):
            shape = (b, s, self.h, self.d)
            return [
                torch.randn(shape, generator=generator, device=device).bfloat16() for _ in "qkv"
            ]

        packed, dense = normal(1, total), normal(round(total / n), n)
        start = torch.tensor((0, *self.lengths), device=device).cumsum(0).to(torch.int32)
        fields = {
            "query_start": start,
            "key_start": start,
            "query_max": max(self.lengths),
            "key_max": max(self.lengths),
            "causal": self.causal,
        }

        def run(inputs, **fields):
            fovea.attention_forward(ctx, *inputs, **fields)
            return []

        return lambda: run(packed, **fields), lambda: run(dense, causal=self.causal)


@dataclasses.dataclass(frozen=True)
class Quant:
    """FP8 forward over codes made beforehand, or with `quantising` from bf16 tensors in every call.
    The peer attends to these tensors in bf16, or (`product`) multiplies 8-bit matrices, the machine's
    limit: as many flops, nothing compared."""

    b: int
    h: int
    n: int
    d: int
    causal: bool = False
    quantising: bool = False
    product: bool = False
    op = "quant_forward"
    unit = "TFLOP/s"
    scale = 1e-12

    @property
    def limit(self):  # of the quantised specification, for normal numbers
        return 0 if self.product else 7e-2

    @property
    def peer(self):
        return "torch._scaled_mm, equal work" if self.product else None

    @property
    def name(self):
        usual = self.b * self.n == 16384 and self.h * self.d == 2048
        return name_of(
            f"prefill_d{self.d}",
            "causal" if self.causal else "full",
            f"n{size(self.n)}",
            None if usual else f"b{self.b}_h{self.h}",
            "e4m3",
            "quantising" if self.quantising else None,
            "of_product" if self.product else None,
        )

    @property
    def work(self):
        return 4 * pairs(self.n, self.n, self.causal) * self.b * self.h * self.d

    @property
    def bytes(self):
        return 5 * self.b * self.n * self.h * self.d

    def setup(self, ctx, device, seed):
        generator = torch.Generator(device).manual_seed(seed)
        shape = (self.b, self.h, self.n, self.d)
        theirs = [torch.randn(shape, generator=generator, device=device).bfloat16() for _ in "qkv"]
        ours = [x.transpose(1, 2).contiguous() for x in theirs]
        o = torch.empty_like(ours[0])

        def codes():
            q, k = (fovea.quant_quantize(ctx, x, code=True, n=1) for x in ours[:2])
            columns = (self.n + 127) // 128 * 128
            v = fovea.quant_quantize(
                ctx, ours[2], code_t=True, n=1, padded=columns, code_order="v_perm16"
            )
            return q, k, v

        made = codes()

        def forward():
            (q, q_scale), (k, k_scale), (v_t, v_scale) = codes() if self.quantising else made
            fovea.quant_forward(
                ctx,
                q,
                k,
                v_t=v_t,
                q_scale=q_scale,
                k_scale=k_scale,
                v_scale=v_scale,
                o=o,
                causal=self.causal,
                code_order="v_perm16",
            )
            return [] if self.product else [o.transpose(1, 2)]

        def peer():
            with torch.no_grad():
                return [sdpa(*theirs, is_causal=self.causal)]

        return forward, self.multiply(device, generator) if self.product else peer

    def multiply(self, device, generator):
        side = 8192
        rows = max(16, round(self.work / (2 * side * side) / 16) * 16)
        x, y = (
            torch.randn(n, side, generator=generator, device=device).to(torch.float8_e4m3fn)
            for n in (rows, side)
        )
        one = torch.ones((), device=device)

        def product():
            torch._scaled_mm(x, y.t(), one, one, out_dtype=torch.bfloat16)
            return []

        return product


@dataclasses.dataclass(frozen=True)
class Kl:
    """The divergence of two attention distributions, or with `backward` the student's gradients of
    it (the peer's graph is built beforehand).  The peer is PyTorch, eager or compiled, with every
    s x t array in memory, logits in the inputs' dtype and the softmaxes in f32, as distillation
    losses are written."""

    b: int
    h: int
    n: int
    d: int
    dtype: str
    causal: bool = False
    backward: bool = False
    compiled: bool = False
    unit = "TFLOP/s"
    scale = 1e-12

    @property
    def peer(self):
        return "torch.compile" if self.compiled else "torch eager"

    @property
    def op(self):
        return f"kl_{'backward' if self.backward else 'forward'}"

    @property
    def name(self):
        return name_of(
            f"d{self.d}",
            "causal" if self.causal else "full",
            f"n{size(self.n)}",
            None if (self.b, self.h) == (1, 16) else f"b{self.b}_h{self.h}",
            None if self.dtype == "bf16" else self.dtype,
            "of_compiled" if self.compiled else None,
        )

    @property
    def work(self):
        products = 4 if self.backward else 2
        return 2 * products * pairs(self.n, self.n, self.causal) * self.b * self.h * self.d

    @property
    def limit(self):
        return (BACKWARD_LIMITS if self.backward else LIMITS)[self.dtype]

    @property
    def bytes(self):
        return self.b * self.h * self.n * self.n * 4  # of one array of the peer's

    def setup(self, ctx, device, seed):
        generator = torch.Generator(device).manual_seed(seed)
        shape = (self.b, self.h, self.n, self.d)
        theirs = [
            torch.randn(shape, generator=generator, device=device).to(DTYPES[self.dtype])
            for _ in range(4)
        ]
        ours = [x.transpose(1, 2).contiguous() for x in theirs]
        hidden = torch.ones(self.n, self.n, dtype=torch.bool, device=device).triu(1)
        saved = dict.fromkeys(("kl", "lse_teacher", "lse_student"), True)

        def log_probability(q, k):
            x = (q @ k.transpose(2, 3)).float() * self.d**-0.5
            if self.causal:
                x = x.masked_fill_(hidden, -1e30)
            return x.log_softmax(3)

        def loss():
            p, r = log_probability(*theirs[:2]), log_probability(*theirs[2:])
            return torch.nn.functional.kl_div(r, p, reduction="none", log_target=True).sum(3)

        if self.compiled:
            from torch import _dynamo
            from torch._functorch import config

            config.donated_buffer = False  # the graph is walked again and again
            _dynamo.config.recompile_limit = 1000  # one function, many shapes
            loss = torch.compile(loss, dynamic=False)

        if not self.backward:

            def forward():
                return fovea.kl_forward(ctx, *ours, causal=self.causal, **saved)[:1]

            forward.workspace = fovea.kl_forward_workspace(
                ctx, *ours, causal=self.causal, **saved
            )

            def peer():
                with torch.no_grad():
                    return [loss()]

            return forward, peer
        stats = fovea.kl_forward(ctx, *ours, causal=self.causal, **saved)
        dkl = torch.ones_like(stats[0])

        fields = {"dkl": dkl, "causal": self.causal, "dq_teacher": False, "dk_teacher": False}

        def backward():
            grads = fovea.kl_backward(ctx, *ours, *stats, **fields)
            return [x.transpose(1, 2) for x in grads]

        backward.workspace = fovea.kl_backward_workspace(ctx, *ours, *stats, **fields)
        students = [x.requires_grad_() for x in theirs[2:]]
        result = loss()
        return backward, lambda: torch.autograd.grad(result, students, dkl, retain_graph=True)


def mixed(x, mix):
    """(b, h, s, t) with the heads of each group mixed."""
    if mix is None:
        return x
    group = mix.shape[1]
    weight = mix.unflatten(0, (-1, group)).to(x.dtype)
    return torch.einsum("xan,bxnst->bxast", weight, x.unflatten(1, (-1, group))).flatten(1, 2)


def convolved(q, k, v, weight, causal, before=None, after=None):
    """Convolutional attention with every matrix whole, (b, h, s, d) tensors."""
    h, rows, columns = weight.shape
    s, t = q.shape[2], k.shape[2]
    left = (columns - 1) // 2
    x = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    hidden = torch.ones(s, t, dtype=torch.bool, device=q.device).triu(t - s + 1)
    if causal:
        x = x.masked_fill(hidden, 0)
    x = torch.nn.functional.pad(x, (left, columns - 1 - left, rows - 1, 0))
    x = torch.nn.functional.conv2d(x, weight[:, None].to(x.dtype), groups=h)
    x = mixed(x, before)
    if causal:
        x = x.masked_fill(hidden, -torch.inf)
    return mixed(torch.softmax(x, -1), after) @ v


@dataclasses.dataclass(frozen=True)
class ConvAttention:
    """Forward, or with `backward` the gradient alone; with `step` the last row against the cache,
    the rows above it as history.  The peer is eager PyTorch, its logits and conv2d whole."""

    h: int
    n: int
    d: int
    rows: int
    columns: int
    dtype: str
    causal: bool = True
    backward: bool = False
    step: bool = False
    b: int = 1
    unit = "TFLOP/s"
    scale = 1e-12
    peer = "torch eager"

    @property
    def op(self):
        return f"conv_attention_{'backward' if self.backward else 'forward'}"

    @property
    def name(self):
        kind = "decode" if self.step else "backward" if self.backward else "forward"
        return name_of(
            f"conv_{kind}_{self.rows}x{self.columns}",
            f"d{self.d}",
            None if self.step else "causal" if self.causal else "full",
            f"n{size(self.n)}",
            None if self.b == 1 else f"b{self.b}",
            None if self.dtype == "bf16" else self.dtype,
        )

    @property
    def work(self):
        seen = pairs(1 if self.step else self.n, self.n, self.causal)
        flops = (5 if self.backward else 2) * self.d + (3 if self.backward else 1) * (
            self.rows * self.columns
        )
        return 2 * seen * self.b * self.h * flops

    @property
    def limit(self):
        # The peer rounds its logits to the dtype, before and after the convolution.
        return {"f32": 4e-5, "f16": 1e-2, "bf16": 6e-2}[self.dtype]

    @property
    def bytes(self):
        return 4 * self.b * self.n * self.h * self.d * DTYPES[self.dtype].itemsize

    def setup(self, ctx, device, seed):
        generator = torch.Generator(device).manual_seed(seed)
        dtype = DTYPES[self.dtype]

        def normal(*shape):
            return torch.randn(shape, generator=generator, device=device)

        rows = self.rows if self.step else self.n
        theirs = [normal(self.b, self.h, n, self.d).to(dtype) for n in (rows, self.n, self.n)]
        weight = normal(self.h, self.rows, self.columns) / (self.rows * self.columns) ** 0.5
        ours = [x.transpose(1, 2).contiguous() for x in theirs] + [weight]
        fields = {"causal": self.causal, "history": self.rows - 1 if self.step else 0}
        call = lambda: convolved(*theirs, weight, self.causal)[:, :, fields["history"] :]
        if not self.backward:

            def forward():
                return [fovea.conv_attention_forward(ctx, *ours, **fields).transpose(1, 2)]

            def peer():
                with torch.no_grad():
                    return [call()]

            return forward, peer
        o, lse = fovea.conv_attention_forward(ctx, *ours, lse=True, **fields)
        dout = normal(self.b, self.h, self.n, self.d).to(dtype)
        mine = dout.transpose(1, 2).contiguous()
        for x in (*theirs, weight):
            x.requires_grad_()
        result = call()
        ours[3] = weight.detach()

        def backward():
            *grads, dweight = fovea.conv_attention_backward(ctx, *ours, o, lse, mine, **fields)
            return [*(x.transpose(1, 2) for x in grads), dweight]

        inputs = [*theirs, weight]
        return backward, lambda: torch.autograd.grad(result, inputs, dout, retain_graph=True)


@dataclasses.dataclass(frozen=True)
class ConvOfDense(ConvAttention):
    """ConvAttention beside our dense kernels of the same shape: what the convolution costs."""

    g: int = 0
    limit = 0  # nothing is compared: the peer computes something else
    peer = "fovea dense"

    @property
    def name(self):
        return name_of(super().name, f"h{self.h}_g{self.g}" if self.g else None, "of_dense")

    @property
    def bytes(self):
        rows = 1 if self.step else self.n
        size = DTYPES[self.dtype].itemsize
        return 2 * self.b * (rows * self.h + self.n * (self.g or self.h)) * self.d * size

    def setup(self, ctx, device, seed):
        generator = torch.Generator(device).manual_seed(seed)
        history = self.rows - 1 if self.step else 0
        rows, g = history + 1 if self.step else self.n, self.g or self.h

        def normal(n, heads):
            x = torch.randn(self.b, n, heads, self.d, generator=generator, device=device)
            return x.to(DTYPES[self.dtype])

        q, k, v = normal(rows, self.h), normal(self.n, g), normal(self.n, g)
        weight = torch.randn(self.h, self.rows, self.columns, generator=generator, device=device)
        weight /= (self.rows * self.columns) ** 0.5
        calls = (
            (fovea.conv_attention_forward, fovea.conv_attention_backward, (q, k, v, weight)),
            (fovea.attention_forward, fovea.attention_backward, (q[:, history:], k, v)),
        )
        fields = ({"causal": self.causal, "history": history}, {"causal": self.causal})
        saved = ()
        if self.backward:
            dout = normal(rows, self.h)
            saved = [
                (*forward(ctx, *inputs, lse=True, **given), dout)
                for (forward, _, inputs), given in zip(calls, fields)
            ]

        def run(side):
            forward, backward, inputs = calls[side]
            if self.backward:
                backward(ctx, *inputs, *saved[side], **fields[side])
            else:
                forward(ctx, *inputs, **fields[side])
            return []

        return lambda: run(0), lambda: run(1)


class ConvOfCudnn(ConvOfDense):
    """The same beside cuDNN's dense attention."""

    peer = "torch.sdpa.cudnn"

    @property
    def name(self):
        return super().name.replace("of_dense", "of_cudnn")

    def setup(self, ctx, device, seed):
        ours, _ = super().setup(ctx, device, seed)
        dense = Attention(self.b, self.h, self.n, self.d, self.dtype, self.causal, self.backward)
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            _, theirs = dense.setup(ctx, device, seed)

        def peer():
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                theirs()
            return []

        return ours, peer


@dataclasses.dataclass(frozen=True)
class MultiToken(ConvAttention):
    """ConvAttention with heads mixed before and after the softmax."""

    group: int = 2

    @property
    def op(self):
        return f"x_multi_token_{'backward' if self.backward else 'forward'}"

    @property
    def name(self):
        return super().name.replace("conv_", f"multi_token_c{self.group}_")

    def setup(self, ctx, device, seed):
        generator = torch.Generator(device).manual_seed(seed)
        dtype = DTYPES[self.dtype]

        def normal(*shape):
            return torch.randn(shape, generator=generator, device=device)

        theirs = [normal(self.b, self.h, self.n, self.d).to(dtype) for _ in range(3)]
        weight = normal(self.h, self.rows, self.columns) / (self.rows * self.columns) ** 0.5
        identity = torch.eye(self.group, device=device).repeat(self.h // self.group, 1)
        mixes = [identity + normal(self.h, self.group) / 4 for _ in range(2)]
        ours = [x.transpose(1, 2).contiguous() for x in theirs] + [weight]
        fields = {"causal": self.causal, "mix_before": mixes[0], "mix_after": mixes[1]}
        call = lambda: convolved(*theirs, weight, self.causal, *mixes)
        if not self.backward:

            def forward():
                return [fovea.x_multi_token_forward(ctx, *ours, **fields).transpose(1, 2)]

            forward.workspace = fovea.x_multi_token_forward_workspace(ctx, *ours, **fields)

            def peer():
                with torch.no_grad():
                    return [call()]

            return forward, peer
        _, lse = fovea.x_multi_token_forward(ctx, *ours, lse=True, **fields)
        dout = normal(self.b, self.h, self.n, self.d).to(dtype)
        mine = dout.transpose(1, 2).contiguous()
        inputs = [*theirs, weight, *mixes]
        for x in inputs:
            x.requires_grad_()
        result = call()
        ours[3] = weight.detach()
        fields |= {"mix_before": mixes[0].detach(), "mix_after": mixes[1].detach()}
        fields |= {"dmix_before": True, "dmix_after": True}

        def backward():
            *grads, dweight, before, after = fovea.x_multi_token_backward(
                ctx, *ours, lse, mine, **fields
            )
            return [*(x.transpose(1, 2) for x in grads), dweight, before, after]

        backward.workspace = fovea.x_multi_token_backward_workspace(ctx, *ours, lse, mine, **fields)
        return backward, lambda: torch.autograd.grad(result, inputs, dout, retain_graph=True)


@dataclasses.dataclass(frozen=True)
class Trace:
    """Selection and attention over what it keeps, beside dense attention (nothing is compared), or
    with `plain` beside the same in PyTorch; with `selecting` the selection alone beside PyTorch's.
    Inputs are whole numbers, so that every order of sums selects the same blocks."""

    h: int
    n: int
    d: int
    keep: int
    dtype: str = "f32"
    selecting: bool = False
    plain: bool = False
    dense: str = "fovea"
    causal: bool = True
    loops: str = "torch"
    block: int = 64
    op = "trace_forward"
    unit = "Mrow/s"
    scale = 1e-6

    @property
    def limit(self):
        return 1e-2 if self.plain else 0

    @property
    def peer(self):
        if self.selecting or self.plain:
            return f"{self.loops}, the same selection" + (" and attention" if self.plain else "")
        return f"{self.dense} dense"

    @property
    def name(self):
        return name_of(
            f"trace_t{size(self.n)}_h{self.h}_d{self.d}_keep{self.keep}",
            "selection" if self.selecting else "plain" if self.plain else None,
            None if self.loops == "torch" else self.loops,
            None if self.causal else "full",
            None if self.dtype == "f32" else self.dtype,
        )

    @property
    def work(self):
        return self.h * self.n

    @property
    def bytes(self):
        return 3 * self.n * self.h * self.d * DTYPES[self.dtype].itemsize

    def setup(self, ctx, device, seed):
        generator = torch.Generator(device).manual_seed(seed)
        shape = (1, self.n, self.h, self.d)
        q, k, v = (
            torch.randint(-4, 5, shape, generator=generator, device=device).to(DTYPES[self.dtype])
            for _ in "qkv"
        )
        fields = {"keep": self.keep, "causal": self.causal, "block_rows": self.block}
        fields["block_keys"] = self.block
        heads = []
        if self.selecting or self.plain:
            heads = [x[0].transpose(0, 1).contiguous() for x in (q, k, v)]
        step = max(1, (1 << 19) // self.n)  # heads at a time, which memory bounds

        def trace():
            o = fovea.trace_forward(ctx, q, k, v=v, selected=True, o=True, **fields)[1]
            return [o] if self.plain else []

        def dense():
            if self.dense == "fovea":
                fovea.attention_forward(ctx, q, k, v, causal=self.causal)
            else:
                torch.nn.functional.scaled_dot_product_attention(
                    *(x.transpose(1, 2) for x in (q, k, v)), is_causal=self.causal
                )
            return []

        def select():
            return [fovea.trace_forward(ctx, q, k, selected=True, **fields)[0]]

        same = trace_peer.Peer(self.keep, self.block, self.causal, self.loops)

        def parts(f):
            with torch.no_grad():
                return [
                    torch.cat(
                        [f(*(x[i : i + step] for x in heads)) for i in range(0, self.h, step)]
                    )
                ]

        def selection(rows, keys, _):
            return same.select(rows, keys)[0]

        if self.selecting:
            return select, lambda: parts(selection)
        if self.plain:
            return trace, lambda: [parts(same.trace)[0].transpose(0, 1)[None]]
        return trace, dense


@dataclasses.dataclass(frozen=True)
class Decode:
    """One query row a sequence against a cache; page 0 means a contiguous cache, `lengths` and pages
    that fovea is told how many keys each sequence has.  torch gets the contiguous cache in either
    case, the group folded into its query rows, which suits it best, but for cuDNN, which folds by
    itself.  `of_contiguous`: the peer is ours, over contiguous keys with lengths."""

    b: int
    h: int
    g: int
    t: int
    d: int
    dtype: str
    page: int = 0
    lengths: bool = False
    of_contiguous: bool = False
    op = "attention_forward"
    unit = "GB/s"
    scale = 1e-9

    @property
    def peer(self):
        return "fovea contiguous" if self.of_contiguous else None

    @property
    def name(self):
        usual = (self.h, self.g, self.d) == (32, 8, 128)
        return name_of(
            f"decode_b{self.b}",
            f"n{size(self.t)}",
            f"page{self.page}" if self.page else None,
            "lengths" if self.lengths else None,
            None if usual else f"h{self.h}_g{self.g}_d{self.d}",
            None if self.dtype == "bf16" else self.dtype,
            "of_contiguous" if self.of_contiguous else None,
        )

    @property
    def work(self):
        return (2 * self.t * self.g + 2 * self.h) * self.b * self.d * DTYPES[self.dtype].itemsize

    bytes = work

    @property
    def limit(self):
        return LIMITS[self.dtype]

    def setup(self, ctx, device, seed):
        generator = torch.Generator(device).manual_seed(seed)
        dtype = DTYPES[self.dtype]
        q = torch.randn(self.b, self.h, 1, self.d, generator=generator, device=device).to(dtype)
        k, v = (
            torch.randn(
                self.b, self.g, self.t, self.d, generator=generator, device=device, dtype=dtype
            )
            for _ in "kv"
        )
        fields, key_len = {}, torch.full((self.b,), self.t, dtype=torch.int32, device=device)
        if self.lengths or self.page:
            fields["key_len"] = key_len
        ours = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
        contiguous = ours[:]
        if self.page:
            count = self.t // self.page
            order = torch.randperm(self.b * count, generator=generator, device=device)
            fields["page_table"] = torch.argsort(order).reshape(self.b, count).to(torch.int32)
            ours[1:] = (x.reshape(-1, self.page, self.g, self.d)[order] for x in ours[1:])
        fold = torch.backends.cuda.flash_sdp_enabled()
        rows = q.view(self.b, self.g, self.h // self.g, self.d) if fold else q

        def forward():
            return [fovea.attention_forward(ctx, *ours, **fields).transpose(1, 2)]

        def peer():
            with torch.no_grad():
                return [sdpa(rows, k, v, enable_gqa=not fold).view_as(q)]

        def ourselves():
            return [fovea.attention_forward(ctx, *contiguous, key_len=key_len).transpose(1, 2)]

        return forward, ourselves if self.of_contiguous else peer


def host():
    yield from (
        Attention(1, 8, 2048, d, "f32", causal, backward)
        for backward in (False, True)
        for d in (64, 128)
        for causal in (False, True)
    )
    yield Attention(1, 32, 1024, 128, "f32", True, g=8)
    yield Attention(1, 8, 2048, 64, "bf16", True)
    yield Quant(1, 8, 1024, 64)
    yield from (
        Kl(1, 8, 1024, 128, dtype, causal, backward)
        for backward in (False, True)
        for dtype, causal in (("f32", False), ("f32", True), ("bf16", True))
    )
    for backward in (False, True):
        yield ConvAttention(8, 1024, 128, 6, 11, "f32", backward=backward)
        yield ConvAttention(8, 1024, 64, 3, 3, "f32", backward=backward)
        yield ConvAttention(8, 1024, 64, 7, 7, "f32", False, backward)
        yield MultiToken(8, 1024, 128, 6, 11, "f32", backward=backward)
    yield ConvAttention(8, 1024, 128, 6, 11, "bf16")
    yield ConvAttention(8, 4096, 128, 6, 11, "f32", step=True, b=4)
    yield Trace(4, 8192, 64, 16)
    yield Trace(4, 8192, 64, 16, selecting=True)
    yield Trace(1, 32768, 128, 16)
    yield Decode(4, 32, 8, 4096, 128, "f32")
    yield Decode(4, 32, 8, 4096, 128, "f32", 16)


def cuda():
    grid = [
        (16384 // n, 2048 // d, n, d, "bf16", causal)
        for d in (64, 128, 256)
        for causal in (False, True)
        for n in (1024, 4096, 16384)
    ]
    yield from (Attention(*cell, backward) for backward in (False, True) for cell in grid)
    yield from (Ordered(*cell, True) for cell in grid)
    yield Attention(4, 16, 4096, 128, "f16", True)
    yield Attention(4, 32, 4096, 128, "bf16", True, g=8)
    yield from (Attention(1, 16, n, 128, "bf16", True) for n in (256, 512, 1024))
    yield from (Varlen(16, 128, causal) for causal in (False, True))
    for b, n in ((4, 4096), (1, 16384)):
        yield from (Quant(b, 16, n, 128, causal) for causal in (False, True))
        yield from (Quant(b, 16, n, 128, quantising=x, product=True) for x in (False, True))
    for h, d in ((32, 64), (8, 256)):
        yield Quant(4, h, 4096, d)
    both = (False, True)
    for compiled, d, causal, backward in itertools.product(both, (128, 64), both, both):
        for n in (1024, 4096, 8192, 16384):
            yield Kl(1, 16, n, d, "bf16", causal, backward, compiled)
    for backward in (False, True):
        for n in (1024, 4096):
            yield Divergence("jensen_shannon", 16, n, 128, backward=backward)
            yield Divergence("pool", 16, n, 128, backward=backward)
            yield Divergence("indexer", 16, n, 128, heads=8, f=128, backward=backward)
            yield Divergence("gather", 16, n, 128, keys=512, backward=backward)
    for backward in (False, True):
        for n in (1024, 4096):
            yield from (
                ConvAttention(16, n, d, rows, columns, "bf16", backward=backward)
                for d, rows, columns in ((128, 6, 11), (64, 7, 7))
            )
            yield MultiToken(16, n, 128, 6, 11, "bf16", backward=backward)
    for (d, rows, columns), causal in itertools.product(((128, 6, 11), (64, 7, 7)), both):
        for n in (1024, 4096, 16384):
            yield ConvOfDense(16, n, d, rows, columns, "bf16", causal)
        yield ConvOfDense(16, 4096, d, rows, columns, "bf16", causal, backward=True)
    for n, causal, backward in itertools.product((4096, 16384), both, both):
        yield ConvOfCudnn(16, n, 128, 6, 11, "bf16", causal, backward)
    for b, n in itertools.product((1, 16), (8192, 32768)):
        yield ConvOfDense(32, n, 128, 6, 11, "bf16", step=True, b=b, g=8)
    for h, n in ((32, 8192), (32, 32768), (32, 131072), (1, 524288), (1, 1048576)):
        for causal in (False, True):
            yield Trace(h, n, 128, 32, "bf16", dense="torch", causal=causal)
    for n in (8192, 32768):
        for loops in ("torch", "triton"):
            yield Trace(32, n, 128, 32, "bf16", selecting=True, loops=loops)
            yield Trace(32, n, 128, 32, "bf16", plain=True, loops=loops)
    for b, t in ((1, 8192), (1, 131072), (16, 8192), (64, 8192), (16, 32768)):
        yield from (Decode(b, 32, 8, t, 128, "bf16", page) for page in (0, 16))
        yield Decode(b, 32, 8, t, 128, "bf16", lengths=True)
        yield Decode(b, 32, 8, t, 128, "bf16", 16, of_contiguous=True)
