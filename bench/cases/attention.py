# SPDX-License-Identifier: Apache-2.0
"""Dense attention of as many rows as keys, and its gradient."""

import dataclasses

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from .base import Case, Own, gradient, pairs, size, turned, unrecorded


class Prefill(Case):
    def words(self):
        usual = self.b * self.n == 16384 and self.h * self.d == 2048
        shape = None if usual else f"b{self.b}_h{self.h}"
        return f"prefill_d{self.d}", self.mask, f"n{size(self.n)}", shape


@dataclasses.dataclass(frozen=True)
class Attention(Prefill):
    """Forward, or with `backward` the gradient alone (the peer's graph is built beforehand)."""

    b: int
    h: int
    n: int
    d: int
    dtype: str
    causal: bool = False
    backward: bool = False
    g: int = 0

    def words(self):
        return *super().words(), f"g{self.g}" if self.g else None, self.unusual_dtype

    @property
    def bytes(self):
        return self.b * self.n * (self.h + (self.g or self.h)) * 2 * self.d * self.itemsize

    def inputs(self, device, seed):
        """q, k, v and, of a backward, dout, as torch lays them."""
        normal, g = self.draw(device, seed), self.g or self.h
        heads = [self.h, g, g] + [self.h] * self.backward
        return [normal(self.b, count, self.n, self.d) for count in heads]

    def setup(self, ctx, device, seed):
        inputs = self.inputs(device, seed)
        own = self.own(ctx, turned(*inputs[:3]), *turned(*inputs[3:]), causal=self.causal)
        call = lambda: sdpa(*inputs[:3], is_causal=self.causal, enable_gqa=bool(self.g))
        return own, gradient(call, inputs[:3], inputs[3]) if self.backward else unrecorded(call)


@dataclasses.dataclass(frozen=True)
class Unequal(Attention):
    """Values of another width than keys: MLA's prefill."""

    e: int = 128

    def words(self):
        return *super().words(), f"e{self.e}"

    @property
    def bytes(self):
        return self.b * self.n * (self.h + (self.g or self.h)) * (self.d + self.e) * self.itemsize

    @property
    def work(self):
        columns = 3 * self.d + 2 * self.e if self.backward else self.d + self.e
        return 2 * pairs(self.n, self.n, self.causal) * self.b * self.h * columns

    def inputs(self, device, seed):
        normal, g = self.draw(device, seed), self.g or self.h
        shapes = [(self.h, self.d), (g, self.d), (g, self.e)] + [(self.h, self.e)] * self.backward
        return [normal(self.b, heads, self.n, width) for heads, width in shapes]


class Ordered(Attention):
    """What the same bits in each run cost: the default backward beside `nondeterministic`."""

    peer = "fovea nondeterministic"

    def words(self):
        return *super().words(), "order"

    def setup(self, ctx, device, seed):
        q, k, v, dout = turned(*self.inputs(device, seed))
        own = self.own(ctx, (q, k, v), dout, causal=self.causal)
        return own, Own(self.op, *own.inputs, **own.fields, nondeterministic=1)


class Single(Attention):
    """What gradients in f32 cost: the backward that writes them beside the one in 16 bits."""

    peer = "fovea 16-bit gradients"

    def words(self):
        return *super().words(), "f32_gradients"

    def setup(self, ctx, device, seed):
        q, k, v, dout = turned(*self.inputs(device, seed))
        single = [torch.empty_like(x, dtype=torch.float32) for x in (q, k, v)]
        also = dict(zip(("dq", "dk", "dv"), single))
        own = self.own(ctx, (q, k, v), dout, also=also, causal=self.causal)
        return own, Own(self.op, *own.inputs, causal=self.causal)


@dataclasses.dataclass(frozen=True)
class Varlen(Case):
    """Packed sequences of very different lengths beside what they would cost without a seam: a dense
    call of ours with as many rows and as many (query, key) pairs."""

    h: int
    d: int
    causal: bool = False
    lengths = (8192, 4096, 2048, 1024, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1, 1)
    limit = 0  # the peer computes something else
    peer = "fovea dense, equal work"

    def words(self):
        return f"varlen_d{self.d}", self.mask, "skewed"

    @property
    def work(self):
        return 4 * sum(pairs(n, n, self.causal) for n in self.lengths) * self.h * self.d

    @property
    def bytes(self):
        return 8 * sum(self.lengths) * self.h * self.d

    def setup(self, ctx, device, seed):
        normal, total = self.draw(device, seed), sum(self.lengths)
        n = sum(length * length for length in self.lengths) // total  # a dense row sees n keys
        packed = [normal(1, total, self.h, self.d) for _ in "qkv"]
        dense = [normal(round(total / n), n, self.h, self.d) for _ in "qkv"]
        start = torch.tensor((0, *self.lengths), device=device).cumsum(0).to(torch.int32)
        fields = {"query_start": start, "key_start": start, "causal": self.causal}
        fields["query_max"] = fields["key_max"] = max(self.lengths)
        own = self.own(ctx, packed, compared=0, **fields)
        return own, self.own(ctx, dense, compared=0, causal=self.causal)


