# SPDX-License-Identifier: Apache-2.0
"""Key blocks found by bisection, and attention over them."""

import dataclasses

import fovea
import torch
import trace_peer
from torch.nn.functional import scaled_dot_product_attention as sdpa

from .base import DTYPES, Case, Own, size


@dataclasses.dataclass(frozen=True)
class Trace(Case):
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
    family = "trace"
    unit, scale = "Mrow/s", 1e-6

    @property
    def limit(self):
        return 1e-2 if self.plain else 0

    @property
    def peer(self):
        if self.selecting or self.plain:
            return f"{self.loops}, the same selection" + (" and attention" if self.plain else "")
        return f"{self.dense} dense"

    def words(self):
        yield f"trace_t{size(self.n)}_h{self.h}_d{self.d}_keep{self.keep}"
        yield "selection" if self.selecting else "plain" if self.plain else None
        yield None if self.loops == "torch" else self.loops
        yield None if self.causal else "full"
        yield None if self.dtype == "f32" else self.dtype

    @property
    def work(self):
        return self.h * self.n

    @property
    def bytes(self):
        return 3 * self.n * self.h * self.d * self.itemsize

    def whole(self, device, seed):
        """Small whole numbers, as fovea lays them."""
        generator, shape = torch.Generator(device).manual_seed(seed), (1, self.n, self.h, self.d)
        draws = (torch.randint(-4, 5, shape, generator=generator, device=device) for _ in "qkv")
        return [x.to(DTYPES[self.dtype]) for x in draws]

    def setup(self, ctx, device, seed):
        q, k, v = inputs = self.whole(device, seed)
        fields = {"keep": self.keep, "causal": self.causal, "selected": True}
        fields |= {"block_rows": self.block, "block_keys": self.block}
        if self.selecting:
            select = lambda: [fovea.trace_forward(ctx, q, k, **fields)[0]]
            return select, self.same(inputs, lambda peer, *heads: peer.select(*heads[:2])[0])
        if self.plain:
            trace = lambda: [fovea.trace_forward(ctx, q, k, v=v, o=True, **fields)[1][0]]
            peer = self.same(inputs, lambda peer, *heads: peer.trace(*heads))
            return trace, lambda: [peer()[0].transpose(0, 1)]
        trace = Own(self.op, ctx, q, k, v=v, o=True, compared=0, **fields)
        if self.dense == "fovea":
            return trace, Own("attention_forward", ctx, *inputs, compared=0, causal=self.causal)

        def dense():
            sdpa(*(x.transpose(1, 2) for x in inputs), is_causal=self.causal)
            return []

        return trace, dense

    def same(self, inputs, call):
        """The peer that selects as fovea does, over as many heads at a time as memory holds."""
        heads = [x[0].transpose(0, 1).contiguous() for x in inputs]
        step = max(1, (1 << 19) // self.n)
        peer = trace_peer.Peer(self.keep, self.block, self.causal, self.loops)

        def run():
            with torch.no_grad():
                parts = range(0, self.h, step)
                return [torch.cat([call(peer, *(x[i : i + step] for x in heads)) for i in parts])]

        return run


def host():
    yield Trace(4, 8192, 64, 16)
    yield Trace(4, 8192, 64, 16, selecting=True)
    yield Trace(1, 32768, 128, 16)


def cuda():
    for h, n in ((32, 8192), (32, 32768), (32, 131072), (1, 524288), (1, 1048576)):
        for causal in (False, True):
            yield Trace(h, n, 128, 32, "bf16", dense="torch", causal=causal)
    for n in (8192, 32768):
        for loops in ("torch", "triton"):
            yield Trace(32, n, 128, 32, "bf16", selecting=True, loops=loops)
            yield Trace(32, n, 128, 32, "bf16", plain=True, loops=loops)
