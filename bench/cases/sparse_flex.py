# SPDX-License-Identifier: Apache-2.0
"""Attention over lists of blocks, and its gradient, beside FlexAttention with the same block mask:
both sides' results are compared.  The rate counts seen pairs alone."""

import dataclasses
import functools

import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from .base import Case, gradient, size, turned, unrecorded


@functools.cache
def compiled():
    return torch.compile(flex_attention)


def visible(b, h, row, key):
    return row >= key


def listed(chosen):
    """Counts, and the chosen columns of each row before all others, ascending."""
    order = chosen.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return chosen.sum(-1).to(torch.int32), order.to(torch.int32)


@dataclasses.dataclass(frozen=True)
class Flex(Case):
    """Each block of rows sees its own block of keys and `keep` percent of those before it, a list a
    head."""

    h: int
    n: int
    d: int
    block: int
    keep: int
    backward: bool = False
    dtype: str = "bf16"
    family = "x_sparse"
    peer = "FlexAttention"

    def words(self):
        yield f"blocks_d{self.d}_{self.block}x{self.block}_keep{self.keep}_causal"
        yield f"n{size(self.n)}_h{self.h}"

    @functools.cached_property
    def chosen(self):
        """(h, row blocks, key blocks), and those of them that are on the diagonal."""
        blocks = self.n // self.block
        generator = torch.Generator().manual_seed(7)
        own = torch.eye(blocks, dtype=torch.bool).expand(self.h, -1, -1)
        drawn = torch.rand(self.h, blocks, blocks, generator=generator) < self.keep / 100
        return drawn.tril(-1) | own, own

    @property
    def work(self):
        chosen, own = (int(x.sum()) for x in self.chosen)
        pairs = (chosen - own) * self.block**2 + own * self.block * (self.block + 1) // 2
        return 2 * self.products[self.backward] * pairs * self.d

    @property
    def bytes(self):
        return self.n * self.h * 4 * self.d * self.itemsize

    def setup(self, ctx, device, seed):
        normal = self.draw(device, seed)
        *inputs, dout = (normal(1, self.h, self.n, self.d) for _ in range(4))
        chosen, own = (x[None].to(device) for x in self.chosen)
        mask = BlockMask.from_kv_blocks(
            *listed(own), *listed(chosen & ~own), BLOCK_SIZE=self.block, mask_mod=visible
        )
        # Its own tiles are at most as large as a block of the mask.
        tiles = ("BLOCK_M", "BLOCK_N", "BLOCK_M1", "BLOCK_N1", "BLOCK_M2", "BLOCK_N2")
        options = {tile: 64 for tile in tiles} if self.block < 128 else None
        call = lambda: compiled()(*inputs, block_mask=mask, kernel_options=options)
        count, index = listed(chosen)
        keep = int(count.max())
        fields = {"block_rows": self.block, "block_keys": self.block, "causal": True}
        fields |= {"index": index[..., :keep].contiguous(), "index_count": count}
        ours = self.own(ctx, turned(*inputs), *turned(dout), **fields)
        return ours, gradient(call, inputs, dout) if self.backward else unrecorded(call)


def host():
    return ()


def cuda():
    for backward in (False, True):
        for n in (16384, 65536):
            yield from (Flex(16, n, 128, 128, keep, backward) for keep in (25, 10))
        yield Flex(16, 16384, 128, 64, 25, backward)
