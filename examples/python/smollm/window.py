# SPDX-License-Identifier: Apache-2.0
"""Layers of constant size: the last 64 keys exactly, all older ones through learned features.

Row t of such a layer reads two sets of keys under one denominator:

    window   keys t - 63 .. t     of weight exp(q k' / sqrt(d))
    older    keys 0 .. t - 64     of weight phi(q) phi(k)',  phi(x) = exp([x W, -x W] + b)

    attention_forward  the window: (o, lse)
    x_gla_forward      q = phi(q), k and v = phi(k) and (v, 1) of 64 tokens ago: sums (y, n)
    merge_forward      (o, lse) and (y / n, ln n)

The column of ones makes the denominator.  phi reads queries and keys before rope, so that it does
not depend on distance.  W and b learn through merge_backward and x_gla_backward."""
from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import fovea
import numpy as np
from linear import engine
from training import tape
from training.tape import Var

from smollm.model import Config, Floats
from smollm.paged import PagedAttention

WINDOW = 64  # keys that are read exactly
START = -4.0  # b before training: older keys begin with next to no weight
LEAST = 1e-30  # the denominator without older keys: the merge gives it no weight


class Features:
    """phi of a layer's queries (h heads) and keys (g heads)."""

    def __init__(self, config: Config, width: int, seed: int = 0) -> None:
        random, d = np.random.default_rng(seed), config.head_dim
        self.weights: dict[str, Var] = {}
        for name, heads in (("q", config.heads), ("k", config.key_heads)):
            w = random.standard_normal((heads, d, width // 2), np.float32) * np.float32(d**-0.75)
            self.weights[f"{name} w"] = Var(w, trained=True)
            b = np.full((heads, width), START, np.float32)
            self.weights[f"{name} b"] = Var(b, trained=True)

    def __call__(self, name: str, x: Floats) -> Var:
        """(b, s, heads, width) of x (b, s, heads, d); name: q or k."""
        y = by_head(x, self.weights[f"{name} w"])
        return tape.exp(tape.concat([y, y * -1.0]) + self.weights[f"{name} b"])


def by_head(x: Floats, w: Var) -> Var:
    """Each head of x (b, s, heads, d) times its w (d, m)."""
    flat = x.reshape(-1, *x.shape[2:]).swapaxes(0, 1)  # heads first

    def back(dy: Floats) -> None:
        w.take(flat.swapaxes(1, 2) @ dy.reshape(-1, *dy.shape[2:]).swapaxes(0, 1))
    y = np.ascontiguousarray((flat @ w.value).swapaxes(0, 1))
    return Var(y.reshape(*x.shape[:3], -1), (w,), back)


def read_window(ours: engine.Fovea, q: Floats, k: Floats, v: Floats) -> tuple[Floats, Floats]:
    """(o, lse) of queries, which are the last of the keys' tokens, over 64 keys each."""
    o, lse = fovea.attention_forward(ours.ctx, q=ours.there(q), k=ours.there(k), v=ours.there(v),
                                     lse=True, causal=1, window_left=WINDOW)
    return ours.here(o), ours.here(lse)


def read_older(ours: engine.Fovea, q: Var, k: Var, v: Floats,
               states: engine.States | None = None) -> Var:
    """Sums (y, n) of features; k and v are those of 64 tokens ago."""
    ones = np.concatenate([v, np.ones((*v.shape[:3], 1), np.float32)], axis=3)
    return ours.gla("older", states, {"q": q, "k": k, "v": Var(ones)}, scale=1.0)


def merge(ours: engine.Fovea, o: Floats, lse: Floats, sums: Var) -> Var:
    """The window's (o, lse) and the sums (y, n) of older keys as one softmax."""
    d = o.shape[-1]
    n = sums[..., d:] + LEAST
    older, weight = sums[..., :d] * n**-1.0, tape.log(n)
    parts = [ours.there(np.stack([o, older.value])),
             ours.there(np.stack([lse, weight.value[..., 0].swapaxes(1, 2)]))]
    whole, total = fovea.merge_forward(ours.ctx, *parts, o=ours.empty(o.shape), lse=True)

    def back(dy: Floats) -> None:
        do, dlse = fovea.merge_backward(ours.ctx, parts[0], parts[1], whole, total, ours.there(dy))
        older.take(ours.here(do)[1])
        weight.take(ours.here(dlse)[1].swapaxes(1, 2)[..., None])
    return Var(ours.here(whole), (older, weight), back)


@dataclass
class Tail:
    """The last 64 tokens of a layer, and the sums of all before them."""

    k: Floats  # (1, 64, g, d) after rope; rows of tokens that never were are not read
    v: Floats
    features: Floats  # (1, 64, g, width); 0 where no token was
    states: engine.States

    def bytes(self, older: bool) -> int:
        kept = (self.k, self.v, *((self.features, *self.states.values()) if older else ()))
        return sum(int(x.nbytes) for x in kept)


class WindowAttention(PagedAttention):
    """The attention of the example; layers of `features` have no cache, but a tail.  older=False:
    they read the window alone."""

    def __init__(self, config: Config, capacity: int, ctx: fovea.Context,
                 features: Mapping[int, Features], older: bool = True, dtype: str = "f32") -> None:
        self.features, self.older, self.config = features, older, config
        self.ours = engine.Fovea(ctx)
        super().__init__(config, capacity, ctx, dtype)
        for layer in features:  # no pages
            self.k[layer] = self.v[layer] = ctx.empty((0,), dtype)

    def reset(self) -> None:
        super().reset()
        self.tails = dict[int, Tail]()
        c = self.config
        for layer, phi in self.features.items():
            width = phi.weights["k b"].shape[1]
            k, v, f = (np.zeros((1, WINDOW, c.key_heads, n), np.float32)
                       for n in (c.head_dim, c.head_dim, width))
            self.tails[layer] = Tail(k, v, f, {})

    def rewind(self, length: int) -> None:
        if length == 0:
            self.reset()
        elif length != self.length:
            raise ValueError("a layer of constant size forgets all tokens or none")

    def bytes(self) -> int:
        """What the layers of constant size keep of the text."""
        return sum(tail.bytes(self.older) for tail in self.tails.values())

    def attend(self, layer: int, q: Floats, k: Floats, v: Floats) -> Floats:
        if layer not in self.features:
            return super().attend(layer, q, k, v)
        started = time.perf_counter()
        tail, phi, n = self.tails[layer], self.features[layer], len(q)
        turned = [np.asarray(self.here(self.turn(x)), np.float32) for x in (q, k)]
        keys = np.concatenate([tail.k, turned[1]], axis=1)
        values = np.concatenate([tail.v, v[None]], axis=1)
        features = np.concatenate([tail.features, phi("k", k[None]).value], axis=1)
        there = min(WINDOW + n, self.length)  # tokens that were
        o, lse = read_window(self.ours, turned[0], keys[:, -there:], values[:, -there:])
        if self.older:
            sums = read_older(self.ours, Var(phi("q", q[None]).value), Var(features[:, :n]),
                              values[:, :n], tail.states)
            o = merge(self.ours, o, lse, sums).value
        tail.k, tail.v, tail.features = (x[:, -WINDOW:].copy() for x in (keys, values, features))
        self.kernels[self.ctx.last_kernel] = None
        self.seconds += time.perf_counter() - started
        out: Floats = o[0]
        return out
