# SPDX-License-Identifier: Apache-2.0
"""The decoder in NumPy, f32, attention left to whoever is passed in.

    x = embedding[token]
    for each layer:
        x += attention(norm(x) Wqkv) Wo
        x += (silu(norm(x) Wgate) * norm(x) Wup) Wdown
    logits = norm(x) embedding^T

An attention is an object with `extend(n)`, called once before the layers of a step with its number
of new tokens, and `attend(layer, q, k, v) -> o` on (n, heads, head_dim) arrays, which rotates q and
k, appends k and v to its cache and attends causally over all of it."""
from dataclasses import dataclass

import gguf
import numpy as np


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
    attention_norm: np.ndarray
    qkv: np.ndarray  # (h + 2 g) * d rows
    output: np.ndarray
    feed_norm: np.ndarray
    gate_up: np.ndarray
    down: np.ndarray


class Model:
    def __init__(self, config, embedding, layers, norm):
        self.config, self.embedding, self.layers, self.norm = config, embedding, layers, norm

    def forward(self, tokens, attention, every=False):
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


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight


def silu(x):
    return x / (1 + np.exp(-x))


def load(reader, progress=lambda done, total: None):
    """The model in an open GGUF file; its blocks of 4 and 8 bits become f32."""
    field = lambda name: reader.get_field(f"llama.{name}").contents()
    config = Config(
        layers=field("block_count"),
        heads=field("attention.head_count"),
        key_heads=field("attention.head_count_kv"),
        head_dim=field("rope.dimension_count"),
        rope_base=field("rope.freq_base"),
        norm_eps=field("attention.layer_norm_rms_epsilon"),
        context=field("context_length"),
    )
    tensors = {tensor.name: tensor for tensor in reader.tensors}

    def weight(*names):
        parts = [tensors[name + ".weight"] for name in names]
        return np.concatenate([gguf.quants.dequantize(x.data, x.tensor_type) for x in parts])

    layers = []
    for i in range(config.layers):
        progress(i, config.layers)
        block = f"blk.{i}."
        layers.append(Layer(
            attention_norm=weight(block + "attn_norm"),
            qkv=weight(block + "attn_q", block + "attn_k", block + "attn_v"),
            output=weight(block + "attn_output"),
            feed_norm=weight(block + "ffn_norm"),
            gate_up=weight(block + "ffn_gate", block + "ffn_up"),
            down=weight(block + "ffn_down"),
        ))
    model = Model(config, weight("token_embd"), layers, weight("output_norm"))
    progress(config.layers, config.layers)
    return model
