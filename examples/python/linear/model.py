# SPDX-License-Identifier: Apache-2.0
"""A small language model of any method: its weights, its layers, its states, and Adam.

Each layer adds the method's mixing of tokens, then a gated network of each token.  Both begin with
an RMS norm.  A state is all that a model keeps of a text: its size does not depend on the
length."""
from __future__ import annotations

import dataclasses
import math
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from linear import tape
from linear.engine import Engine, States
from linear.tape import Floats, Ints, Var

if TYPE_CHECKING:
    from linear.methods import Method


@dataclasses.dataclass(frozen=True)
class Shape:
    vocabulary: int = 256
    layers: int = 4
    width: int = 128
    head_count: int = 4
    hidden: int = 256
    taps: int = 0  # of a convolution before each layer, for methods with none of their own


class State:
    """Of one text: the states of each layer, and how many tokens they hold."""

    def __init__(self, layers: int) -> None:
        self.layers: list[States] = [{} for _ in range(layers)]
        self.tokens = 0

    def bytes(self) -> int:
        found: int = sum(math.prod(x.shape) for kept in self.layers for x in kept.values())
        return 4 * found


class Model:
    def __init__(self, method: Method, shape: Shape, engine: Engine, seed: int = 0) -> None:
        self.method, self.shape, self.engine, self.seed = method, shape, engine, seed
        self.weights: dict[str, Var] = {}
        self.trained = True
        self.forward(np.zeros((1, 1), np.int64))  # makes the weights

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

    def forward(self, tokens: Ints, state: State | None = None) -> Var:
        """Logits (b, s, vocabulary).  With a state, of one text that goes on."""
        shape = self.shape
        x = tape.rows(self.weight("embedding", (shape.vocabulary, shape.width), None), tokens)
        x = x * shape.width**0.5 * 0.5
        for i in range(shape.layers):
            m = Layer(self, i, state)
            inside = m.norm_width("mix", x)
            if shape.taps:
                inside = inside + m.conv("before", inside, shape.taps)
            x = x + self.method.mix(m, inside)
            inside = m.norm_width("each", x)
            gate = tape.silu(m.linear("each_gate", inside, shape.hidden))
            x = x + m.linear("each_down", gate * m.linear("each_up", inside, shape.hidden),
                             shape.width)
        last = Layer(self, shape.layers, state)
        if state is not None:
            state.tokens += tokens.shape[1]
        return last.linear("head", last.norm_width("last", x), shape.vocabulary)

    def count(self) -> int:
        return sum(w.value.size for w in self.weights.values())


