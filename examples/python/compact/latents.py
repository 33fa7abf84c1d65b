# SPDX-License-Identifier: Apache-2.0
"""A paged cache of latents for SmolLM2, the bases that make them, and how they are judged."""
from __future__ import annotations

import argparse
import dataclasses
import math
import pathlib
import time
from collections.abc import Sequence
from typing import Any

import fovea
import fovea.experimental
import matplotlib
import numpy as np
from numpy.typing import NDArray

import training.table
from smollm.model import Config, Floats, Model
from smollm.paged import PagedAttention
from smollm.terminal import say
from smollm.transfer import loss_of

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

Bases = Sequence[Floats]  # of each layer, (2 g d, 2 g d): the first r columns are U


@dataclasses.dataclass(frozen=True)
class Row:
    basis: str  # "dense": the cache of the model
    rank: int
    cache_bytes: int  # a token, in all layers
    loss: float  # nats a token
    perplexity: float


HEADS = {"cache_bytes": "cache, bytes a token", "loss": "nats a token"}
FORMS = {"loss": "{:.4f}", "perplexity": "{:.2f}"}


class LatentAttention(PagedAttention):
    """The attention of the SmolLM2 example over pages of latents.

    All keys and values of a text are made again from latents in each step: memory for time."""

    def __init__(self, config: Config, capacity: int, ctx: fovea.Context, bases: Bases,
                 rank: int) -> None:
        super().__init__(config, capacity, ctx)
        pool = (self.table.size, self.page, 1, rank)
        self.k, self.v = [ctx.empty(pool, "f32") for _ in bases], []
        g, d = config.key_heads, config.head_dim
        self.down = [np.ascontiguousarray(basis[:, :rank]) for basis in bases]
        self.up = [np.ascontiguousarray(down.reshape(2, g, d, rank).swapaxes(2, 3))
                   for down in self.down]  # of keys and of values, (g, rank, d)

    def attend(self, layer: int, q: Floats, k: Floats, v: Floats) -> Floats:
        started = time.perf_counter()
        latent = joined(k, v) @ self.down[layer]
        pages = dict(k=self.k[layer], page_table=self.page_table)
        self.run(fovea.cache_append, k_new=self.there(latent[None, :, None]),
                 key_len=self.len_before, **pages)
        whole = self.empty(self.length, 1, latent.shape[1])
        self.run(fovea.cache_get, key_len=self.len_after, k_out=whole, **pages)
        keys, values = (self.empty(self.length, *k.shape[1:]) for _ in range(2))
        project, (up_k, up_v) = fovea.experimental.project_forward, self.up[layer]
        self.run(project, x=whole, weight=self.there(up_k), y=keys, **self.rope)
        self.run(project, x=whole, weight=self.there(up_v), y=values)
        o = self.run(fovea.attention_forward, q=self.turn(q), k=keys, v=values, causal=1)
        self.seconds += time.perf_counter() - started
        out: Floats = self.here(o)[0]
        return out

    def empty(self, *shape: int) -> Any:
        return self.ctx.empty((1, *shape), "f32")


def joined(k: Floats, v: Floats) -> Floats:
    """z of tokens: (n, 2 g d)."""
    return np.concatenate([x.reshape(len(x), -1) for x in (k, v)], axis=1)


class Moments(PagedAttention):
    """Sums z z' of each layer over the tokens that are read."""

    def __init__(self, config: Config, capacity: int, ctx: fovea.Context) -> None:
        super().__init__(config, capacity, ctx)
        n = 2 * config.key_heads * config.head_dim
        self.sums: list[NDArray[np.float64]] = [np.zeros((n, n)) for _ in range(config.layers)]

    def attend(self, layer: int, q: Floats, k: Floats, v: Floats) -> Floats:
        z = joined(k, v).astype(np.float64)
        self.sums[layer] += z.T @ z
        return super().attend(layer, q, k, v)


