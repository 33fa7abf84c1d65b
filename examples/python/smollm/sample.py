# SPDX-License-Identifier: Apache-2.0
"""The next token from logits: the likeliest one, or a draw.

    p = softmax(logits / temperature)       over the top_k likeliest tokens, then over the fewest of
                                            these that hold top_p of the probability"""
import secrets

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]


class Sampler:
    """temperature 0: the likeliest token; top_k 0 and top_p 1: of all.  The same seed gives the
    same tokens.  seed None: one is drawn, and is then to be read from `seed`."""

    def __init__(self, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0,
                 seed: int | None = None) -> None:
        if not 0 <= temperature < np.inf:
            raise ValueError(f"temperature is {temperature}, wanted 0 or more")
        if top_k < 0:
            raise ValueError(f"top_k is {top_k}, wanted 1 or more, or 0 for all tokens")
        if not 0 < top_p <= 1:
            raise ValueError(f"top_p is {top_p}, wanted more than 0 and at most 1")
        if seed is not None and seed < 0:
            raise ValueError(f"seed is {seed}, wanted 0 or more")
        self.temperature, self.top_k, self.top_p = temperature, top_k, top_p
        self.seed = secrets.randbits(32) if seed is None else seed
        self.random = np.random.default_rng(self.seed)

    def __call__(self, logits: Floats) -> int:
        if self.temperature == 0:
            return int(logits.argmax())
        tokens, p = self.candidates(logits)
        return int(tokens[np.searchsorted(np.cumsum(p), self.random.random() * p.sum())])

    def candidates(self, logits: Floats) -> tuple[NDArray[np.intp], Floats]:
        """(tokens, probabilities), likeliest first; equals keep the vocabulary's order."""
        tokens = np.argsort(-logits, kind="stable")
        tokens = tokens[:self.top_k] if self.top_k else tokens
        x = (logits[tokens].astype(np.float64) - logits[tokens[0]]) / self.temperature
        p = np.exp(x)
        p /= p.sum()
        before = np.cumsum(p) - p  # the probability of those that are likelier
        tokens, p = tokens[before < self.top_p], p[before < self.top_p]
        return tokens, p / p.sum()

    def __str__(self) -> str:
        if self.temperature == 0:
            return "greedy"
        words = [f"temperature {self.temperature}"]
        words += [f"top-k {self.top_k}"] * bool(self.top_k)
        words += [f"top-p {self.top_p}"] * (self.top_p < 1)
        return ", ".join([*words, f"seed {self.seed}"])
