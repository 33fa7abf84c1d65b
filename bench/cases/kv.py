# SPDX-License-Identifier: Apache-2.0
"""Low-bit caches, decode: one row a sequence over KIVI's codes, beside our own attention over the
same tokens in 16 bits.  The rate counts the bytes of codes, scales and tails."""

import dataclasses

import fovea
import torch

from .base import Case, Own, size

GROUP, RESIDUAL = 32, 128


@dataclasses.dataclass(frozen=True)
class LowBit(Case):
    b: int
    h: int
    g: int
    t: int
    bits: int
    d: int = 128
    page: int = 64
    tokens_first: bool = False  # pages whose tokens lie outside of their heads
    unit, scale, limit = "GB/s", 1e-9, 0  # codes of random numbers are far from the numbers
    family, peer, op = "x_kv", "fovea 16 bits", "x_kv_decode"

    def words(self):
        yield f"kivi{self.bits}_b{self.b}_n{size(self.t)}_h{self.h}_g{self.g}"
        yield None if self.d == 128 else f"d{self.d}"
        yield None if self.page == 64 else f"page{self.page}"
        yield "tokens_first" if self.tokens_first else None

    @property
    def bytes(self):
        codes = (self.t - RESIDUAL) * (self.bits * self.d / 8 + 4 * self.d / GROUP)
        return int(2 * self.b * self.g * (codes + RESIDUAL * self.d * self.itemsize))

    work = bytes

    def cache(self, device):
        pages, words = -(-self.t // self.page) + 1, self.bits * self.d // 32
        pool, groups = pages * self.b, self.page // GROUP

        def of(*shape, dtype=torch.float16):
            return torch.zeros(shape, dtype=dtype, device=device)

        def values(columns, dtype=torch.float16):
            if self.tokens_first:
                return of(pool, self.page, self.g, columns, dtype=dtype)
            return of(pool, self.g, self.page, columns, dtype=dtype).transpose(1, 2)

        kind = torch.bfloat16
        table = torch.randperm(pool, device=device).reshape(self.b, pages).int()
        return {
            "k_code": of(pool, groups, self.g, self.d, self.bits, dtype=torch.int32),
            "k_scale": of(pool, groups, self.g, self.d),
            "k_zero": of(pool, groups, self.g, self.d),
            "v_code": values(words, torch.int32),
            "v_scale": values(self.d // GROUP),
            "v_zero": values(self.d // GROUP),
            "k_tail": of(self.b, RESIDUAL, self.g, self.d, dtype=kind),
            "v_tail": of(self.b, RESIDUAL + 1, self.g, self.d, dtype=kind),
            "counter": of(self.b, 4, dtype=torch.int32),
            "page_table": table,
        }

    def setup(self, ctx, device, seed):
        normal = self.draw(device, seed)
        q = normal(self.b, 1, self.h, self.d)
        k, v = (normal(self.b, self.t, self.g, self.d) for _ in "kv")
        cache = self.cache(device)
        fovea.x_kv_append(ctx, k, v, bits=self.bits, **cache)
        fields = {**cache, "bits": self.bits, "key_max": self.t, "causal": 1}
        own = Own("x_kv_decode", ctx, q, compared=0, **fields)
        return own, Own("attention_forward", ctx, q, k, v, compared=0, causal=1)


def host():
    for bits in (2, 4):
        yield LowBit(1, 32, 8, 8192, bits)


def cuda():
    for bits in (2, 4):
        for b, h, t in ((32, 64, 8192), (8, 64, 32768), (1, 64, 8192), (32, 8, 8192)):
            yield LowBit(b, h, 8, t, bits)
    yield LowBit(32, 128, 8, 8192, 2)
    yield LowBit(32, 64, 8, 8192, 2, tokens_first=True)
    yield LowBit(32, 64, 8, 8192, 2, page=256)