@dataclasses.dataclass(frozen=True)
class Spans(Case):
    """Rows that see a window and sink keys, the same of every head or, `mixed`, of every other one,
    causal.  Beside it dense causal attention of as many pairs, of fewer heads or rows."""

    h: int
    n: int
    d: int
    window: int
    sink: int = 4
    mixed: bool = False
    b = 1
    causal = True
    limit = 0  # the peer computes something else
    peer = "fovea dense, equal work"

    def words(self):
        kind = "mixed" if self.mixed else f"sink{self.sink}"
        return f"spans_d{self.d}", kind, f"window{size(self.window)}", f"n{size(self.n)}"

    @property
    def seen(self):
        """Pairs of one head with the window."""
        return sum(min(i + 1, self.window + self.sink) for i in range(self.n))

    @property
    def work(self):
        dense = pairs(self.n, self.n, True)
        heads = self.h // 2 if self.mixed else 0
        return 4 * ((self.h - heads) * self.seen + heads * dense) * self.d

    @property
    def bytes(self):
        return 8 * self.n * self.h * self.d

    def setup(self, ctx, device, seed):
        normal = self.draw(device, seed)
        n = round((2 * self.work / (4 * self.h * self.d)) ** 0.5)  # a triangle of as many pairs
        own, dense = ([normal(1, rows, self.h, self.d) for _ in "qkv"] for rows in (self.n, n))
        if self.mixed:
            rows = [(self.window, 1, self.sink), (0, 1, 0)] * (self.h // 2)
            fields = {"head_window": torch.tensor(rows, device=device, dtype=torch.int32)}
        else:
            fields = {"causal": 1, "window_left": self.window, "sink_keys": self.sink}
        own = self.own(ctx, own, compared=0, **fields)
        return own, self.own(ctx, dense, compared=0, causal=1)


@dataclasses.dataclass(frozen=True)
class Compressed(Case):
    """Rows against keys that stand for blocks of `step` tokens (NSA's compressed branch), beside
    our dense attention of as many pairs over tokens."""

    h: int
    g: int
    n: int
    d: int
    step: int
    b = 1
    causal = True
    limit = 0
    peer = "fovea dense, equal work"

    def words(self):
        return f"compressed_d{self.d}", f"step{self.step}", f"n{size(self.n)}", f"g{self.g}"

    @property
    def work(self):
        seen = sum((i + 1) // self.step for i in range(self.n))
        return 4 * seen * self.h * self.d

    @property
    def bytes(self):
        return 4 * self.n * self.h * self.d

    def setup(self, ctx, device, seed):
        normal, keys = self.draw(device, seed), self.n // self.step
        n = round((2 * self.work / (4 * self.h * self.d)) ** 0.5)
        own = [normal(1, self.n, self.h, self.d), *(normal(1, keys, self.g, self.d) for _ in "kv")]
        dense = [normal(1, n, heads, self.d) for heads in (self.h, self.g, self.g)]
        context = torch.full((1,), self.n, device=device).int()
        fields = {"causal": 1, "key_step": self.step, "key_shift": self.step - 1}
        own = self.own(ctx, own, compared=0, context_len=context, **fields)
        return own, self.own(ctx, dense, compared=0, causal=1)


def host():
    for backward in (False, True):
        for d in (64, 128):
            for causal in (False, True):
                yield Attention(1, 8, 2048, d, "f32", causal, backward)
    for backward in (False, True):
        yield Attention(1, 32, 1024, 128, "f32", True, backward, g=8)
        yield Attention(1, 8, 2001, 64, "f32", True, backward)
        yield Attention(1, 32, 1001, 128, "f32", False, backward, g=8)
    yield Attention(1, 8, 2048, 64, "bf16", True)


def cuda():
    grid = [
        (16384 // n, 2048 // d, n, d, "bf16", causal)
        for d in (64, 128, 256)
        for causal in (False, True)
        for n in (1024, 4096, 16384)
    ]
    yield from (Attention(*cell, backward) for backward in (False, True) for cell in grid)
    yield from (Ordered(*cell, True) for cell in grid)
    for d in (64, 128, 256):
        yield Single(4, 2048 // d, 4096, d, "bf16", True, True)
    yield Single(4, 32, 4096, 128, "bf16", True, True, g=8)
    yield Attention(4, 16, 4096, 128, "f16", True)
    for backward in (False, True):
        yield Attention(4, 32, 4096, 128, "bf16", True, backward, g=8)
        yield Attention(2, 32, 6000, 128, "bf16", False, backward, g=8)
        yield Attention(2, 32, 6000, 128, "bf16", True, backward, g=8)
        for causal in (False, True):  # a length that no tile divides
            yield Attention(4, 16, 4001, 128, "bf16", causal, backward)
        yield Attention(4, 32, 4001, 64, "bf16", True, backward, g=4)
        yield Attention(1, 32, 8192, 128, "bf16", True, backward, g=1)
        yield Attention(1, 64, 8192, 128, "bf16", True, backward, g=8)
        yield Attention(1, 32, 8192, 64, "bf16", True, backward, g=2)
        yield Attention(1, 8, 8192, 256, "bf16", True, backward, g=1)
        yield Attention(1, 32, 8192, 128, "bf16", False, backward, g=1)
        for h in (16, 128):
            yield Unequal(1, h, 8192, 192, "bf16", True, backward, e=128)
        yield Unequal(1, 16, 8192, 512, "bf16", True, backward, e=512)
    yield from (Attention(1, 16, n, 128, "bf16", True) for n in (256, 512, 1024))
    yield from (Varlen(16, 128, causal) for causal in (False, True))
    for d in (64, 128):
        yield from (Spans(16, n, d, 4096) for n in (16384, 131072))
        yield Spans(16, 16384, d, 1024, mixed=True)
    yield from (Compressed(64, 4, n, 128, 16) for n in (16384, 65536))
