# SPDX-License-Identifier: Apache-2.0
"""The indexer of a layer, how it learns, and the paged cache that DSA reads by it."""
from __future__ import annotations

import argparse
import dataclasses
import math
import pathlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import fovea
import fovea.experimental
import matplotlib
import numpy as np
from numpy.typing import NDArray

import training.table
from compact.latents import principal
from distill import Recorder
from smollm.model import Config, Floats, Model
from smollm.paged import PagedAttention, There
from smollm.terminal import say
from smollm.transfer import loss_of
from training import tape
from training.adam import Adam
from training.calls import Calls
from training.tape import Var

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

Args = argparse.Namespace
SINKS = 4  # first keys that the window keeps


@dataclasses.dataclass(frozen=True)
class Row:
    reads: str  # "dense", "dsa", or "window": the first 4 and the last keys
    count: int  # keys of a row; of dense, those of the last one
    loss: float  # nats a token
    perplexity: float
    held: float  # share of dense attention's probability on the keys that are read


HEADS = {"count": "keys of a row", "loss": "nats a token", "held": "attention that they hold"}
FORMS = {"loss": "{:.4f}", "perplexity": "{:.2f}", "held": "{:.1%}"}


class Seen(NamedTuple):
    """A layer's turned q (s, h d) and k (s, g d) of a text, in f16."""

    q: NDArray[np.float16]
    k: NDArray[np.float16]


class Indexer:
    """Of a layer.  basis: orthogonal columns, into which keys (g d) are narrowed.  It begins as
    the model's own relu(q k') between them, 0.15 of the sum over all heads."""

    def __init__(self, config: Config, basis: Floats) -> None:
        h, g, d = config.heads, config.key_heads, config.head_dim
        self.heads, self.width = h, basis.shape[1]
        a = np.zeros((h, d, h, self.width), np.float32)
        for head in range(h):  # q of a head reads its key head's part
            key_head = head // (h // g)
            a[head, :, head] = basis[key_head * d:(key_head + 1) * d] / np.float32(d**0.5)
        values = dict(a=a.reshape(h * d, -1), b=basis, w=np.zeros((h * d, h)),
                      bias=np.full(h, 0.15))
        self.weights = {name: Var(np.array(value, np.float32), trained=True)
                        for name, value in values.items()}

    def queries(self, q: Var) -> tuple[Var, Var]:
        """Queries (1, s, heads, width) and weights (1, s, heads) of q (1, s, h d)."""
        index_q = tape.linear(q, self.weights["a"]).reshape(1, q.shape[1], self.heads, self.width)
        return index_q, tape.linear(q, self.weights["w"]) + self.weights["bias"]

    def keys(self, k: Var) -> Var:
        return tape.linear(k, self.weights["b"]).reshape(1, k.shape[1], 1, self.width)


def divergence(calls: Calls, config: Config, indexer: Indexer, q: Floats, k: Floats) -> Var:
    """Mean KL of rows q, the last of the text that has keys k: x_kl_indexer."""
    (index_q, weight), index_k = indexer.queries(Var(q[None])), indexer.keys(Var(k[None]))
    d = config.head_dim
    given = {name: calls.there(x) for name, x in dict(
        q_teacher=q.reshape(1, len(q), -1, d), k_teacher=k.reshape(1, len(k), -1, d),
        q_student=index_q.value, k_student=index_k.value, weight=weight.value).items()}
    kl, lse_teacher, lse_student = fovea.experimental.kl_indexer_forward(
        calls.ctx, **given, kl=True, lse_teacher=True, lse_student=True, causal=1)

    def back(dy: Floats) -> None:
        made = fovea.experimental.kl_indexer_backward(
            calls.ctx, **given, lse_teacher=lse_teacher, lse_student=lse_student, causal=1,
            dkl=calls.there(np.full((1, len(q)), dy / len(q), np.float32)))
        for x, dx in zip((index_q, index_k, weight), made):
            x.take(calls.here(dx))
    return Var(calls.here(kl).mean(), (index_q, index_k, weight), back)


def record(llm: Model, known: Sequence[Sequence[int]], ctx: fovea.Context) -> list[list[Seen]]:
    """By layer and text."""
    seen: list[list[Seen]] = [[] for _ in llm.layers]
    for i, tokens in enumerate(known):
        say(f"the model reads text {i + 1} of {len(known)}, {len(tokens)} tokens")
        attention = Recorder(range(len(llm.layers)), llm.config, len(tokens), ctx)
        llm.forward(tokens, attention)
        for kept, *heads in zip(seen, attention.queries, attention.keys):
            kept.append(Seen(*(x.swapaxes(0, 1).reshape(len(tokens), -1).astype(np.float16)
                               for x in heads)))
    return seen


def learn(llm: Model, known: Sequence[Sequence[int]], ctx: fovea.Context,
          args: Args) -> tuple[list[Indexer], float, float]:
    """An indexer for each layer, and the mean KL of the first and of the last steps."""
    made, first, last = list[Indexer](), list[float](), list[float]()
    calls = Calls(ctx)
    for layer, seen in enumerate(record(llm, known, ctx)):
        squares = sum(k.T @ k for k in (text.k.astype(np.float64) for text in seen))
        indexer = Indexer(llm.config, principal(np.asarray(squares))[:, :args.width])
        adam = Adam(indexer.weights, args.rate, args.steps, warmup=5, most=1.0)
        random, losses = np.random.default_rng(layer + args.seed), list[float]()
        for step in range(args.steps):
            text = seen[random.integers(len(seen))]
            end = random.integers(args.rows, len(text.q) + 1)
            q, k = (x[rows].astype(np.float32) for x, rows in (
                (text.q, slice(end - args.rows, end)), (text.k, slice(end))))
            loss = divergence(calls, llm.config, indexer, q, k)
            loss.backward()
            adam.learn()
            losses.append(float(loss.value))
            say(f"layer {layer}: step {step + 1} of {args.steps}, KL {losses[-1]:.3f}")
        made.append(indexer)
        first.append(losses[0])
        last.append(float(np.mean(losses[-10:])))
    return made, float(np.mean(first)), float(np.mean(last))


