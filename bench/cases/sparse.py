# SPDX-License-Identifier: Apache-2.0
"""Attention over lists beside our own dense attention.  The rate counts listed pairs alone."""

import dataclasses
import functools

import torch

from .base import Case, Own, size


@dataclasses.dataclass(frozen=True)
class Sparse(Case):
    """Each block of rows sees `count` random blocks of keys, or `keep` percent of those that the
    mask leaves it; under the mask its own block is one of them."""

    b: int
    h: int
    n: int
    d: int
    rows: int
    keys: int
    keep: int = 0
    count: int = 0
    g: int = 0
    x: int = 0  # lists; 0: one a query head
    causal: bool = True
    zipf: bool = False  # the lengths of lists: few are long
    dtype: str = "bf16"
    family = "x_sparse"
    limit = 0  # the peer computes something else
    peer = "fovea dense"

    def words(self):
        yield f"sparse_d{self.d}_{self.rows}x{self.keys}"
        yield f"keep{self.keep}" if self.keep else f"count{self.count}"
        yield self.mask
        yield f"n{size(self.n)}_b{self.b}_h{self.h}"
        yield f"g{self.g}" if self.g else None
        yield f"x{self.x}" if self.x else None
        yield "zipf" if self.zipf else None
        yield self.unusual_dtype

    @functools.cached_property
    def lists(self):
        """index, index_count and the pairs of a batch, on the CPU."""
        generator = torch.Generator().manual_seed(7)
        heads, blocks = self.x or self.h, -(-self.n // self.rows)
        begin = torch.arange(blocks) * self.rows
        seen = -(-torch.minimum(begin + self.rows, torch.tensor(self.n)) // self.keys)
        if not self.causal:
            seen[:] = -(-self.n // self.keys)
        fixed = torch.full_like(seen, self.count)
        wanted = (seen * self.keep / 100).round() if self.keep else fixed
        wanted = wanted.expand(heads, blocks).double()
        if self.zipf:
            share = 1 / torch.rand(heads, blocks, generator=generator).clamp(0.05, 1)
            wanted = wanted * share / share.mean()
        count = torch.minimum(wanted.round().clamp(min=1), seen.double()).to(torch.int32)
        keep = int(count.max())
        index = torch.full((heads, blocks, keep), -1, dtype=torch.int32)
        pairs = 0
        for row in range(blocks):
            most, own = int(seen[row]), int(begin[row]) // self.keys
            order = torch.rand(heads, most, generator=generator)
            if self.causal:
                order[:, own:] = -1  # the blocks of the diagonal come first
            chosen = order.argsort(dim=1)[:, :keep].to(torch.int32)
            index[:, row, : chosen.shape[1]] = chosen
            pairs += self.pairs_of(row, chosen, count[:, row])
        return index, count, pairs * (self.h // heads)

    def pairs_of(self, row, chosen, count):
        begin, end = row * self.rows, min((row + 1) * self.rows, self.n)
        used = torch.arange(chosen.shape[1]) < count[:, None]
        first = chosen[used].long() * self.keys
        last = torch.minimum(first + self.keys, torch.tensor(self.n))
        if not self.causal:
            return int((last - first).sum()) * (end - begin)
        whole = last <= begin + 1
        rows = torch.arange(begin, end)
        some = (torch.minimum(last[~whole, None], rows + 1) - first[~whole, None]).clamp(min=0)
        return int((last - first)[whole].sum()) * (end - begin) + int(some.sum())

    @property
    def work(self):
        return 4 * self.b * self.lists[2] * self.d

    @property
    def bytes(self):
        return self.b * self.n * (self.h + (self.g or self.h)) * 2 * self.d * self.itemsize

    def setup(self, ctx, device, seed):
        normal, g = self.draw(device, seed), self.g or self.h
        q, k, v = (normal(self.b, self.n, heads, self.d) for heads in (self.h, g, g))
        index, count, _ = self.lists
        expand = lambda x: x.to(device).expand(self.b, *x.shape).contiguous()
        fields = {"block_rows": self.rows, "block_keys": self.keys, "causal": self.causal}
        fields |= {"index": expand(index), "index_count": expand(count)}
        dense = Own("attention_forward", ctx, q, k, v, compared=0, causal=self.causal)
        return Own(self.op, ctx, q, k, v, compared=0, **fields), dense


@dataclasses.dataclass(frozen=True)
class ListDecode(Case):
    """One query row a sequence, whose key heads see `count` random blocks of `block` keys each, beside
    our own decode over all keys.  The rate is that of the keys that are listed."""

    b: int
    h: int
    g: int
    t: int
    block: int
    count: int
    page: int = 0
    codes: bool = False
    d: int = 128
    dtype: str = "bf16"
    unit, scale = "GB/s", 1e-9
    family = "x_sparse"
    limit = 0  # the peer computes something else
    peer = "fovea dense"

    def words(self):
        yield f"list_decode_b{self.b}_n{size(self.t)}_block{self.block}_count{self.count}"
        yield f"page{self.page}" if self.page else None
        yield None if (self.h, self.g) == (32, 8) else f"h{self.h}_g{self.g}"
        yield "e4m3" if self.codes else None

    @property
    def work(self):
        row = self.d * (1 if self.codes else self.itemsize) + (4 if self.codes else 0)
        keys = self.count * self.block * self.g * 2 * row
        return (keys + 2 * self.h * self.d * self.itemsize) * self.b

    bytes = work

    def setup(self, ctx, device, seed):
        normal = self.draw(device, seed)
        q = normal(self.b, 1, self.h, self.d)
        k, v = (normal(self.b, self.t, self.g, self.d) for _ in "kv")
        rank = torch.rand(self.b, self.g, self.t // self.block, device=device)
        index = rank.topk(self.count).indices.sort().values[:, :, None].int().contiguous()
        place = {}
        if self.page:
            order = torch.randperm(self.b * self.t // self.page, device=device)
            k, v = (x.reshape(-1, self.page, self.g, self.d)[order] for x in (k, v))
            place["page_table"] = order.argsort().reshape(self.b, -1).int()
        dense = Own("attention_forward", ctx, q, k, v, compared=0, **place)
        if self.codes:
            scale = [x.abs().amax(-1, keepdim=True).float() / 448 for x in (k, v)]
            k, v = ((x / s).to(torch.float8_e4m3fn) for x, s in zip((k, v), scale))
            place |= {"k_scale": scale[0], "v_scale": scale[1]}
        fields = {"index": index, "block_rows": 1, "block_keys": self.block, **place}
        return Own(self.op, ctx, q, k, v, compared=0, **fields), dense


@dataclasses.dataclass(frozen=True)
class LatentList(Case):
    """DSA's attention: each row sees `count` random keys of a cache of latents, whose first 512 of
    576 columns are v, beside our own dense attention of one row a sequence."""

    b: int
    h: int
    n: int
    t: int
    count: int = 2048
    page: int = 0
    dtype: str = "bf16"
    family = "x_sparse"
    limit = 0  # the peer computes something else
    peer = "fovea dense"

    def words(self):
        yield f"latent_list_b{self.b}_h{self.h}_n{size(self.n)}_t{size(self.t)}_count{self.count}"
        yield f"page{self.page}" if self.page else None

    @property
    def work(self):
        return 2 * self.b * self.n * self.h * self.count * (576 + 512)

    @property
    def bytes(self):
        return self.b * self.n * (self.count * 576 + self.h * (576 + 512)) * self.itemsize

    def setup(self, ctx, device, seed):
        normal = self.draw(device, seed)
        q, k = normal(self.b, self.n, self.h, 576), normal(self.b, self.t, 1, 576)
        rows = [
            torch.rand(min(1024, self.n - i), self.t, device=device).topk(self.count).indices.int()
            for _ in range(self.b)
            for i in range(0, self.n, 1024)
        ]
        index, place = torch.cat(rows).view(self.b, 1, self.n, self.count), {}
        if self.page:
            order = torch.randperm(self.b * self.t // self.page, device=device)
            k = k.reshape(-1, self.page, 1, 576)[order]
            place["page_table"] = order.argsort().reshape(self.b, -1).int()
        fields = {"index": index, "block_rows": 1, "block_keys": 1, **place}
        dense = Own("attention_forward", ctx, q[:, :1], k, k[..., :512], compared=0, **place)
        return Own(self.op, ctx, q, k, k[..., :512], compared=0, **fields), dense


@dataclasses.dataclass(frozen=True)
class JoinedList(LatentList):
    """The same with latents and rotated keys in two tensors, `q_value`, beside one tensor of both."""

    peer = "fovea, one tensor"

    def words(self):
        yield from super().words()
        yield "q_value"

    def setup(self, ctx, device, seed):
        own, _ = super().setup(ctx, device, seed)
        q, k = own.inputs[1:3]
        latent, turned = (x.contiguous() for x in k.split([512, 64], -1))
        q_value, q_turned = (x.contiguous() for x in q.split([512, 64], -1))
        fields = {**own.fields, "scale": 192**-0.5}
        one = Own(self.op, ctx, q, k, k[..., :512], compared=0, **fields)
        joined = Own(self.op, ctx, q_turned, turned, latent, compared=0, q_value=q_value, **fields)
        return joined, one


def host():
    for keep in (100, 25):
        yield Sparse(1, 8, 2048, 128, 64, 64, keep, dtype="f32")


def cuda():
    for n in (16384, 65536):
        for rows, keys in ((128, 128), (64, 64), (128, 64)):
            for keep in (100, 50, 25, 10, 5):
                if n == 16384 or keep in (25, 10):
                    yield Sparse(1, 16, n, 128, rows, keys, keep)
        yield Sparse(1, 16, n, 128, 128, 128, 25, zipf=True)
    yield Sparse(1, 16, 16384, 128, 128, 128, 25, causal=False)
    for d in (64, 256):
        for block in (128, 64):
            yield Sparse(1, 2048 // d, 16384, d, block, block, 25)
    yield Sparse(1, 32, 16384, 128, 64, 64, 25, g=8, x=8)
    for block, count in ((1, 2048), (16, 128), (64, 32)):
        for page in (0, 16) if block > 1 else (0, 64):
            yield ListDecode(8, 32, 8, 32768, block, count, page)
    yield ListDecode(64, 32, 8, 32768, 1, 2048)
    yield ListDecode(64, 32, 8, 32768, 16, 128, 16)
    yield ListDecode(8, 32, 8, 32768, 1, 2048, codes=True)
    yield ListDecode(64, 32, 8, 32768, 16, 128, 16, codes=True)
    # NSA's selected branch, MSA, MoBA as one list a block of rows.
    yield Sparse(1, 64, 65536, 128, 1, 64, count=16, g=4, x=4)
    yield Sparse(1, 64, 65536, 128, 1, 128, count=16, g=4, x=4)
    yield Sparse(1, 64, 16384, 128, 1, 64, count=16, g=4, x=4)
    for h in (16, 64, 128):
        yield LatentList(1, h, 4096, 32768)
        for b in (1, 8, 64):
            yield LatentList(b, h, 1, 32768)
    yield LatentList(64, 16, 1, 32768, page=64)
    for b, h, n in ((8, 16, 1), (64, 128, 1), (1, 128, 4096)):
        yield JoinedList(b, h, n, 32768)
