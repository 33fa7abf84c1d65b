# SPDX-License-Identifier: Apache-2.0
"""What is measured.  A case makes inputs, runs fovea and its peer on them, and counts the work.

fovea gets (b, s, h, d) memory and torch (b, h, s, d) memory, each its natural contiguous layout;
both allocate their outputs in every call, as their users do."""

import dataclasses

import fovea
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
# Largest relative Frobenius distance between fovea and the peer: each may be off by the limits of
# the dense specification.
LIMITS = {"f32": 4e-6, "f16": 9e-4, "bf16": 7e-3}
BACKWARD_LIMITS = {"f32": 1e-5, "f16": 1.2e-3, "bf16": 1e-2}


def size(n):
    return f"{n // 1024}k" if n % 1024 == 0 else str(n)


def name_of(*parts):
    """What a case is, without the parts that are as usual (None)."""
    return "_".join(part for part in parts if part)


def pairs(s, t, causal):
    """(query, key) pairs that are seen, bottom-right aligned."""
    if not causal:
        return s * t
    return sum(min(max(i + t - s + 1, 0), t) for i in range(s))


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
    The peer attends to these tensors in bf16."""

    b: int
    h: int
    n: int
    d: int
    causal: bool = False
    quantising: bool = False
    op = "quant_forward"
    unit = "TFLOP/s"
    scale = 1e-12
    limit = 7e-2  # of the quantised specification, for normal numbers

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
        theirs = [
            torch.randn(shape, generator=generator, device=device).bfloat16() for _ in "qkv"
        ]
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
            return [o.transpose(1, 2)]

        def peer():
            with torch.no_grad():
                return [sdpa(*theirs, is_causal=self.causal)]

        return forward, peer


@dataclasses.dataclass(frozen=True)
class Decode:
    """One query row a sequence against a cache; page 0 means a contiguous cache.  torch gets the
    contiguous cache in either case, the group folded into its query rows, which suits it best, but
    for cuDNN, which folds by itself."""

    b: int
    h: int
    g: int
    t: int
    d: int
    dtype: str
    page: int = 0
    op = "attention_forward"
    unit = "GB/s"
    scale = 1e-9

    @property
    def name(self):
        usual = (self.h, self.g, self.d) == (32, 8, 128)
        return name_of(
            f"decode_b{self.b}",
            f"n{size(self.t)}",
            f"page{self.page}" if self.page else None,
            None if usual else f"h{self.h}_g{self.g}_d{self.d}",
            None if self.dtype == "bf16" else self.dtype,
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
        fields = {}
        ours = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
        if self.page:
            count = self.t // self.page
            order = torch.randperm(self.b * count, generator=generator, device=device)
            fields["page_table"] = torch.argsort(order).reshape(self.b, count).to(torch.int32)
            fields["key_len"] = torch.full((self.b,), self.t, dtype=torch.int32, device=device)
            ours[1:] = (x.reshape(-1, self.page, self.g, self.d)[order] for x in ours[1:])
        fold = torch.backends.cuda.flash_sdp_enabled()
        rows = q.view(self.b, self.g, self.h // self.g, self.d) if fold else q

        def forward():
            return [fovea.attention_forward(ctx, *ours, **fields).transpose(1, 2)]

        def peer():
            with torch.no_grad():
                return [sdpa(rows, k, v, enable_gqa=not fold).view_as(q)]

        return forward, peer


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
    yield Attention(4, 16, 4096, 128, "f16", True)
    yield Attention(4, 32, 4096, 128, "bf16", True, g=8)
    yield from (Attention(1, 16, n, 128, "bf16", True) for n in (256, 512, 1024))
    yield from (Varlen(16, 128, causal) for causal in (False, True))
    for b, n in ((4, 4096), (1, 16384)):
        yield from (Quant(b, 16, n, 128, causal) for causal in (False, True))
        yield Quant(b, 16, n, 128, quantising=True)
    for h, d in ((32, 64), (8, 256)):
        yield Quant(4, h, 4096, d)
    for b, t in ((1, 8192), (1, 131072), (16, 8192), (64, 8192), (16, 32768)):
        yield from (Decode(b, 32, 8, t, 128, "bf16", page) for page in (0, 16))
