# SPDX-License-Identifier: Apache-2.0
"""What chooses keys: indexers and top-k beside eager PyTorch, pooling and selection beside our own
dense attention.  Equal scores are ordered differently by the peers, so nothing is compared."""

import dataclasses

import fovea
import torch

from .base import Case, Own, pairs, size


class Step:
    """Several calls as one."""

    def __init__(self, *calls):
        self.calls, self.workspace = calls, max(call.workspace for call in calls)

    def __call__(self):
        for call in self.calls:
            call()
        return []


@dataclasses.dataclass(frozen=True)
class Indexer(Case):
    """relu-weighted scores of 64 heads on one key head, and the best 2048 keys of each row."""

    n: int
    dtype: str = "bf16"
    h: int = 64
    d: int = 128
    count: int = 2048
    family = "x_select_token"
    limit = 0
    peer = "torch eager"
    memory = True
    op = family

    def words(self):
        yield f"indexer_d{self.d}_count{self.count}_causal_n{size(self.n)}_h{self.h}_g1"
        yield self.unusual_dtype

    @property
    def itemsize(self):
        return 1 if self.dtype == "e4m3" else 2

    @property
    def work(self):
        return 2 * self.h * self.d * pairs(self.n, self.n, True)

    @property
    def bytes(self):
        return self.n * self.h * (self.d * self.itemsize + 4)

    def setup(self, ctx, device, seed):
        generator = torch.Generator(device).manual_seed(seed)
        draw = lambda *shape: torch.randn(shape, generator=generator, device=device)
        q, k = draw(1, self.n, self.h, self.d).bfloat16(), draw(1, self.n, 1, self.d).bfloat16()
        weight = draw(1, self.n, self.h)
        index = torch.empty(1, 1, self.n, self.count, dtype=torch.int32, device=device)
        codes = (lambda x: x.to(torch.float8_e4m3fn)) if self.dtype == "e4m3" else (lambda x: x)
        fields = {"measure": "relu_weighted", "reduce": "sum", "count": self.count, "causal": 1}
        if self.dtype == "e4m3":
            fields["k_scale"] = torch.ones(1, self.n, 1, 1, device=device)
        own = Own(
            self.op, ctx, compared=0, q=codes(q), k=codes(k), weight=weight, index=index, **fields
        )
        return own, lambda: self.eager(q, k, weight)

    def eager(self, q, k, weight):
        """Sixteen rows at a time, for the scores of one are 64 n."""
        keys = torch.arange(self.n, device=q.device)
        for first in range(0, self.n, 16):
            rows = slice(first, first + 16)
            score = (
                (q[0, rows] @ k[0, :, 0].T).relu_().float().mul_(weight[0, rows, :, None]).sum(1)
            )
            score.masked_fill_(keys > keys[rows, None], -torch.inf)
            score.topk(min(self.count, self.n)).indices
        return []


@dataclasses.dataclass(frozen=True)
class TopK(Case):
    """The best 2048 of given scores of a row."""

    b: int
    n: int
    count: int = 2048
    dtype: str = "f32"
    family = "x_select_block"
    limit = 0
    peer = "torch eager"
    unit, scale = "GB/s", 1e-9
    op = family

    def words(self):
        yield f"topk_count{self.count}_n{size(self.n)}_b{self.b}"

    @property
    def work(self):
        return 4 * self.b * (self.n + self.count)

    bytes = work

    def setup(self, ctx, device, seed):
        score = self.draw(device, seed)(self.b, 1, 1, self.n)
        index = torch.empty(self.b, 1, 1, self.count, dtype=torch.int32, device=device)
        fields = {"score": score, "index": index, "count": self.count, "block_keys": 1}
        return Own(self.op, ctx, compared=0, **fields), lambda: [score.topk(self.count)][:0]


@dataclasses.dataclass(frozen=True)
class Overhead(Case):
    """Means of blocks of 128 and a choice among them, or sums of a probe and a choice, beside dense
    attention over the same tensors: the ratio is how often it fits into that."""

    h: int
    n: int
    kind: str
    d: int = 128
    dtype: str = "bf16"
    limit = 0
    peer = "fovea dense"

    def words(self):
        yield f"{self.kind}_d{self.d}_causal_n{size(self.n)}_h{self.h}"

    @property
    def op(self):
        return "x_probe_forward" if self.kind == "probed" else "x_pool_forward"

    @property
    def bytes(self):
        return 3 * self.n * self.h * self.d * self.itemsize

    work = property(lambda self: 4 * self.h * self.d * pairs(self.n, self.n, True))

    def setup(self, ctx, device, seed):
        normal = self.draw(device, seed)
        q, k, v = (normal(1, self.n, self.h, self.d) for _ in "qkv")
        blocks = -(-self.n // 128)
        index = torch.empty(1, self.h, blocks, blocks // 4, dtype=torch.int32, device=device)
        shape = {"block_rows": 128, "block_keys": 128, "causal": 1, "index": index}
        shape |= {"count": blocks // 4, "query_max": self.n, "key_max": self.n}
        if self.kind == "probed":
            sums = torch.empty(1, self.h, blocks, blocks, dtype=torch.float32, device=device)
            grouped = {"group_stride": 16, "reversed": 1, "block_rows": 128, "block_keys": 128}
            probe = Own(
                "x_probe_forward", ctx, q, k, compared=0, block_sum=sums, causal=1, **grouped
            )
            parts = probe, Own("x_select_block", ctx, compared=0, score=sums, **shape)
        else:
            means = [
                torch.empty(1, blocks, self.h, self.d, dtype=q.dtype, device=device) for _ in "qk"
            ]
            pools = [
                Own("x_pool_forward", ctx, x, compared=0, y=y, block=128)
                for x, y in zip((q, k), means)
            ]
            choice = {"row": means[0], "column": means[1], "normalise": "softmax"}
            parts = *pools, Own("x_select_block", ctx, compared=0, **choice, **shape)
        return Step(*parts), Own("attention_forward", ctx, q, k, v, compared=0, causal=True)


def host():
    yield Indexer(1024, h=8, count=256)
    yield TopK(8, 131072)
    yield from (Overhead(8, 2048, kind, dtype="f32") for kind in ("pooled", "probed"))


def cuda():
    for dtype in ("bf16", "e4m3"):
        yield from (Indexer(n, dtype) for n in (16384, 32768, 131072))
    yield from (TopK(b, 131072) for b in (8, 64))
    for n in (32768, 65536):
        yield from (Overhead(16, n, kind) for kind in ("pooled", "probed"))
