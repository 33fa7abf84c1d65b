# SPDX-License-Identifier: Apache-2.0
"""A small language model of any method: its layers and its states.

Each layer adds the method's mixing of tokens, then a gated network of each token.  Both begin with
an RMS norm.  A state is all that a model keeps of a text: its size does not depend on the
length."""
from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np

import training.model
from linear.engine import Engine, States
from training import tape
from training.tape import Floats, Ints, Var

if TYPE_CHECKING:
    from linear.methods import Method


@dataclasses.dataclass(frozen=True)
class Shape(training.model.Shape):
    taps: int = 0  # of a convolution before each layer, for methods with none of their own


class State:
    """Of one text: the states of each layer, and how many tokens they hold."""

    def __init__(self, layers: int) -> None:
        self.layers: list[States] = [{} for _ in range(layers)]
        self.tokens = 0

    def bytes(self) -> int:
        found: int = sum(math.prod(x.shape) for kept in self.layers for x in kept.values())
        return 4 * found


class Model(training.model.Model):
    engine: Engine

    def __init__(self, method: Method, shape: Shape, engine: Engine, seed: int = 0) -> None:
        self.method, self.taps = method, shape.taps
        super().__init__(shape, engine, seed)

    def forward(self, tokens: Ints, state: State | None = None, by_row: bool = False) -> Var:
        """With a state the rows' bits do not depend on how many there are."""
        y = super().forward(tokens, state, by_row or state is not None)
        if state is not None:
            state.tokens += tokens.shape[1]
        return y

    def mix(self, index: int, x: Var, state: State | None) -> Var:
        m = Layer(self, index, state)
        if self.taps:
            x = x + m.conv("before", x, self.taps)
        return self.method.mix(m, x)


class Layer(training.model.Layer):
    """What a method sees of its layer."""

    model: Model

    def __init__(self, model: Model, index: int, state: State | None) -> None:
        super().__init__(model, index, by_row=state is not None)
        self.head_count = model.shape.head_count
        self.width = model.shape.width // self.head_count  # of a head
        self.inner = model.shape.width
        self.states = state.layers[index] if state else None
        self.first = state.tokens if state else 0

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
