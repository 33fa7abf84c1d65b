# SPDX-License-Identifier: Apache-2.0
"""The decoder of model.py as a module of PyTorch, whose weights learn."""
from collections.abc import Callable

import torch
from torch import Tensor, nn

from smollm.model import Config, Floats, Layer, Model

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # layer, q, k, v (b, s, heads, d) to o


def turn(x: Tensor, places: Tensor, base: float) -> Tensor:
    """Rope of neighbouring columns, (b, s, heads, d), by the places in the whole text."""
    half = x.shape[-1] // 2
    angle = places[:, None].double() * base ** -(torch.arange(half, device=x.device).double() / half)
    cos, sin = angle.cos().float()[:, None], angle.sin().float()[:, None]
    a, b = x.unflatten(-1, (half, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)


def learned(x: Floats) -> nn.Parameter:
    return nn.Parameter(torch.tensor(x))


def norm(x: Tensor, weight: Tensor, config: Config) -> Tensor:
    return nn.functional.rms_norm(x, weight.shape, weight, config.norm_eps)


class TorchLayer(nn.Module):
    def __init__(self, of: Layer, config: Config) -> None:
        super().__init__()
        self.attention_norm, self.feed_norm = learned(of.attention_norm), learned(of.feed_norm)
        self.qkv, self.output = learned(of.qkv), learned(of.output)
        self.gate_up, self.down, self.config = learned(of.gate_up), learned(of.down), config

    def forward(self, i: int, x: Tensor, places: Tensor, attend: Attend) -> Tensor:
        c = self.config
        y = norm(x, self.attention_norm, c) @ self.qkv.T
        q, k, v = y.unflatten(-1, (-1, c.head_dim)).split((c.heads, *[c.key_heads] * 2), 2)
        o = attend(i, turn(q, places, c.rope_base), turn(k, places, c.rope_base), v)
        x = x + o.flatten(2) @ self.output.T
        gate, up = (norm(x, self.feed_norm, c) @ self.gate_up.T).chunk(2, -1)
        return x + (nn.functional.silu(gate) * up) @ self.down.T


class TorchModel(nn.Module):
    def __init__(self, source: Model) -> None:
        super().__init__()
        self.config, self.embedding = source.config, learned(source.embedding)
        self.last = learned(source.norm)
        self.layers = nn.ModuleList(TorchLayer(x, self.config) for x in source.layers)

    def states(self, text: Tensor, places: Tensor, attend: Attend) -> Tensor:
        """What scores are made of, (b, s, columns), of text (b, s) whose tokens stand at places (s)."""
        x = self.embedding[text]
        for i, layer in enumerate(self.layers):
            x = layer(i, x, places, attend)
        return norm(x, self.last, self.config)

    def scores(self, states: Tensor) -> Tensor:
        return states @ self.embedding.T

    def forward(self, text: Tensor, places: Tensor, attend: Attend) -> Tensor:
        """Scores of the tokens behind each of text (b, s), which stand at places (s)."""
        return self.scores(self.states(text, places, attend))
