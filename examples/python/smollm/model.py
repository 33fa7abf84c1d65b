# SPDX-License-Identifier: Apache-2.0
"""The decoder in NumPy, f32, attention left to whoever is passed in.

    x = embedding[token]
    for each layer:
        x += attention(norm(x) Wqkv) Wo
        x += (silu(norm(x) Wgate) * norm(x) Wup) Wdown
    logits = norm(x) embedding^T

Attention is the protocol that such an object has."""
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from smollm import weights

Floats = NDArray[np.float32]


class Attention(Protocol):
    def extend(self, n: int) -> None:
        """Called once before the layers of a step, with its number of new tokens."""

    def attend(self, layer: int, q: Floats, k: Floats, v: Floats) -> Floats:
        """o of (n, heads, head_dim) arrays: rotates q and k, appends k and v to the cache and
        attends causally over all of it."""


@dataclass
class Config:
    layers: int
    heads: int
    key_heads: int
    head_dim: int
    rope_base: float
    norm_eps: float
    context: int


@dataclass
class Layer:
    attention_norm: Floats
    qkv: Floats  # (h + 2 g) * d rows
    output: Floats
    feed_norm: Floats
    gate_up: Floats
    down: Floats


class Model:
    def __init__(self, config: Config, embedding: Floats, layers: list[Layer],
                 norm: Floats) -> None:
        self.config, self.embedding, self.layers, self.norm = config, embedding, layers, norm

    def forward(self, tokens: Sequence[int], attention: Attention, every: bool = False) -> Floats:
        """Logits that follow the last token, or with `every` those that follow each."""
        c = self.config
        n, d = len(tokens), c.head_dim
        heads = [c.heads, c.heads + c.key_heads]  # where k and v begin
        x = self.embedding[tokens]
        attention.extend(n)
        for i, layer in enumerate(self.layers):
            y = rms_norm(x, layer.attention_norm, c.norm_eps)
            q, k, v = np.split((y @ layer.qkv.T).reshape(n, -1, d), heads, axis=1)
            x += attention.attend(i, q, k, v).reshape(n, -1) @ layer.output.T
            y = rms_norm(x, layer.feed_norm, c.norm_eps)
            gate, up = np.split(y @ layer.gate_up.T, 2, axis=1)
            x += (silu(gate) * up) @ layer.down.T
        x = x if every else x[-1:]
        return rms_norm(x, self.norm, c.norm_eps) @ self.embedding.T


def rms_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    y: Floats = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight
    return y


def silu(x: Floats) -> Floats:
    y: Floats = x / (1 + np.exp(-x))
    return y


def load(source: weights.Weights, progress: Callable[[int, int], object] = lambda done, total: None,
         layers: int | None = None) -> Model:
    """The model in open weights, or its first `layers` layers."""
    config = Config(**source.fields)

    def layer(i: int) -> Layer:
        block = f"blk.{i}."
        return Layer(
            attention_norm=source.tensor(block + "attn_norm"),
            qkv=source.tensor(block + "attn_q", block + "attn_k", block + "attn_v"),
            output=source.tensor(block + "attn_output"),
            feed_norm=source.tensor(block + "ffn_norm"),
            gate_up=source.tensor(block + "ffn_gate", block + "ffn_up"),
            down=source.tensor(block + "ffn_down"),
        )

    embedding, made = source.tensor("token_embd"), list[Layer]()
    count = config.layers if layers is None else layers
    for done in weights.in_order(layer, count):
        made.append(done)
        progress(len(made), count)
    return Model(config, embedding, made, source.tensor("output_norm"))
