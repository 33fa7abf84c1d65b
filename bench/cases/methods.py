# SPDX-License-Identifier: Apache-2.0
"""Methods by name beside our own dense attention over the same q, k and v.  Their answers differ,
so nothing is compared.  The rate counts the pairs, or the bytes of a decode, that dense attention
reads: it is how fast dense attention would have to be.  Of windows it counts the seen pairs."""

import dataclasses
from collections.abc import Callable

import fovea
import torch

from .base import Case, Own, pairs, size


class Named(Own):
    """A method's call."""

    def __init__(self, name, ctx, *inputs, compared=0, **fields):
        recipe = fovea.recipe(name)
        fields = {**recipe.numbers, **fields}
        super().__init__(recipe.operation, ctx, *inputs, compared=compared, **fields)


@dataclasses.dataclass(frozen=True)
class Method(Case):
    """`n` keys, and as many rows, or one row a sequence with `decode`."""

    method: str
    b: int
    h: int
    g: int
    n: int
    decode: bool = False
    causal: bool = True
    numbers: tuple = ()  # (field, value): instead of the method's
    made: Callable | None = None  # what it is given: a function below
    word: str = ""
    d: int = 128
    dtype: str = "bf16"
    limit = 0  # the peer computes something else
    peer = "fovea dense"

    def words(self):
        yield f"{self.method}_{'decode' if self.decode else 'prefill'}"
        yield self.word
        yield None if self.d == 128 else f"d{self.d}"
        yield f"n{size(self.n)}_b{self.b}_h{self.h}"
        yield f"g{self.g}" if self.g != self.h else None
        yield self.unusual_dtype

    @property
    def op(self):
        return fovea.recipe(self.method).operation

    @property
    def bytes(self):
        rows = 1 if self.decode else self.n
        return 2 * (self.n * self.g + rows * self.h) * self.b * self.d * self.itemsize

    @property
    def unit(self):
        return "GB/s" if self.decode else "TFLOP/s"

    @property
    def scale(self):
        return 1e-9 if self.decode else 1e-12

    @property
    def work(self):
        if self.decode:
            return self.bytes
        seen = pairs(self.n, self.n, self.causal)
        if self.method == "streamingllm":
            recipe = fovea.recipe(self.method).numbers | dict(self.numbers)
            window, sinks = recipe["window_left"], recipe["sink_keys"]
            seen = sum(min(i + 1, window + sinks) for i in range(self.n))
        return 4 * self.b * self.h * seen * self.d

    def setup(self, ctx, device, seed):
        normal = self.draw(device, seed)
        q = normal(self.b, 1 if self.decode else self.n, self.h, self.d)
        k, v = (normal(self.b, self.n, self.g, self.d) for _ in "kv")
        fields = {}
        if self.made:
            q, k, v, fields = self.made(self, ctx, normal, q, k, v)
        dense = Own("attention_forward", ctx, q, k, v, compared=0, causal=self.causal)
        return Named(self.method, ctx, q, k, v, **{**fields, **dict(self.numbers)}), dense


@dataclasses.dataclass(frozen=True)
class LatentIndexed(Case):
    """DSA over a cache of latents: the lightning indexer and attention over its 2048 keys of a row,
    for the last `n` rows of `t` keys.  The peer is dense attention over the latents, or with
    `expanded` over keys of 192 and values of 128 for each head, whose products from the latents are
    not counted."""

    n: int
    t: int
    h: int = 128
    codes: bool = False
    expanded: bool = False
    dtype: str = "bf16"
    op = "x_indexed_forward"
    limit = 0  # the peer computes something else

    @property
    def peer(self):
        return "fovea dense, expanded" if self.expanded else "fovea dense"

    def words(self):
        yield f"dsa_prefill_latent_n{size(self.n)}_t{size(self.t)}_h{self.h}"
        yield "e4m3" if self.codes else None
        yield "expanded" if self.expanded else None

    @property
    def work(self):
        return 2 * self.h * pairs(self.n, self.t, True) * (192 + 128 if self.expanded else 1088)

    @property
    def bytes(self):
        rows = self.n * (self.h * (576 + 512) + 64 * 128)
        return (rows + self.t * 576) * self.itemsize

    def setup(self, ctx, device, seed):
        normal = self.draw(device, seed)
        q, k = normal(1, self.n, self.h, 576), normal(1, self.t, 1, 576)
        fields = {"weight": normal(1, self.n, 64, dtype=torch.float32)}
        index = normal(1, self.n, 64, 128), normal(1, self.t, 1, 128)
        if self.codes:
            index = [x.to(torch.float8_e4m3fn) for x in index]
            fields["index_k_scale"] = torch.ones(1, self.t, 1, 1, device=device)
        own = Named("dsa", ctx, q, k, k[..., :512], index_q=index[0], index_k=index[1], **fields)
        rows = q, k, k[..., :512]
        if self.expanded:
            rows = [normal(1, n, self.h, d) for n, d in ((self.n, 192), (self.t, 192), (self.t, 128))]
        return own, Own("attention_forward", ctx, *rows, compared=0, causal=True)


