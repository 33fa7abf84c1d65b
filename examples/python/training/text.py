# SPDX-License-Identifier: Apache-2.0
"""A model of bytes learns a text, and is judged by the last tenth of it."""
from __future__ import annotations

import argparse
import math
import pathlib
import time

import numpy as np

from smollm.terminal import say
from smollm.text import distinct_text
from training.adam import Adam
from training.model import Model, train_step
from training.tape import Ints, cross_entropy


def read(command: str, path: pathlib.Path | None, tokens: int) -> Ints:
    """The bytes of a file, or of the reference of the Python language, for windows of `tokens`."""
    text = np.frombuffer(distinct_text(path).encode(), np.uint8).astype(np.int64)
    if len(text) < (least := 40 * (tokens + 1)):
        raise SystemExit(f"{command}: the text has {len(text)} bytes, wanted {least}: "
                         "lower --tokens or give a longer --text")
    return text


def split(text: Ints) -> tuple[Ints, Ints]:
    """What is trained on, and the last tenth."""
    cut = len(text) * 9 // 10
    return text[:cut], text[cut:]


def windows(text: Ints, first: Ints, tokens: int) -> tuple[Ints, Ints]:
    """Bytes, and the ones that follow them."""
    found = text[first[:, None] + np.arange(tokens + 1)]
    return found[:, :-1], found[:, 1:]


def learn(name: str, model: Model, text: Ints, args: argparse.Namespace,
          curve: list[float] | None = None) -> tuple[float, float]:
    """(bits a byte in the last ten steps, seconds a step); curve: is given those of each step."""
    adam = Adam(model.weights, args.rate, args.steps, warmup=min(10, args.steps), most=1.0)
    random = np.random.default_rng(args.seed)
    started, losses = time.perf_counter(), list[float]()
    for step in range(1, args.steps + 1):
        first = random.integers(0, len(text) - args.tokens, args.rows)
        losses.append(train_step(model, adam, *windows(text, first, args.tokens)))
        spent = time.perf_counter() - started
        bits = float(np.mean(losses[-10:])) / math.log(2)
        say(f"{name}: step {step} of {args.steps}, {bits:.3f} bits a byte, "
            f"{spent / step:.2f} s a step")
    if curve is not None:
        curve.extend(loss / math.log(2) for loss in losses)
    return bits, spent / args.steps


def judge(model: Model, text: Ints, tokens: int, count: int) -> float:
    """Bits a byte over windows spread over the text."""
    model.trained = False
    first, total = np.linspace(0, len(text) - tokens - 1, count).astype(np.int64), 0.0
    for some in np.array_split(first, -(-count // 16)):
        x, y = windows(text, some, tokens)
        total += float(cross_entropy(model.forward(x), y).value) * len(some)
    model.trained = True
    return total / count / math.log(2)
