# SPDX-License-Identifier: Apache-2.0
"""Lists and methods beside the kernels that others publish: fla's NSA and MoBA, and vLLM's Triton
kernels of MSA.  A peer is what Python imports, here or from the folder FOVEA_PEERS; where there is
none its cases do not exist.  Results are compared.

Two blocks that score nearly alike may change places by a rounding.  So keys are drawn with means of
blocks that bf16 holds.  The limit of a method leaves room for another block in few rows; that of
given lists is the usual one."""

import dataclasses
import importlib
import importlib.util
import os
import sys

import fovea
import torch

from .base import Case, Own, PeerFailed, gradient, size
from .methods import Named

METHOD_LIMIT = 2e-2

if folder := os.environ.get("FOVEA_PEERS"):
    sys.path.append(os.path.abspath(folder))  # what is installed comes first


class Peer:
    """A peer's call, made when it is first run: bench.py --once imports no peer."""

    def __init__(self, make):
        self.make, self.call = make, None

    def __call__(self):
        try:
            self.call = self.call or self.make()
            return [x.transpose(1, 2) if x.ndim == 4 else x for x in self.call()]
        except Exception as why:
            said = str(why).strip().splitlines() or [""]
            said = " ... ".join(dict.fromkeys((said[0], said[-1])))
            raise PeerFailed(f"the peer fails: {type(why).__name__}: {said}") from why


def forward(call):
    def run():
        with torch.no_grad():
            return [call()]

    return run


