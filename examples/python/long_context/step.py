# SPDX-License-Identifier: Apache-2.0
"""What a method is given: the new queries of a layer, and its cache.

A `Reading` is the paged cache of the SmolLM2 example.  In place of its one call of
attention_forward, a method reads the cache: `Step.attend` and `Step.sparse` are the two calls that
give o, and keep what they were asked, for `seen.py` to tell which keys were read."""
from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import fovea
import fovea.experimental as x
import numpy as np
from numpy.typing import NDArray

from smollm.model import Config, Floats
from smollm.paged import PagedAttention

PAGE = 64  # tokens
WANT = dict(max=1, min=2, mean=4)  # x_pool's, of fovea_x_summary
There = Any  # where fovea computes: NumPy's array, a Buffer, or a View of one
Fields = dict[str, Any]
Observer = Callable[["Step", There], object]


class Reader(Protocol):
    """What a Reading asks of a method."""

    most_rows: int
    state: dict[int, Any]

    def prefill(self, step: Step) -> There:
        """o of a piece of the prompt."""

    def decode(self, step: Step) -> There:
        """o of tokens that are generated, or judged as if they were."""


class Step:
    """New rows of a layer.  q (1, rows, h, d) is turned, and the cache holds `keys` tokens, the
    rows' own among them.  `seen` are the fields by which an operation sees the keys of the cache
    that a row may attend to."""

    def __init__(self, reading: Reading, layer: int, turned: There, q: Floats, k: Floats,
                 v: Floats) -> None:
        self.reading, self.layer, self.q = reading, layer, turned
        self.q_plain, self.k_plain, self.v_plain = q, k, v
        self.rows: int = turned.shape[1]
        self.heads: int = turned.shape[2]
        self.width: int = turned.shape[3]
        self.key_heads = k.shape[1]
        self.keys, self.before = reading.length, reading.length - self.rows
        self.k, self.v = reading.k[layer], reading.v[layer]
        self.pages: Fields = dict(page_table=reading.page_table, key_len=reading.len_after,
                          key_max=self.keys)
        self.paged: Fields = dict(k=self.k, **self.pages)
        self.reads: list[Fields] = []  # of each call that gave a part of o
        self.beside: Any = None  # the second output of the last of these, where one was asked for
        self.run, self.there, self.here = reading.run, reading.there, reading.here

    def attend(self, **fields: Any) -> There:
        """attention_forward over the cache, or over `k` and `v` where they are given."""
        return self._read(fovea.attention_forward, fields)

    def sparse(self, **fields: Any) -> There:
        """x_sparse_forward, the same."""
        return self._read(x.sparse_forward, fields)

    def over(self, found: Sequence[There], keys: int = 1, rows: int = 1, **fields: Any) -> There:
        """x_sparse_forward over (index, index_count): blocks of keys for each block of rows."""
        index, count = found
        return self.sparse(index=index, index_count=count, block_rows=rows, block_keys=keys,
                           **fields)

    def read_lists(self, index: There, count: There, block: int) -> None:
        """What a call that made its own lists read: blocks of keys for each block of rows."""
        self.reads.append(dict(self.paged, q=self.q, v=self.v, causal=1, stand_for=None,
                               index=index, index_count=count, block_rows=block, block_keys=block))

    def _read(self, operation: Callable[..., Any], fields: Fields) -> There:
        stand_for = fields.pop("stand_for", None)  # whose keys those of `k` are
        given: Fields = dict(q=self.q) | fields
        if "k" not in fields:
            given |= dict(self.paged, v=self.v)
        if "head_window" not in fields:
            given["causal"] = 1
        o = self.run(operation, **given)
        self.reads.append(dict(given, stand_for=stand_for))
        if isinstance(o, tuple):
            o, self.beside = o
        return o

    def pool(self, block: int, want: str = "mean", of: str = "k", apart: int = 0, heads: int = 0,
             **fields: Any) -> Any:
        """x_pool of the cache's keys or values, or of the queries: (1, blocks, heads, d)."""
        tokens = self.rows if of == "q" else self.keys
        heads = heads or (self.heads if of == "q" else self.key_heads)
        y = self.empty(1, -(-tokens // (apart or block)), heads, self.width)
        cached = {} if of == "q" else self.pages
        return self.run(x.pool_forward, getattr(self, of), y=y, block=block, want=WANT[want],
                        step=apart, **(cached | fields))

    def blocks(self, block: int, **fields: Any) -> tuple[There, There]:
        """x_select_block for row blocks of `rows` (1) and key blocks of `block` keys: (index,
        index_count), as many as there can be unless `keep` bounds them."""
        rows = fields.setdefault("block_rows", 1)
        given = dict(b=1, x=self.heads, n=-(-self.rows // rows), keep=-(-self.keys // block),
                     index=True, index_count=True, key_len=self.pages["key_len"],
                     key_max=self.keys, query_max=self.rows, causal=1, block_keys=block)
        found: tuple[There, There] = self.run(x.select_block, **(given | fields))
        return found

    def best(self, score: There, keep: int, **fields: Any) -> tuple[There, There]:
        """x_select_block of scores (1, h, u) that have no rows: (index, index_count) of each head,
        (1, h, 1, keep) and (1, h, 1)."""
        u = score.shape[2]
        found: tuple[There, There] = self.run(
            x.select_block, score=like(score, 1, self.heads, 1, u), b=1, x=self.heads, n=1,
            keep=keep, index=True, index_count=True, block_rows=1, block_keys=1, query_max=1,
            key_max=u, **fields)
        return found

    def tokens(self, **fields: Any) -> Any:
        """x_select_token over what the rows see of the cache, or of `k`."""
        given = dict(q=self.q, causal=1, b=1, s=self.rows, x=self.heads, index=True,
                     index_count=True)
        if "k" not in fields and "code" not in fields:
            given |= self.paged
        return self.run(x.select_token, **(given | fields))

    def sums(self, q: There, lists: int, diagonals: bool = False, **fields: Any) -> list[There]:
        """x_probe's sums of probabilities over the rows of q, (1, lists, keys): of each key, and of
        each distance."""
        out = dict(column_sum=self.empty(1, lists, self.keys))
        if diagonals:
            out["diagonal_sum"] = self.empty(1, lists, self.keys)
        self.run(x.probe_forward, q, **self.paged, causal=1, **out, **fields)
        return list(out.values())

    def last_rows(self, n: int) -> There:
        row = self.heads * self.width
        return like(self.q, 1, n, self.heads, self.width, offset=(self.rows - n) * row)

    def new_keys(self) -> There:
        """The rows' own keys, turned: (1, rows, g, d)."""
        return self.reading.turn(self.k_plain)

    def new_values(self) -> There:
        return self.plain(self.v_plain)

    def plain(self, y: Floats) -> There:
        return self.there(y[None].astype(self.reading.dtype))

    def empty(self, *shape: int, dtype: str = "f32") -> Any:
        """Memory where fovea computes, of zeros: NaN in what is never read would not matter, but a
        mass is added to."""
        return self.there(np.zeros(shape, dict(f32=np.float32, i32=np.int32, u8=np.uint8)[dtype]))

    def cache_keys(self) -> NDArray[np.float32]:
        """The cache's keys (keys, g, d) in order, as NumPy's."""
        pages = self.reading.table[0, :self.reading.pages_of(self.keys)]
        k: NDArray[np.float32] = self.here(self.k)[pages].reshape(-1, *self.k.shape[2:])
        return k[:self.keys].astype(np.float32)


class Reading(PagedAttention):
    """The cache, which a method reads.  `prompt` says whether rows are a prompt's."""

    def __init__(self, config: Config, capacity: int, ctx: fovea.Context, method: Reader,
                 dtype: str = "f32", tell: Callable[[int], object] = lambda layer: None) -> None:
        super().__init__(config, capacity, ctx, dtype, PAGE)
        self.method, self.prompt, self.tell = method, True, tell
        self.observers: list[Observer] = []  # are told of each step, and their time is not counted

    def read(self, layer: int, turned: There, q: Floats, k: Floats, v: Floats) -> There:
        self.tell(layer)
        step = Step(self, layer, turned, q, k, v)
        o = self.method.prefill(step) if self.prompt else self.method.decode(step)
        started = time.perf_counter()
        for observe in self.observers:
            observe(step, o)
        self.seconds -= time.perf_counter() - started
        return o


class View:
    """A part of a Buffer, or one that repeats itself; strides in elements."""

    def __init__(self, whole: Any, shape: Sequence[int], strides: Sequence[int],
                 offset: int) -> None:
        self.whole, self.shape = whole, tuple(shape)
        self.strides, self.offset = tuple(strides), offset

    def __getattr__(self, name: str) -> dict[str, Any]:
        """The array interface that the Buffer has."""
        if name not in ("__array_interface__", "__cuda_array_interface__"):
            raise AttributeError(f"View has no {name}")
        about = dict(getattr(self.whole, name))
        size = int(about["typestr"][2:])
        address, locked = about["data"]
        return dict(about, shape=self.shape, strides=tuple(size * n for n in self.strides),
                    data=(address + size * self.offset, locked))


def view(whole: Any, shape: Sequence[int], strides: Sequence[int], offset: int = 0) -> Any:
    """Elements of a contiguous array of NumPy's or the GPU's, without a copy."""
    if not isinstance(whole, np.ndarray):
        return View(whole, shape, strides, offset)
    flat = whole.reshape(-1)[offset:]
    return np.lib.stride_tricks.as_strided(flat, shape, [whole.itemsize * n for n in strides])


def like(whole: Any, *shape: int, offset: int = 0) -> Any:
    """The elements from `offset` on in another shape."""
    strides = [int(np.prod(shape[i + 1:])) for i in range(len(shape))]
    return view(whole, shape, strides, offset)
