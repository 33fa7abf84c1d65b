# SPDX-License-Identifier: Apache-2.0
"""Tensor product attention beside our own dense attention of its heads, which are formed
beforehand: what the factors save of a cache, and what forming heads costs a prompt."""

import dataclasses

import torch

from .base import Case, pairs, size

GRADIENTS = "da_k", "db_k", "da_v", "db_v", "da_q", "db_q"


def heads(a, b):
    """Rows of all heads, in the factors' dtype."""
    y = a.new_empty(*a.shape[:2], a.shape[3], b.shape[3])
    for i in range(a.shape[0]):  # a sequence at a time: f32 products of all do not fit
        y[i] = torch.einsum("trh,trd->thd", a[i].float(), b[i].float()) / a.shape[2]
    return y


@dataclasses.dataclass(frozen=True)
class Products(Case):
    """A prompt, or with `decode` one row of each sequence against its cache of n tokens."""

    b: int
    h: int
    n: int
    d: int = 128
    decode: bool = False
    backward: bool = False
    page: int = 0
    rank_q: int = 6
    rank: int = 2
    causal = True
    family = "x_tpa"
    peer = "fovea heads"
    limit = 1e-2  # one side rounds heads of k and v, the other weights times a_v

    def words(self):
        yield "tpa_decode" if self.decode else "tpa_prefill"
        yield f"n{size(self.n)}_b{self.b}_h{self.h}_d{self.d}"
        yield f"page{self.page}" if self.page else None

    @property
    def bytes(self):
        return 2 * self.b * self.n * self.rank * (self.h + self.d) * self.itemsize

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
        products = self.products[self.backward]
        return 2 * products * pairs(self.n, self.n, True) * self.b * self.h * self.d

    def setup(self, ctx, device, seed):
        normal, rows = self.draw(device, seed), 1 if self.decode else self.n
        keys = [normal(self.b, self.n, self.rank, w) for w in (self.h, self.d) * 2]
        query = [normal(self.b, rows, self.rank_q, w) for w in (self.h, self.d)]
        formed = [heads(*query), heads(*keys[:2]), heads(*keys[2:])]
        fields = {"a_q": query[0], "b_q": query[1], "causal": 1}
        if self.backward:
            return self.gradients(ctx, keys, formed, normal, fields)
        if self.page:
            order = torch.randperm(self.b * self.n // self.page, device=device)
            keys = [x.reshape(-1, self.page, *x.shape[2:])[order] for x in keys]
            fields["page_table"] = torch.argsort(order).reshape(self.b, -1).int()
        peer = self.own(ctx, formed, family="attention", causal=1)
        return self.own(ctx, keys, **fields), peer

    def gradients(self, ctx, keys, formed, normal, fields):
        dout = normal(self.b, self.n, self.h, self.d)
        asked = dict.fromkeys(GRADIENTS, True)
        own = self.own(ctx, keys, dout, compared=0, also=asked, **fields)
        return own, self.own(ctx, formed, dout, family="attention", compared=0, causal=1)


def host():
    for decode, b, n in ((True, 4, 4096), (False, 1, 1024)):
        yield Products(b, 32, n, decode=decode)


def cuda():
    for page in (0, 16, 64):
        yield Products(64, 32, 8192, decode=True, page=page)
    yield Products(1, 32, 8192, decode=True)
    yield Products(16, 32, 32768, decode=True)
    yield Products(64, 47, 8192, 64, decode=True)
    for backward in (False, True):
        yield Products(1, 32, 8192, backward=backward)
        yield Products(2, 47, 4096, 64, backward=backward)
