# SPDX-License-Identifier: Apache-2.0
"""A small language model of bytes: its weights and its layers; how tokens are mixed is left open.

    x = embedding[token]
    for each layer:
        x += mix(norm(x))
        x += (silu(norm(x) Wgate) * norm(x) Wup) Wdown
    logits = norm(x) Whead"""
from __future__ import annotations

import dataclasses
import pathlib
import zlib
from typing import Any, Protocol

import numpy as np

from training import tape
from training.adam import Adam
from training.tape import Floats, Ints, Var


class Norms(Protocol):
    """What a model asks of its engine."""

    def norm(self, inputs: dict[str, Var], **numbers: Any) -> Var:
        """x_norm_gate."""


@dataclasses.dataclass(frozen=True)
class Shape:
    vocabulary: int = 256
    layers: int = 4
    width: int = 128
    head_count: int = 4
    hidden: int = 256


class Model:
    def __init__(self, shape: Shape, engine: Norms, seed: int = 0) -> None:
        self.shape, self.engine, self.seed = shape, engine, seed
        self.weights: dict[str, Var] = {}
        self.trained = True
        self.forward(np.zeros((1, 1), np.int64))  # makes the weights

    def mix(self, index: int, x: Var, state: Any) -> Var:
        """What layer `index` adds, from its normed input (b, s, width)."""
        raise NotImplementedError

    def weight(self, name: str, shape: tuple[int, ...], start: Floats | float | None,
               size: float = 1.0) -> Var:
        """start: what it begins as; None: noise that makes a row `size` times as large."""
        if name not in self.weights:
            if start is None:
                random = np.random.default_rng([self.seed, zlib.crc32(name.encode())])
                value = random.standard_normal(shape, np.float32) * (size * shape[0] ** -0.5)
            else:
                value = np.broadcast_to(np.float32(start), shape).copy()
            self.weights[name] = Var(value, trained=True)
        found = self.weights[name]
        return found if self.trained else Var(found.value)

    def forward(self, tokens: Ints, state: Any = None, by_row: bool = False) -> Var:
        """Logits (b, s, vocabulary).  With a state, of texts that go on.  by_row: linear maps have
        a product for each row."""
        shape = self.shape
        x = tape.rows(self.weight("embedding", (shape.vocabulary, shape.width), None), tokens)
        x = x * shape.width**0.5 * 0.5
        for i in range(shape.layers):
            m = Layer(self, i, by_row)
            x = x + self.mix(i, m.norm_width("mix", x), state)
            inside = m.norm_width("each", x)
            gate = tape.silu(m.linear("each_gate", inside, shape.hidden))
            x = x + m.linear("each_down", gate * m.linear("each_up", inside, shape.hidden),
                             shape.width)
        last = Layer(self, shape.layers, by_row)
        return last.linear("head", last.norm_width("last", x), shape.vocabulary)

    def count(self) -> int:
        return sum(w.value.size for w in self.weights.values())

    def save(self, path: pathlib.Path, **more: Any) -> None:
        """Each weight by its name, as `0 q` of layer 0."""
        with open(path, "wb") as file:  # savez would add .npz to the name
            np.savez(file, allow_pickle=False, **more,
                     **{name: w.value for name, w in self.weights.items()})


class Layer:
    def __init__(self, model: Model, index: int, by_row: bool = False) -> None:
        self.model, self.index, self.layers = model, index, model.shape.layers
        self.by_row = by_row

    def weight(self, name: str, shape: tuple[int, ...], start: Floats | float | None = None,
               size: float = 1.0) -> Var:
        return self.model.weight(f"{self.index} {name}", shape, start, size)

    def linear(self, name: str, x: Var, n: int, bias: Floats | float | None = None,
               size: float = 1.0) -> Var:
        y = tape.linear(x, self.weight(name, (x.shape[-1], n), size=size), self.by_row)
        return y if bias is None else y + self.weight(f"{name} bias", (n,), bias)

    def norm(self, name: str, o: Var, kind: str = "rms", gate: Var | None = None,
             bias: bool = False, **numbers: Any) -> Var:
        inputs = {"x": o, "weight": self.weight(f"{name} norm", o.shape[2:], 1.0)}
        if bias:
            inputs["bias"] = self.weight(f"{name} norm bias", o.shape[2:], 0.0)
        if gate is not None:
            inputs["gate"] = gate
        return self.model.engine.norm(inputs, norm=kind, **numbers)

    def norm_width(self, name: str, x: Var) -> Var:
        return self.norm(name, x.reshape(*x.shape[:2], 1, -1)).reshape(*x.shape)


def train_step(model: Model, adam: Adam, tokens: Ints, target: Ints) -> float:
    loss = tape.cross_entropy(model.forward(tokens), target)
    loss.backward()
    adam.learn()
    return float(loss.value)