class Layer:
    """What a method sees of its layer."""

    def __init__(self, model: Model, index: int, state: State | None) -> None:
        self.model, self.index, self.layers = model, index, model.shape.layers
        self.head_count = model.shape.head_count
        self.width = model.shape.width // self.head_count  # of a head
        self.inner = model.shape.width
        self.states = state.layers[index] if state and index < self.layers else None
        self.first = state.tokens if state else 0
        self.by_row = state is not None

    def weight(self, name: str, shape: tuple[int, ...], start: Floats | float | None = None,
               size: float = 1.0) -> Var:
        return self.model.weight(f"{self.index} {name}", shape, start, size)

    def linear(self, name: str, x: Var, n: int, bias: Floats | float | None = None,
               size: float = 1.0) -> Var:
        y = tape.linear(x, self.weight(name, (x.shape[-1], n), size=size), self.by_row)
        return y if bias is None else y + self.weight(f"{name} bias", (n,), bias)

    def heads(self, name: str, x: Var, bias: Floats | float | None = None,
              size: float = 1.0) -> Var:
        """bias: one number, one a head, or one a channel."""
        y = self.split(self.linear(name, x, self.inner, size=size))
        if bias is None:
            return y
        start = np.asarray(bias, np.float32)
        if start.ndim < 2:
            start = start.reshape(-1, 1)
        return y + self.weight(f"{name} bias", (self.head_count, self.width), start)

    def open_gate(self, x: Var) -> Var:
        """A gate for silu.  Around 0 it would pass little, of either sign."""
        return self.heads("gate", x, bias=1.0)

    def split(self, x: Var, heads: int = 0) -> Var:
        return x.reshape(*x.shape[:2], heads or self.head_count, -1)

    def out(self, o: Var) -> Var:
        return self.linear("o", o.reshape(*o.shape[:2], -1), self.inner)

    def constant(self, gate: Any, x: Var) -> Var:
        """A gate of each head, (b, s, heads) with strides of 0."""
        return Var(np.broadcast_to(gate.astype(np.float32), (*x.shape[:2], self.head_count)))

    def steps(self) -> Floats:
        """Biases of step sizes between 0.001 and 0.1: their inverse softplus, by head."""
        steps = np.geomspace(0.001, 0.1, self.head_count)
        return np.log(np.expm1(steps)).astype(np.float32)

    def rates(self) -> Var:
        return self.weight("gate_rate", (self.head_count,), 0.0)

    def rope(self, x: Var) -> Var:
        half = self.width // 2
        at = np.arange(self.first, self.first + x.shape[1])[:, None, None]
        angle = at * 10000.0 ** (-np.arange(half) / half)
        cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        low, high = x[..., :half], x[..., half:]
        return tape.concat([low * cos - high * sin, high * cos + low * sin])

    def conv(self, name: str, x: Var, taps: int = 4, activation: str = "silu") -> Var:
        weight = self.weight(f"{name} taps", (x.shape[-1], taps), 1 / taps)
        return self.model.engine.conv(name, self.states, {"x": x, "weight": weight},
                                      activation=activation)

    def shift(self, name: str, x: Var) -> Var:
        """A mean of each token and the one before it, learned by channel: two taps."""
        weight = self.weight(f"{name} shift", (x.shape[-1], 2), 0.5)
        return self.model.engine.conv(f"{name} shift", self.states, {"x": x, "weight": weight})

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

    def unit(self, x: Var) -> Var:
        """Divided by its norm."""
        return self.model.engine.norm({"x": x}, norm="l2", eps=1e-6)

    def gla(self, q: Var, k: Var, v: Var, name: str = "gla", **fields: Any) -> Var:
        inputs, numbers = sorted_fields(q, k, v, fields)
        return self.model.engine.gla(name, self.states, inputs, **numbers)

    def delta(self, q: Var, k: Var, v: Var, **fields: Any) -> Var:
        inputs, numbers = sorted_fields(q, k, v, fields)
        return self.model.engine.delta("delta", self.states, inputs, **numbers)

    def gsa(self, q: Var, k: Var, v: Var, **fields: Any) -> Var:
        inputs, numbers = sorted_fields(q, k, v, fields)
        return self.model.engine.gsa("gsa", self.states, inputs, **numbers)


def sorted_fields(q: Var, k: Var, v: Var,
                  fields: dict[str, Any]) -> tuple[dict[str, Var], dict[str, Any]]:
    tensors = {name: x for name, x in fields.items() if isinstance(x, Var)}
    numbers = {name: x for name, x in fields.items() if name not in tensors}
    return {"q": q, "k": k, "v": v, **tensors}, numbers


class Adam:
    def __init__(self, model: Model, rate: float, steps: int, warmup: int) -> None:
        self.model, self.rate, self.steps, self.warmup = model, rate, steps, warmup
        self.mean, self.square = ({name: np.zeros_like(w.value)
                                   for name, w in model.weights.items()} for _ in range(2))
        self.step = 0

    def learn(self) -> None:
        """From the gradients of the weights, whose norm is held to 1; the rate falls to 0."""
        weights = self.model.weights
        norm = math.sqrt(sum(float((w.grad**2).sum()) for w in weights.values()
                             if w.grad is not None))
        clip = np.float32(min(1, 1 / (norm + 1e-6)))
        rate = self.rate * min(1, (self.step + 1) / self.warmup)
        rate *= 0.5 + 0.5 * math.cos(math.pi * self.step / self.steps)
        self.step += 1
        for name, w in weights.items():
            if w.grad is None:
                continue
            m, v, dw = self.mean[name], self.square[name], w.grad * clip
            m += np.float32(0.1) * (dw - m)
            v += np.float32(0.02) * (dw * dw - v)
            w.value -= np.float32(rate / (1 - 0.9**self.step)) * m / (
                np.sqrt(v / np.float32(1 - 0.98**self.step)) + np.float32(1e-8))
            w.grad = None


def train_step(model: Model, adam: Adam, tokens: Ints, target: Ints) -> float:
    loss = tape.cross_entropy(model.forward(tokens), target)
    loss.backward()
    adam.learn()
    return float(loss.value)

