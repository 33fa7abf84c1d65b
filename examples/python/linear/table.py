# SPDX-License-Identifier: Apache-2.0
"""The rows of both commands' tables, and the plots."""
from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import matplotlib

import training.table

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402


@dataclasses.dataclass(frozen=True)
class Row:
    """Of lm.py: bits a byte on held-out text, and on the text of the last ten steps."""

    method: str
    bits: float
    trained_bits: float
    weights: int
    state_bytes: int
    step_seconds: float
    paper: str
    how: str


@dataclasses.dataclass(frozen=True)
class Recall:
    """Of recall.py: the share of questions that are answered right, by pairs of a text."""

    method: str
    accuracy: float
    weights: int
    state_bytes: int
    steps: int
    step_seconds: float
    paper: str
    how: str


HEADS = {"bits": "bits a byte", "trained_bits": "in training", "state_bytes": "bytes of state",
         "step_seconds": "seconds a step"}
FORMS = {"bits": "{:.3f}", "trained_bits": "{:.3f}", "step_seconds": "{:.2f}",
         "accuracy": "{:.1%}"}


def write_md(rows: Sequence[Any], about: str, path: pathlib.Path) -> None:
    training.table.write_md(rows, about, path, HEADS, FORMS)


def draw(rows: Sequence[Any], title: str, path: pathlib.Path) -> None:
    """A bar for each method, best first: of bits a byte, or of accuracy."""
    from linear.methods import CORRECTING
    recall = isinstance(rows[0], Recall)
    measured = {row.method: row.accuracy if recall else row.bits for row in rows}
    order = sorted(measured, key=lambda name: -measured[name] if recall else measured[name])
    figure, axes = plt.subplots(figsize=(8, 1.2 + 0.28 * len(rows)), constrained_layout=True)
    values = [measured[name] for name in order]
    colors = ["#1b7f79" if name in CORRECTING else "#9aa5b1" for name in order]
    axes.barh(order[::-1], values[::-1], color=colors[::-1])
    for at, value in enumerate(values[::-1]):
        axes.annotate(FORMS["accuracy" if recall else "bits"].format(value), (value, at),
                      xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_title(f"{title}\ngreen: methods that correct their state (x_delta)", fontsize=9)
    if recall:
        axes.set_xlim(0, 1.12)
        axes.xaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1))
    else:
        low, high = min(values), max(values)
        axes.set_xlim(max(0, low - 0.5 * (high - low) - 0.1), high + 0.15 * (high - low) + 0.05)
    figure.savefig(path, dpi=110, format="png")
    plt.close(figure)
