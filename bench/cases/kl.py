# SPDX-License-Identifier: Apache-2.0
"""The divergence of two attention distributions."""

import dataclasses
import itertools

import fovea
import torch

from .base import Case, Own, gradient, size, turned, unrecorded
from .divergences import Divergence


@dataclasses.dataclass(frozen=True)
class Kl(Case):
    """The divergence, or with `backward` the student's gradients of it (the peer's graph is built
    beforehand).  The peer is PyTorch, eager or compiled, with every s x t array in memory, logits in
    the inputs' dtype and the softmaxes in f32, as distillation losses are written."""

    b: int
    h: int
    n: int
    d: int
    dtype: str
    causal: bool = False
    backward: bool = False
    compiled: bool = False
    family = "kl"
    memory = True
    products = 2, 4

    @property
    def peer(self):
        return "torch.compile" if self.compiled else "torch eager"

    def words(self):
        yield from (f"d{self.d}", self.mask, f"n{size(self.n)}")
        yield None if (self.b, self.h) == (1, 16) else f"b{self.b}_h{self.h}"
        yield self.unusual_dtype
        yield "of_compiled" if self.compiled else None

    @property
    def bytes(self):
        return self.b * self.h * self.n * self.n * 4  # of one array of the peer's

    def loss(self, inputs):
        """The peer's divergence of each row."""
        hidden = torch.ones(self.n, self.n, dtype=torch.bool, device=inputs[0].device).triu(1)

        def log_probability(q, k):
            x = (q @ k.transpose(2, 3)).float() * self.d**-0.5
            if self.causal:
                x = x.masked_fill_(hidden, -1e30)
            return x.log_softmax(3)

        def loss():
            p, r = log_probability(*inputs[:2]), log_probability(*inputs[2:])
            return torch.nn.functional.kl_div(r, p, reduction="none", log_target=True).sum(3)

        if not self.compiled:
            return loss
        from torch import _dynamo
        from torch._functorch import config

        config.donated_buffer = False  # the graph is walked again and again
        _dynamo.config.recompile_limit = 1000  # one function, many shapes
        return torch.compile(loss, dynamic=False)

    def setup(self, ctx, device, seed):
        normal = self.draw(device, seed)
        theirs = [normal(self.b, self.h, self.n, self.d) for _ in range(4)]
        ours, loss = turned(*theirs), self.loss(theirs)
        asked = dict.fromkeys(("kl", "lse_teacher", "lse_student"), True)
        if not self.backward:
            own = Own(self.op, ctx, *ours, compared=1, causal=self.causal, **asked)
            return own, unrecorded(loss)
        stats = fovea.kl_forward(ctx, *ours, causal=self.causal, **asked)
        dkl = torch.ones_like(stats[0])
        fields = {"dkl": dkl, "causal": self.causal, "dq_teacher": False, "dk_teacher": False}
        return Own(self.op, ctx, *ours, *stats, **fields), gradient(loss, theirs[2:], dkl)


def host():
    for backward in (False, True):
        for dtype, causal in (("f32", False), ("f32", True), ("bf16", True)):
            yield Kl(1, 8, 1024, 128, dtype, causal, backward)


def cuda():
    both = (False, True)
    for compiled, d, causal, backward in itertools.product(both, (128, 64), both, both):
        for n in (1024, 4096, 8192, 16384):
            yield Kl(1, 16, n, d, "bf16", causal, backward, compiled)
    for backward in both:
        for n in (1024, 4096):
            yield Divergence("jensen_shannon", 16, n, 128, backward=backward)
            yield Divergence("pool", 16, n, 128, backward=backward)
            yield Divergence("indexer", 16, n, 128, heads=8, f=128, backward=backward)
            yield Divergence("gather", 16, n, 128, keys=512, backward=backward)