def own_index(case, ctx, normal, q, k, v):
    """An index of its own: a head for each key head, on one key head."""
    rows = q.shape[1]
    index = normal(case.b, rows, case.g, case.d), normal(case.b, case.n, 1, case.d)
    return q, k, v, {"index_q": index[0], "index_k": index[1], "lists": case.g}


def lightning(case, ctx, normal, q, k, v):
    """The lightning indexer: 64 heads on one key head, and their weights."""
    rows = q.shape[1]
    weight = normal(case.b, rows, 64, dtype=torch.float32)
    fields = {"index_q": normal(case.b, rows, 64, 128), "index_k": normal(case.b, case.n, 1, 128)}
    return q, k, v, {**fields, "weight": weight}


def gates(case, ctx, normal, q, k, v):
    """NSA's three gates."""
    names = ("gate_compressed", "gate_selected", "gate_window")
    return q, k, v, {name: normal(case.b, q.shape[1], case.h) for name in names}


def entries(case, ctx, normal, q, k, v):
    """DeepSeek-V4's: keys are values, one head, compressed keys, a sink; of CSA the lightning
    indexer over them, too."""
    there = case.n // fovea.recipe(case.method).numbers["compress_step"]
    compressed = normal(case.b, there, 1, case.d)
    fields = {"k_compressed": compressed, "v_compressed": compressed}
    fields["sink_logit"] = normal(case.h, dtype=torch.float32)
    if case.method == "csa":
        rows = q.shape[1]
        fields["index_q"] = normal(case.b, rows, 64, 128)
        fields["index_k"] = normal(case.b, there, 1, 128)
        fields["weight"] = normal(case.b, rows, 64, dtype=torch.float32)
    return q, k, k, fields


def kept_bounds(case, ctx, normal, q, k, v):
    """The pages' bounds, kept from step to step: of all keys but the last."""
    summary = torch.zeros(
        case.b, -(-case.n // 16), case.g, 2 * case.d, dtype=k.dtype, device=k.device
    )
    fields = {
        "summary": summary,
        "old_len": torch.zeros(case.b, dtype=torch.int32, device=k.device),
    }
    Named(case.method, ctx, q, k, v, **fields)()
    fields["old_len"] = torch.full_like(fields["old_len"], case.n - 1)
    return q, k, v, fields


def half_low(case, ctx, normal, q, k, v):
    """Of the tiles of 64 keys every other one lies far below what rows have met."""
    low = torch.arange(case.n, device=k.device) // 64 % 2 == 1
    k = torch.where(low[None, :, None, None], k * 0.03, k * 2)
    return q * 3, k.to(v.dtype), v, {}


def host():
    yield Method("quest", 1, 8, 8, 8192, decode=True, made=kept_bounds, dtype="f32")
    yield Method("moba", 1, 8, 8, 2048, dtype="f32", numbers=(("block_keys", 128),))


def cuda():
    yield Method("quest", 8, 32, 32, 32768, decode=True, made=kept_bounds, word="scored")
    yield Method("quest", 8, 32, 8, 32768, decode=True, made=kept_bounds, word="scored")
    yield Method("quest", 1, 32, 8, 2048, decode=True, made=kept_bounds, word="scored")
    for n in (16384, 65536):
        yield Method("moba", 1, 16, 16, n, numbers=(("count", 8),))
        yield Method("msa", 1, 64, 4, n, made=own_index)
        yield Method("spargeattn", 1, 16, 16, n, numbers=(("causal", 1),))
        yield Method("spargeattn_int8", 1, 16, 16, n, causal=False, word="full")
        yield Method("spargeattn_int8", 1, 16, 16, n, numbers=(("causal", 1),))
        yield Method("nsa", 1, 64, 4, n, made=gates)
        yield from (Method(name, 1, 16, 16, n) for name in ("xattention", "minference"))
    yield Method("msa", 8, 64, 4, 65536, decode=True, made=own_index)
    yield Method("dsa", 1, 64, 4, 16384, made=lightning)
    for n in (4096, 65536):
        yield LatentIndexed(n, 65536)
        yield LatentIndexed(n, 65536, codes=True)
        yield LatentIndexed(n, 65536, expanded=True)
    for name in ("csa", "hca"):
        yield Method(name, 1, 64, 1, 16384, d=512, made=entries)
        yield Method(name, 8, 64, 1, 65536, decode=True, d=512, made=entries)
    yield Method("streamingllm", 1, 16, 16, 131072, numbers=(("window_left", 4096),))
    # A margin that nothing lies below, and one that half of the tiles do.
    yield Method("blasst", 1, 16, 16, 32768, numbers=(("skip_margin", 1e30),), word="none")
    yield Method("blasst", 1, 16, 16, 32768, made=half_low, word="half")