class IndexedAttention(PagedAttention):
    """The attention of the SmolLM2 example, with a pool of the indexer's keys beside k and v.
    reads: what new rows read, "dense", or `count` keys by "dsa" or "window"."""

    def __init__(self, config: Config, capacity: int, ctx: fovea.Context,
                 learned: Sequence[Indexer]) -> None:
        super().__init__(config, capacity, ctx)
        self.learned, self.dsa = learned, fovea.recipe("dsa")
        self.index = [ctx.empty((self.table.size, self.page, 1, indexer.width), "f32")
                      for indexer in learned]
        self.choose("dense", capacity)

    def choose(self, reads: str, count: int) -> None:
        self.reads, self.count = reads, count
        self.shares = list[float]()  # of the attention that is read, by layer and call

    def read(self, layer: int, turned: There, q: Floats, k: Floats, v: Floats) -> There:
        indexer, pages = self.learned[layer], dict(page_table=self.page_table)
        keys = indexer.keys(self.flat(self.turn(k))).value
        self.run(fovea.cache_append, k_new=self.there(keys), k=self.index[layer],
                 key_len=self.len_before, **pages)
        seen = dict(self.cache(layer), q=turned, key_len=self.len_after, key_max=self.length)
        if self.reads == "dense":
            o: There = self.run(fovea.attention_forward, causal=1, **seen)
            return o
        if self.reads == "window":
            found, lse = self.run(fovea.attention_forward, causal=1, lse=True, sink_keys=SINKS,
                                  window_left=self.count - SINKS, **seen)
        else:
            index_q, weight = indexer.queries(self.flat(turned))
            found, lse = self.run(
                self.dsa, index_q=self.there(index_q.value), index_k=self.index[layer],
                weight=self.there(weight.value), count=self.count, lse=True, **seen)
        whole = self.run(fovea.attention_forward, causal=1, lse=True, **seen)[1]
        self.shares.append(float(np.exp(self.here(lse) - self.here(whole)).mean()))
        o = found
        return o

    def flat(self, x: There) -> Var:
        rows = self.here(x)
        return Var(rows.reshape(1, rows.shape[1], -1))


def texts(tokens: Sequence[int], args: Args) -> tuple[list[Sequence[int]], Sequence[int]]:
    """What is learned from, and the text of the last tenth that judges.  All are of one length: at
    places that it has not learned, an indexer finds little."""
    cut, n = len(tokens) * 9 // 10, args.length
    if len(tokens) - cut < n:
        raise SystemExit(f"indexer: the last tenth of the text has {len(tokens) - cut} tokens, "
                         f"wanted {n}: lower --length or give a longer --text")
    return [tokens[first:first + n] for first in
            np.linspace(0, cut - n, args.windows).astype(int)], tokens[cut:cut + n]


def judge(llm: Model, learned: Sequence[Indexer], held: Sequence[int], ctx: fovea.Context,
          args: Args) -> Iterator[Row]:
    """The prompt is read once, by dense attention; all rows share it."""
    attention, first = IndexedAttention(llm.config, len(held), ctx, learned), (
        len(held) - args.judged - 1)
    say(f"the model reads {first} tokens")
    llm.forward(held[:first], attention)
    for reads, count in (("dense", len(held)), *((reads, count) for reads in ("dsa", "window")
                                                 for count in sorted(args.counts))):
        say(f"{reads}, {count} keys")
        attention.choose(reads, count)
        loss = loss_of(llm, attention, held, first)
        yield Row(reads, count, loss, math.exp(loss),
                  float(np.mean(attention.shares)) if attention.shares else 1.0)


def write_md(rows: Sequence[Row], about: str, path: pathlib.Path) -> None:
    training.table.write_md(rows, about, path, HEADS, FORMS)


def draw(rows: Sequence[Row], path: pathlib.Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), constrained_layout=True)
    for name, color in (("dsa", "#1b7f79"), ("window", "#c2703d")):
        mine = [row for row in rows if row.reads == name]
        for axes, points in ((left, [row.perplexity for row in mine]),
                             (right, [row.held for row in mine])):
            axes.plot([row.count for row in mine], points, "o-", color=color, markersize=4,
                      linewidth=1, label=name)
    left.axhline(rows[0].perplexity, color="#9aa5b1", linestyle=":", label="dense")
    left.set(title=f"perplexity behind {rows[0].count} tokens", ylim=(0, None))
    right.set(title="dense attention's probability on the keys that are read", ylim=(0, 1.02))
    right.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1))
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set(xlabel="keys that a row reads")
        axes.set_xticks(sorted({row.count for row in rows[1:]}))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.grid(color="#dddddd", linewidth=0.5)
    left.legend(fontsize=8)
    figure.savefig(path, dpi=110, format="png")
    plt.close(figure)
