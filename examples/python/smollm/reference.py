# SPDX-License-Identifier: Apache-2.0
"""The same attention by its formula in float64 NumPy: what the test judges fovea by."""
import numpy as np
from numpy.typing import NDArray

from smollm.model import Config, Floats

Doubles = NDArray[np.float64]


class ReferenceAttention:
    def __init__(self, config: Config) -> None:
        self.config, self.length = config, 0
        empty = np.empty((0, config.key_heads, config.head_dim))
        self.k, self.v = [empty] * config.layers, [empty] * config.layers
        self.frequency = config.rope_base ** (-np.arange(0, config.head_dim, 2) / config.head_dim)

    def extend(self, n: int) -> None:
        self.position = np.arange(self.length, self.length + n)
        self.length += n

    def attend(self, layer: int, q: Floats, k: Floats, v: Floats) -> Floats:
        self.k[layer] = np.concatenate([self.k[layer], self.rotate(k)])
        self.v[layer] = np.concatenate([self.v[layer], v.astype(np.float64)])
        group = q.shape[1] // k.shape[1]  # query heads that read one key head
        keys, values = (np.repeat(x[layer], group, axis=1) for x in (self.k, self.v))
        score = np.einsum("shd,thd->hst", self.rotate(q), keys) / np.sqrt(q.shape[2])
        score[:, self.position[:, None] < np.arange(self.length)] = -np.inf
        p = np.exp(score - score.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        o: Floats = np.einsum("hst,thd->shd", p, values).astype(np.float32)
        return o

    def rotate(self, x: Floats) -> Doubles:
        """Pairs (2i, 2i + 1): GGUF stores the rows of Wq and Wk in that order."""
        turn = np.exp(1j * self.position[:, None, None] * self.frequency)
        z = (x[..., 0::2].astype(np.float64) + 1j * x[..., 1::2]) * turn
        return np.stack([z.real, z.imag], axis=-1).reshape(x.shape)
