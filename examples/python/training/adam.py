# SPDX-License-Identifier: Apache-2.0
"""Adam.  A cosine brings the rate to 0."""
from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from training.tape import Var


class Adam:
    """warmup: steps in which the rate grows; most: what the norm of all gradients is held to."""

    def __init__(self, weights: Mapping[str, Var], rate: float, steps: int, warmup: int = 1,
                 most: float = math.inf, eps: float = 1e-8) -> None:
        self.weights, self.rate, self.steps, self.warmup = weights, rate, steps, warmup
        self.most, self.eps, self.step = most, eps, 0
        self.mean, self.square = ({name: np.zeros_like(w.value) for name, w in weights.items()}
                                  for _ in range(2))

    def learn(self) -> None:
        """From the gradients of the weights, which are then gone."""
        clip = np.float32(1)
        if self.most < math.inf:
            norm = math.sqrt(sum(float((w.grad**2).sum()) for w in self.weights.values()
                                 if w.grad is not None))
            clip = np.float32(min(1, self.most / (norm + 1e-6)))
        rate = self.rate * min(1, (self.step + 1) / self.warmup)
        rate *= 0.5 + 0.5 * math.cos(math.pi * self.step / self.steps)
        self.step += 1
        for name, w in self.weights.items():
            if w.grad is None:
                continue
            m, v, dw = self.mean[name], self.square[name], w.grad * clip
            m += np.float32(0.1) * (dw - m)
            v += np.float32(0.02) * (dw * dw - v)
            w.value -= np.float32(rate / (1 - 0.9**self.step)) * m / (
                np.sqrt(v / np.float32(1 - 0.98**self.step)) + np.float32(self.eps))
            w.grad = None