def of_weights(llm: Model) -> Bases:
    """Singular vectors.  The norm's weight before Wk and Wv is a part of them."""
    first = llm.config.heads * llm.config.head_dim
    rows = [(layer.qkv[first:] * layer.attention_norm).astype(np.float64) for layer in llm.layers]
    return [principal(w @ w.T) for w in rows]


def of_text(llm: Model, known: Sequence[Sequence[int]], ctx: fovea.Context) -> Bases:
    moments = Moments(llm.config, max(map(len, known)), ctx)
    for i, tokens in enumerate(known):
        say(f"the model reads text {i + 1} of {len(known)}")
        moments.reset()
        llm.forward(tokens, moments)
    return [principal(sums) for sums in moments.sums]


def principal(squares: NDArray[np.float64]) -> Floats:
    """Eigenvectors of a symmetric matrix, those of the largest values first."""
    return np.linalg.eigh(squares)[1][:, ::-1].astype(np.float32)


def texts(tokens: Sequence[int], args: argparse.Namespace) -> tuple[
        list[Sequence[int]], list[Sequence[int]]]:
    """Tokens that may be known, and those of the last tenth, which judge."""
    cut, n = len(tokens) * 9 // 10, args.held_tokens
    if len(tokens) - cut < n:
        raise SystemExit(f"latent: the last tenth of the text has {len(tokens) - cut} tokens, "
                         f"wanted {n}: lower --held-tokens or give a longer --text")
    known = [tokens[first:first + n] for first in np.linspace(0, cut - n, args.windows).astype(int)]
    held = [tokens[first:first + n] for first in
            np.linspace(cut, len(tokens) - n, args.held_out).astype(int)]
    return known, held


def measured(llm: Model, attention: PagedAttention, held: Sequence[Sequence[int]], basis: str,
             rank: int) -> Row:
    pools = (*attention.k, *attention.v)
    tokens = attention.table.size * attention.page
    loss = sum(loss_of(llm, attention, text) for text in held) / len(held)
    return Row(basis, rank, sum(4 * math.prod(pool.shape) for pool in pools) // tokens, loss,
               math.exp(loss))


def dense(llm: Model, held: Sequence[Sequence[int]], ctx: fovea.Context) -> Row:
    c = llm.config
    attention = PagedAttention(c, max(map(len, held)), ctx)
    return measured(llm, attention, held, "dense", 2 * c.key_heads * c.head_dim)


def judge(llm: Model, name: str, bases: Bases, rank: int, held: Sequence[Sequence[int]],
          ctx: fovea.Context) -> Row:
    attention = LatentAttention(llm.config, max(map(len, held)), ctx, bases, rank)
    return measured(llm, attention, held, name, rank)


def write_md(rows: Sequence[Row], about: str, path: pathlib.Path) -> None:
    training.table.write_md(rows, about, path, HEADS, FORMS)


def draw(rows: Sequence[Row], path: pathlib.Path) -> None:
    figure, axes = plt.subplots(figsize=(6.4, 4), constrained_layout=True)
    for name, color in (("weights", "#c2703d"), ("text", "#1b7f79")):
        mine = [row for row in rows if row.basis == name]
        axes.plot([row.rank for row in mine], [row.perplexity for row in mine], "o-", color=color,
                  markersize=4, linewidth=1, label=f"U of the {name}")
    axes.axhline(rows[0].perplexity, color="#9aa5b1", linestyle=":", label="the model")
    axes.set(title="perplexity of SmolLM2-135M over a cache of latents", yscale="log",
             xlabel="rank: numbers of a token in a layer's cache")
    axes.set_xticks(sorted({row.rank for row in rows}))
    low, high = (fit(row.perplexity for row in rows) for fit in (min, max))
    axes.set_yticks([y for y in (5, 7, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
                     if low / 1.5 < y < 1.5 * high])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    axes.grid(color="#dddddd", linewidth=0.5)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=110, format="png")
    plt.close(figure)
