# SPDX-License-Identifier: Apache-2.0
"""Attention by fovea on a paged cache.

Each layer has a pool of pages for keys and one for values; one page table serves all layers.  A
step of n new tokens is, in each layer, three calls:

    rope_forward       turns the n queries
    cache_append       turns the n keys and writes keys and values at the end of the cache
    attention_forward  attends over the cache, the last n positions being the queries'

Prefill (n large) and decode (n = 1) are the same calls.  With backend "cuda" the cache stays on the
GPU and q, k, v and o travel."""
import time
from collections.abc import Callable
from typing import Any

import fovea
import numpy as np
from numpy.typing import DTypeLike, NDArray

from smollm.model import Config, Floats

There = NDArray[Any] | fovea.Buffer  # where fovea computes: NumPy's memory or the GPU's

PAGE = 16  # tokens


class PagedAttention:
    def __init__(self, config: Config, capacity: int, ctx: fovea.Context,
                 dtype: str = "f32", page: int = PAGE) -> None:
        self.ctx, self.dtype, self.page = ctx, numpy_dtype(dtype), page
        pages, self.capacity = -(-capacity // page), capacity
        pool = (pages, page, config.key_heads, config.head_dim)
        self.k = [ctx.empty(pool, dtype) for _ in range(config.layers)]
        self.v = [ctx.empty(pool, dtype) for _ in range(config.layers)]
        self.table = np.full((1, pages), -1, np.int32)
        self.seconds = 0.0  # spent in attend: fovea's calls, and the way there and back
        self.reset()

        table = (pages * page, config.head_dim // 2)
        self.cos, self.sin = ctx.empty(table, "f32"), ctx.empty(table, "f32")
        fovea.rope_table_get(ctx, cos=self.cos, sin=self.sin, base=config.rope_base)
        # GGUF stores the rows of Wq and Wk so that column pairs are (2i, 2i + 1).
        self.rope = dict(cos=self.cos, sin=self.sin, rope_interleaved=1)
        self.kernels: dict[str, None] = {}

    def reset(self) -> None:
        """Forgets every token; its page is free again."""
        self.table[:] = -1
        self.free = list(range(self.table.size))  # handed out from the end: a place says nothing
        self.length = 0

    def rewind(self, length: int) -> None:
        """Forgets the tokens from `length` on."""
        for i in range(self.pages_of(self.length) - 1, self.pages_of(length) - 1, -1):
            self.free.append(int(self.table[0, i]))
            self.table[0, i] = -1
        self.length = length

    def pages_of(self, length: int) -> int:
        return -(-length // self.page)

    def extend(self, n: int) -> None:
        """Makes room for n more tokens: the page table grows, the lengths and positions move on."""
        before, self.length = self.length, self.length + n
        for i in range(self.pages_of(before), self.pages_of(self.length)):
            self.table[0, i] = self.free.pop()
        self.page_table = self.there(self.table)
        self.len_before = self.there(np.array([before], np.int32))
        self.len_after = self.there(np.array([self.length], np.int32))
        self.position = self.there(np.arange(before, self.length, dtype=np.int32)[None])

    def attend(self, layer: int, q: Floats, k: Floats, v: Floats) -> Floats:
        started = time.perf_counter()
        turned = self.turn(q)
        self.run(fovea.cache_append, k_new=self.there(k[None]), v_new=self.there(v[None]),
                 key_len=self.len_before, **self.cache(layer), **self.rope)
        out: Floats = self.here(self.read(layer, turned, q, k, v))[0].astype(np.float32)
        self.seconds += time.perf_counter() - started
        return out

    def read(self, layer: int, turned: There, q: Floats, k: Floats, v: Floats) -> There:
        """o of turned queries; their keys, turned, and values are in the cache, as its last."""
        o: There = self.run(fovea.attention_forward, q=turned, key_len=self.len_after,
                            key_max=self.length, causal=1, **self.cache(layer))
        return o

    def cache(self, layer: int) -> dict[str, There]:
        return dict(k=self.k[layer], v=self.v[layer], page_table=self.page_table)

    def turn(self, x: Floats) -> There:
        turned: There = self.run(fovea.rope_forward, x=self.there(x[None].astype(self.dtype)),
                                 position=self.position, **self.rope)
        return turned

    def run(self, operation: Callable[..., Any], *inputs: There, **fields: Any) -> Any:
        result = operation(self.ctx, *inputs, **fields)
        self.kernels[self.ctx.last_kernel] = None  # in order of first use
        return result

    def there(self, x: NDArray[Any]) -> There:
        """A NumPy array where fovea computes."""
        x = np.ascontiguousarray(x)
        return x if self.ctx.backend == "host" else self.ctx.array(x)

    def here(self, x: There) -> NDArray[Any]:
        return x.numpy() if isinstance(x, fovea.Buffer) else x


def numpy_dtype(name: str) -> DTypeLike:
    if name == "bf16":
        import ml_dtypes
        bf16: DTypeLike = ml_dtypes.bfloat16
        return bf16
    return {"f32": np.float32, "f16": np.float16}[name]