def drawn(normal, b, n, g, d, block, dtype):
    """Keys whose means of blocks bf16 holds: a base for each block, and pairs that lie opposite."""
    blocks = -(-n // block)
    f32 = {"dtype": torch.float32}
    base = (normal(b, blocks, 1, 1, g, d, **f32) * 4).round() / 16
    half = (normal(b, blocks, block // 2, 1, g, d, **f32) * 16).round() / 16
    keys = torch.cat((base + half, base - half), dim=3)
    return keys.reshape(b, blocks * block, g, d)[:, :n].to(dtype).contiguous()


def lists(position, x, block, count, device, seed):
    """(x, rows, count): of the row at each position its own block and random ones before it,
    ascending, then -1; and how many they are."""
    generator = torch.Generator(device).manual_seed(seed)
    blocks = int(position.max()) // block + 1
    made = []
    for part in position.split(8192):  # the ranks of all rows at once would be gigabytes
        own = (part // block)[None, :, None].expand(x, -1, 1)
        rank = torch.rand(x, len(part), blocks, generator=generator, device=device)
        rank.scatter_(-1, own, 2)
        rank.masked_fill_(torch.arange(blocks, device=device) > own, -1)
        best = rank.topk(min(count, blocks))
        index = best.indices.masked_fill(best.values < 0, blocks).sort().values
        made.append(index.masked_fill(index == blocks, -1).int())
    index = torch.nn.functional.pad(torch.cat(made, dim=1), (0, max(count - blocks, 0)), value=-1)
    return index, (index >= 0).sum(-1).int()


def alike(position, x, block, count, device, seed):
    """The same of a prompt whose neighbours agree: the rows of a block of keys have one list."""
    first = lists(position[::block], x, block, count, device, seed)
    return [part.repeat_interleave(block, dim=1)[:, : len(position)] for part in first]


def listed(position, block, count):
    """Pairs of the rows of a head: whole blocks, and each row's part of its own."""
    own = position // block
    return int((own.clamp(max=count - 1) * block + position - own * block + 1).sum())


@dataclasses.dataclass(frozen=True)
class Beside(Case):
    """A batch of one, causal."""

    h: int
    g: int
    n: int
    backward: bool = False
    b: int = 1
    d: int = 128
    dtype: str = "bf16"
    module = "fla"
    peer = "fla"
    limit = METHOD_LIMIT

    def words(self):
        yield f"{self.title}_beside_{self.module}"
        yield f"n{size(self.n)}_b{self.b}_h{self.h}"
        yield f"g{self.g}" if self.g != self.h else None

    @property
    def pairs(self):
        return listed(torch.arange(self.n), self.block, self.count)

    @property
    def work(self):
        return 2 * self.products[self.backward] * self.b * self.h * self.pairs * self.d

    @property
    def bytes(self):
        return 2 * self.b * self.n * (self.h + self.g) * self.d * self.itemsize

    def inputs(self, normal):
        q, v, dout = (normal(self.b, self.n, heads, self.d) for heads in (self.h, self.g, self.h))
        return q, drawn(normal, self.b, self.n, self.g, self.d, self.block, q.dtype), v, dout

    def beside(self, call, inputs, dout):
        """The peer's side of call(*inputs)."""
        mine = [x.detach().clone() for x in inputs] if self.backward else inputs
        run = lambda: call(*mine)
        return Peer(lambda: gradient(run, mine, dout) if self.backward else forward(run))


@dataclasses.dataclass(frozen=True)
class NsaLists(Beside):
    """NSA's selected branch over given lists: fla's parallel_nsa without gates."""

    alike: bool = False
    title = "nsa_lists"
    block, count = 64, 16
    family = "x_sparse"

    def words(self):
        yield from super().words()
        yield "alike" if self.alike else None

    @property
    def limit(self):
        return Case.limit.fget(self)  # both sides see the same pairs

    def setup(self, ctx, device, seed):
        *inputs, dout = self.inputs(self.draw(device, seed))
        rows = torch.arange(self.n, device=device)
        draw = alike if self.alike else lists
        index, count = (x[None] for x in draw(rows, self.g, self.block, self.count, device, seed))
        fields = {"block_rows": 1, "block_keys": self.block, "causal": True}
        ours = self.own(ctx, inputs, dout, index=index, index_count=count, **fields)
        theirs = index.transpose(1, 2).contiguous()

        def call(q, k, v):
            nsa = importlib.import_module("fla.ops.nsa").parallel_nsa
            return nsa(q, k, v, block_indices=theirs, block_counts=self.count, block_size=64)

        return ours, self.beside(call, inputs, dout)


@dataclasses.dataclass(frozen=True)
class Nsa(Beside):
    """All of NSA: compressed keys of 64, 64 apart, as fla has them, selection, window, gates."""

    title = "nsa"
    block, count, window = 64, 16, 512
    numbers = {"compress_keys": 64, "compress_step": 64, "gate_plain": 1}
    limit = 0.1  # fla rounds scaled queries to bf16: in 4 of 100 rows of 64k a block changes
    family = "x_nsa"

    @property
    def pairs(self):
        rows = torch.arange(self.n)
        coarse, near = (rows + 1) // self.block, (rows + 1).clamp(max=self.window)
        return super().pairs + int(coarse.sum()) + int(near.sum())

    def setup(self, ctx, device, seed):
        normal = self.draw(device, seed)
        q, k, v, dout = self.inputs(normal)
        gates = [normal(self.b, self.n, self.h).sigmoid() for _ in range(3)]

        def call(q, k, v, *gates):
            nsa = importlib.import_module("fla.ops.nsa").parallel_nsa
            numbers = {"block_counts": self.count, "block_size": 64, "window_size": self.window}
            return nsa(q, k, v, *gates, **numbers)

        return self.ours(ctx, q, k, v, gates, dout), self.beside(call, (q, k, v, *gates), dout)

    def ours(self, ctx, q, k, v, gates, dout):
        names = "compressed", "selected", "window"
        fields = {f"gate_{name}": gate for name, gate in zip(names, gates)}
        fields |= {"window": self.window, **self.numbers}
        if not self.backward:
            return Named("nsa", ctx, q, k, v, compared=1, count=self.count, **fields)
        outputs = [f"{kind}_{name}" for kind in ("o", "lse") for name in names]
        kept = {"keep": self.count, "index": True, **dict.fromkeys(outputs, True)}
        _, *saved = fovea.x_nsa_forward(ctx, q, k, v, count=self.count, **fields, **kept)
        fields |= {f"dgate_{name}": True for name in names}
        return Own(self.op, ctx, q, k, v, *saved, dout, compared=3, **fields)


@dataclasses.dataclass(frozen=True)
class Moba(Beside):
    """MoBA, 8 blocks of 512: fla's parallel_moba, over the FlashAttention-2 that it imports."""

    title = "moba"
    block, count = 512, 8

    @property
    def op(self):
        return "x_sparse_backward" if self.backward else "x_pooled_forward"

    def setup(self, ctx, device, seed):
        *inputs, dout = self.inputs(self.draw(device, seed))
        start = torch.tensor([0, self.n], dtype=torch.int32, device=device)

        def call(q, k, v):
            moba = importlib.import_module("fla.ops.moba").parallel_moba
            return moba(q, k, v, start, self.n, chunk_size=self.block, topk=self.count)

        return self.ours(ctx, inputs, dout), self.beside(call, inputs, dout)

    def ours(self, ctx, inputs, dout):
        numbers = {"block_keys": self.block, "count": self.count}
        if not self.backward:
            return Named("moba", ctx, *inputs, compared=1, **numbers)
        shape = self.b, self.h, self.n
        empty = lambda *more: torch.empty(*shape, *more, dtype=torch.int32, device=dout.device)
        chosen = {"index": empty(self.count), "index_count": empty()}
        numbers = fovea.recipe("moba").numbers | numbers
        o, lse = fovea.x_pooled_forward(ctx, *inputs, lse=True, **chosen, **numbers)[:2]
        fields = {"block_rows": 1, "block_keys": self.block, "causal": 1, **chosen}
        return Own(self.op, ctx, *inputs, o, lse, dout, compared=3, **fields)


@dataclasses.dataclass(frozen=True)
class Msa(Beside):
    """MSA's attention over given lists, or with `scored` its indexer too, as vLLM's Triton kernels
    do: a prompt, or a row of each sequence.  vLLM reads pages of 128 keys; so do we with `paged`,
    else a prompt's keys lie one after the other."""

    scored: bool = False
    decode: bool = False
    paged: bool = False
    alike: bool = False
    module = "vllm"
    peer = "vLLM"
    block, count = 128, 16

    def words(self):
        yield f"msa{'' if self.scored else '_lists'}{'_decode' if self.decode else ''}"
        yield "beside_vllm"
        yield f"n{size(self.n)}_b{self.b}_h{self.h}_g{self.g}"
        yield "page128" if self.paged else None
        yield "alike" if self.alike else None

    @property
    def op(self):
        return "x_indexed_forward" if self.scored else "x_sparse_forward"

    @property
    def limit(self):
        return METHOD_LIMIT if self.scored else Case.limit.fget(self)

    @property
    def unit(self):
        return "GB/s" if self.decode else "TFLOP/s"

    @property
    def scale(self):
        return 1e-9 if self.decode else 1e-12

    @property
    def position(self):
        """Of the rows of a sequence."""
        return torch.arange(self.n - 1 if self.decode else 0, self.n)

    @property
    def pairs(self):
        return listed(self.position, self.block, self.count)

    @property
    def work(self):
        """Of a decode, the bytes of the listed keys, and with its indexer of all index keys."""
        if not self.decode:
            return 4 * self.b * self.h * self.pairs * self.d
        scored = self.n if self.scored else 0
        return self.b * (2 * self.pairs * self.g + scored + 2 * self.h) * self.d * self.itemsize

    @property
    def bytes(self):
        return self.work if self.decode else super().bytes

    def setup(self, ctx, device, seed):
        normal, rows, pages = self.draw(device, seed), len(self.position), -(-self.n // 128)
        q, index_q = (normal(self.b, rows, heads, self.d) for heads in (self.h, self.g))
        pool = [normal(self.b * pages, 128, heads, self.d) for heads in (self.g, self.g, 1)]
        order = normal(self.b * pages, dtype=torch.float32).argsort().int()
        place = {"page_table": order.view(self.b, pages)}
        place["key_len"] = torch.full((self.b,), self.n, dtype=torch.int32, device=device)
        theirs = self.theirs(q, index_q, pool, place)
        fields = place if self.paged else {}
        whole = lambda x: x[order.long()].view(self.b, -1, *x.shape[2:])[:, : self.n].contiguous()
        k, v, index_k = pool if self.paged else map(whole, pool)
        if self.scored:
            fields = fields | {"index_q": index_q, "index_k": index_k, "lists": self.g}
            ours = Named("msa", ctx, q, k, v, compared=1, count=self.count, **fields)
            return ours, Peer(theirs)
        position = self.position.to(device).repeat(self.b)
        draw = alike if self.alike else lists
        index, count = draw(position, self.g, self.block, self.count, device, seed)
        split = lambda x: x.unflatten(1, (self.b, rows)).transpose(0, 1).contiguous()
        fields = fields | {"index": split(index), "index_count": split(count)}
        fields |= {"block_rows": 1, "block_keys": self.block, "causal": True}
        ours = Own(self.op, ctx, q, k, v, **fields)
        return ours, Peer(lambda: theirs(index))

    def theirs(self, q, index_q, pool, place):
        """What makes vLLM's call: over lists of (key heads, rows of all sequences, count), or over
        those that its indexer finds."""
        q_flat, index_flat = q.flatten(0, 1), index_q.flatten(0, 1)
        k, v, index_k = pool
        cache = torch.cat((k, v), dim=-1).transpose(1, 2).contiguous()  # keys and values of a head
        table, length, scale = place["page_table"], place["key_len"], self.d**-0.5
        rows, forced = q.shape[1], (0, 1)  # first blocks, last blocks
        start = torch.arange(self.b + 1, dtype=torch.int32, device=q.device) * rows
        before = length - rows

        def choose(ops):
            mine = index_flat, index_k.squeeze(2), table
            if self.decode:
                sizes = self.n, self.count, *forced, self.g, 1, 1
                return ops.minimax_m3_index_decode(*mine, length, *sizes)
            score = ops.minimax_m3_index_score(*mine, start, length, before, rows, self.n, self.g)
            return ops.minimax_m3_index_topk(score, start, before, rows, self.count, *forced)

        def make(index=None):
            where = "vllm.models.minimax_m3.common.ops."
            attention = importlib.import_module(where + "sparse_attn")
            indexer = importlib.import_module(where + "index_topk") if index is None else None

            def run():
                found, o = choose(indexer) if index is None else index, torch.empty_like(q_flat)
                if self.decode:
                    attention.minimax_m3_sparse_attn_decode(
                        q_flat, cache, found, table, length, self.g, scale, o, 1
                    )
                else:
                    attention.minimax_m3_sparse_attn(
                        q_flat, cache, found, table, start, length, before, rows, self.g, scale, o
                    )
                return [o.view(q.shape)]

            return run

        return make


def importable(name):
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def host():
    return ()


def cuda():
    sizes = 16384, 65536, 10007
    if importable("fla"):
        for backward in (False, True):
            yield from (NsaLists(64, 4, n, backward) for n in sizes)
            yield from (NsaLists(64, 4, n, backward, alike=True) for n in sizes[:2])
            yield from (Nsa(64, 4, n, backward) for n in sizes)
        yield from (Moba(16, 16, n) for n in sizes)
        yield from (Moba(16, 16, n, True) for n in sizes)
    if importable("vllm"):
        yield from (Msa(64, 4, n, alike=True) for n in sizes[:2])
        for scored in (False, True):
            yield from (Msa(64, 4, n, scored=scored) for n in sizes)
            yield Msa(64, 4, 16384, scored=scored, paged=True)
            for n in sizes:
                yield Msa(64, 4, n, b=8, scored=scored, decode=True, paged=True)
